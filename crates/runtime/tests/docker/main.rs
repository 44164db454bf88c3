//! Hosted servers in containers of a real daemon, under runc and under gVisor.
//!
//! They need a daemon with both runtimes and the test images: `cargo xtask docker -- cargo nextest
//! run -p runtime`. Each test has an installation of its own in it.

mod daemon;
mod egress;
mod fences;
mod life;
mod limits;
mod ports;
#[path = "../support/server.rs"]
mod server;
#[path = "../support/streams.rs"]
mod streams;
mod support;
