//! Scenarios of `SCENARIOS.md` on a gateway in this process, on paused time: see [`support`].
//!
//! Each test is a variant of the row that it is named after. What only the binary has (the listener, files, processes,
//! the database) is tested through it, in `crates/toolwharf/tests`.

#![expect(
    clippy::unwrap_used,
    reason = "a failure in a test's helper is the test's"
)]

mod support;

mod calls;
mod demand;
mod eras;
mod every;
mod gateway;
mod hosted;
mod life;
mod recorded;
