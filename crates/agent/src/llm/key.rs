//! API keys of model providers.

use std::fmt;

use http::HeaderValue;
use zeroize::Zeroizing;

use super::ModelError;

/// A provider's key. It never appears in `Debug` output, and its memory is wiped when it is dropped.
#[derive(Clone)]
pub struct ApiKey(Zeroizing<String>);

impl ApiKey {
    /// Accepts a key. Surrounding white space is removed.
    ///
    /// # Errors
    /// [`ModelError::Settings`] if it is empty or has characters that are not allowed in a header.
    pub fn new(key: impl Into<String>) -> Result<Self, ModelError> {
        let key = Zeroizing::new(key.into());
        let trimmed = key.trim();
        let wrong = |why: &str| Err(ModelError::Settings(format!("the model's key {why}")));
        if trimmed.is_empty() {
            return wrong("is empty: set it in the environment or in the secret store");
        }
        if !trimmed.bytes().all(|byte| byte.is_ascii_graphic()) {
            return wrong(
                "contains a blank, a control character or a character outside ASCII: copy it again",
            );
        }
        Ok(Self(Zeroizing::new(trimmed.to_owned())))
    }

    /// The header value: `prefix`, then the key. Marked as sensitive, so that it is not logged.
    pub(super) fn header(&self, prefix: &str) -> HeaderValue {
        let text = Zeroizing::new(format!("{prefix}{}", self.0.as_str()));
        let mut value = HeaderValue::from_str(&text).expect("visible ASCII can stand in a header");
        value.set_sensitive(true);
        value
    }

    /// Replaces the key in a provider's message.
    pub(super) fn scrub(&self, text: &str) -> String {
        text.replace(self.0.as_str(), "[the key]")
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ApiKey([hidden])")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_shows_nowhere() {
        let key = ApiKey::new(" sk-secret\n").expect("a key");
        assert!(!format!("{key:?}").contains("secret"));
        assert!(!format!("{:?}", key.header("Bearer ")).contains("secret"));
        assert_eq!(key.header("Bearer ").as_bytes(), b"Bearer sk-secret");
        assert_eq!(key.scrub("bad key sk-secret!"), "bad key [the key]!");
    }

    #[test]
    fn what_is_no_key_is_refused_without_repeating_it() {
        for bad in ["", "  ", "two words", "line\nbreak", "schlüssel"] {
            let error = ApiKey::new(bad).expect_err(bad).to_string();
            assert!(error.starts_with("the model's key "), "{error}");
            assert!(!error.contains("schlüssel") && !error.contains("words"));
        }
    }
}
