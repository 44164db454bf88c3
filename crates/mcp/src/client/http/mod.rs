//! Streamable HTTP towards servers, both eras.
//!
//! Every message is a POST of its own over pooled connections; a response comes as JSON or at the end of a
//! stream of events. What a server may keep from us is bounded: heads, bodies, events, waits. Redirects are
//! not followed: the configured headers are for one origin.

mod body;
mod call;
mod detect;
mod endpoint;
mod link;
mod listen;
mod passage;
mod pool;
mod tcp;
mod wire;

pub(super) use self::{
    body::{Media, media, status_hint},
    detect::connect,
    endpoint::{Endpoint, resolve},
    link::{HttpLink, cause},
    pool::{Body, FETCH_TIMEOUT},
};
pub use self::{
    call::HttpCall,
    passage::{Passage, PassageError, Reply},
    pool::Pool,
};
pub use crate::headers::HeaderList;
