//! Access tokens of requests over HTTP: where they come from, and what happens when one does not suffice
//! (2026-07-28 basic/authorization "Access Token Usage").

use std::{fmt, sync::Arc};

use futures_util::future::BoxFuture;
use http::HeaderValue;

/// Gives the requests of one conversation their access token, and hears when the server wants another one.
pub trait Authorize: Send + Sync + fmt::Debug {
    /// The token for a request that is sent now.
    fn token(&self) -> Token;

    /// Another token after the server refused `used`, with what it said (`WWW-Authenticate`). The request is sent once more with it: a refusal
    /// means that it was not acted on.
    fn refused(
        &self,
        used: Option<HeaderValue>,
        challenge: String,
    ) -> BoxFuture<'static, Result<HeaderValue, SignIn>>;
}

/// A value of `Authorization`.
pub enum Token {
    /// The token that is known. `None` means that the request goes without one.
    Is(Option<HeaderValue>),
    /// It is looked up, or renewed.
    Comes(BoxFuture<'static, Result<Option<HeaderValue>, SignIn>>),
}

/// Why there is no token, and what somebody can do about it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct SignIn {
    /// Fit for clients, with the way out.
    pub reason: Arc<str>,
    /// Whether somebody has to sign in; if not, the issuer could not be asked, and it may go another time.
    pub is_needed: bool,
}
