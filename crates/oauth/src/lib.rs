//! An OAuth client for sign-in to servers (MCP authorization, 2025-03-26 to 2026-07-28). `auth` also uses its requests
//! to let people sign in at an OpenID Connect issuer.
//!
//! [`discover`] finds the authorization server of a protected server, [`identify`] chooses or registers the client,
//! [`Attempt`] is a sign-in through a browser, [`device`] is one on another device, and [`token`] makes the requests to
//! the token endpoint.
//!
//! Invariants: everything that a server or an issuer sends is bounded; errors show only printable excerpts of it. No
//! error and no `Debug` contains a token, a code, a verifier or a secret. Issuers are compared character by character
//! (RFC 8414, 3.3; RFC 9207, 2.4). Deliberately absent: how requests are sent ([`Http`]), where tokens are stored, and
//! who owns them.

mod assertion;
mod attempt;
mod challenge;
mod client;
mod device;
mod discovery;
pub mod dpop;
mod error;
mod metadata;
mod request;
pub mod token;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{Request, Response};

pub use self::{
    assertion::{exchange, of_assertion},
    attempt::{Attempt, Callback, authorization_url},
    challenge::Challenge,
    client::{Client, identify},
    device::{Device, Polled},
    discovery::{Discovery, discover, discover_issuer, first_of, well_known},
    error::{Code, Error, excerpt},
    metadata::Metadata,
    request::{basic, document, parsed, post_form, random},
    token::Tokens,
};

/// Sends requests to issuers, and to servers for their metadata.
///
/// An implementation must not follow redirects. It limits the time and the response size, and refuses addresses that a
/// server with `public_only` may not use. The error is the reason for a missing response, without secrets.
pub trait Http: Send + Sync {
    fn send(&self, request: Request<Bytes>) -> BoxFuture<'_, Result<Response<Bytes>, String>>;
}

/// Toolwharf's identity towards issuers.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The URL that browsers return to.
    pub redirect_uri: String,
    /// The public URL of our client metadata document, if it has one (CIMD).
    pub metadata_url: Option<String>,
}

/// Seconds since 1970.
#[must_use]
pub fn now() -> i64 {
    let since = model::clock::now().duration_since(std::time::SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| {
        i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
    })
}
