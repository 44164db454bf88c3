//! Scenarios of the acceptance list on a gateway in this process, on paused time: see [`support`].
//!
//! Each test is a variant of the scenario that it is named after. Parts that only the binary has (the listener, files,
//! processes, the database) are tested in `crates/toolwharf/tests`.

#![expect(clippy::unwrap_used, reason = "a failure in a helper fails the test")]

mod support;

mod callers;
mod calls;
mod demand;
mod elsewhere;
mod eras;
mod every;
mod find;
mod frames;
mod gateway;
mod hosted;
mod life;
mod lists;
mod logs;
mod names;
mod recorded;
mod results;
mod scale;
mod sign_ins;
