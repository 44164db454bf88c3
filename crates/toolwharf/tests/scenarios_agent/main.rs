//! Scenarios A of the acceptance list: many servers as child processes, and an agent that uses them. The tests use
//! `POST /api/v1/chat` of the built gateway with a scripted model, and check the requests where they arrive, at the
//! model and at the servers.

#![expect(clippy::unwrap_used, reason = "test helpers may panic")]

mod support;

#[path = "../common/mod.rs"]
mod common;

mod children;
mod routing;
mod starting;
mod turns;
