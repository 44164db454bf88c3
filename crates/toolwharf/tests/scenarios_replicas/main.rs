//! Scenarios D of SCENARIOS.md: several gateways on one Postgres, and sessions that outlive theirs. They need a server: `cargo xtask postgres -- cargo nextest
//! run -p toolwharf --test scenarios_replicas`.

#![expect(clippy::unwrap_used, reason = "a test helper may fail, as a test may")]

#[expect(dead_code, reason = "each test binary uses its own part of it")]
#[path = "../rest/api.rs"]
mod api;
#[expect(dead_code, reason = "each test binary uses its own part of it")]
#[path = "../recipe_vault/browser.rs"]
mod browser;
#[path = "../common/mod.rs"]
mod common;

mod browsers;
mod changes;
mod clients;
mod clocks;
mod elsewhere;
mod failover;
mod forward;
mod held;
#[cfg(feature = "kubernetes")]
mod kubernetes;
mod load;
mod many;
mod returns;
mod sessions;
mod slow;
mod support;
mod swarm;
