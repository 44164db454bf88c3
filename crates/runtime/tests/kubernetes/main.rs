//! Pods of a real cluster. Needs one: `cargo xtask kubernetes -- cargo nextest run -p runtime --features kubernetes -E
//! 'binary(kubernetes)'`.

#![cfg(feature = "kubernetes")]

mod cost;
mod fences;
mod rights;
#[path = "../support/server.rs"]
mod server;
mod support;
