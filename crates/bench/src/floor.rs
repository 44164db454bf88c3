//! The floor: proxies that do nothing but pass frames on, made as cheap as is honest.
//!
//! They are what the product is divided by. Each does what no proxy can leave out (HTTP in, an
//! id that cannot collide, HTTP or a pipe out, the client's id back) on the same parts as the
//! product (hyper, tokio's multi-threaded runtime, `TCP_NODELAY`), and nothing besides: no
//! sessions, checks, routing, deadlines or cancellation.

pub(crate) mod bytes;
pub(crate) mod http;
pub(crate) mod stdio;
