//! Server instances: launch, attach, stop, reap.
//!
//! - [`process`]: an instance is a child process on the host itself. [`Host`] runs servers this way.
//! - [`sandbox`]: servers as processes in namespaces and control groups.
//! - [`Packages`]: packages named with `npx` and `uvx`, installed once.
//! - [`docker`]: an instance is a container of a Docker daemon, optionally in gVisor.
//! - `kubernetes` (with the feature of the same name): an instance is a pod of a Kubernetes cluster.
//! - [`e2b`]: an instance is a command in a sandbox of E2B.
//! - [`Runtime`]: the interface of everything that runs servers.
//! - [`Remote`]: an instance that is run by other code.
//! - [`sentinel`]: the helper process that kills every instance if this process dies without doing so itself (`kill
//!   -9`, the out-of-memory killer).
//!
//! # Invariants
//!
//! - No instance outlives its [`process::Handle`], no grandchild its instance, and none of them this process.
//! - No signal is sent to a process id that may have been reused.
//! - Nothing blocks the async runtime, and every wait has a deadline.
//!
//! # Deliberately absent
//!
//! MCP (bytes pass unchanged), restarts and backoff (the supervisor's task), operating systems other than Linux.

pub mod process;
pub mod sandbox;
pub mod sentinel;

pub mod detached;
pub mod egress;
pub mod handle;
mod host;
pub mod image;
pub mod keyed_lock;
pub mod ladder;
pub mod ports;
pub mod process_tree;
pub mod pump;
mod remote;
pub mod repeats;
mod search;
pub mod stderr;
pub mod unit;

pub use crate::handle::Usage;
pub use handle::{Exit, Handle};
pub use host::Host;
pub use ports::{Ports, notice as port_notice};
pub use remote::{Remote, Request};
pub use repeats::{Repeats, Times};
pub use sandbox::packages::{Package, PackageOptions, Packages};
pub use stderr::{Lines, Missed};
pub use unit::{
    Access, Enforced, Error, Fence, Fences, Instance, Runtime, Stdio, Unit, Visible, VisibleFiles,
};
