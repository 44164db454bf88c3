//! Scenarios S01 to S08 of SCENARIOS.md: signing in to servers, with npm's `oidc-provider` as the issuer, a protected server, and
//! Chromium where a person sees a page.

#![expect(clippy::unwrap_used, reason = "a failure is the test's")]

mod support;

#[expect(dead_code, reason = "each test binary uses its own part of it")]
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
