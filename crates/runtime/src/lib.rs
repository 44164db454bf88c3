//! Server instances: launch, attach, stop, reap.
//!
//! - [`process`]: an instance is a child process on the host itself. [`Host`] runs servers this way.
//! - [`sandbox`]: servers as processes in namespaces and control groups.
//! - [`Packages`]: packages named with `npx` and `uvx`, installed once.
//! - [`Runtime`]: the interface of everything that runs servers. The crate `containers` has the runtimes whose
//!   instances are not processes of this host.
//! - [`Remote`]: an instance that is run by other code.
//! - [`diagnosis`]: the usual causes of failures, recognised in stderr.
//! - [`sentinel`]: the helper process that kills every instance if this process dies without killing them itself (`kill
//!   -9`, the out-of-memory killer).
//!
//! # Invariants
//!
//! - No instance outlives its [`process::Handle`], no grandchild outlives its instance, and none of them outlives this
//!   process.
//! - No signal is sent to a process id that may have been reused.
//! - Nothing blocks the async runtime, and every wait has a deadline.
//!
//! # Deliberately absent
//!
//! MCP (bytes pass unchanged), restarts and backoff (the supervisor's task), operating systems other than Linux.

pub mod detached;
pub mod diagnosis;
pub mod egress;
pub mod handle;
mod host;
pub mod image;
pub mod keyed_lock;
pub mod ladder;
pub mod ports;
pub mod process;
pub mod process_tree;
pub mod pump;
mod remote;
pub mod repeats;
pub mod sandbox;
mod search;
pub mod sentinel;
pub mod stderr;
pub mod unit;

pub use handle::{Exit, Handle, Usage};
pub use host::Host;
pub use ports::{Ports, notice as port_notice, used_by};
pub use remote::{Remote, Request};
pub use repeats::{Repeats, Times};
pub use sandbox::packages::{Package, PackageOptions, Packages};
pub use stderr::{Line, Lines, Missed, Tail};
pub use unit::{
    Access, Enforced, Error, Fence, Fences, Instance, Runtime, Stdio, Unit, Visible, VisibleFiles,
};
