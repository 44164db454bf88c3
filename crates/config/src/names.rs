//! Names of servers whose key in a file cannot be a name, such as `com.atlassian/jira` in VS Code's gallery or
//! `github.com/upstash/context7-mcp` in Cline's marketplace.

use model::{InvalidName, ServerName};

/// The name if nothing of the key can be used.
const NO_NAME: &str = "server";
/// Maximum length of a name, in characters.
const MAX_CHARS: usize = 64;

/// The name of the server with this key. A key with `/` gives the part after the last one. For other keys that cannot
/// be names, a substitute with the reason.
pub(crate) fn server_name(key: &str) -> (ServerName, Option<InvalidName>) {
    match ServerName::parse(key) {
        Ok(name) => (name, None),
        Err(InvalidName::Slash) => {
            let mut parts = key.rsplit('/').map(slug);
            let last = parts.find(|part| !part.is_empty());
            (parsed(&last.unwrap_or_default()), None)
        }
        Err(error) => (parsed(&slug(key)), Some(error)),
    }
}

/// The whole key as a name, for a server whose [`server_name`] is taken.
pub(crate) fn long_name(key: &str) -> ServerName {
    parsed(&slug(key))
}

fn slug(text: &str) -> String {
    let allowed = |c: char| {
        if c.is_alphanumeric() || "._-".contains(c) {
            c
        } else {
            '-'
        }
    };
    let slug: String = text.chars().map(allowed).take(MAX_CHARS).collect();
    slug.trim_matches('-').to_owned()
}

fn parsed(slug: &str) -> ServerName {
    let name = ServerName::parse(slug).or_else(|_| ServerName::parse(NO_NAME));
    name.expect("the substitute is a name")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_galleries() {
        for (key, name, long) in [
            ("time", "time", "time"),
            ("Bar Baz", "Bar Baz", "Bar-Baz"),
            ("com.atlassian/jira", "jira", "com.atlassian-jira"),
            (
                "github.com/upstash/context7-mcp",
                "context7-mcp",
                "github.com-upstash-context7-mcp",
            ),
            ("@scope/server x/", "server-x", "scope-server-x"),
            ("///", "server", "server"),
            ("../..", "server", "..-.."),
        ] {
            let (short, invalid) = server_name(key);
            assert_eq!((short.as_str(), invalid), (name, None), "{key}");
            assert_eq!(long_name(key).as_str(), long, "{key}");
        }
        let long = "x".repeat(70);
        for (key, name, error) in [
            ("", "server", InvalidName::Empty),
            ("..", "server", InvalidName::Dots),
            ("a\nb", "a-b", InvalidName::Control),
            (&long, &long[..64], InvalidName::TooLong),
        ] {
            let (substitute, invalid) = server_name(key);
            assert_eq!((substitute.as_str(), invalid), (name, Some(error)));
        }
    }
}
