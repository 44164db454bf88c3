//! The server role: what clients of either era are to us.
//!
//! A [`Session`] is one legacy conversation (over HTTP, HTTP+SSE or stdio) or one stdio pipe of either era.
//! Modern HTTP clients have none: each of their requests says everything. [`modern`] checks such a request
//! against its headers. Deliberately absent: sockets and HTTP bodies; whoever owns them calls in here.

pub mod declared;
pub mod modern;
mod replay;
mod session;
mod streams;

pub use session::{Asked, Face, InFlight, Session, SessionId};
pub use streams::{Answerer, Lost, Reader};
