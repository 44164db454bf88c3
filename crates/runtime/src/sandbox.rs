//! Hosted servers as sandboxed processes: [`Provider::Process`], with bubblewrap and control groups.
//!
//! [`Sandbox`] is a [`Runtime`] that needs nothing but a kernel and bubblewrap.
//!
//! # What a server gets
//!
//! - Namespaces of its own: mounts, processes, IPC, host name, control groups, and network unless that
//!   is open. As root of the host it runs as a user that nobody else is, one for each hosting;
//!   otherwise in a user namespace, as the user that runs this. In both cases without capabilities,
//!   and with no way to gain any.
//! - The files that `view` lists.
//! - Control groups with its limits of processors, memory and processes. It is in them before its
//!   first instruction. The two processes of bubblewrap count to its memory, which is less than a
//!   MiB, and not to its processes.
//! - An environment with nothing but `hosting.env`, `PATH`, `HOME`, `LANG`, the marker, and the
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
//!   `hosting.strict`.
//! - Neither arguments nor variables of a hosting reach a program that runs outside of the sandbox.
//! - When an instance has ended, its processes, groups, mounts and listeners are gone. When this
//!   process was killed, the processes are; [`Runtime::sweep`] removes the rest.
//!
//! # Deliberately absent
//!
//! A kernel of its own, filters of system calls, devices. What a wrapper leaves behind when it ends is
//! killed at once: a process namespace ends with its first process.

mod cell;
mod census;
mod cgroup;
mod channel;
mod egress;
mod ports;
mod pump;
mod shim;
mod verify;
mod view;
mod volume;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::io::{self, Seek as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use model::{Hosting, Network, Provider, Source};
use rustix::fs::{MemfdFlags, memfd_create};
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

use self::cell::Cell;
use self::cgroup::{Group, Tree};
use self::channel::{Channel, Ready};
use self::egress::Allowed;
use self::ports::Forward;
use self::shim::Order;
use self::view::{Scratch, Tmp, View};
use self::volume::{Opened, Volumes};
use crate::process::{self, Caged, Door, Launch, SentinelCommand, Spawner};
use crate::unit::{Enforced, Error, Instance, Runtime, Stdio, Unit};

pub use self::shim::shim_main;

const BWRAP: &str = "bwrap";
/// From the start of bubblewrap to the start of the server.
const START: Duration = Duration::from_secs(30);
/// How long what failed to start may take to be gone.
const GONE: Duration = Duration::from_secs(6);
/// Processes that are the sandbox's: bubblewrap, twice.
const OWN: u32 = 2;
/// The helper for ports, twice at its start.
const HELPER: u32 = 2;
/// Users for hostings begin here: far above those that people and containers are given.
const USERS: u32 = 1_900_000_000;
const USERS_COUNT: u32 = 200_000_000;
const INSTALL: usize = 64;

/// What a [`Sandbox`] is told once.
#[derive(Clone, Debug)]
pub struct Options {
    /// For volumes. It is made if it is not there, for this user alone.
    pub dir: PathBuf,
    /// What tells this installation from others on the same host: `[a-z0-9]`, 64 bytes at most. The
    /// same for every run.
    pub install: String,
    /// Leads to [`shim_main`], which gets the arguments that follow these.
    pub shim: SentinelCommand,
}

/// Runs hosted servers as sandboxed processes. Clones are the same.
#[derive(Clone)]
pub struct Sandbox(Arc<Inner>);

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
}

/// What stands ready before anything is started.
struct Prepared {
    group: Arc<Group>,
    opened: Option<Opened>,
    scratch: Scratch,
    program: PathBuf,
    user: u32,
    extra: u32,
}

impl Sandbox {
    #[must_use]
    pub fn new(spawner: Spawner, options: Options) -> Self {
        let privileged = rustix::process::geteuid().is_root();
        // A run's own id is random; its beginning tells runs apart well enough.
        let run = spawner.run_id().chars().take(12).collect();
        let volumes = Volumes::new(options.dir.clone(), privileged);
        Self(Arc::new(Inner {
            spawner,
            options,
            privileged,
            run,
            serial: AtomicU64::new(0),
            tree: OnceLock::new(),
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

    async fn start(&self, unit: Unit) -> Result<Instance, Error> {
        let hosting = Arc::clone(&unit.hosting);
        let allowed = match &hosting.network {
            Network::Allow(entries) => {
                let refused = |why| Error::Refused {
                    field: "network",
                    why,
                };
                Some(Arc::new(Allowed::parse(entries).map_err(refused)?))
            }
            Network::None | Network::Open => None,
        };
        let prepared = {
            let hosting = Arc::clone(&hosting);
            self.blocking("preparing a sandbox", move |inner| inner.prepare(&hosting))
                .await?
        };
        let order = self.0.order(&hosting, &prepared);
        let (mut channel, theirs) = Channel::pair().map_err(failed("cannot make a socket"))?;
        let (launch, pass) = self.0.bwrap(&unit.label, &hosting, &prepared, theirs)?;
        let Prepared {
            group,
            opened,
            scratch,
            user,
            extra,
            ..
        } = prepared;
        let disk = disk(&scratch, opened.as_ref());
        let door = Door {
            join: group
                .doors()
                .map_err(failed("cannot open control groups"))?,
            pass,
            merge: !hosting.bridge,
        };
        let cell = Arc::new(Cell::new(Arc::clone(&group), opened));
        let caged = Caged {
            door,
            cage: Arc::<Cell>::clone(&cell),
            meter: Box::new(cell.gauge()),
        };
        let child = self
            .0
            .spawner
            .spawn_caged(launch, Some(caged))
            .await
            .map_err(spawn)?;
        let until_ready = async {
            let ready = match timeout(START, channel.order(&order)).await {
                Ok(Ok(Ok(ready))) => ready,
                Ok(Ok(Err(why))) => return Err(Error::Failed(why)),
                Ok(Err(_)) => return Err(self.explain(&child).await),
                Err(_) => return Err(late("the start of a sandbox")),
            };
            let mut enforced = group.enforced(&hosting.limits, extra).to_vec();
            enforced.insert(2, disk);
            enforced.extend(verified(&ready, &group, &hosting, user, &cell)?);
            judge(&enforced, hosting.strict)?;
            let ports = connect(ready, &hosting, allowed, &unit.label, &cell).await?;
            match timeout(START, channel.go()).await {
                Ok(Ok(Ok(()))) => Ok((enforced, ports)),
                Ok(Ok(Err(why))) => Err(Error::Refused {
                    field: "command",
                    why,
                }),
                Ok(Err(_)) => Err(self.explain(&child).await),
                Err(_) => Err(late("the start of a server")),
            }
        };
        match until_ready.await {
            Ok((enforced, ports)) => {
                let process::Instance {
                    stdin,
                    stdout,
                    handle,
                } = child;
                let stdio = if hosting.bridge {
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
                    provider: Provider::Process,
                    enforced: enforced.into(),
                })
            }
            Err(error) => {
                child.handle.kill_now();
                let _ = timeout(GONE, child.handle.exited()).await;
                Err(error)
            }
        }
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
    fn tree(&self) -> &Tree {
        self.tree.get_or_init(|| Tree::new(&self.options.install))
    }

    fn check_install(&self) -> Result<(), Error> {
        let install = &self.options.install;
        let good = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        if install.is_empty() || install.len() > INSTALL || !install.bytes().all(good) {
            return Err(Error::Failed(format!(
                "`{}` cannot name an installation; it takes a-z and 0-9",
                install.escape_debug()
            )));
        }
        Ok(())
    }

    fn prepare(&self, hosting: &Hosting) -> Result<Prepared, Error> {
        self.check_install()?;
        check_id(&hosting.id)?;
        let Source::Command { program, .. } = &hosting.source else {
            return Err(Error::Refused {
                field: "image",
                why: "images need Docker; give a command, or set up Docker".to_owned(),
            });
        };
        check_text(hosting)?;
        view::check(hosting)?;
        if hosting.ports.len() > usize::from(u8::MAX) {
            return Err(Error::Refused {
                field: "ports",
                why: "there are more than 255".to_owned(),
            });
        }
        if hosting.network == Network::Open && !hosting.bridge {
            for &port in &hosting.ports {
                if let Err(error) = TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
                    return Err(Error::Refused {
                        field: "ports",
                        why: format!("{port} cannot be listened on: {error}"),
                    });
                }
            }
        }
        let program = view::resolve(program, &search(hosting))?;
        volume::private(&self.options.dir).map_err(|error| {
            Error::Failed(format!(
                "cannot use `{}`: {error}",
                self.options.dir.display()
            ))
        })?;
        let serial = self.serial.fetch_add(1, Ordering::Relaxed);
        let name = format!("{}.{}-{serial}", hosting.id, self.run);
        let user = if self.privileged {
            user_of(&self.options.install, &hosting.id)
        } else {
            rustix::process::geteuid().as_raw()
        };
        let extra = if forwards(hosting) { OWN + HELPER } else { OWN };
        let limits = &hosting.limits;
        let group = self.tree().group(&name, limits, extra);
        let group = group.map_err(failed("cannot make a control group"))?;
        let enforced = group.enforced(limits, extra);
        judge(&enforced, hosting.strict)?;
        let mut scratch = scratch(limits.disk, limits.memory);
        let opened = if hosting.volumes.is_empty() {
            None
        } else {
            let size = limits.disk.saturating_sub(scratch.run + scratch.shm);
            // Whole blocks, as file systems have them.
            let size = size & !4095;
            let owner = self.privileged.then_some(user);
            let opened = self
                .volumes
                .open(&hosting.id, &name, &hosting.volumes, size, owner)?;
            if let Some(directory) = &opened.scratch {
                scratch.tmp = Tmp::Disk(directory.clone());
            }
            Some(opened)
        };
        judge(&[disk(&scratch, opened.as_ref())], hosting.strict)?;
        Ok(Prepared {
            group: Arc::new(group),
            opened,
            scratch,
            program,
            user,
            extra,
        })
    }

    fn order(&self, hosting: &Hosting, prepared: &Prepared) -> Order {
        let mut env = BTreeMap::from([
            ("HOME".to_owned(), view::HOME.to_owned()),
            ("LANG".to_owned(), "C.UTF-8".to_owned()),
            ("PATH".to_owned(), inside_path(hosting, prepared)),
            ("TMPDIR".to_owned(), "/tmp".to_owned()),
            ("USER".to_owned(), "server".to_owned()),
        ]);
        env.extend(hosting.env.clone());
        Order {
            user: self.privileged.then_some(prepared.user),
            proxy: matches!(hosting.network, Network::Allow(_)),
            ports: if forwards(hosting) {
                hosting.ports.clone()
            } else {
                Vec::new()
            },
            cwd: view::HOME.to_owned(),
            program: prepared.program.clone().into(),
            args: hosting.source.args().to_vec(),
            env,
        }
    }

    /// The command that makes the sandbox and starts the shim in it, and the descriptors it needs.
    fn bwrap(
        &self,
        label: &str,
        hosting: &Hosting,
        prepared: &Prepared,
        channel: OwnedFd,
    ) -> Result<(Launch, Vec<OwnedFd>), Error> {
        let memory =
            |text: &[u8]| memory_file(text).map_err(failed("cannot make a file in memory"));
        let shim = File::open(&self.options.shim.program).map_err(|error| {
            Error::Failed(format!(
                "cannot open `{}`, which is this program: {error}",
                self.options.shim.program.display()
            ))
        })?;
        let user = prepared.user;
        let passwd = memory(
            format!(
                "root:x:0:0:root:/nonexistent:/usr/sbin/nologin\n\
                 server:x:{user}:{user}:server:{}:/bin/sh\n\
                 nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
                view::HOME
            )
            .as_bytes(),
        )?;
        let group = format!("root:x:0:\nserver:x:{user}:\nnogroup:x:65534:\n");
        let group = memory(group.as_bytes())?;
        let hosts = if hosting.network == Network::Open {
            std::fs::read("/etc/hosts").unwrap_or_default()
        } else {
            b"127.0.0.1 localhost\n::1 localhost\n".to_vec()
        };
        let hosts = memory(&hosts)?;
        let files = [
            ("/etc/passwd", passwd.as_raw_fd()),
            ("/etc/group", group.as_raw_fd()),
            ("/etc/hosts", hosts.as_raw_fd()),
        ];
        let nothing = BTreeMap::new();
        let directories = prepared.opened.as_ref().map(|opened| &opened.directories);
        let view = View {
            hosting,
            program: &prepared.program,
            search: &search(hosting),
            scratch: &prepared.scratch,
            volumes: directories.unwrap_or(&nothing),
            data: &self.options.dir,
            shim: shim.as_raw_fd(),
            files: &files,
        };
        let mut arguments: Vec<OsString> =
            self.namespaces(hosting).iter().map(Into::into).collect();
        arguments.extend(view::arguments(&view));
        let mut text = Vec::new();
        for argument in &arguments {
            text.extend_from_slice(argument.as_encoded_bytes());
            text.push(0);
        }
        // On its command line they would be all that `ps` shows.
        let text = memory(&text)?;
        let mut launch = Launch::new(label, BWRAP);
        launch.args = vec!["--args".into(), text.as_raw_fd().to_string(), "--".into()];
        launch.args.push(shim::INSIDE.into());
        for argument in &self.options.shim.args {
            launch.args.push(argument.to_string_lossy().into_owned());
        }
        launch.args.push(channel.as_raw_fd().to_string());
        launch.env.insert("PATH".into(), view::PATH.into());
        launch.env.insert("HOME".into(), view::HOME.into());
        launch.cwd = Some("/".into());
        let pass = vec![shim.into(), passwd, group, hosts, text, channel];
        Ok((launch, pass))
    }

    fn namespaces(&self, hosting: &Hosting) -> Vec<&'static str> {
        let mut arguments = vec![
            "--unshare-pid",
            "--unshare-ipc",
            "--unshare-uts",
            "--unshare-cgroup-try",
            "--hostname",
            "sandbox",
            "--die-with-parent",
            "--cap-drop",
            "ALL",
        ];
        if hosting.network != Network::Open {
            arguments.push("--unshare-net");
        }
        if self.privileged {
            // For the shim, which is done with them before the server begins.
            for capability in ["CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP"] {
                arguments.extend(["--cap-add", capability]);
            }
        } else {
            arguments.push("--unshare-user");
        }
        arguments
    }

    fn probe(&self) -> Result<String, Error> {
        self.check_install()?;
        let version = volume::run(BWRAP, &[OsStr::new("--version")]).map_err(|why| {
            Error::Unavailable(format!(
                "{why}; `apt-get install bubblewrap` (also `dnf`, `apk add`, `pacman -S`, `zypper install`)"
            ))
        })?;
        let hosting = Hosting::new(
            "probe",
            Source::Command {
                program: "true".into(),
                args: Vec::new(),
            },
        );
        let mut arguments = self.namespaces(&hosting);
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

    fn sweep(&self, keep: &BTreeSet<String>) -> Result<usize, Error> {
        self.check_install()?;
        let own = format!("{}-", self.run);
        let stale = |name: &str| match name.split_once('.') {
            Some((id, rest)) => !(rest.starts_with(&own) && keep.contains(id)),
            None => false,
        };
        let gone = self.tree().sweep(stale);
        // A mount without a group: of a run whose processes were killed, and whose groups went.
        let mounts = self.volumes.sweep();
        Ok(gone.len().max(mounts))
    }
}

impl Runtime for Sandbox {
    fn probe(&self) -> BoxFuture<'_, Result<String, Error>> {
        self.blocking("trying bubblewrap", Inner::probe).boxed()
    }

    fn launch(&self, unit: Unit) -> BoxFuture<'_, Result<Instance, Error>> {
        self.start(unit).boxed()
    }

    fn sweep(&self, keep: BTreeSet<String>) -> BoxFuture<'_, Result<usize, Error>> {
        self.blocking("sweeping", move |inner| inner.sweep(&keep))
            .boxed()
    }

    fn volumes_remove<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<(), Error>> {
        let id = id.to_owned();
        self.blocking("removing volumes", move |inner| {
            check_id(&id)?;
            inner.volumes.remove(&id)
        })
        .boxed()
    }
}

impl fmt::Debug for Sandbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sandbox")
            .field("options", &self.0.options)
            .field("run", &self.0.run)
            .finish_non_exhaustive()
    }
}

/// The rows that only the process itself can tell, once it is known which one that is.
fn verified(
    ready: &Ready,
    group: &Group,
    hosting: &Hosting,
    user: u32,
    cell: &Cell,
) -> Result<[Enforced; 4], Error> {
    let unknown = || Error::Failed("the kernel does not tell who is in the sandbox".to_owned());
    let pid = ready.pid.ok_or_else(unknown)?;
    cell.found(pid)
        .map_err(failed("the process in the sandbox is gone"))?;
    if !group.holds(pid) {
        return Err(Error::Failed(
            "the process in the sandbox is not in its control groups".to_owned(),
        ));
    }
    let mut writable: Vec<_> = hosting.volumes.iter().map(String::as_str).collect();
    let mounts = hosting.mounts.iter().filter(|mount| !mount.read_only);
    writable.extend(mounts.map(|mount| mount.inside.as_str()));
    let writable: Vec<_> = writable
        .iter()
        .map(|path| path.trim_end_matches('/'))
        .collect();
    let rows = verify::isolation(pid, &hosting.network, &writable, user);
    let expected = |row: &&Enforced| match row.what {
        "kernel" => false,
        "network" => hosting.network != Network::Open,
        _ => true,
    };
    for row in rows.iter().filter(expected) {
        if !row.holds {
            return Err(Error::Failed(format!(
                "the sandbox does not hold: {}",
                row.how
            )));
        }
    }
    Ok(rows)
}

/// Starts what serves the sockets that came from inside; where ports are reached.
async fn connect(
    ready: Ready,
    hosting: &Hosting,
    allowed: Option<Arc<Allowed>>,
    label: &str,
    cell: &Cell,
) -> Result<BTreeMap<u16, SocketAddr>, Error> {
    let missing = || Error::Failed("the shim did not send its sockets".to_owned());
    let mut sockets = ready.sockets.into_iter();
    if let Some(allowed) = allowed {
        let listener = sockets.next().ok_or_else(missing)?;
        let label = label.to_owned();
        cell.own(own_task(async move {
            if let Err(error) = egress::run(listener, allowed, label.clone()).await {
                tracing::error!(server = label, %error, "the egress proxy cannot listen");
            }
        }));
    }
    if forwards(hosting) {
        let helper = sockets.next().ok_or_else(missing)?;
        let made = Forward::new(helper, &hosting.ports).await;
        let (forward, addresses) = made.map_err(failed("cannot listen for its ports"))?;
        cell.own(own_task(forward.run()));
        return Ok(addresses);
    }
    if hosting.network == Network::Open && !hosting.bridge {
        let local = |&port: &u16| (port, SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
        return Ok(hosting.ports.iter().map(local).collect());
    }
    Ok(BTreeMap::new())
}

fn own_task(task: impl Future<Output = ()> + Send + 'static) -> AbortOnDropHandle<()> {
    #[expect(
        clippy::disallowed_methods,
        reason = "the handle that aborts it on drop is its owner's, the cell"
    )]
    AbortOnDropHandle::new(tokio::spawn(task))
}

/// Whether its ports are inside of a network of its own.
fn forwards(hosting: &Hosting) -> bool {
    !hosting.bridge && !hosting.ports.is_empty() && hosting.network != Network::Open
}

/// Refuses to go on without a limit that must hold.
fn judge(rows: &[Enforced], strict: bool) -> Result<(), Error> {
    let limits = ["cpu", "memory", "disk", "pids"];
    match rows
        .iter()
        .find(|row| !row.holds && limits.contains(&row.what))
    {
        Some(row) if strict => Err(Error::NotEnforced {
            what: row.what,
            why: row.how.clone(),
        }),
        _ => Ok(()),
    }
}

fn disk(scratch: &Scratch, opened: Option<&Opened>) -> Enforced {
    let memory = scratch.run + scratch.shm;
    let found = match (&scratch.tmp, opened.map(|opened| &opened.limit)) {
        (Tmp::Memory(size), None) => Ok(format!("scratch of {} bytes in memory", size + memory)),
        (_, Some(Ok(how))) => Ok(format!("{how}, {memory} more in memory")),
        (_, Some(Err(why))) => Err(format!("volumes are not limited: {why}")),
        (Tmp::Disk(_), None) => Err("scratch on a disk without a limit".to_owned()),
    };
    Enforced {
        what: "disk",
        holds: found.is_ok(),
        how: found.unwrap_or_else(|why| why),
    }
}

/// How a server's scratch is divided when all of it is in memory.
fn scratch(disk: u64, memory: u64) -> Scratch {
    // Whole pages: the kernel would round up.
    let pages = |bytes: u64| (bytes & !4095).max(4096);
    let all = disk.min(memory / 2);
    let shm = pages((all / 4).min(64 << 20));
    let run = pages((all / 16).min(4 << 20));
    let tmp = Tmp::Memory(pages(all - shm - run));
    Scratch { run, shm, tmp }
}

/// A user that no person and no other hosting is, always the same one for the same hosting.
fn user_of(install: &str, id: &str) -> u32 {
    // FNV-1a: it has to be the same in every version of this program.
    let mut hash: u32 = 0x811c_9dc5;
    for byte in install.bytes().chain([b'/']).chain(id.bytes()) {
        hash = (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    }
    USERS + hash % USERS_COUNT
}

fn check_id(id: &str) -> Result<(), Error> {
    let good = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if id.is_empty() || id.len() > 128 || !id.bytes().all(good) {
        return Err(Error::Refused {
            field: "id",
            why: format!("`{}` is not of a-z, 0-9 and `-`", id.escape_debug()),
        });
    }
    Ok(())
}

/// Refuses what cannot be passed on.
fn check_text(hosting: &Hosting) -> Result<(), Error> {
    let refused = |field, why: String| Err(Error::Refused { field, why });
    for (name, value) in &hosting.env {
        if name.is_empty() || name.contains(['=', '\0']) {
            return refused(
                "environment",
                format!("{name:?} cannot be the name of a variable"),
            );
        }
        if value.contains('\0') {
            return refused(
                "environment",
                format!("the value of `{name}` contains a NUL character"),
            );
        }
    }
    let target = hosting.source.target();
    if target.is_empty() || target.contains('\0') {
        return refused(
            "command",
            "it is empty, or contains a NUL character".to_owned(),
        );
    }
    if let Some(place) = hosting
        .source
        .args()
        .iter()
        .position(|arg| arg.contains('\0'))
    {
        return refused(
            "command",
            format!("argument {} contains a NUL character", place + 1),
        );
    }
    let sizes = hosting
        .env
        .iter()
        .map(|(name, value)| name.len() + value.len() + 2);
    let sizes = sizes.chain(hosting.source.args().iter().map(|arg| arg.len() + 1));
    if sizes.sum::<usize>() > shim::ORDER_LIMIT / 2 {
        return refused(
            "command",
            "arguments and environment are too long together".to_owned(),
        );
    }
    Ok(())
}

/// Where names of programs are looked for on the host.
fn search(hosting: &Hosting) -> OsString {
    match hosting.env.get("PATH") {
        Some(path) => path.into(),
        None => std::env::var_os("PATH").unwrap_or_else(|| view::PATH.into()),
    }
}

/// The server's `PATH`: where its own program is, and the system's.
fn inside_path(hosting: &Hosting, prepared: &Prepared) -> String {
    let named = !hosting.source.target().contains('/');
    match prepared.program.parent().and_then(|parent| parent.to_str()) {
        Some(own) if named && !view::PATH.split(':').any(|one| one == own) => {
            format!("{own}:{}", view::PATH)
        }
        _ => view::PATH.to_owned(),
    }
}

fn memory_file(text: &[u8]) -> io::Result<OwnedFd> {
    let mut file = File::from(memfd_create("toolwharf", MemfdFlags::CLOEXEC)?);
    file.write_all(text)?;
    file.rewind()?;
    Ok(file.into())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scratch_is_never_more_than_it_may_be() {
        for (disk, memory) in [
            (1 << 20, 8 << 20),
            (1 << 30, 512 << 20),
            (64 << 40, 4 << 40),
            (1 << 30, 8 << 20),
        ] {
            let parts = scratch(disk, memory);
            let Tmp::Memory(tmp) = parts.tmp else {
                panic!("it is in memory");
            };
            assert!(tmp + parts.shm + parts.run <= disk.min(memory / 2));
            assert!(tmp >= parts.shm.min(1 << 19));
        }
    }

    #[test]
    fn every_hosting_is_another_user() {
        let users: BTreeSet<_> = (0..1000).map(|n| user_of("a", &format!("s-{n}"))).collect();
        assert!(users.len() > 990);
        assert!(
            users
                .iter()
                .all(|&user| (USERS..USERS + USERS_COUNT).contains(&user))
        );
        assert_eq!(user_of("a", "b"), user_of("a", "b"));
    }
}
