//! A sandbox for one step of an installation: npm, uv, or a Python that compiles the installed packages.
//!
//! Packages are hostile input, and npm and uv can be made to run programs that a package names. So each step runs
//! without privileges in its own namespaces. If this process is root, the step runs as a user that owns only the folder
//! it works on.
//!
//! # What a step gets
//!
//! - Read-only: system folders, certificates, and the paths named in [`Step`]. No `git` is executable.
//! - Writable: its stage and a small `/tmp`. The size of the stage is measured while the step runs ([`Bounds`]).
//! - Configuration files, as in-memory copies that disappear with the step.
//! - A loopback device and, if the step has a list of allowed hosts, the egress proxy on it.
//! - Control groups, where the host has them, with memory, process and processor limits.
//!
//! # Invariants
//!
//! - A step runs nothing before its isolation has been read back from the kernel.
//! - Without bubblewrap, no step runs.

mod bounds;
mod view;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::{MetadataExt as _, lchown};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use model::{Network, ResourceLimits};
use tokio::io::AsyncReadExt as _;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, timeout, timeout_at};

pub use self::bounds::Bounds;
pub(crate) use self::view::is_system;
use super::cell::Cell;
use super::cgroup::Tree;
use super::channel::Channel;
use super::own_program::{OwnProgram, namespaces};
use super::prepare::{bwrap, memory_file, user_of};
use super::shim::{self, Order};
use super::view::{Own, Plan};
use super::{START_TIMEOUT, failed, late, mounts, own_task, seccomp, spawn, verify};
use crate::egress::{self, Allowed};
use crate::handle::Exit;
use crate::process::{self, Caged, Door, SentinelCommand, Spawner};
use crate::search::PATH;
use crate::unit::{Error, Unit};

/// Limits of one step. `disk` is not used: [`Bounds`] limits the disk.
const STEP_LIMITS: ResourceLimits = ResourceLimits {
    cpu_millis: 4000,
    memory: 4 << 30,
    disk: 0,
    pids: 1024,
};
/// Processes that belong to the sandbox itself: bubblewrap, twice.
const SANDBOX_PROCESSES: u32 = 2;
/// Limit for the standard output of a step; the rest is dropped.
const MAX_OUTPUT_BYTES: usize = 4 << 20;
/// Minimum interval between two measurements of the stage.
const MEASURE_INTERVAL: Duration = Duration::from_millis(100);
/// Deadline for a killed step to exit.
const EXIT_TIMEOUT: Duration = Duration::from_secs(6);
/// Used in place of a server id to derive the user id for installations. No server id contains a dot.
const USER_ID_SEED: &str = ".packages";
/// Runs the program with the proxy variables that are specific to npm and uv. If `NO_PROXY` listed a registry on
/// loopback, both would connect to it directly, but nothing listens on the sandbox's loopback.
const RUN_SCRIPT: &str = r#"
unset NO_PROXY no_proxy
if [ -n "$HTTPS_PROXY" ]; then
  export npm_config_proxy="$HTTPS_PROXY" npm_config_https_proxy="$HTTPS_PROXY" npm_config_noproxy=none.invalid
fi
exec "$@"
"#;

pub(crate) struct Confine {
    spawner: Spawner,
    /// Runs [`shim::shim_main`].
    shim: SentinelCommand,
    install: String,
    privileged: bool,
    serial: AtomicU64,
    tree: OnceLock<Tree>,
}

/// A program that runs in a sandbox until it exits.
pub(crate) struct Step {
    pub(crate) label: String,
    pub(crate) program: PathBuf,
    pub(crate) args: Vec<String>,
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) cwd: PathBuf,
    /// The folder to work on. It has the same path in the sandbox.
    pub(crate) stage: PathBuf,
    /// Further writable folders: path in the sandbox → path on the host. The host path is on the stage.
    pub(crate) writable: BTreeMap<PathBuf, PathBuf>,
    /// Host paths that are visible in the sandbox, read-only and at the same path.
    pub(crate) shown: Vec<PathBuf>,
    /// Path in the sandbox → content.
    pub(crate) files: BTreeMap<PathBuf, Vec<u8>>,
    /// `PATH` in the sandbox. A `git` in this path is not executable.
    pub(crate) path: OsString,
    /// `None`: no network.
    pub(crate) allowed: Option<Arc<Allowed>>,
    pub(crate) bounds: Bounds,
    pub(crate) deadline: Instant,
}

pub(crate) struct Done {
    /// `None`: the step was killed at its deadline.
    pub(crate) exit: Option<Exit>,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
    /// The bound that the step exceeded, if it was killed for that.
    pub(crate) exceeded: Option<String>,
}

impl Confine {
    pub(crate) fn new(spawner: Spawner, install: String, shim: SentinelCommand) -> Self {
        Self {
            spawner,
            shim,
            install,
            privileged: rustix::process::geteuid().is_root(),
            serial: AtomicU64::new(0),
            tree: OnceLock::new(),
        }
    }

    /// The user that steps run as.
    fn user(&self) -> u32 {
        if self.privileged {
            user_of(&self.install, USER_ID_SEED)
        } else {
            rustix::process::geteuid().as_raw()
        }
    }

    /// Makes the user of steps the owner of files and folders of a stage.
    pub(crate) fn give(&self, paths: &[PathBuf]) -> io::Result<()> {
        if self.privileged {
            let user = self.user();
            for path in paths {
                lchown(path, Some(user), Some(user))?;
            }
        }
        Ok(())
    }

    /// Runs a step until it exits.
    ///
    /// # Errors
    /// The sandbox could not be created. A failed step is not an error.
    ///
    /// # Cancel safety
    /// Dropping the future kills the step.
    pub(crate) async fn run(self: &Arc<Self>, step: Step) -> Result<Done, Error> {
        let (confine, step) = (Arc::clone(self), Arc::new(step));
        let prepared = {
            let step = Arc::clone(&step);
            let prepared = spawn_blocking(move || confine.prepare(&step)).await;
            prepared.map_err(|_| {
                Error::Failed(
                    "the preparation of a package installation was interrupted".to_owned(),
                )
            })??
        };
        let Prepared {
            bwrap,
            pass,
            mut channel,
            group,
        } = prepared;
        let group = Arc::new(group);
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
        let spawned = self.spawner.spawn_caged(bwrap, Some(caged)).await;
        let mut child = spawned.map_err(|error| match spawn(error) {
            Error::Unavailable(why) => Error::Unavailable(format!(
                "packages are installed in a sandbox, and {why} (or `dnf install`, `apk add`, `pacman -S`, `zypper install`)"
            )),
            other => other,
        })?;
        let order = self.order(&step);
        let ready = match timeout(START_TIMEOUT, channel.order(&order)).await {
            Ok(Ok(Ok(ready))) => ready,
            Ok(Ok(Err(why))) => return Err(Error::Failed(why)),
            Ok(Err(_)) => return Err(self.explain(&child).await),
            Err(_) => return Err(late("start the sandbox of an installation")),
        };
        let unknown = || {
            Error::Failed(
                "the kernel did not report the id of the process in the sandbox".to_owned(),
            )
        };
        let pid = ready.pid.ok_or_else(unknown)?;
        cell.found(pid)
            .map_err(failed("the process in the sandbox is gone"))?;
        self.verify(pid, &step).await?;
        if let Some(allowed) = &step.allowed {
            let missing = || Error::Failed("the sandbox did not send its sockets".to_owned());
            let listener = ready.sockets.into_iter().next().ok_or_else(missing)?;
            let (allowed, label) = (Arc::clone(allowed), step.label.clone());
            cell.own(own_task(async move {
                let _ = egress::run(listener, allowed, label).await;
            }));
        }
        match timeout(START_TIMEOUT, channel.go()).await {
            Ok(Ok(Ok(()))) => {}
            Ok(Ok(Err(why))) => return Err(Error::Failed(why)),
            Ok(Err(_)) => return Err(self.explain(&child).await),
            Err(_) => return Err(late("start an installation in its sandbox")),
        }
        drop(child.stdin);
        let mut stdout = Vec::new();
        let ended = async {
            let mut limited = (&mut child.stdout).take(MAX_OUTPUT_BYTES as u64);
            let _ = limited.read_to_end(&mut stdout).await;
            let _ = tokio::io::copy(&mut child.stdout, &mut tokio::io::sink()).await;
            child.handle.exited().await
        };
        let (exit, mut exceeded) = tokio::select! {
            ended = timeout_at(step.deadline, ended) => (ended.ok(), None),
            exceeded = exceeded(&step) => (None, Some(exceeded)),
        };
        if exit.is_none() {
            child.handle.kill_now();
            let _ = timeout(EXIT_TIMEOUT, child.handle.exited()).await;
        } else if exceeded.is_none() {
            // Measure again, to include what was written since the last measurement.
            exceeded = measure(&step).await;
        }
        Ok(Done {
            exit,
            stdout,
            stderr: child.handle.stderr_tail(),
            exceeded,
        })
    }

    fn order(&self, step: &Step) -> Order {
        let mut args = vec!["-c".to_owned(), RUN_SCRIPT.to_owned(), "sh".to_owned()];
        args.push(step.program.display().to_string());
        args.extend(step.args.iter().cloned());
        let mut env = step.env.clone();
        env.insert("PATH".to_owned(), step.path.to_string_lossy().into_owned());
        env.entry("LANG".to_owned())
            .or_insert_with(|| "C.UTF-8".to_owned());
        Order {
            user: self.privileged.then(|| self.user()),
            proxy: step.allowed.is_some(),
            ports: Vec::new(),
            cwd: step.cwd.display().to_string(),
            program: "/bin/sh".into(),
            args,
            env,
        }
    }

    /// Seals the mounts and checks the isolation. Fails if any part of it is missing.
    async fn verify(&self, pid: rustix::process::Pid, step: &Step) -> Result<(), Error> {
        let network = match step.allowed {
            Some(_) => Network::Allow(Vec::new()),
            None => Network::None,
        };
        let own: Vec<PathBuf> = step.writable.keys().chain([&step.stage]).cloned().collect();
        let scratch = verify::WRITABLE.iter().map(PathBuf::from);
        let writable: Vec<PathBuf> = own.iter().cloned().chain(scratch).collect();
        let helper = self.shim.clone();
        let sealed = spawn_blocking(move || mounts::seal(&helper, pid, &writable)).await;
        sealed
            .unwrap_or_else(|_| Err("the mounts were not made read-only".to_owned()))
            .map_err(Error::Failed)?;
        let files = verify::Files {
            writable: &own,
            plan: &Plan::default(),
            own: &Own::default(),
            given: &[],
        };
        let rows = verify::isolation(pid, &network, files, self.user());
        let expected = |what| what != "kernel" && (what != "system calls" || seccomp::IS_SUPPORTED);
        match rows.iter().find(|row| expected(row.what) && !row.holds) {
            Some(row) => Err(Error::Failed(format!(
                "the installation's sandbox is not isolated: {}",
                row.how
            ))),
            None => Ok(()),
        }
    }

    fn prepare(&self, step: &Step) -> Result<Prepared, Error> {
        let serial = self.serial.fetch_add(1, Ordering::Relaxed);
        let run: String = self.spawner.run_id().chars().take(12).collect();
        let tree = self.tree.get_or_init(|| Tree::new(&self.install));
        let group = tree
            .group(
                &format!("packages.{run}-i{serial}"),
                &STEP_LIMITS,
                SANDBOX_PROCESSES,
            )
            .map_err(failed("cannot create a control group"))?;
        let (channel, theirs) = Channel::pair().map_err(failed("cannot create a socket"))?;
        let memory =
            |text: &[u8]| memory_file(text).map_err(failed("cannot create a file in memory"));
        let user = self.user();
        let passwd = format!(
            "root:x:0:0:root:/nonexistent:/bin/sh\ninstaller:x:{user}:{user}:installer:{}:/bin/sh\n",
            step.cwd.display()
        );
        let mut files = BTreeMap::from([
            (PathBuf::from("/etc/passwd"), passwd.into_bytes()),
            (
                "/etc/group".into(),
                format!("root:x:0:\ninstaller:x:{user}:\n").into_bytes(),
            ),
            (
                "/etc/hosts".into(),
                b"127.0.0.1 localhost installer\n::1 localhost\n".to_vec(),
            ),
        ]);
        files.extend(step.files.clone());
        let mut pass: Vec<OwnedFd> = Vec::new();
        let mut contents = Vec::new();
        for (path, content) in &files {
            let file = memory(content)?;
            contents.push((path.as_path(), file.as_raw_fd()));
            pass.push(file);
        }
        let shim = OwnProgram::open(&self.shim)?;
        let mut arguments = namespaces(self.privileged, "installer");
        arguments.extend(view::arguments(step, &contents, &shim.arguments()));
        if let Some(program) = seccomp::program() {
            let filter = memory(&program)?;
            arguments.extend(["--seccomp".into(), filter.as_raw_fd().to_string().into()]);
            pass.push(filter);
        }
        let (launch, text) = bwrap(
            &arguments,
            &self.shim,
            &theirs,
            [("PATH", PATH), ("HOME", "/")],
        )
        .map_err(failed("cannot create a file in memory"))?;
        pass.extend([shim.file, text, theirs]);
        Ok(Prepared {
            bwrap: Unit::new(&step.label, launch),
            pass,
            channel,
            group,
        })
    }

    /// Returns an error that says why bubblewrap exited before the shim started.
    async fn explain(&self, child: &process::Instance) -> Error {
        let exit = timeout(EXIT_TIMEOUT, child.handle.exited()).await;
        let exit = exit.map_or_else(|_| "still running".to_owned(), |exit| exit.to_string());
        let tail = child.handle.stderr_tail();
        Error::Unavailable(format!(
            "packages are installed in a sandbox, and bubblewrap does not work on this host ({exit}): {}; {}",
            tail.trim().replace('\n', "; "),
            super::remedy(self.privileged)
        ))
    }
}

struct Prepared {
    bwrap: Unit,
    pass: Vec<OwnedFd>,
    channel: Channel,
    group: super::cgroup::Group,
}

/// Waits until the stage exceeds one of its bounds, and returns which.
async fn exceeded(step: &Arc<Step>) -> String {
    let mut pause = MEASURE_INTERVAL;
    loop {
        sleep(pause).await;
        let began = Instant::now();
        if let Some(exceeded) = measure(step).await {
            return exceeded;
        }
        // Measuring takes at most a quarter of one processor.
        pause = MEASURE_INTERVAL.max(3 * began.elapsed());
    }
}

async fn measure(step: &Arc<Step>) -> Option<String> {
    let step = Arc::clone(step);
    let measured = spawn_blocking(move || step.bounds.exceeded_by(&step.stage)).await;
    measured.ok().flatten()
}

/// Takes back the ownership of a folder. Afterwards the folder belongs to the user of this process and contains only
/// folders, files and links.
///
/// # Errors
/// The folder contains another kind of file.
pub(crate) fn take(folder: &Path) -> io::Result<()> {
    let own = rustix::process::geteuid();
    let about = folder.symlink_metadata()?;
    let kind = about.file_type();
    if !(kind.is_dir() || kind.is_file() || kind.is_symlink()) {
        let why = format!("`{}` is not a file, folder or link", folder.display());
        return Err(io::Error::new(io::ErrorKind::InvalidData, why));
    }
    if own.is_root() && (about.uid() != 0 || about.gid() != 0) {
        lchown(folder, Some(0), Some(0))?;
    }
    if kind.is_dir() {
        for entry in fs::read_dir(folder)? {
            take(&entry?.path())?;
        }
    }
    Ok(())
}
