//! Servers in containers of a real daemon, under runc and under gVisor.
//!
//! Needs a daemon with both runtimes and the test images: `cargo xtask docker -- cargo nextest run -p runtime`. Each
//! test uses a separate installation in the daemon.

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
