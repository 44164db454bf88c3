//! Scenarios S01 to S08 of the acceptance list: signing in to servers, with npm's `oidc-provider` as the issuer, a
//! protected server, and Chromium for pages that a user sees.

#![expect(clippy::unwrap_used, reason = "test helpers may panic")]

mod support;

#[path = "../common/mod.rs"]
mod common;
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
