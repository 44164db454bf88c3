//! Instances of servers: launched, attached, stopped, reaped.
//!
//! - [`process`]: an instance is a child process of this one, on the host itself. [`Host`] runs servers so.
//! - [`sandbox`]: servers as processes in namespaces and control groups.
//! - [`Packages`]: what `npx` and `uvx` name, installed once.
//! - [`docker`]: an instance is a container of a Docker daemon, in gVisor where that is wanted.
//! - `kubernetes` (with the feature of that name): an instance is a pod of a Kubernetes cluster.
//! - [`e2b`]: an instance is a command in a sandbox of E2B's.
//! - [`Runtime`]: what runs servers.
//! - [`Remote`]: an instance that somebody else runs.
//! - [`sentinel`]: the helper process that kills every instance when this process dies
//!   without being able to do so itself (`kill -9`, the out-of-memory killer).
//!
//! # Invariants
//!
//! - Nothing outlives its owner: not an instance its [`process::Handle`], not a grandchild its
//!   instance, not any of them this process.
//! - No signal is sent by a process number that could have been given to a stranger meanwhile.
//! - Nothing here blocks the async runtime, and no wait is without a deadline.
//!
//! # Deliberately absent
//!
//! MCP (bytes go through untouched), restarts and backoff (the supervisor's), anything but Linux.

pub mod docker;
pub mod e2b;
#[cfg(feature = "kubernetes")]
pub mod kubernetes;
pub mod process;
pub mod sandbox;
pub mod sentinel;

mod apart;
mod egress;
mod handle;
mod host;
mod image;
mod ladder;
mod lineage;
mod packages;
mod ports;
mod pump;
mod remote;
mod repeats;
mod search;
mod stderr;
mod turns;
mod unit;

pub use handle::{Exit, Handle};
pub use host::Host;
pub use packages::{Package, PackageOptions, Packages};
pub use ports::{Ports, notice as port_notice};
pub use remote::{Remote, Request};
pub use repeats::{Repeats, Times};
pub use stderr::{Lines, Missed};
pub use unit::{
    Access, Enforced, Error, Fence, Fences, Instance, Runtime, Stdio, Unit, Usage, Visible,
    VisibleFiles,
};
