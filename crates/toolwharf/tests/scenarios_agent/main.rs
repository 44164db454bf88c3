//! Scenarios A of SCENARIOS.md: many servers as own child processes, and an agent that uses them. The agent is talked to
//! over `POST /api/v1/chat` of the built gateway, with a scripted model; what the model and the servers are asked is
//! looked at where it arrives.

#![expect(
    clippy::unwrap_used,
    reason = "a failure in a test's helper is the test's"
)]

mod support;

#[path = "../common/mod.rs"]
mod common;

mod children;
mod routing;
mod starting;
mod turns;
