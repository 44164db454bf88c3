//! Scenarios D of the acceptance list: several gateways on one Postgres, and sessions that survive the gateway that
//! opened them. They need a Postgres: `cargo xtask postgres -- cargo nextest run -p toolwharf --test
//! scenarios_replicas`.

#![expect(clippy::unwrap_used, reason = "test helpers may panic")]

#[expect(dead_code, reason = "each test binary uses only a part of it")]
#[path = "../rest/api.rs"]
mod api;
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
mod results;
mod returns;
mod sessions;
mod slow;
mod support;
mod swarm;
