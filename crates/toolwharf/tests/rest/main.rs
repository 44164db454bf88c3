//! The REST API of a running gateway.

mod api;
mod attention;
mod authorization;
mod changes;
#[path = "../common/mod.rs"]
mod common;
mod entries;
mod events;
mod hosted;
mod keys;
mod mcp;
mod openapi;
mod projects;
mod schemathesis;
mod settings;
