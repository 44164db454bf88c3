//! Scenarios P, G08, G09 and G12 of SCENARIOS.md for projects of the database: each runs as `…::sqlite` and as
//! `…::postgres`. Those on Postgres need a server: `cargo xtask postgres -- cargo nextest run -p toolwharf`.

#![expect(clippy::unwrap_used, reason = "a test helper may fail, as a test may")]

#[macro_use]
mod support;

#[expect(dead_code, reason = "each test binary uses its own part of it")]
#[path = "../rest/api.rs"]
mod api;
#[path = "../common/mod.rs"]
mod common;

mod calls;
mod catalog;
mod cooldown;
mod lifetime;
mod pins;
mod remote;
mod rows;
mod scopes;
mod sealed;
mod secrets;
