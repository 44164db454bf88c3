//! The server role: connections from clients of either era.
//!
//! A [`Session`] is a legacy client's session (over HTTP, HTTP+SSE or stdio) or one stdio pipe of either era. Modern
//! HTTP clients have no session, because each of their requests is self-contained. [`modern`] checks such a request
//! against its headers. Deliberately absent: sockets and HTTP bodies, which the callers own.

pub mod declared;
pub mod modern;
mod replay;
mod session;
mod streams;

pub use session::{Asked, ClientInfo, InFlight, Session, SessionId};
pub use streams::{Answerer, Lost, Reader};
