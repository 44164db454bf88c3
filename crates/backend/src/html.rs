//! Texts for HTML pages.

/// Escapes a text for use in an element or a quoted attribute.
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

/// The address of the gateway for links in its page at `path`. It ends with a slash. `prefix` is the path of the
/// gateway's URL. Without one, the address is relative: a proxy may serve the gateway below a path without the gateway
/// knowing it.
pub fn root(prefix: &str, path: &str) -> String {
    let depth = path.matches('/').count();
    match prefix {
        "" if depth < 2 => "./".to_owned(),
        "" => "../".repeat(depth - 1),
        prefix => format!("{prefix}/"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_find_the_root() {
        for (path, expected) in [
            ("/", "./"),
            ("/servers", "./"),
            ("/servers/", "../"),
            ("/servers/a%2Fb", "../"),
            ("/a/b/c", "../../"),
        ] {
            assert_eq!(root("", path), expected, "{path}");
            assert_eq!(root("/tools", path), "/tools/", "{path}");
        }
    }
}
