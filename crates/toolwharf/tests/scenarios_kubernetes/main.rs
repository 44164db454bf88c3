//! Scenario D08 of the acceptance list: servers declared by Kubernetes resources, on a real API server. The servers run
//! as processes, so that no node is needed: `cargo xtask kubernetes --control-plane -- cargo xtask postgres -- cargo
//! nextest run -p toolwharf --features kubernetes --test scenarios_kubernetes`.
//!
//! The tests share one API server, and one of them deletes the resource definition, so they run one after the other
//! (`.config/nextest.toml`).

#![cfg(feature = "kubernetes")]
#![expect(clippy::unwrap_used, reason = "test helpers may panic")]

#[expect(dead_code, reason = "each test binary uses only a part of it")]
#[path = "../rest/api.rs"]
mod api;
#[path = "../common/mod.rs"]
mod common;

mod declared;
mod deploy;
mod faults;
mod rights;
mod support;
