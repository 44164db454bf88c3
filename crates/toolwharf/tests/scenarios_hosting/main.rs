//! Scenarios H01 to H20 of the acceptance list, through the product's REST API. Each runs as `process::…`,
//! `postgres::…` (state in Postgres), `runc::…` and `gvisor::…`. They need separate daemons: `cargo xtask postgres --
//! cargo xtask docker -- cargo nextest run -p toolwharf -E 'binary(scenarios_hosting)'`. On a swarm (`d06_swarm::…`,
//! `d06_swarm_gvisor::…`) most of them run in the soak: `cargo xtask soak swarm`.
//!
//! If a platform does not support a feature, its test asserts the error message.

#![expect(clippy::unwrap_used, reason = "test helpers may panic")]

#[macro_use]
mod support;

#[path = "../common/mod.rs"]
mod common;
#[path = "../kept/mod.rs"]
mod kept;

mod bridge;
mod documented;
mod entries;
mod installing;
mod kubernetes;
#[cfg(feature = "kubernetes")]
mod kubernetes_api;
#[cfg(feature = "kubernetes")]
mod kubernetes_conformance;
#[cfg(feature = "kubernetes")]
mod kubernetes_faults;
mod life;
mod limits;
mod packages;
mod pinned;
mod ports;
mod real;
mod registering;
mod swarm;
mod volumes;
