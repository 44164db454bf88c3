//! Scenarios H01 to H20 of SCENARIOS.md through the product's own REST API: each runs as `process::…`, with the state in
//! Postgres as `postgres::…`, as `runc::…` and as `gvisor::…`. They need servers of their own: `cargo xtask postgres --
//! cargo xtask docker -- cargo nextest run -p toolwharf -E 'binary(scenarios_hosting)'`. On a swarm (`d06_swarm::…`, `d06_swarm_gvisor::…`)
//! most of them run in the soak: `cargo xtask soak swarm`.
//!
//! Where a platform cannot do a thing, its test asserts how it says so.

#![expect(clippy::unwrap_used, reason = "a test helper may fail, as a test may")]

#[macro_use]
mod support;

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
