//! Scenarios D of SCENARIOS.md: gateways that go on with what others began.

#![expect(clippy::unwrap_used, reason = "a test helper may fail, as a test may")]

#[path = "../common/mod.rs"]
mod common;

mod sessions;
