//! Why somebody is not signed in.

use std::fmt;

/// What went wrong, as a word that stays the same: documentation and clients go by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// A document or an endpoint did not answer, or not in a way that can be read.
    Unreachable,
    /// Metadata names another issuer, or another resource, than the one that was asked for.
    Mismatch,
    /// The issuer does not say that it knows PKCE with S256.
    NoPkce,
    /// We are not known to the issuer, and it does not say how to become so.
    NoClient,
    /// The issuer refused to register us.
    Registration,
    /// The issuer, or the person, refused the sign-in.
    Denied,
    /// The redirect is not the answer to this sign-in.
    WrongRedirect,
    /// The issuer no longer takes the refresh token or the client.
    Refused,
    /// What was asked for cannot be done with this issuer.
    Unsupported,
}

impl Code {
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unreachable => "issuer_unreachable",
            Self::Mismatch => "metadata_mismatch",
            Self::NoPkce => "no_pkce",
            Self::NoClient => "no_client_id",
            Self::Registration => "registration_refused",
            Self::Denied => "login_denied",
            Self::WrongRedirect => "wrong_redirect",
            Self::Refused => "refresh_refused",
            Self::Unsupported => "unsupported_by_issuer",
        }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why somebody is not signed in; fit for everybody's eyes.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{what} ({code})")]
pub struct Error {
    pub code: Code,
    pub what: String,
}

impl Error {
    pub(crate) fn new(code: Code, what: impl Into<String>) -> Self {
        let what = what.into();
        Self { code, what }
    }

    /// Whether another attempt may do better without anybody's help.
    #[must_use]
    pub fn is_passing(&self) -> bool {
        self.code == Code::Unreachable
    }
}

/// What somebody else said, short and printable.
#[must_use]
pub fn excerpt(text: &str) -> String {
    let printable = text.chars().filter(|c| !c.is_control());
    printable.take(200).collect::<String>().trim().to_owned()
}
