//! The surfaces on which clients speak MCP: streamable HTTP, HTTP+SSE and stdio.
//!
//! The future that answers a request is moved whole into its connection, for every request. Rare branches are boxed to
//! keep it small.

#![warn(clippy::large_futures)]

#[expect(clippy::large_futures, reason = "sign-in pages are served rarely")]
pub mod auth_pages;
mod batch;
mod body;
mod elsewhere;
mod forward;
mod guard;
mod http;
mod idle;
mod listen;
mod listener;
mod patience;
pub mod peers;
mod proxied;
mod room;
mod seal;
mod sessions;
mod shares;
mod socket;
mod sse;
pub mod stdio;
mod tls;
mod wire;

pub use body::{Answering, Body, KEEP_ALIVE};
pub use elsewhere::Leases;
pub use guard::{Guard, METADATA, Refusal, RequestInfo, TOOLS, challenge};
pub use http::{HttpGateway, Upload, collect, json_body, prefers_stream};
pub use listener::{Answered, For, Routes, serve};
pub use seal::Seal;
pub use socket::Heir;
pub use tls::Tls;
