//! One server to run, whatever runs it: [`Unit`] → [`Runtime`] → [`Instance`].
//!
//! # Invariants
//!
//! - A [`Runtime`] enforces what the unit asks for, or says on the [`Instance`] that it does not;
//!   it never says that something is enforced which it has not seen to be.
//! - Every method has a deadline of its own. After an error nothing of the instance is left, or
//!   [`Runtime::sweep`] finds it.
//! - Volumes outlive instances; only [`Runtime::volumes_remove`] ends them.
//! - An instance of a unit with a [`Fence`] is not started while one with a lower number may run, and not at all if there is one
//!   with a higher number.

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

/// A server, about to be run.
#[derive(Clone, Debug)]
pub struct Unit {
    /// The server's name, for errors and logs.
    pub label: String,
    pub launch: Arc<Launch>,
    /// If one gateway of several may run it.
    pub fence: Option<Fence>,
}

/// Which launch this is of a server that one gateway of several may run. Whatever outlives its gateway is marked with it, so that the next
/// gateway finds it and ends it before it starts its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fence {
    /// The same for all gateways of one database: letters and digits.
    pub installation: Arc<str>,
    /// Higher than that of any launch before.
    pub number: i64,
}

/// Launches of gateways of one database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fences {
    pub installation: Arc<str>,
    pub numbers: BTreeSet<i64>,
}

/// A [`Unit`] that is to run in a sandbox.
#[derive(Clone, Copy)]
pub(crate) struct Confined<'a> {
    pub(crate) label: &'a str,
    pub(crate) launch: &'a Launch,
    /// Its `id` names whatever is made for it.
    pub(crate) sandbox: &'a Sandbox,
    pub(crate) fence: Option<&'a Fence>,
}

/// A running server.
pub struct Instance {
    /// Its standard streams, if it is spoken to over them.
    pub stdio: Option<Stdio>,
    /// Where each of its ports is reached from here.
    pub ports: BTreeMap<u16, SocketAddr>,
    pub handle: Handle,
    /// Empty without a sandbox.
    pub enforced: Arc<[Enforced]>,
    /// `None` where the runtime cannot list it: outside of bubblewrap's sandboxes.
    pub files: Option<Arc<VisibleFiles>>,
}

/// Which files a server in a sandbox can read and write.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VisibleFiles {
    pub visible: Vec<Visible>,
    /// Paths of the host that the server's entry mentions and that it does not see.
    pub missing: Vec<PathBuf>,
}

/// A file that a server sees, or a folder with all that is in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Visible {
    /// Inside of the sandbox.
    pub path: PathBuf,
    pub access: Access,
    /// Where it is on the host; `None`: it is the sandbox's own.
    pub host: Option<PathBuf>,
    /// Paths below `path` that are not there.
    pub hidden: Vec<PathBuf>,
}

/// What a server may do with a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Read,
    /// Read, write and create.
    Write,
}

impl VisibleFiles {
    /// Whether the server sees this path of the host, under the same path.
    #[must_use]
    pub fn shows(&self, path: &Path) -> bool {
        let holds = |one: &Visible| {
            one.host.as_deref() == Some(&one.path)
                && path.starts_with(&one.path)
                && !one.hidden.iter().any(|hidden| path.starts_with(hidden))
        };
        self.visible.iter().any(holds)
    }

    /// Whether a path exists on this host, is not one that every sandbox has of its own, and the server does not see it.
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

    /// Paths in a text, such as the end of stderr, that exist on this host and that the server does not see.
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

/// Whether one promise holds for an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Enforced {
    /// `cpu`, `memory`, `disk`, `pids`, `filesystem`, `network`, `privileges`, `system calls`, `kernel` or `package`.
    pub what: &'static str,
    pub holds: bool,
    /// What enforces it, or why nothing does: `memory.limit_in_bytes = 536870912 (cgroup v1)`.
    pub how: String,
}

/// What an instance has used so far, and uses now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Time of all its processors since it started.
    pub cpu: Duration,
    /// Bytes.
    pub memory: u64,
    /// The most bytes so far.
    pub memory_peak: u64,
    pub pids: u32,
}

/// Why a runtime did not do as it was asked.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// It is not there, or not as it has to be; the text says what is missing and how to get it.
    #[error("{0}")]
    Unavailable(String),
    /// What was asked for cannot be: an unknown image, a port that is taken.
    #[error("{field}: {why}")]
    Refused { field: &'static str, why: String },
    /// A limit that must hold cannot be enforced on this host.
    #[error("`{what}` cannot be enforced here: {why}; set `\"strict\": false` to run it without")]
    NotEnforced { what: &'static str, why: String },
    /// It will be the same the next time, unless somebody changes the configuration or the host.
    #[error("{0}")]
    Lasting(String),
    #[error("no answer within {} s to: {what}", .within.as_secs())]
    Timeout {
        what: &'static str,
        within: Duration,
    },
    #[error("{0}")]
    Failed(String),
}

/// Something that runs servers.
pub trait Runtime: Send + Sync + 'static {
    /// Whether it works here and now, found out by trying. The text names what it is:
    /// `runsc (gVisor) release-20221121 on Docker 20.10.24`.
    fn probe(&self) -> BoxFuture<'_, Result<String, Error>>;

    /// Starts an instance. Whether it does anything useful is not known yet when this returns.
    ///
    /// # Cancel safety
    ///
    /// What was started is removed if this is dropped before it returns.
    fn launch(&self, unit: Unit) -> BoxFuture<'_, Result<Instance, Error>>;

    /// Removes what earlier runs of this installation left behind, and nothing of this run; how many instances that
    /// were.
    fn sweep(&self) -> BoxFuture<'_, Result<usize, Error>> {
        Box::pin(async { Ok(0) })
    }

    /// The numbers of all fences that instances there are marked with.
    fn fences<'a>(&'a self, _installation: &'a str) -> BoxFuture<'a, Result<BTreeSet<i64>, Error>> {
        Box::pin(async { Ok(BTreeSet::new()) })
    }

    /// Removes the instances that are marked with these fences, whose gateways are lost; how many that were.
    fn sweep_fenced<'a>(&'a self, _lost: &'a Fences) -> BoxFuture<'a, Result<usize, Error>> {
        Box::pin(async { Ok(0) })
    }

    /// Whether volumes are there for whichever gateway launches a server.
    fn volumes_follow(&self) -> bool {
        false
    }

    /// Removes all volumes of the sandbox of this id, those that gateways of one database share included: of the installation that these are
    /// together ([`Fence::installation`]).
    fn volumes_remove<'a>(
        &'a self,
        _id: &'a str,
        _installation: Option<&'a str>,
    ) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async { Ok(()) })
    }
}

/// Removes all of them, and goes on after one that cannot be removed. `remove` returns how many instances that was.
///
/// # Errors
/// The last of all.
pub(crate) async fn remove_each<T, R>(
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

/// Tells what an instance uses.
pub(crate) trait Meter: Send + Sync {
    fn read(&self) -> BoxFuture<'_, Option<Usage>>;
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
    /// It is to run in no sandbox.
    pub(crate) fn confined(&self) -> Result<Confined<'_>, Error> {
        let why = "it is to run on the host itself, and not in a sandbox";
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
    /// Whether it is spoken to over its standard streams.
    pub(crate) fn has_streams(self) -> bool {
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
