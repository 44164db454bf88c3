//! What holds a child that runs in a sandbox, as far as the child's end depends on it.
//!
//! # Invariants
//!
//! - The child goes through its [`Door`] between `fork` and `exec`: nothing of it runs outside.
//! - [`Cage::end`] is called once, when the leader is reaped. A cage whose leader never came to
//!   be, or does not die, cleans up when it is dropped.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::process::Pid;

use crate::handle::Exit;
use crate::unit::Meter;

/// What a child that is to run in a sandbox needs at its start.
pub(crate) struct Door {
    /// Files that a process joins a control group by, when it writes `0` to them.
    pub(crate) join: Vec<OwnedFd>,
    /// Descriptors that the child gets, under the numbers that they have here.
    pub(crate) pass: Vec<OwnedFd>,
    /// Whether what it writes to stdout goes where stderr goes.
    pub(crate) merge: bool,
}

/// A child that runs in a sandbox.
pub(crate) struct Caged {
    pub(crate) door: Door,
    pub(crate) cage: Arc<dyn Cage>,
    pub(crate) meter: Box<dyn Meter>,
}

/// What is around the child. Everything here may block for a moment.
pub(crate) trait Cage: Send + Sync {
    /// `SIGTERM` to the server, which the leader only wraps: the leader would die of it at once
    /// and take the server with it.
    fn terminate(&self, leader: Pid);

    /// `SIGKILL` to everything inside.
    fn kill(&self);

    /// Whether nothing inside lives.
    fn empty(&self) -> bool;

    /// Removes what was made for it, and adds to `exit` what only the cage knows. `killed`: by
    /// this process, on purpose.
    fn end(&self, exit: Exit, killed: bool) -> Exit;
}
