//! Access tokens for HTTP requests: their source, and their replacement when the server rejects one (2026-07-28
//! basic/authorization "Access Token Usage").

use std::{fmt, sync::Arc};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{HeaderValue, Request};

/// Supplies the access tokens for the requests of one connection, and replaces them when the server rejects them.
pub trait Authorize: Send + Sync + fmt::Debug {
    /// The token for the next request.
    fn token(&self) -> Token;

    /// Returns a new token after the server rejected `used`, given the server's `WWW-Authenticate` value. The request
    /// is sent once more with it: a rejection means that the server did not act on the request.
    fn refused(
        &self,
        used: Option<Access>,
        challenge: String,
    ) -> BoxFuture<'static, Result<Access, SignIn>>;
}

pub enum Token {
    /// The current token. `None`: the request is sent without one.
    Is(Option<Access>),
    /// The token is being fetched or renewed.
    Comes(BoxFuture<'static, Result<Option<Access>, SignIn>>),
}

/// An access token. Two tokens are equal if their `Authorization` values are equal.
#[derive(Clone, Debug)]
pub struct Access {
    /// The value of `Authorization`.
    pub header: HeaderValue,
    /// Set if the token is bound to a key.
    pub prover: Option<Arc<dyn Prove>>,
}

/// Proves that the sender of a request holds the key of its token (RFC 9449).
pub trait Prove: Send + Sync + fmt::Debug {
    /// The proof for one request.
    fn proof(&self, method: &str, url: &str) -> Option<HeaderValue>;

    /// Stores the nonce that the server expects in later proofs.
    fn learn(&self, nonce: &str);
}

impl PartialEq for Access {
    fn eq(&self, other: &Self) -> bool {
        self.header == other.header
    }
}

/// Signs requests so that the receiver recognises another gateway of the same installation.
pub trait Sign: Send + Sync + fmt::Debug {
    /// Signs a whole request just before it is sent, by changing its headers.
    fn sign(&self, request: &mut Request<Bytes>);
}

/// The reason for a missing token, and what the user can do about it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct SignIn {
    /// Shown to clients. Includes the remedy.
    pub reason: Arc<str>,
    /// True if the user has to sign in. False if the issuer could not be reached; a later attempt may succeed.
    pub is_needed: bool,
}
