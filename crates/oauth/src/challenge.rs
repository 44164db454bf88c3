//! `WWW-Authenticate: Bearer …` (RFC 6750, 3; RFC 9728, 5.1), or `DPoP …` (RFC 9449, 7.1).

/// Maximum bytes of a parameter value. Longer values are ignored.
const MAX_VALUE_BYTES: usize = 4096;

/// A server's challenge: sent when it refuses a request because the token is missing or insufficient.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Challenge {
    /// URL of the protected resource's metadata.
    pub resource_metadata: Option<String>,
    /// Scopes, separated by spaces.
    pub scope: Option<String>,
    pub error: Option<String>,
    /// True if the server accepts tokens that are bound to a key.
    pub is_dpop: bool,
}

impl Challenge {
    /// Reads the parameters of a header's `Bearer` and `DPoP` challenges. Without one, the result is empty.
    #[must_use]
    pub fn parse(header: &str) -> Self {
        let mut challenge = Self::default();
        let mut is_ours = false;
        let mut rest = header;
        loop {
            rest = rest.trim_start_matches([' ', '\t', ',']);
            let end = rest
                .find(|c: char| !(c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c)))
                .unwrap_or(rest.len());
            let (name, after) = rest.split_at(end);
            if name.is_empty() {
                return challenge;
            }
            let Some(value) = after.trim_start().strip_prefix('=') else {
                // This word is a scheme, to which the following parameters belong.
                let is_dpop = name.eq_ignore_ascii_case("dpop");
                challenge.is_dpop |= is_dpop;
                is_ours = is_dpop || name.eq_ignore_ascii_case("bearer");
                rest = after;
                continue;
            };
            let (value, after) = value_of(value.trim_start());
            rest = after;
            if !is_ours || value.len() > MAX_VALUE_BYTES {
                continue;
            }
            let place = match name.to_ascii_lowercase().as_str() {
                "resource_metadata" => &mut challenge.resource_metadata,
                "scope" => &mut challenge.scope,
                "error" => &mut challenge.error,
                _ => continue,
            };
            place.get_or_insert(value);
        }
    }

    /// The scopes of the challenge.
    pub fn scopes(&self) -> impl Iterator<Item = &str> {
        self.scope.iter().flat_map(|scope| scope.split_whitespace())
    }
}

/// Reads a token or a quoted string (RFC 9110, 5.6). Returns its value and the rest of the text.
fn value_of(text: &str) -> (String, &str) {
    let Some(quoted) = text.strip_prefix('"') else {
        let end = text.find([',', ' ', '\t']).unwrap_or(text.len());
        return (text[..end].to_owned(), &text[end..]);
    };
    let mut value = String::new();
    let mut chars = quoted.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return (value, &quoted[at + 1..]),
            '\\' => value.extend(chars.next().map(|(_, c)| c)),
            c => value.push(c),
        }
    }
    (value, "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_bearer_challenge_among_others() {
        for (header, metadata, scope, error) in [
            (
                r#"Bearer resource_metadata="https://a/x", scope="a b""#,
                Some("https://a/x"),
                Some("a b"),
                None,
            ),
            (
                r#"Basic realm="scope=\"no\", Bearer", bearer error=insufficient_scope,scope=files"#,
                None,
                Some("files"),
                Some("insufficient_scope"),
            ),
            (r#"DPoP scope="x""#, None, Some("x"), None),
            (r#"Digest scope="x""#, None, None, None),
            (r#"Bearer scope="open"#, None, Some("open"), None),
            ("Bearer", None, None, None),
            ("\u{fc}=\"", None, None, None),
            ("Bearer scope=one, scope=two", None, Some("one"), None),
        ] {
            let read = Challenge::parse(header);
            assert_eq!(read.resource_metadata.as_deref(), metadata, "{header}");
            assert_eq!(read.scope.as_deref(), scope, "{header}");
            assert_eq!(read.error.as_deref(), error, "{header}");
        }
    }
}
