//! Secrets that are never shown or logged.

use std::fmt;

/// An administrator's secret, such as a key to an external API. `Debug` hides it, and there is no `Display`.
#[derive(Clone, PartialEq, Eq)]
pub struct Hidden(String);

impl Hidden {
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Returns the secret. Call this only where the secret is used.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Returns `text` with the secret replaced by `…`, because services may repeat what they were sent.
    #[must_use]
    pub fn blot(&self, text: &str) -> String {
        match self.0.is_empty() {
            true => text.to_owned(),
            false => text.replace(&self.0, "…"),
        }
    }
}

impl fmt::Debug for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[hidden]")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_not_shown() {
        let hidden = Hidden::new("e2b_0123");
        assert_eq!(
            format!("{hidden:?} {:#?}", Some(&hidden))
                .matches("e2b_")
                .count(),
            0
        );
        assert_eq!(
            hidden.blot("the key e2b_0123 is wrong"),
            "the key … is wrong"
        );
        assert_eq!(Hidden::new("").blot("as it was"), "as it was");
    }
}
