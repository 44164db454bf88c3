//! Streamable HTTP towards servers, in both eras.
//!
//! Every message is a separate POST over pooled connections. A response comes as JSON or at the end of an event stream.
//! Everything that a server controls is bounded: heads, bodies, events, waits. Redirects (307 and 308) are followed
//! when a connection is opened, and only within the origin, because the configured headers and tokens are meant for it.

mod body;
mod call;
mod check;
mod detect;
mod endpoint;
mod link;
mod listen;
mod passage;
mod pool;
mod refusal;
mod silent;
pub(super) mod sse;
mod wire;

pub(super) use self::{
    body::{Media, media, redirect, status_hint},
    detect::{connect, initialize_too},
    endpoint::Endpoint,
    link::HttpLink,
    pool::Body,
    refusal::means_wait,
    refusal::names_lost_session,
};
pub use self::{
    call::HttpCall,
    endpoint::resolve,
    passage::{Passage, PassageError, Reply},
    pool::Pool,
};
pub use crate::headers::HeaderList;
pub(super) use http_client::cause;
