//! Why a sign-in failed.

use std::fmt;

/// The kind of failure, as a stable word that documentation and clients rely on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// A document or an endpoint did not respond, or the response is invalid.
    Unreachable,
    /// Metadata is for another issuer or resource than requested.
    Mismatch,
    /// The issuer does not declare support for PKCE with S256.
    NoPkce,
    /// The issuer has no client for us, and offers no way to register one.
    NoClient,
    Registration,
    /// The issuer or the user refused the sign-in.
    Denied,
    /// The redirect does not belong to this sign-in.
    WrongRedirect,
    /// The issuer no longer accepts the refresh token or the client.
    Refused,
    /// The issuer does not support what was requested.
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

/// Why a sign-in failed. Contains no secrets.
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

    /// Returns true if a retry may succeed without user action.
    #[must_use]
    pub fn is_passing(&self) -> bool {
        self.code == Code::Unreachable
    }
}

/// A short, printable excerpt of text from another party.
#[must_use]
pub fn excerpt(text: &str) -> String {
    let printable = text.chars().filter(|c| !c.is_control());
    printable.take(200).collect::<String>().trim().to_owned()
}
