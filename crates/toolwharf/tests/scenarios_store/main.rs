//! Scenarios P, G08, G09 and G12 of the acceptance list for projects of the database. Each runs as `…::sqlite` and as
//! `…::postgres`. The latter need a Postgres: `cargo xtask postgres -- cargo nextest run -p toolwharf`.

#![expect(clippy::unwrap_used, reason = "test helpers may panic")]

#[macro_use]
mod support;

#[expect(dead_code, reason = "each test binary uses only a part of it")]
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
