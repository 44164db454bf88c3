//! The baseline of all measurements: minimal proxies that only forward frames.
//!
//! The gateway's figures are divided by the figures of these proxies. Each proxy does what any proxy has to do (HTTP
//! in, a unique id, HTTP or a pipe out, the client's id restored), with the gateway's components (hyper, tokio's
//! multi-threaded runtime, `TCP_NODELAY`). There are no sessions, checks, routing, deadlines or cancellation.

pub(crate) mod bytes;
pub(crate) mod http;
pub(crate) mod stdio;
