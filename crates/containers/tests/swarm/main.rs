//! Servers as services of a real Docker Swarm.
//!
//! Needs a swarm with the test images: `cargo xtask swarm -- cargo nextest run -p containers --test swarm`. Each test uses
//! a separate installation in the swarm.

mod faults;
mod life;
mod nodes;
#[path = "../../../runtime/tests/support/server.rs"]
mod server;
#[path = "../shared/mod.rs"]
mod shared;
#[path = "../../../runtime/tests/support/streams.rs"]
mod streams;
mod support;
