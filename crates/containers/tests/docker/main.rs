//! Servers in containers of a real daemon, under runc and under gVisor.
//!
//! Needs a daemon with both runtimes and the test images: `cargo xtask docker -- cargo nextest run -p containers`. Each
//! test uses a separate installation in the daemon.

mod daemon;
mod egress;
mod fences;
mod life;
mod limits;
mod ports;
#[path = "../../../runtime/tests/support/server.rs"]
mod server;
#[path = "../shared/mod.rs"]
mod shared;
#[path = "../../../runtime/tests/support/streams.rs"]
mod streams;
mod support;
