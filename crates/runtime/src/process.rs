//! Instances as child processes, with pipes as their standard streams.
//!
//! [`Spawner`] → [`Instance`] (two pipes and a [`Handle`]) → [`Exit`]. As a [`Runtime`](crate::Runtime), the spawner
//! runs servers on the host itself.
//!
//! # What a child gets
//!
//! - A cleared environment with the few variables that most programs need (see `environment`), those of its launch, and
//!   the marker `TOOLWHARF_INSTANCE=<run>:<serial>:<label>`.
//! - Pipes as its three standard streams, and no other descriptors of the host.
//! - A new session, and therefore a new process group and no terminal. A program that tries to ask for a password fails
//!   immediately instead of waiting forever.
//! - `SIGKILL` when the host process dies.
//!
//! # Invariants
//!
//! - Every child is reaped. By then, everything that the child started is dead: the process group, the session, and all
//!   processes with its marker.
//! - The leader of a group is reaped last, so that the group id cannot be reused while signals are sent to it.
//! - Dropping the last [`Handle`] kills the instance.
//! - One thread forks all children and outlives them: the kernel ties "kill it when its parent dies" to the *thread*
//!   that forked it.
//! - The memory for a child's output is bounded, and so is the processor time for reading it. Followers that are too slow
//!   lose the oldest lines of stderr. Only a child that writes more than 64 MiB per second to it is slowed down.
//!
//! # Deliberately absent
//!
//! Restarts, health checks, framing, sandboxing. A sandbox wraps `program` and `args` and provides a `Cage`; everything
//! else stays the same.

mod cage;
mod environment;
mod error;
mod files;
mod fork;
mod host;
mod leader;
mod reaper;
mod spawner;

use tokio::net::unix::pipe;

pub(crate) use self::cage::{Cage, Caged, Door};
pub use self::error::Error;
pub use self::files::{raise_file_limit, restore_file_limit};
pub use self::fork::inherited;
pub(crate) use self::fork::seal_inherited;
pub use self::spawner::Guest;
pub use self::spawner::{Guests, Spawner};
pub use crate::handle::{Exit, Handle};
pub use crate::sentinel::SentinelCommand;
pub use crate::stderr::{Line, Lines, Missed, Tail};

/// Writes to the instance's standard input. Dropping it closes the input.
pub type Stdin = pipe::Sender;
/// Reads the instance's standard output.
pub type Stdout = pipe::Receiver;

#[derive(Debug)]
pub struct Instance {
    pub stdin: Stdin,
    pub stdout: Stdout,
    pub handle: Handle,
}
