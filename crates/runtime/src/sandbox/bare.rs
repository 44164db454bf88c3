//! This program itself in a sandbox with nothing in it: for code that computes and talks to the gateway only.
//!
//! # What it gets
//!
//! - Its own executable and the libraries that it loads, read-only, and a `/proc` that shows only its own processes. No
//!   other file, nothing that is writable, and no device.
//! - Its own namespaces without a network, a user that no server has (if this process is root), no capabilities, and the
//!   system call filter of servers. Once it has started, it is expected to give up the rest with
//!   [`super::lock_down`].
//! - Pipes as its three standard streams. No environment, except the marker by which its processes are found.
//! - Control groups, where the host has them, with memory, process and processor limits.
//!
//! # Invariants
//!
//! - It starts only after its isolation has been read back from the kernel. Without bubblewrap, it does not start.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use model::{Network, ResourceLimits};
use rustix::process::Pid;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::cell::Cell;
use super::cgroup::{Group, Tree};
use super::channel::Channel;
use super::libraries::libraries;
use super::own_program::{OwnProgram, namespaces};
use super::prepare::{bwrap, memory_file, user_of};
use super::shim::{self, Order};
use super::view::{Own, Plan};
use super::{EXIT_TIMEOUT, START_TIMEOUT, failed, found, late, mounts, seccomp, spawn, verify};
use crate::process::{self, Caged, Door, SentinelCommand, Spawner};
use crate::search::PATH;
use crate::unit::{Error, Unit};

/// Processes that belong to the sandbox itself: bubblewrap, twice.
const SANDBOX_PROCESSES: u32 = 2;
const HOST_NAME: &str = "bare";
/// The linker's list of libraries outside of its standard folders.
const LINKER_CACHE: &str = "/etc/ld.so.cache";

#[derive(Clone, Debug)]
pub struct BareOptions {
    /// As for a [`super::Bubblewrap`].
    pub install: String,
    /// The command that runs [`super::shim_main`].
    pub shim: SentinelCommand,
    /// Names what the program runs: letters, digits and `-`. Its control groups and its user are named after it.
    pub name: &'static str,
    /// The arguments with which the executable of `shim` is started inside.
    pub args: Vec<String>,
    /// `disk` is not used: nothing is writable.
    pub limits: ResourceLimits,
}

/// Starts this program in empty sandboxes. Cheap to clone; clones share state.
#[derive(Clone)]
pub struct Bare(Arc<Inner>);

struct Inner {
    spawner: Spawner,
    options: BareOptions,
    privileged: bool,
    serial: AtomicU64,
    tree: OnceLock<Tree>,
    libraries: OnceLock<Vec<PathBuf>>,
}

impl Bare {
    #[must_use]
    pub fn new(spawner: Spawner, options: BareOptions) -> Self {
        Self(Arc::new(Inner {
            spawner,
            options,
            privileged: rustix::process::geteuid().is_root(),
            serial: AtomicU64::new(0),
            tree: OnceLock::new(),
            libraries: OnceLock::new(),
        }))
    }

    /// Starts the program. When this returns, it runs.
    ///
    /// # Errors
    /// [`Error::Unavailable`] says what the host lacks.
    ///
    /// # Cancel safety
    /// Dropping the future kills what was started.
    pub async fn launch(&self) -> Result<process::Instance, Error> {
        let inner = Arc::clone(&self.0);
        let prepared = blocking("preparing a sandbox", move || inner.prepare()).await?;
        let Prepared {
            bwrap,
            pass,
            mut channel,
            group,
        } = prepared;
        let door = Door {
            join: group
                .doors()
                .map_err(failed("cannot open control groups"))?,
            pass,
            merge: false,
        };
        let cell = Arc::new(Cell::new(Arc::clone(&group), None));
        let caged = Caged {
            door,
            cage: Arc::<Cell>::clone(&cell),
            meter: Box::new(cell.gauge()),
        };
        let spawned = self.0.spawner.spawn_caged(bwrap, Some(caged)).await;
        let child = spawned.map_err(spawn)?;
        let started = async {
            let order = self.0.order();
            let ready = match timeout(START_TIMEOUT, channel.order(&order)).await {
                Ok(Ok(Ok(ready))) => ready,
                Ok(Ok(Err(why))) => return Err(Error::Failed(why)),
                Ok(Err(_)) => return Err(self.0.explain(&child).await),
                Err(_) => return Err(late("start a sandbox")),
            };
            let pid = found(&ready, &group, &cell)?;
            let inner = Arc::clone(&self.0);
            blocking("checking a sandbox", move || inner.verify(pid)).await?;
            match timeout(START_TIMEOUT, channel.go()).await {
                Ok(Ok(Ok(()))) => Ok(()),
                Ok(Ok(Err(why))) => Err(Error::Failed(why)),
                Ok(Err(_)) => Err(self.0.explain(&child).await),
                Err(_) => Err(late("start a program in its sandbox")),
            }
        };
        match started.await {
            Ok(()) => Ok(child),
            Err(error) => {
                child.handle.kill_now();
                let _ = timeout(EXIT_TIMEOUT, child.handle.exited()).await;
                Err(error)
            }
        }
    }
}

struct Prepared {
    bwrap: Unit,
    pass: Vec<OwnedFd>,
    channel: Channel,
    group: Arc<Group>,
}

impl Inner {
    fn user(&self) -> u32 {
        if self.privileged {
            // No server id contains a dot.
            user_of(&self.options.install, &format!(".{}", self.options.name))
        } else {
            rustix::process::geteuid().as_raw()
        }
    }

    fn order(&self) -> Order {
        Order {
            user: self.privileged.then(|| self.user()),
            proxy: false,
            ports: Vec::new(),
            cwd: "/".to_owned(),
            program: shim::PATH_INSIDE.into(),
            args: self.options.args.clone(),
            env: BTreeMap::new(),
        }
    }

    fn prepare(&self) -> Result<Prepared, Error> {
        let serial = self.serial.fetch_add(1, Ordering::Relaxed);
        let run: String = self.spawner.run_id().chars().take(12).collect();
        let tree = self.tree.get_or_init(|| Tree::new(&self.options.install));
        let name = format!("{}.{run}-b{serial}", self.options.name);
        let group = tree
            .group(&name, &self.options.limits, SANDBOX_PROCESSES)
            .map_err(failed("cannot create a control group"))?;
        let (channel, theirs) = Channel::pair().map_err(failed("cannot create a socket"))?;
        let memory =
            |text: &[u8]| memory_file(text).map_err(failed("cannot create a file in memory"));
        let own = OwnProgram::open(&self.options.shim)?;
        let mut arguments = namespaces(self.privileged, HOST_NAME);
        arguments.extend(self.view()?);
        arguments.extend(own.arguments());
        arguments.extend(["--remount-ro", "/"].map(OsString::from));
        let mut pass = vec![own.file];
        if let Some(program) = seccomp::program() {
            let filter = memory(&program)?;
            arguments.extend(["--seccomp".into(), filter.as_raw_fd().to_string().into()]);
            pass.push(filter);
        }
        let (launch, text) = bwrap(
            &arguments,
            &self.options.shim,
            &theirs,
            [("PATH", PATH), ("HOME", "/")],
        )
        .map_err(failed("cannot create a file in memory"))?;
        pass.extend([text, theirs]);
        Ok(Prepared {
            bwrap: Unit::new(self.options.name, launch),
            pass,
            channel,
            group: Arc::new(group),
        })
    }

    /// The arguments that show the program's libraries.
    fn view(&self) -> Result<Vec<OsString>, Error> {
        let mut arguments: Vec<OsString> = vec!["--proc".into(), "/proc".into()];
        let mut made = vec![PathBuf::from("/"), PathBuf::from("/proc")];
        let shim = PathBuf::from(shim::PATH_INSIDE);
        let libraries = self.libraries()?.iter().map(PathBuf::as_path);
        let shown = libraries.chain([Path::new(LINKER_CACHE)]);
        for path in shown.clone().chain([shim.as_path()]) {
            let folders: Vec<_> = path.ancestors().skip(1).collect();
            for folder in folders.into_iter().rev() {
                if !made.iter().any(|made| made == folder) {
                    made.push(folder.to_owned());
                    arguments.extend(["--dir".into(), folder.into()]);
                }
            }
        }
        for path in shown {
            if let Ok(real) = path.canonicalize() {
                arguments.extend(["--ro-bind".into(), real.into(), path.into()]);
            }
        }
        Ok(arguments)
    }

    fn libraries(&self) -> Result<&[PathBuf], Error> {
        if let Some(found) = self.libraries.get() {
            return Ok(found);
        }
        let found = libraries(&self.options.shim.program).map_err(|why| {
            Error::Failed(format!("Toolwharf's own libraries were not found: {why}"))
        })?;
        Ok(self.libraries.get_or_init(|| found))
    }

    /// Seals the mounts and checks the isolation. Fails if any part of it is missing.
    fn verify(&self, pid: Pid) -> Result<(), Error> {
        mounts::seal(&self.options.shim, pid, &[]).map_err(Error::Failed)?;
        let files = verify::Files {
            writable: &[],
            plan: &Plan::default(),
            own: &Own::default(),
            given: &[],
        };
        let rows = verify::isolation(pid, &Network::None, files, self.user());
        let expected = |what| what != "kernel" && (what != "system calls" || seccomp::IS_SUPPORTED);
        match rows.iter().find(|row| expected(row.what) && !row.holds) {
            Some(row) => Err(Error::Failed(format!(
                "the sandbox is not isolated: {}",
                row.how
            ))),
            None => Ok(()),
        }
    }

    /// Returns an error that says why bubblewrap exited before the shim started.
    async fn explain(&self, child: &process::Instance) -> Error {
        let exit = timeout(EXIT_TIMEOUT, child.handle.exited()).await;
        let exit = exit.map_or_else(|_| "still running".to_owned(), |exit| exit.to_string());
        let tail = child.handle.stderr_tail();
        Error::Unavailable(format!(
            "bubblewrap does not work on this host ({exit}): {}; {}",
            tail.trim().replace('\n', "; "),
            super::remedy(self.privileged)
        ))
    }
}

/// Runs `work` on a thread that may block.
async fn blocking<T: Send + 'static>(
    what: &str,
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    match spawn_blocking(work).await {
        Ok(result) => result,
        Err(_) => Err(Error::Failed(format!("{what} was interrupted"))),
    }
}

impl std::fmt::Debug for Bare {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bare")
            .field("options", &self.0.options)
            .finish_non_exhaustive()
    }
}
