//! Instances that are child processes, spoken to over their standard streams.
//!
//! [`Spawner`] → [`Instance`] (two pipes and a [`Handle`]) → [`Exit`]. As a [`Runtime`](crate::Runtime) the spawner runs
//! servers on the host itself.
//!
//! # What a child gets
//!
//! - A cleared environment: the few variables without which programs do not run at all (see
//!   `environment`), its own, and the marker `TOOLWHARF_INSTANCE=<run>:<serial>:<label>`.
//! - Pipes as its three standard streams, and no other descriptor of the host's.
//! - A session of its own, hence a process group of its own and no terminal: a program that
//!   wants to ask for a password fails at once, it does not stop for ever.
//! - `SIGKILL` when the host dies.
//!
//! # Invariants
//!
//! - Every child is reaped, and by then all that it started is dead: the process group, the
//!   session, and whatever carries its marker.
//! - The leader of a group is reaped last, so that the group's number is pinned for as long as
//!   signals are sent to it.
//! - When the last [`Handle`] is dropped, the instance is killed.
//! - Children are forked by one thread which lasts as long as any of them: the kernel ties
//!   "kill it when its parent dies" to the *thread* that forked it.
//! - The memory that a child's output can take is bounded; a child that writes to stderr
//!   faster than it is kept loses the oldest lines, it is not slowed down.
//!
//! # Deliberately absent
//!
//! Restarts, health, framing, sandboxing. A sandbox wraps `program` and `args` and gives a
//! `Cage`; the rest holds for it unchanged.

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
pub use self::files::raise_file_limit;
pub(crate) use self::fork::{inherited, seal_inherited};
pub(crate) use self::spawner::Guest;
pub use self::spawner::{Guests, Spawner};
pub use crate::handle::{Exit, Handle};
pub use crate::sentinel::SentinelCommand;
pub use crate::stderr::{Lines, Missed};

/// Writes to the instance's standard input. Dropping it closes that.
pub type Stdin = pipe::Sender;
/// Reads the instance's standard output.
pub type Stdout = pipe::Receiver;

/// A running child process.
#[derive(Debug)]
pub struct Instance {
    pub stdin: Stdin,
    pub stdout: Stdout,
    pub handle: Handle,
}
