//! Access tokens of requests over HTTP: where they come from, and what happens when one does not suffice
//! (2026-07-28 basic/authorization "Access Token Usage").

use std::{fmt, sync::Arc};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{HeaderValue, Request};

/// Gives the requests of one conversation their access token, and hears when the server wants another one.
pub trait Authorize: Send + Sync + fmt::Debug {
    /// The token for a request that is sent now.
    fn token(&self) -> Token;

    /// Another token after the server refused `used`, with what it said (`WWW-Authenticate`). The request is sent once more with it: a refusal
    /// means that it was not acted on.
    fn refused(
        &self,
        used: Option<Access>,
        challenge: String,
    ) -> BoxFuture<'static, Result<Access, SignIn>>;
}

/// The credential of a request.
pub enum Token {
    /// The token that is known. `None` means that the request goes without one.
    Is(Option<Access>),
    /// It is looked up, or renewed.
    Comes(BoxFuture<'static, Result<Option<Access>, SignIn>>),
}

/// An access token. Two are equal if their values of `Authorization` are.
#[derive(Clone, Debug)]
pub struct Access {
    /// The value of `Authorization`.
    pub header: HeaderValue,
    /// Of a token that is bound to a key.
    pub prover: Option<Arc<dyn Prove>>,
}

/// Shows that the sender of a request has the key of its token (RFC 9449).
pub trait Prove: Send + Sync + fmt::Debug {
    /// The proof for one request.
    fn proof(&self, method: &str, url: &str) -> Option<HeaderValue>;

    /// Takes in the nonce that the server wants in proofs from now on.
    fn learn(&self, nonce: &str);
}

impl PartialEq for Access {
    fn eq(&self, other: &Self) -> bool {
        self.header == other.header
    }
}

/// Makes requests what their receiver takes them for: another gateway of the same installation.
pub trait Sign: Send + Sync + fmt::Debug {
    /// Changes the headers of a request as it is sent, by all that it says.
    fn sign(&self, request: &mut Request<Bytes>);
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
