//! Launches instances, from one permanent thread.
//!
//! # Invariants
//!
//! - The thread ends when all senders of its queue are dropped. Every reaper task holds one, so the thread ends after
//!   the last child.
//! - If a launch is cancelled, its [`Leader`] is dropped, which kills the process.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};
use rustix::process::Pid;
use rustix::rand::{GetRandomFlags, getrandom};
use tokio::io::unix::AsyncFd;
use tokio::net::unix::pipe;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use super::cage::{Cage, Caged, Door};
use super::environment::{check, environment};
use super::fork::{bind, keep_the_dead, seal_inherited};
use super::leader::Leader;
use super::reaper::Reaper;
use super::{Error, Instance};
use crate::handle::{Handle, ProcessState, Stop};
use crate::sentinel::{self, Link, SentinelCommand};
use crate::unit::Unit;

/// Capacity of the launch queue. Further launches wait until there is room.
const MAX_QUEUED_LAUNCHES: usize = 64;
/// Pipe size in bytes. A message of usual size then fits, so writer and reader need not alternate.
const PIPE_BYTES: usize = 1 << 20;
/// The kernel limits the total pipe size per user, by default to 64 MiB. Beyond that, all programs of the user get
/// pipes of only two pages. So at most this many instances at a time get large pipes, which uses half of the limit.
const MAX_LARGE_PIPES: usize = 16;

/// Launches child processes. Clones share the same spawner.
#[derive(Clone)]
pub struct Spawner(Arc<Inner>);

struct Inner {
    run: String,
    link: Weak<Link>,
    serial: AtomicU64,
    jobs: mpsc::Sender<Job>,
    tasks: TaskTracker,
    registry: Mutex<Registry>,
}

#[derive(Default)]
struct Registry {
    stopping: bool,
    live: HashMap<u64, Arc<ProcessState>>,
}

enum Job {
    Launch {
        unit: Unit,
        caged: Option<(Door, Arc<dyn Cage>)>,
        marker: String,
        large: bool,
        reply: oneshot::Sender<Result<Launched, Error>>,
    },
    /// Answered after all earlier jobs are done.
    Barrier(oneshot::Sender<()>),
}

struct Launched {
    leader: Leader,
    pidfd: OwnedFd,
    stdin: OwnedFd,
    stdout: OwnedFd,
    stderr: OwnedFd,
}

/// Makes the sentinel kill processes that are not children of this process. The default value does nothing.
#[derive(Clone, Default)]
pub struct Guests(Weak<Link>);

/// The first process of a container. The sentinel kills it like a child of this process, unless this is dropped first.
pub struct Guest {
    link: Weak<Link>,
    pid: i32,
}

impl Guests {
    /// Registers the process with this id and start tick.
    pub fn add(&self, pid: i32, started: u64) -> Guest {
        let link = self.0.clone();
        if let Some(link) = link.upgrade() {
            link.add_guest(pid, started);
        }
        Guest { link, pid }
    }
}

impl fmt::Debug for Guests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Guests")
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        if let Some(link) = self.link.upgrade() {
            link.forget_guest(self.pid);
        }
    }
}

impl Spawner {
    /// Starts a sentinel and waits at most 10 seconds until it is ready. Blocks, so call it at the start of a program.
    /// Sets close-on-exec on the descriptors that this process inherited, and stops ignoring `SIGCHLD`.
    ///
    /// # Errors
    ///
    /// [`Error::Start`] if `sentinel` does not run [`sentinel::main`].
    pub fn new(sentinel: SentinelCommand) -> Result<Self, Error> {
        seal_inherited();
        let run = keep_the_dead()
            .and_then(|()| random_id())
            .map_err(|source| {
                let command = sentinel.clone();
                Error::Start(sentinel::Error::Start { command, source })
            })?;
        let link = Link::new(sentinel.clone(), run.clone()).map_err(Error::Start)?;
        let weak = Arc::downgrade(&link);
        let (jobs, queue) = mpsc::channel(MAX_QUEUED_LAUNCHES);
        thread::Builder::new()
            .name("spawner".into())
            .spawn(move || work(queue, &link))
            .map_err(|source| {
                let command = sentinel;
                Error::Start(sentinel::Error::Start { command, source })
            })?;
        Ok(Self(Arc::new(Inner {
            run,
            link: weak,
            serial: AtomicU64::new(0),
            jobs,
            tasks: TaskTracker::new(),
            registry: Mutex::default(),
        })))
    }

    /// Prefix of the marker of every process started by this spawner.
    #[must_use]
    pub fn run_id(&self) -> &str {
        &self.0.run
    }

    /// Sets the time at which the sentinel kills everything that still runs, in nanoseconds of the monotonic clock
    /// ([`sentinel::monotonic_nanos`]). A later call changes the time. `None`: never. Works even while this process is
    /// suspended.
    pub fn end_all_at(&self, at: Option<u64>) {
        if let Some(link) = self.0.link.upgrade() {
            link.deadline(at.unwrap_or(0));
        }
    }

    /// A handle with which the sentinel also kills first processes of containers.
    #[must_use]
    pub fn guests(&self) -> Guests {
        Guests(self.0.link.clone())
    }

    /// Launches a process. The process runs when this returns, but the server may not be ready yet.
    ///
    /// # Errors
    ///
    /// Errors name the server, the command and the remedy.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future before it returns kills the process.
    pub async fn spawn(&self, unit: Unit) -> Result<Instance, Error> {
        self.spawn_caged(unit, None).await
    }

    /// Launches a process, in a sandbox if `caged` is given.
    pub(crate) async fn spawn_caged(
        &self,
        unit: Unit,
        caged: Option<Caged>,
    ) -> Result<Instance, Error> {
        let (caged, meter) = match caged {
            Some(Caged { door, cage, meter }) => (Some((door, cage)), Some(meter)),
            None => (None, None),
        };
        let inner = &self.0;
        let serial = inner.serial.fetch_add(1, Ordering::Relaxed);
        let label = unit.label.clone();
        let stopping = || Error::Stopping {
            label: label.clone(),
        };
        let large = {
            let registry = inner.registry.lock();
            if registry.stopping {
                return Err(stopping());
            }
            registry.live.len() < MAX_LARGE_PIPES
        };
        check(&unit)?;
        let marker = marker(&inner.run, serial, &unit.label);
        let (reply, answer) = oneshot::channel();
        let job = Job::Launch {
            unit: unit.clone(),
            caged,
            marker,
            large,
            reply,
        };
        // Neither channel is closed before the spawner is dropped, except after a panic in the launch.
        inner.jobs.send(job).await.map_err(|_| stopping())?;
        let launched = answer.await.map_err(|_| stopping())??;

        let failed = |error| Error::spawn(&unit, error);
        let stdin = pipe::Sender::from_owned_fd(launched.stdin).map_err(failed)?;
        let stdout = pipe::Receiver::from_owned_fd(launched.stdout).map_err(failed)?;
        let stderr = pipe::Receiver::from_owned_fd(launched.stderr).map_err(failed)?;
        #[expect(
            deprecated,
            reason = "its replacement is unsafe, because of types whose descriptor can change; this type is not one of them"
        )]
        let pidfd = AsyncFd::new(launched.pidfd).map_err(failed)?;

        let leader = launched.leader;
        let (exit, exited) = watch::channel(None);
        let pid = leader.pid().as_raw_pid().unsigned_abs();
        let shared = Arc::new(ProcessState::new(Some(pid), label.clone(), meter, exited));
        {
            let mut registry = inner.registry.lock();
            if registry.stopping {
                return Err(stopping());
            }
            registry.live.insert(serial, Arc::clone(&shared));
        }
        let log = Arc::clone(&shared);
        let stderr = inner.tasks.spawn(async move { log.log.fill(stderr).await });
        let reaper = Reaper {
            leader,
            pidfd,
            shared: Arc::clone(&shared),
            stderr: AbortOnDropHandle::new(stderr),
            exit,
        };
        let entry = Entry {
            inner: Arc::clone(inner),
            serial,
        };
        inner.tasks.spawn(async move {
            let _entry = entry;
            reaper.run().await;
        });
        let handle = Handle::new(shared);
        Ok(Instance {
            stdin,
            stdout,
            handle,
        })
    }

    /// Stops all instances at once, like [`Handle::stop`], and rejects later launches. When it returns, all are reaped.
    ///
    /// # Cancel safety
    ///
    /// The stops continue if the future is dropped.
    pub async fn stop_all(&self, grace: Duration) {
        let inner = &self.0;
        let live: Vec<_> = {
            let mut registry = inner.registry.lock();
            registry.stopping = true;
            registry.live.values().cloned().collect()
        };
        let stop = Stop::within(grace);
        for shared in &live {
            shared.request(stop);
        }
        for shared in live {
            shared.exited().await;
        }
        // Launches in progress have finished too.
        let (reply, done) = oneshot::channel();
        if inner.jobs.send(Job::Barrier(reply)).await.is_ok() {
            let _ = done.await;
        }
    }
}

impl fmt::Debug for Spawner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Spawner")
            .field("run", &self.0.run)
            .field("live", &self.0.registry.lock().live.len())
            .finish_non_exhaustive()
    }
}

impl Inner {}

/// Keeps the spawner's thread alive while an instance exists.
struct Entry {
    inner: Arc<Inner>,
    serial: u64,
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.inner.registry.lock().live.remove(&self.serial);
    }
}

fn work(mut queue: mpsc::Receiver<Job>, link: &Arc<Link>) {
    while let Some(job) = queue.blocking_recv() {
        match job {
            Job::Launch {
                unit,
                caged,
                marker,
                large,
                reply,
            } => {
                if reply.is_closed() {
                    continue;
                }
                // Catch panics: the end of this thread would kill every child.
                let start = || start(&unit, caged, marker, large, link);
                let result = catch_unwind(AssertUnwindSafe(start));
                if let Ok(result) = result {
                    // If the receiver is gone, the instance is dropped, which kills it.
                    let _ = reply.send(result);
                }
            }
            Job::Barrier(reply) => {
                let _ = reply.send(());
            }
        }
    }
}

fn start(
    unit: &Unit,
    caged: Option<(Door, Arc<dyn Cage>)>,
    marker: String,
    large: bool,
    link: &Arc<Link>,
) -> Result<Launched, Error> {
    let launch = &unit.launch;
    let environment = environment(&launch.env, std::env::vars_os(), &marker);
    let failed = |error: io::Error| Error::spawn(unit, error);
    let (their_stdin, stdin) = pipe_with(PipeFlags::CLOEXEC).map_err(|e| failed(e.into()))?;
    let (stdout, their_stdout) = pipe_with(PipeFlags::CLOEXEC).map_err(|e| failed(e.into()))?;
    let (stderr, their_stderr) = pipe_with(PipeFlags::CLOEXEC).map_err(|e| failed(e.into()))?;
    if large {
        // If the kernel refuses, only speed is lost.
        let _ = fcntl_setpipe_size(&stdin, PIPE_BYTES);
        let _ = fcntl_setpipe_size(&stdout, PIPE_BYTES);
    }
    let (door, cage) = caged.map(|(door, cage)| (Arc::new(door), cage)).unzip();
    let their_output = match &door {
        Some(door) if door.merge => &their_stderr,
        _ => &their_stdout,
    };
    let spawned = link.spawn(|socket| {
        let mut command = Command::new(launch.program.target());
        command
            .args(launch.program.args())
            .env_clear()
            .envs(&environment)
            .stdin(their_stdin.try_clone()?)
            .stdout(their_output.try_clone()?)
            .stderr(their_stderr.try_clone()?);
        if let Some(cwd) = &launch.cwd {
            command.current_dir(cwd);
        }
        bind(&mut command, socket, door.clone());
        let child = command.spawn()?;
        Ok((Pid::from_child(&child), child))
    });
    let child = match spawned {
        Ok(Ok(child)) => child,
        Ok(Err(error)) => return Err(Error::explain(unit, &environment, error)),
        Err(source) => {
            let label = unit.label.clone();
            return Err(Error::Sentinel { label, source });
        }
    };
    let leader = Leader::new(child, marker, Arc::clone(link), cage);
    let pidfd = leader.pidfd().map_err(failed)?;
    Ok(Launched {
        leader,
        pidfd,
        stdin,
        stdout,
        stderr,
    })
}

/// Unique per instance, so that stopping one instance does not affect another with the same label.
fn marker(run: &str, serial: u64, label: &str) -> String {
    let label = label.replace(|c: char| c.is_control(), "?");
    format!("{run}:{serial}:{label}")
}

fn random_id() -> io::Result<String> {
    let mut bytes = [0; 16];
    getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(hex::encode(bytes))
}
