//! Scenario D08 of SCENARIOS.md: servers that a resource of Kubernetes declares, on a real API server. Servers are run as
//! processes, so that no node is needed: `cargo xtask kubernetes --control-plane -- cargo xtask postgres -- cargo nextest run
//! -p toolwharf --features kubernetes --test scenarios_kubernetes`.
//!
//! All share one API server, and one of them deletes the definition: they run one after the other (`.config/nextest.toml`).

#![cfg(feature = "kubernetes")]
#![expect(clippy::unwrap_used, reason = "a test helper may fail, as a test may")]

#[expect(dead_code, reason = "each test binary uses its own part of it")]
#[path = "../rest/api.rs"]
mod api;
#[path = "../common/mod.rs"]
mod common;

mod declared;
mod deploy;
mod faults;
mod rights;
mod support;
