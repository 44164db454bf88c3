//! Servers as sandboxed processes: [`Provider::Process`], with bubblewrap and control groups.
//!
//! [`Bubblewrap`] is a [`Runtime`] that needs nothing but a kernel and bubblewrap.
//!
//! # What a server gets
//!
//! - Namespaces of its own: mounts, processes, IPC, host name, control groups, and network unless that
//!   is open. As root of the host it runs as a user that nobody else is, one for each server;
//!   otherwise in a user namespace, as the user that runs this. In both cases without capabilities,
//!   and with no way to gain any.
//! - The files that `view` lists.
//! - If its command is `npx` or `uvx`: the package that it names, installed beforehand and pinned (`packages`).
//! - Control groups with its limits of processors, memory and processes. It is in them before its
//!   first instruction. The two processes of bubblewrap count to its memory, which is less than a
//!   MiB, and not to its processes.
//! - An environment with nothing but the launch's own, `PATH`, `HOME`, `LANG`, the marker, and the
//!   variables of its proxy if it has one.
//!
//! # The disk limit
//!
//! `limits.disk` is for everything that it can write to. With volumes, and where file systems can be
//! made (see `volume`), volumes and `/tmp` are on one file system of that size, less what `/run` and
//! `/dev/shm` may take. Without volumes all scratch is in memory: it counts to `limits.memory` too,
//! so it is limited to half of that, should that be less than `limits.disk`. Where no file system can
//! be made, volumes are not limited, and the instance says so.
//!
//! # The network
//!
//! - [`Network::None`]: a namespace with a loopback device.
//! - [`Network::Allow`]: the same, and an HTTP proxy at an address on that loopback, which the server
//!   finds in `HTTP_PROXY` and the like (`egress`). That variables are heeded is up to the program;
//!   that there is no other way out is not.
//! - [`Network::Open`]: the host's own, services on its loopback and abstract sockets included.
//!
//! # Invariants
//!
//! - Nothing of the server runs before what it is to be confined by was read back from the kernel.
//!   Isolation that is not there is an error always, a limit that does not hold is one if
//!   `strict`.
//! - Neither arguments nor variables of a server reach a program that runs outside of the sandbox; save names and
//!   versions of packages, which npm and uv get.
//! - When an instance has ended, its processes, groups, mounts and listeners are gone. When this
//!   process was killed, the processes are; [`Runtime::sweep`] removes the rest.
//!
//! # Deliberately absent
//!
//! A kernel of its own, filters of system calls (the keyrings of this process's session are one
//! thing that they would hide), devices. What a wrapper leaves behind when it ends is
//! killed at once: a process namespace ends with its first process.

mod bomb;
mod cell;
mod census;
mod cgroup;
mod channel;
pub(crate) mod confine;
mod mounts;
mod ports;
mod prepare;
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
use std::path::PathBuf;
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
use crate::packages::{Files, Packages};
use crate::ports::{Listeners, Ports};
use crate::process::{self, Caged, Door, SentinelCommand, Spawner};
use crate::unit::{Confined, Enforced, Error, Instance, Runtime, Stdio, Unit, VisibleFiles};

pub use self::confine::Bounds;
pub use self::shim::shim_main;
pub use self::view::Own;

/// From the start of bubblewrap to the start of the server.
const START: Duration = Duration::from_secs(30);
/// How long what failed to start may take to be gone.
const GONE: Duration = Duration::from_secs(6);

/// What a [`Bubblewrap`] is told once.
#[derive(Clone, Debug)]
pub struct Options {
    /// For volumes. It is made if it is not there, for this user alone.
    pub dir: PathBuf,
    /// What tells this installation from others on the same host: `[a-z0-9]`, 64 bytes at most. The
    /// same for every run.
    pub install: String,
    pub ports: Ports,
    /// What no server sees, whatever is shown around it.
    pub own: Own,
    /// Leads to [`shim_main`], which gets the arguments that follow these.
    pub shim: SentinelCommand,
}

/// Runs servers as sandboxed processes. Clones are the same.
#[derive(Clone)]
pub struct Bubblewrap(Arc<Inner>);

struct Inner {
    spawner: Spawner,
    options: Options,
    /// As root of the host: without a user namespace.
    privileged: bool,
    /// What control groups of this run are named by.
    run: String,
    serial: AtomicU64,
    tree: OnceLock<Tree>,
    volumes: Arc<Volumes>,
    packages: Arc<Packages>,
    bombs: Arc<bomb::Watch>,
}

impl Bubblewrap {
    #[must_use]
    pub fn new(spawner: Spawner, packages: Arc<Packages>, options: Options) -> Self {
        let privileged = rustix::process::geteuid().is_root();
        // A run's own id is random; its beginning tells runs apart well enough.
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

    /// Runs what blocks.
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
        let (mut channel, theirs) = Channel::pair().map_err(failed("cannot make a socket"))?;
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
            let ready = match timeout(START, channel.order(&order)).await {
                Ok(Ok(Ok(ready))) => ready,
                Ok(Ok(Err(why))) => return Err(Error::Failed(why)),
                Ok(Err(_)) => return Err(self.explain(&child).await),
                Err(_) => return Err(late("the start of a sandbox")),
            };
            let mut enforced = group.enforced(&sandbox.limits, extra).to_vec();
            enforced.insert(2, disk);
            let pid = found(&ready, &group, &cell)?;
            let (rows, plan) = self.checked(pid, &unit, files, plan, user).await?;
            enforced.extend(rows);
            enforced.extend(row);
            judge(&enforced, sandbox.strict)?;
            let ports = connect(ready, confined, allowed, listeners, &cell)?;
            match timeout(START, channel.go()).await {
                Ok(Ok(Ok(()))) => Ok((enforced, ports, plan.files)),
                Ok(Ok(Err(why))) => Err(Error::Refused {
                    field: "command",
                    why,
                }),
                Ok(Err(_)) => Err(self.explain(&child).await),
                Err(_) => Err(late("the start of a server")),
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
                let _ = timeout(GONE, child.handle.exited()).await;
                Err(error)
            }
        }
    }

    /// Seals the mounts of a sandbox, and says what only its process can tell.
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
                "system calls" => seccomp::KNOWN,
                _ => true,
            };
            match rows.iter().filter(expected).find(|row| !row.holds) {
                Some(row) => Err(Error::Failed(format!(
                    "the sandbox does not hold: {}",
                    row.how
                ))),
                None => Ok((rows, plan)),
            }
        })
        .await
    }

    /// Why bubblewrap ended before there was a shim.
    async fn explain(&self, child: &process::Instance) -> Error {
        let exit = timeout(GONE, child.handle.exited()).await;
        let tail = child.handle.stderr_tail();
        let tail = tail.trim().replace('\n', "; ");
        let exit = exit.map_or_else(|_| "still running".to_owned(), |exit| exit.to_string());
        if exit.contains("out of memory") {
            return Error::Refused {
                field: "limits.memory",
                why: "it is not enough for the sandbox to start".to_owned(),
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
                "{why}; `apt-get install bubblewrap` (also `dnf`, `apk add`, `pacman -S`, `zypper install`)"
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
        volume::run(BWRAP, &arguments).map_err(|why| {
            let way_out = if self.privileged {
                "a container needs CAP_SYS_ADMIN for it"
            } else {
                "unprivileged user namespaces may be switched off: see \
                 `sysctl kernel.unprivileged_userns_clone kernel.apparmor_restrict_unprivileged_userns user.max_user_namespaces`"
            };
            Error::Unavailable(format!("bubblewrap does not work here: {why}; {way_out}"))
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
        // A mount without a group: of a run whose processes were killed, and whose groups went.
        let mounts = self.volumes.sweep();
        self.shims_remove();
        self.packages.sweep();
        Ok(gone.len().max(mounts))
    }
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

/// Which files a server would see, without starting it. `None`: it is not a command in a sandbox, or one of a package.
///
/// # Errors
/// [`Error::Refused`]: it would not start.
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

/// The process that is to become the server.
fn found(ready: &Ready, group: &Group, cell: &Cell) -> Result<Pid, Error> {
    let unknown = || Error::Failed("the kernel does not tell who is in the sandbox".to_owned());
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

/// Paths inside that are the server's to write: its volumes and mounts.
fn writable(sandbox: &Sandbox) -> Vec<PathBuf> {
    let volumes = sandbox.volumes.iter();
    let mounts = sandbox.mounts.iter().filter(|mount| !mount.read_only);
    let all = volumes.chain(mounts.map(|mount| &mount.inside));
    all.map(|path| PathBuf::from(path.trim_end_matches('/')))
        .collect()
}

/// Starts what serves the sockets that came from inside; where ports are reached.
fn connect(
    ready: Ready,
    unit: Confined<'_>,
    allowed: Option<Arc<Allowed>>,
    mut listeners: Listeners,
    cell: &Cell,
) -> Result<BTreeMap<u16, SocketAddr>, Error> {
    let missing = || Error::Failed("the shim did not send its sockets".to_owned());
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
    let addresses = addresses.map_err(failed("cannot listen for its ports"))?;
    if forwards(unit.sandbox) {
        let helper = sockets.next().ok_or_else(missing)?;
        let ports = unit.sandbox.ports.iter().map(|port| port.inside).collect();
        cell.wait_for(listeners.closing());
        let forward = Forward::new(helper, ports, listeners);
        let forward = forward.map_err(failed("cannot speak to the helper"))?;
        cell.own(own_task(forward.run()));
    }
    // With an open network they are the server's own from here on.
    Ok(addresses)
}

fn own_task(task: impl Future<Output = ()> + Send + 'static) -> AbortOnDropHandle<()> {
    #[expect(
        clippy::disallowed_methods,
        reason = "the handle that aborts it on drop is its owner's"
    )]
    AbortOnDropHandle::new(tokio::spawn(task))
}

fn failed(what: &'static str) -> impl Fn(io::Error) -> Error {
    move |error| Error::Failed(format!("{what}: {error}"))
}

fn late(what: &'static str) -> Error {
    Error::Timeout {
        what,
        within: START,
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
