//! Streamable HTTP towards servers, in both eras.
//!
//! Every message is a separate POST over pooled connections. A response comes as JSON or at the end of an event stream.
//! Everything that a server controls is bounded: heads, bodies, events, waits. Redirects are not followed, because the
//! configured headers are meant for one origin.

mod body;
mod call;
mod detect;
mod endpoint;
mod link;
mod listen;
mod passage;
mod pool;
pub(super) mod sse;
mod wire;

pub(super) use self::{
    body::{Media, media, status_hint},
    detect::connect,
    endpoint::{Endpoint, resolve},
    link::HttpLink,
    pool::Body,
};
pub use self::{
    call::HttpCall,
    passage::{Passage, PassageError, Reply},
    pool::Pool,
};
pub use crate::headers::HeaderList;
pub(super) use http_client::cause;
