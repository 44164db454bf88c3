//! The interface between a sandboxed child and its sandbox.
//!
//! # Invariants
//!
//! - The child goes through its [`Door`] between `fork` and `exec`, so none of its code runs outside the sandbox.
//! - [`Cage::end`] is called once, when the leader is reaped. If the leader was never started or does not die, the cage
//!   cleans up on drop.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::process::Pid;

use crate::handle::Exit;
use crate::handle::Meter;

/// Resources for the start of a sandboxed child.
pub(crate) struct Door {
    /// Files for joining control groups: a process writes `0` to them.
    pub(crate) join: Vec<OwnedFd>,
    /// Descriptors that the child inherits under the same numbers.
    pub(crate) pass: Vec<OwnedFd>,
    /// True if stdout is redirected to stderr.
    pub(crate) merge: bool,
}

/// A child that runs in a sandbox.
pub(crate) struct Caged {
    pub(crate) door: Door,
    pub(crate) cage: Arc<dyn Cage>,
    pub(crate) meter: Box<dyn Meter>,
}

/// The sandbox of a child. All methods may block briefly.
pub(crate) trait Cage: Send + Sync {
    /// Sends `SIGTERM` to the server, and not to the leader that wraps it: the leader would exit at once, and the
    /// server would be killed with it.
    fn terminate(&self, leader: Pid);

    /// Sends `SIGKILL` to everything inside.
    fn kill(&self);

    /// Returns whether no process inside is alive.
    fn empty(&self) -> bool;

    /// Removes the sandbox's resources, and adds to `exit` what only the cage knows. `killed`: this process killed the
    /// leader on purpose.
    fn end(&self, exit: Exit, killed: bool) -> Exit;
}
