//! Code in real processes, with and without their sandbox, and hostile processes.

#![expect(
    clippy::unwrap_used,
    reason = "a failure in a test's helper is the test's"
)]

mod calls;
mod ground;
mod hostile;
mod language;
mod limits;
mod sandbox;
