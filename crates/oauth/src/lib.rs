//! Signing in to servers: MCP authorization from 2025-03-26 to 2026-07-28, with us as the OAuth client.
//!
//! [`discover`] finds the authorization server of a protected one, [`identify`] makes us known to it, [`Attempt`] is a
//! sign-in by a browser and [`device`] one without, and [`token`] has the requests to the token endpoint.
//!
//! Invariants: what a server or an issuer says is bounded, and is shown in errors only in part and printable. No error and no
//! `Debug` holds a token, a code, a verifier or a secret. An issuer is compared letter by letter (RFC 8414, 3.3; RFC 9207, 2.4). Deliberately absent:
//! how requests are sent ([`Http`]), where tokens are kept, and whose they are.

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
    attempt::{Attempt, Callback},
    challenge::Challenge,
    client::{Client, identify},
    device::{Device, Polled},
    discovery::{Discovery, discover, discover_issuer},
    error::{Code, Error, excerpt},
    metadata::Metadata,
    token::Tokens,
};

/// Sends requests to issuers, and to servers for their metadata.
///
/// An implementation does not follow redirects, waits and reads within bounds, and refuses addresses that a
/// server with `public_only` may not name. The error says why there is no answer, without secrets.
pub trait Http: Send + Sync {
    fn send(&self, request: Request<Bytes>) -> BoxFuture<'_, Result<Response<Bytes>, String>>;
}

/// Who we are towards issuers.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Where browsers come back to.
    pub redirect_uri: String,
    /// Where our client metadata document is, if the world can read it (CIMD).
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
