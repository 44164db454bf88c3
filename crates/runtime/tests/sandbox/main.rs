//! Servers as sandboxed processes: real namespaces, real control groups, real programs.

#![expect(clippy::unwrap_used, reason = "it is a test")]

mod end;
mod escapes;
mod ground;
mod isolation;
mod limits;
mod network;
mod rootless;
#[path = "../support/server.rs"]
mod server;
#[path = "../support/mod.rs"]
mod support;
