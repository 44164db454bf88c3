//! Pods of a real cluster. Needs one: `cargo xtask kubernetes -- cargo nextest run -p containers --features kubernetes -E
//! 'binary(kubernetes)'`.

#![cfg(feature = "kubernetes")]

mod cost;
mod fences;
mod rights;
#[path = "../../../runtime/tests/support/server.rs"]
mod server;
mod support;
