//! The surfaces on which clients speak MCP: streamable HTTP, HTTP+SSE and stdio.
//!
//! The future that answers a request is moved whole into its connection, for every request. Rare branches are boxed to
//! keep it small.

#![warn(clippy::large_futures)]

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
pub(crate) mod peers;
mod room;
mod seal;
mod sessions;
mod shares;
mod sse;
pub(crate) mod stdio;
mod wire;

pub(crate) use body::{Answering, Body, KEEP_ALIVE};
pub(crate) use elsewhere::Leases;
pub(crate) use guard::{Asked, Guard, METADATA, Refusal, challenge};
pub(crate) use http::{Front, collect, json_body, prefers_stream};
pub(crate) use listener::{Answered, For, Routes, serve};
pub(crate) use seal::Seal;
pub(crate) use wire::Upload;
