//! Scenarios H01 to H20 of SCENARIOS.md through the product's own REST API: each runs as `process::…`, as `runc::…`
//! and as `gvisor::…`. Those in containers need a daemon of their own: `cargo xtask docker -- cargo nextest run -p
//! toolwharf -E 'binary(scenarios_hosting)'`.
//!
//! Where a platform cannot do a thing, its test asserts how it says so.

#![expect(clippy::unwrap_used, reason = "a test helper may fail, as a test may")]

#[macro_use]
mod support;

#[path = "../kept/mod.rs"]
mod kept;

mod bridge;
mod life;
mod limits;
mod real;
mod registering;
mod volumes;
