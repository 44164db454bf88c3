//! Sandboxed server processes: [`Provider::Process`], with bubblewrap and control groups.
//!
//! [`Bubblewrap`] is a [`Runtime`] that needs only Linux and bubblewrap.
//!
//! # What a server gets
//!
//! - Its own mount, process, IPC, UTS and control group namespaces, and a network namespace unless the network is open.
//!   If this process is root on the host, the server runs as a user that is used for this server only. Otherwise it
//!   runs in a user namespace, as the user of this process. In both cases it has no capabilities and cannot gain any.
//! - The files listed in `view`.
//! - If its command is `npx` or `uvx`: the named package, pinned and installed beforehand (`packages`).
//! - Control groups with its processor, memory and process limits. It joins them before its first instruction. The two
//!   bubblewrap processes count towards its memory limit (less than 1 MiB), but not towards its process limit.
//! - An environment with only the variables of the launch, `PATH`, `HOME`, `LANG`, the marker, and the proxy variables
//!   if it has a proxy.
//! - A system call filter (`seccomp`).
//!
//! # The disk limit
//!
//! `limits.disk` bounds everything the server can write to. If the server has volumes and file systems can be created
//! (see `volume`), volumes and `/tmp` share one file system of that size, less what `/run` and `/dev/shm` may use.
//! Without volumes, all scratch space is in memory. Scratch space then counts towards `limits.memory` as well, so it is
//! limited to `limits.disk` or half of `limits.memory`, whichever is smaller. If no file system can be created, volumes
//! are not limited, and the instance reports that.
//!
//! # The network
//!
//! - [`Network::None`]: a network namespace with only a loopback device.
//! - [`Network::Allow`]: the same, plus an HTTP proxy (`egress`) on that loopback device. The server finds its address
//!   in `HTTP_PROXY` and similar variables. A program that ignores these variables has no network.
//! - [`Network::Open`]: the host's network, including services on its loopback and abstract sockets.
//!
//! # Invariants
//!
//! - No server code runs before the isolation has been read back from the kernel. Missing isolation is always an error.
//!   A limit that is not enforced is an error if `strict` is set.
//! - A server's arguments and variables never reach a program that runs outside the sandbox. Exception: package names
//!   and versions, which npm and uv get.
//! - After an instance has ended, its processes, groups, mounts and listeners are gone. If this process is killed, the
//!   server processes are still killed; [`Runtime::sweep`] removes the rest.
//!
//! # Deliberately absent
//!
//! A separate kernel and devices. Also absent: processes that outlive their wrapper. A process namespace ends with its
//! first process, so processes that a wrapper leaves behind are killed immediately.

mod bare;
mod cell;
mod census;
mod cgroup;
mod channel;
pub(crate) mod confine;
mod fork_bomb;
mod libraries;
mod lockdown;
mod losses;
mod mounts;
mod own_program;
pub(crate) mod packages;
mod ports;
mod prepare;
pub mod saved;
mod seccomp;
mod shim;
mod verify;
mod view;
mod volume;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use model::{Launch, Network, Program, Sandbox};
use rustix::process::Pid;
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

use self::cell::Cell;
use self::cgroup::{Group, Tree};
use self::channel::{Channel, Ready};
use self::ports::Forward;
use self::prepare::{BWRAP, Prepared, check_id, disk, forwards, host_ports, judge};
use self::view::{Plan, Wanted};
use self::volume::Volumes;
use crate::egress::{self, Allowed};
use crate::ports::{Listeners, Ports};
use crate::process::{self, Caged, Door, SentinelCommand, Spawner};
use crate::sandbox::packages::Packages;
use crate::unit::{Confined, Enforced, Error, Instance, Runtime, Stdio, Unit, VisibleFiles};

pub use self::bare::{Bare, BareOptions};
pub use self::confine::Bounds;
pub use self::lockdown::{Allowance, lock_down};
pub use self::losses::{Loss, LossKind, SYSTEM_PATHS, losses};
pub use self::shim::shim_main;
pub use self::view::Own;

/// Deadline from the start of bubblewrap to the start of the server.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// Deadline for the processes of a failed start to exit.
const EXIT_TIMEOUT: Duration = Duration::from_secs(6);
/// Maximum number of tries to start bubblewrap while the mounts of the host change.
const MAX_PROBES: usize = 5;

/// Settings of a [`Bubblewrap`], fixed at its creation.
#[derive(Clone, Debug)]
pub struct Options {
    /// Directory for volumes. It is created if missing, accessible to this user only.
    pub dir: PathBuf,
    /// Distinguishes this installation from others on the same host: `[a-z0-9]`, at most 64 bytes. Must be the same for
    /// every run.
    pub install: String,
    pub ports: Ports,
    /// Files that no server may see, even if the folder around them is shown.
    pub own: Own,
    /// The command that runs [`shim_main`]; the sandbox appends the shim's arguments.
    pub shim: SentinelCommand,
}

/// Runs servers as sandboxed processes. Cheap to clone; clones share state.
#[derive(Clone)]
pub struct Bubblewrap(Arc<Inner>);

struct Inner {
    spawner: Spawner,
    options: Options,
    /// True if this process is root on the host. Then no user namespace is used.
    privileged: bool,
    /// Part of the names of this run's control groups.
    run: String,
    serial: AtomicU64,
    tree: OnceLock<Tree>,
    volumes: Arc<Volumes>,
    packages: Arc<Packages>,
    bombs: Arc<fork_bomb::Watch>,
}

impl Bubblewrap {
    #[must_use]
    pub fn new(spawner: Spawner, packages: Arc<Packages>, options: Options) -> Self {
        let privileged = rustix::process::geteuid().is_root();
        // A run id is random; its first 12 characters are enough to tell runs apart.
        let run = spawner.run_id().chars().take(12).collect();
        let volumes = Volumes::new(options.dir.clone(), privileged);
        Self(Arc::new(Inner {
            spawner,
            packages,
            options,
            privileged,
            run,
            serial: AtomicU64::new(0),
            tree: OnceLock::new(),
            bombs: Arc::default(),
            volumes,
        }))
    }

    /// Runs `work` on a thread that may block.
    async fn blocking<T: Send + 'static>(
        &self,
        what: &'static str,
        work: impl FnOnce(&Inner) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let inner = Arc::clone(&self.0);
        match tokio::task::spawn_blocking(move || work(&inner)).await {
            Ok(result) => result,
            Err(_) => Err(Error::Failed(format!("{what} was interrupted"))),
        }
    }

    async fn start(&self, mut unit: Unit) -> Result<Instance, Error> {
        let allowed = match &unit.confined()?.sandbox.network {
            Network::Allow(entries) => {
                let refused = |why| Error::Refused {
                    field: "network",
                    why,
                };
                Some(Arc::new(Allowed::parse(entries).map_err(refused)?))
            }
            Network::None | Network::Open => None,
        };
        let (files, row, lease) = match self.0.packages.pin(&unit).await? {
            Some(pinned) => {
                unit.launch = pinned.launch;
                (Some(pinned.files), Some(pinned.row), Some(pinned.lease))
            }
            None => (None, None, None),
        };
        let confined = unit.confined()?;
        let sandbox = confined.sandbox;
        let ports = host_ports(sandbox)?;
        let listeners = self.0.options.ports.listen(confined, ports).await?;
        let prepared = {
            let (unit, files) = (unit.clone(), files.clone());
            self.blocking("preparing a sandbox", move |inner| {
                inner.prepare(unit.confined()?, files.as_ref())
            })
            .await?
        };
        let order = self.0.order(confined, &prepared);
        let (mut channel, theirs) = Channel::pair().map_err(failed("cannot create a socket"))?;
        let (bwrap, pass) = self.0.bwrap(confined, &prepared, theirs)?;
        let Prepared {
            group,
            opened,
            scratch,
            user,
            extra,
            plan,
            ..
        } = prepared;
        let disk = disk(&scratch, opened.as_ref());
        let door = Door {
            join: group
                .doors()
                .map_err(failed("cannot open control groups"))?,
            pass,
            merge: !confined.has_streams(),
        };
        let cell = Arc::new(Cell::new(Arc::clone(&group), opened));
        self.0.bombs.add(&group);
        let caged = Caged {
            door,
            cage: Arc::<Cell>::clone(&cell),
            meter: Box::new(cell.gauge()),
        };
        let child = self
            .0
            .spawner
            .spawn_caged(bwrap, Some(caged))
            .await
            .map_err(spawn)?;
        let until_ready = async {
            let ready = match timeout(START_TIMEOUT, channel.order(&order)).await {
                Ok(Ok(Ok(ready))) => ready,
                Ok(Ok(Err(why))) => return Err(Error::Failed(why)),
                Ok(Err(_)) => return Err(self.explain(&child).await),
                Err(_) => return Err(late("start a sandbox")),
            };
            let mut enforced = group.enforced(&sandbox.limits, extra).to_vec();
            enforced.insert(2, disk);
            let pid = found(&ready, &group, &cell)?;
            let (rows, plan) = self.checked(pid, &unit, files, plan, user).await?;
            enforced.extend(rows);
            enforced.extend(row);
            judge(&enforced, sandbox.strict)?;
            let ports = connect(ready, confined, allowed, listeners, &cell)?;
            match timeout(START_TIMEOUT, channel.go()).await {
                Ok(Ok(Ok(()))) => Ok((enforced, ports, plan.files)),
                Ok(Ok(Err(why))) => Err(Error::Refused {
                    field: "command",
                    why,
                }),
                Ok(Err(_)) => Err(self.explain(&child).await),
                Err(_) => Err(late("start a server in its sandbox")),
            }
        };
        match until_ready.await {
            Ok((enforced, ports, files)) => {
                let process::Instance {
                    stdin,
                    stdout,
                    handle,
                } = child;
                if let Some(lease) = lease {
                    self.0.packages.hold(lease, &handle);
                }
                let stdio = if confined.has_streams() {
                    Some(Stdio {
                        stdin: Box::new(stdin),
                        stdout: Box::new(stdout),
                    })
                } else {
                    cell.keep(stdin);
                    None
                };
                Ok(Instance {
                    stdio,
                    ports,
                    handle,
                    enforced: enforced.into(),
                    files: Some(Arc::new(files)),
                })
            }
            Err(error) => {
                child.handle.kill_now();
                let _ = timeout(EXIT_TIMEOUT, child.handle.exited()).await;
                Err(error)
            }
        }
    }

    /// Seals the mounts of a sandbox and reads its isolation back from the kernel.
    async fn checked(
        &self,
        pid: Pid,
        unit: &Unit,
        package: Option<Files>,
        plan: Plan,
        user: u32,
    ) -> Result<([Enforced; 5], Plan), Error> {
        let unit = unit.clone();
        self.blocking("checking a sandbox", move |inner| {
            let sandbox = unit.confined()?.sandbox;
            let own = writable(sandbox);
            let scratch = verify::WRITABLE.iter().map(PathBuf::from);
            let writable: Vec<_> = own.iter().cloned().chain(scratch).collect();
            mounts::seal(&inner.options.shim, pid, &writable).map_err(Error::Failed)?;
            let volumes = sandbox.volumes.iter().map(PathBuf::from);
            let package = package.into_iter().map(|package| package.folder);
            let mounts = sandbox.mounts.iter();
            let packages = mounts.filter(|mount| inner.options.own.is_package(&mount.host));
            let packages = packages.map(|mount| PathBuf::from(&mount.inside));
            let volumes = volumes.chain(packages);
            let given: Vec<_> = volumes.chain(package).chain(["/tmp".into()]).collect();
            let files = verify::Files {
                writable: &own,
                plan: &plan,
                own: &inner.options.own,
                given: &given,
            };
            let rows = verify::isolation(pid, &sandbox.network, files, user);
            let expected = |row: &&Enforced| match row.what {
                "kernel" => false,
                "network" => sandbox.network != Network::Open,
                "system calls" => seccomp::IS_SUPPORTED,
                _ => true,
            };
            match rows.iter().filter(expected).find(|row| !row.holds) {
                Some(row) => Err(Error::Failed(format!(
                    "the sandbox is not isolated: {}",
                    row.how
                ))),
                None => Ok((rows, plan)),
            }
        })
        .await
    }

    /// Returns an error that says why bubblewrap exited before the shim started.
    async fn explain(&self, child: &process::Instance) -> Error {
        let exit = timeout(EXIT_TIMEOUT, child.handle.exited()).await;
        let tail = child.handle.stderr_tail();
        let tail = tail.trim().replace('\n', "; ");
        let exit = exit.map_or_else(|_| "still running".to_owned(), |exit| exit.to_string());
        if exit.contains("out of memory") {
            return Error::Refused {
                field: "limits.memory",
                why: "the limit is too low: the sandbox ran out of memory while it started"
                    .to_owned(),
            };
        }
        Error::Failed(format!("the sandbox did not start ({exit}): {tail}"))
    }
}

impl Inner {
    fn probe(&self) -> Result<String, Error> {
        self.check_install()?;
        let version = volume::run(BWRAP, &[OsStr::new("--version")]).map_err(|why| {
            Error::Unavailable(format!(
                "{why}; `apt-get install bubblewrap` (or `dnf install`, `apk add`, `pacman -S`, `zypper install`)"
            ))
        })?;
        let mut arguments = self.namespaces(&Network::None);
        arguments.extend([
            "--ro-bind",
            "/",
            "/",
            "--proc",
            "/proc",
            "--dev",
            "/dev",
            "--perms",
            "1777",
            "--size",
            "65536",
            "--tmpfs",
            "/tmp",
            "--remount-ro",
            "/",
            "--",
            "true",
        ]);
        let arguments: Vec<_> = arguments.iter().map(AsRef::as_ref).collect();
        settled(|| volume::run(BWRAP, &arguments)).map_err(|why| {
            let remedy = remedy(self.privileged);
            Error::Unavailable(format!(
                "bubblewrap does not work on this host: {why}; {remedy}"
            ))
        })?;
        let user = if self.privileged { "" } else { ", rootless" };
        Ok(format!(
            "{}{user}, {}",
            version.trim(),
            self.tree().describe()
        ))
    }

    fn sweep(&self) -> Result<usize, Error> {
        self.check_install()?;
        let own = format!("{}-", self.run);
        let stale = |name: &str| match name.split_once('.') {
            Some((_, rest)) => !rest.starts_with(&own),
            None => false,
        };
        let gone = self.tree().sweep(stale);
        // A mount without a group is left from a run whose processes were killed and whose groups were already removed.
        let mounts = self.volumes.sweep();
        self.shims_remove();
        self.packages.sweep();
        Ok(gone.len().max(mounts))
    }
}
/// Runs bubblewrap again if a mount of the host disappeared while it was bound, such as that of a Docker container that
/// ends.
fn settled<T>(mut run: impl FnMut() -> Result<T, String>) -> Result<T, String> {
    for _ in 1..MAX_PROBES {
        match run() {
            Err(why) if why.contains("Unable to apply mount flags") => {}
            outcome => return outcome,
        }
    }
    run()
}

impl Runtime for Bubblewrap {
    fn probe(&self) -> BoxFuture<'_, Result<String, Error>> {
        self.blocking("trying bubblewrap", Inner::probe).boxed()
    }

    fn launch(&self, unit: Unit) -> BoxFuture<'_, Result<Instance, Error>> {
        self.start(unit).boxed()
    }

    fn sweep(&self) -> BoxFuture<'_, Result<usize, Error>> {
        self.blocking("sweeping", Inner::sweep).boxed()
    }

    fn volumes_remove<'a>(
        &'a self,
        id: &'a str,
        _installation: Option<&'a str>,
    ) -> BoxFuture<'a, Result<(), Error>> {
        let id = id.to_owned();
        self.blocking("removing volumes", move |inner| {
            check_id(&id)?;
            inner.volumes.remove(&id)
        })
        .boxed()
    }
}

impl fmt::Debug for Bubblewrap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bubblewrap")
            .field("options", &self.0.options)
            .field("run", &self.0.run)
            .finish_non_exhaustive()
    }
}

/// The files that a server would see, without starting it. `None` if `launch` is not a sandboxed command, or is a
/// package.
///
/// # Errors
/// [`Error::Refused`]: the server would not start.
pub fn preview(launch: &Launch, own: &Own) -> Result<Option<VisibleFiles>, Error> {
    let (Some(sandbox), Program::Command { program, .. }) = (launch.sandbox(), &launch.program)
    else {
        return Ok(None);
    };
    if Packages::refusal(launch) != Ok(false) {
        return Ok(None);
    }
    let search = prepare::search(launch);
    let volumes = sandbox.volumes.iter();
    let plan = Plan::new(&Wanted {
        launch,
        sandbox,
        program: &view::resolve(program, &search)?,
        package: None,
        search: &search,
        volumes: &volumes.map(|path| (path.clone(), PathBuf::new())).collect(),
        own,
    })?;
    Ok(Some(plan.files))
}

/// Finds and records the process that will become the server.
fn found(ready: &Ready, group: &Group, cell: &Cell) -> Result<Pid, Error> {
    let unknown = || {
        Error::Failed("the kernel did not report the id of the process in the sandbox".to_owned())
    };
    let pid = ready.pid.ok_or_else(unknown)?;
    cell.found(pid)
        .map_err(failed("the process in the sandbox is gone"))?;
    if !group.holds(pid) {
        return Err(Error::Failed(
            "the process in the sandbox is not in its control groups".to_owned(),
        ));
    }
    Ok(pid)
}

/// Paths inside that the server may write to: its volumes and writable mounts.
fn writable(sandbox: &Sandbox) -> Vec<PathBuf> {
    let volumes = sandbox.volumes.iter();
    let mounts = sandbox.mounts.iter().filter(|mount| !mount.read_only);
    let all = volumes.chain(mounts.map(|mount| &mount.inside));
    all.map(|path| PathBuf::from(path.trim_end_matches('/')))
        .collect()
}

/// Starts the tasks that serve the sockets made inside. Returns the addresses on which its ports can be reached.
fn connect(
    ready: Ready,
    unit: Confined<'_>,
    allowed: Option<Arc<Allowed>>,
    mut listeners: Listeners,
    cell: &Cell,
) -> Result<BTreeMap<u16, SocketAddr>, Error> {
    let missing = || Error::Failed("the sandbox did not send its sockets".to_owned());
    let mut sockets = ready.sockets.into_iter();
    if let Some(allowed) = allowed {
        let listener = sockets.next().ok_or_else(missing)?;
        let label = unit.label.to_owned();
        cell.own(own_task(async move {
            if let Err(error) = egress::run(listener, allowed, label.clone()).await {
                tracing::error!(server = label, %error, "the egress proxy cannot listen");
            }
        }));
    }
    let addresses = listeners.addresses();
    let addresses = addresses.map_err(failed("cannot listen on the server's ports"))?;
    if forwards(unit.sandbox) {
        let helper = sockets.next().ok_or_else(missing)?;
        let ports = unit.sandbox.ports.iter().map(|port| port.inside).collect();
        cell.wait_for(listeners.closing());
        let forward = Forward::new(helper, ports, listeners);
        let forward = forward.map_err(failed("cannot use the socket to the port helper"))?;
        cell.own(own_task(forward.run()));
    }
    // With an open network, the server binds these ports itself from here on.
    Ok(addresses)
}

fn own_task(task: impl Future<Output = ()> + Send + 'static) -> AbortOnDropHandle<()> {
    #[expect(
        clippy::disallowed_methods,
        reason = "the returned handle owns the task and aborts it on drop"
    )]
    AbortOnDropHandle::new(tokio::spawn(task))
}

fn failed(what: &'static str) -> impl Fn(io::Error) -> Error {
    move |error| Error::Failed(format!("{what}: {error}"))
}

fn executable(what: &'static str, path: &Path) -> impl Fn(io::Error) -> Error {
    move |error| {
        let path = path.display();
        Error::Failed(format!(
            "cannot {what} Toolwharf's own executable `{path}`: {error}"
        ))
    }
}

fn late(what: &'static str) -> Error {
    Error::Timeout {
        what,
        within: START_TIMEOUT,
    }
}

fn spawn(error: process::Error) -> Error {
    if let process::Error::NotFound { .. } = &error {
        return Error::Unavailable(
            "`bwrap` is not installed; `apt-get install bubblewrap`".to_owned(),
        );
    }
    let cause = std::error::Error::source(&error).map(|source| format!(": {source}"));
    Error::Failed(format!("{error}{}", cause.unwrap_or_default()))
}

/// The host files that a package needs.
#[derive(Clone, Debug)]
pub(crate) struct Files {
    /// The folder of the package.
    pub(crate) folder: PathBuf,
    /// The program that runs it. Its dependencies are needed too.
    pub(crate) interpreter: PathBuf,
}

/// The remedy if bubblewrap cannot create namespaces.
fn remedy(privileged: bool) -> &'static str {
    if privileged {
        "if Toolwharf runs in a container, give the container the capability CAP_SYS_ADMIN"
    } else {
        "the kernel may not allow user namespaces to ordinary users: check `sysctl \
         kernel.unprivileged_userns_clone kernel.apparmor_restrict_unprivileged_userns user.max_user_namespaces`"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Docker mounts and unmounts a file system for each container.
    #[test]
    fn mounts_that_disappear_are_no_reason_against_bubblewrap() {
        let race = r#"`bwrap`: exit status: 1: bwrap: Can't bind mount /oldroot/ on /newroot/: Unable to apply mount flags: remount "/newroot/x": Invalid argument"#;
        let other = "`bwrap`: exit status: 1: bwrap: No permissions to create new namespace";
        for (errors, tries, is_well) in [
            (&[][..], 1, true),
            (&[race, race], 3, true),
            (&[other], 1, false),
            (&[race, other], 2, false),
            (&[race; MAX_PROBES], MAX_PROBES, false),
        ] {
            let mut tried = 0;
            let outcome = settled(|| {
                tried += 1;
                errors
                    .get(tried - 1)
                    .map_or(Ok(()), |why| Err((*why).to_owned()))
            });
            assert_eq!((tried, outcome.is_ok()), (tries, is_well), "{errors:?}");
        }
    }
}
