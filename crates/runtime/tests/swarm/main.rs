//! Hosted servers as services of a real Docker Swarm.
//!
//! They need a swarm with the test images: `cargo xtask swarm -- cargo nextest run -p runtime --test swarm`. Each test has
//! an installation of its own in it.

mod faults;
mod life;
mod nodes;
#[path = "../support/server.rs"]
mod server;
#[path = "../support/streams.rs"]
mod streams;
mod support;
