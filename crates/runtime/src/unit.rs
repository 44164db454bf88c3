//! A server to run, independent of the runtime: [`Unit`] → [`Runtime`] → [`Instance`].
//!
//! # Invariants
//!
//! - A [`Runtime`] enforces what the unit requests, or reports on the [`Instance`] what it does not enforce. It reports
//!   only what it has verified as enforced.
//! - Every method has its own deadline. After an error, nothing of the instance is left, or [`Runtime::sweep`] removes
//!   it.
//! - Volumes outlive instances. Only [`Runtime::volumes_remove`] removes them.
//! - A unit with a [`Fence`] is not started while an instance with a lower fencing token may run, and never if there is
//!   one with a higher token.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use model::{Launch, Reach, Sandbox};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::handle::Handle;

/// A server to be launched.
#[derive(Clone, Debug)]
pub struct Unit {
    /// The server's name, for errors and logs.
    pub label: String,
    pub launch: Arc<Launch>,
    /// Set if several gateways share a database, and only one of them may run the server.
    pub fence: Option<Fence>,
}

/// The fencing token of a launch, for a server that only one of several gateways may run. Everything that can outlive
/// its gateway is marked with the token, so that the next gateway can remove the remains before it starts the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fence {
    /// The same for all gateways of one database: letters and digits.
    pub installation: Arc<str>,
    /// Higher than the token of any earlier launch.
    pub number: i64,
}

/// Launches by the gateways of one database, by their fencing tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fences {
    pub installation: Arc<str>,
    pub numbers: BTreeSet<i64>,
}

/// A [`Unit`] that is to run in a sandbox.
#[derive(Clone, Copy)]
pub struct Confined<'a> {
    pub label: &'a str,
    pub launch: &'a Launch,
    /// Its `id` is part of the names of everything created for the server.
    pub sandbox: &'a Sandbox,
    pub fence: Option<&'a Fence>,
}

/// A running server.
pub struct Instance {
    /// The server's standard streams, if the transport is stdio.
    pub stdio: Option<Stdio>,
    /// The addresses on which its ports are published.
    pub ports: BTreeMap<u16, SocketAddr>,
    pub handle: Handle,
    /// The guarantees of the sandbox, and whether each one is enforced. Empty without a sandbox.
    pub enforced: Arc<[Enforced]>,
    /// The visible files. `None` if the runtime cannot list them; only bubblewrap sandboxes can.
    pub files: Option<Arc<VisibleFiles>>,
}

/// The files that a sandboxed server can read and write.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VisibleFiles {
    pub visible: Vec<Visible>,
    /// Host paths that the server's entry mentions but that are not visible to it.
    pub missing: Vec<PathBuf>,
}

/// A visible file, or a visible folder with its contents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Visible {
    /// Path inside the sandbox.
    pub path: PathBuf,
    pub access: Access,
    /// Path on the host. `None`: it belongs to the sandbox itself.
    pub host: Option<PathBuf>,
    /// Paths below `path` that are hidden.
    pub hidden: Vec<PathBuf>,
}

/// The access of a server to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Read,
    /// Read, write and create.
    Write,
}

impl VisibleFiles {
    /// Returns whether the server sees this host path, under the same path.
    #[must_use]
    pub fn shows(&self, path: &Path) -> bool {
        let holds = |one: &Visible| {
            one.host.as_deref() == Some(&one.path)
                && path.starts_with(&one.path)
                && !one.hidden.iter().any(|hidden| path.starts_with(hidden))
        };
        self.visible.iter().any(holds)
    }

    /// Returns whether a path exists on this host, is not visible to the server, and is not generated in every sandbox.
    pub(crate) fn is_missing(&self, path: &Path) -> bool {
        let is_own = |one: &Visible| one.host.is_none() && path.starts_with(&one.path);
        let is_candidate = path.is_absolute()
            && path.parent().is_some()
            && path != Path::new("/var/tmp")
            && !self.visible.iter().any(is_own)
            && path.exists();
        let is_shown = || {
            let real = path.canonicalize();
            self.shows(path) || real.is_ok_and(|real| self.shows(&real))
        };
        is_candidate && !is_shown()
    }

    /// Returns host paths in a text, such as the end of stderr, that exist but are not visible to the server.
    #[must_use]
    pub fn missing_in(&self, text: &str) -> BTreeSet<PathBuf> {
        let separators = |c: char| c.is_whitespace() || "'\"`(),;:[]<>=".contains(c);
        let words = text.split(separators).map(Path::new);
        let missing = words.filter(|path| self.is_missing(path));
        missing.map(Path::to_owned).collect()
    }
}

pub struct Stdio {
    pub stdin: Box<dyn AsyncWrite + Send + Unpin>,
    pub stdout: Box<dyn AsyncRead + Send + Unpin>,
}

/// The status of one guarantee for an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Enforced {
    /// `cpu`, `memory`, `disk`, `pids`, `filesystem`, `network`, `privileges`, `system calls`, `kernel` or `package`.
    pub what: &'static str,
    pub holds: bool,
    /// The mechanism that enforces it, or why there is none: `memory.limit_in_bytes = 536870912 (cgroup v1)`.
    pub how: String,
}

/// Why a runtime failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The runtime is missing or not usable. The text says what is missing and how to get it.
    #[error("{0}")]
    Unavailable(String),
    /// The request is invalid: an unknown image, a port in use.
    #[error("{field}: {why}")]
    Refused { field: &'static str, why: String },
    /// A limit of a `strict` server cannot be enforced on this host.
    #[error("`{what}` cannot be enforced: {why}; set `\"strict\": false` to run without it")]
    NotEnforced { what: &'static str, why: String },
    /// A retry will fail in the same way unless the configuration or the host changes.
    #[error("{0}")]
    Lasting(String),
    #[error("timed out after {} s: {what}", .within.as_secs())]
    Timeout {
        what: &'static str,
        within: Duration,
    },
    #[error("{0}")]
    Failed(String),
}

/// An implementation that runs servers.
pub trait Runtime: Send + Sync + 'static {
    /// Checks whether the runtime works now, by using it. The returned text names the implementation: `runsc (gVisor)
    /// release-20221121 on Docker 20.10.24`.
    fn probe(&self) -> BoxFuture<'_, Result<String, Error>>;

    /// Starts an instance. When this returns, the instance may not be ready yet.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future before it returns removes what was started.
    fn launch(&self, unit: Unit) -> BoxFuture<'_, Result<Instance, Error>>;

    /// Removes what earlier runs of this installation left behind, and nothing of this run. Returns the number of
    /// instances.
    fn sweep(&self) -> BoxFuture<'_, Result<usize, Error>> {
        Box::pin(async { Ok(0) })
    }

    /// Waits until all instances have ended and everything of them is removed. Has no deadline: it waits for instances
    /// whose handles are still held, and for a service that does not respond.
    fn idle(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }

    /// The fencing tokens of all existing instances.
    fn fences<'a>(&'a self, _installation: &'a str) -> BoxFuture<'a, Result<BTreeSet<i64>, Error>> {
        Box::pin(async { Ok(BTreeSet::new()) })
    }

    /// Removes the instances with these fencing tokens, whose gateways are lost. Returns their number.
    fn sweep_fenced<'a>(&'a self, _lost: &'a Fences) -> BoxFuture<'a, Result<usize, Error>> {
        Box::pin(async { Ok(0) })
    }

    /// Returns whether every gateway can use the volumes of a server.
    fn volumes_follow(&self) -> bool {
        false
    }

    /// Removes all volumes of the sandbox with this id. `installation`: the shared installation of the gateways of one
    /// database ([`Fence::installation`]), whose volumes are removed too.
    fn volumes_remove<'a>(
        &'a self,
        _id: &'a str,
        _installation: Option<&'a str>,
    ) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async { Ok(()) })
    }
}

/// Calls `remove` for each item, and continues after failures. `remove` returns the number of instances removed.
///
/// # Errors
/// The last error.
pub async fn remove_each<T, R>(
    all: impl IntoIterator<Item = T>,
    mut remove: impl FnMut(T) -> R,
) -> Result<usize, Error>
where
    R: Future<Output = Result<usize, Error>>,
{
    let mut removed = 0;
    let mut failed = None;
    for one in all {
        match remove(one).await {
            Ok(count) => removed += count,
            Err(error) => failed = Some(error),
        }
    }
    failed.map_or(Ok(removed), Err)
}

impl Unit {
    #[must_use]
    pub fn new(label: impl Into<String>, launch: impl Into<Arc<Launch>>) -> Self {
        Self {
            label: label.into(),
            launch: launch.into(),
            fence: None,
        }
    }

    /// # Errors
    /// The unit does not use a sandbox.
    pub fn confined(&self) -> Result<Confined<'_>, Error> {
        let why = "the server is configured to run on the host itself, not in a sandbox";
        let refused = || Error::Lasting(why.to_owned());
        Ok(Confined {
            label: &self.label,
            launch: &self.launch,
            sandbox: self.launch.sandbox().ok_or_else(refused)?,
            fence: self.fence.as_ref(),
        })
    }
}

impl Confined<'_> {
    /// Returns whether the transport is stdio.
    pub fn has_streams(self) -> bool {
        self.launch.reach == Reach::Streams
    }
}

impl fmt::Debug for Instance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Instance")
            .field("handle", &self.handle)
            .finish_non_exhaustive()
    }
}
