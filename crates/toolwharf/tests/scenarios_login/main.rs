//! Scenarios S01 to S08 of SCENARIOS.md: signing in to servers, with npm's `oidc-provider` as the issuer, a protected
//! server, and Chromium for pages that a user sees.

#![expect(clippy::unwrap_used, reason = "test helpers may panic")]

mod support;

#[expect(dead_code, reason = "each test binary uses only a part of it")]
#[path = "../common/cli.rs"]
mod cli;
#[path = "../kept/mod.rs"]
mod kept;

mod bound;
mod command;
mod from_clients;
mod links;
mod lost;
mod persons;
mod renewal;
mod scopes;
mod variables;
