//! The client role over HTTP, against a scripted server on a real socket.

mod calls;
mod detect;
mod server;
mod sse;
mod streams;
