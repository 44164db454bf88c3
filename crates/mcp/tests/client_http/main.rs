//! The client role over HTTP, against a scripted server on a real socket.

mod calls;
mod detect;
mod idle;
mod quirks;
mod server;
mod sessions;
mod sse;
mod streams;
