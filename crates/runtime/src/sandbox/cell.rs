//! The resources around one running server, and the clean-up after it has ended.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open, pidfd_send_signal};
use tokio_util::task::AbortOnDropHandle;

use super::census;
use super::cgroup::Group;
use super::volume::Opened;
use crate::handle::{Exit, KILLED_EXIT_CODE, Meter, SIGKILL, Usage};
use crate::ports::Closing;
use crate::process::{Cage, Stdin};
use crate::process_tree::{ProcessTree, Stat};

pub(super) struct Cell {
    group: Arc<Group>,
    /// The server process, once known.
    server: Arc<OnceLock<(Pid, OwnedFd)>>,
    rest: Mutex<Rest>,
}

/// Resources that are released when the server ends.
#[derive(Default)]
struct Rest {
    volumes: Option<Opened>,
    tasks: Vec<AbortOnDropHandle<()>>,
    /// Waits until the listeners of a task are closed.
    closing: Option<Closing>,
    /// Stdin of a server whose transport is not stdio, but which may exit when its stdin closes.
    stdin: Option<Stdin>,
}

impl Cell {
    pub(super) fn new(group: Arc<Group>, volumes: Option<Opened>) -> Self {
        let rest = Rest {
            volumes,
            ..Rest::default()
        };
        Self {
            group,
            server: Arc::default(),
            rest: Mutex::new(rest),
        }
    }

    pub(super) fn gauge(&self) -> Gauge {
        Gauge {
            group: Arc::clone(&self.group),
            server: Arc::clone(&self.server),
            peak: Arc::default(),
        }
    }

    /// Records `pid` as the process that is, or will become, the server.
    pub(super) fn found(&self, pid: Pid) -> io::Result<()> {
        let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
        let _ = self.server.set((pid, pidfd));
        Ok(())
    }

    pub(super) fn own(&self, task: AbortOnDropHandle<()>) {
        self.rest.lock().tasks.push(task);
    }

    /// The server counts as ended only after these listeners are closed.
    pub(super) fn wait_for(&self, closing: Closing) {
        self.rest.lock().closing = Some(closing);
    }

    pub(super) fn keep(&self, stdin: Stdin) {
        self.rest.lock().stdin = Some(stdin);
    }
}

impl Cage for Cell {
    fn terminate(&self, leader: Pid) {
        drop(self.rest.lock().stdin.take());
        let Some((server, pidfd)) = self.server.get() else {
            // No server has started yet, so there is nothing to save.
            let _ = kill_process_group(leader, Signal::KILL);
            return;
        };
        let _ = pidfd_send_signal(pidfd, Signal::TERM);
        // Also signal the other processes in the leader's group, but not the leader itself. One of them is the init of
        // the namespace, which ignores the signal.
        for pid in ProcessTree::session(leader).find().members {
            let group = |pid| Stat::read(pid).map(|stat| stat.group);
            if pid != leader
                && pid != *server
                && let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty())
                && group(pid) == Some(leader.as_raw_pid())
            {
                let _ = pidfd_send_signal(pidfd, Signal::TERM);
            }
        }
    }

    fn kill(&self) {
        self.group.kill();
    }

    fn empty(&self) -> bool {
        self.group.empty()
    }

    fn end(&self, mut exit: Exit, killed: bool) -> Exit {
        let server_killed = exit.code == Some(KILLED_EXIT_CODE) || exit.signal == Some(SIGKILL);
        exit.out_of_memory = server_killed && !killed && self.group.out_of_memory() > 0;
        exit.fork_bomb = !killed && self.group.fork_bomb();
        self.group.remove();
        // These are released last, when nothing uses them any more.
        let Rest {
            volumes,
            tasks,
            closing,
            stdin,
        } = std::mem::take(&mut *self.rest.lock());
        drop((volumes, tasks, stdin));
        if let Some(closing) = closing {
            closing.wait();
        }
        exit
    }
}

/// Reads usage from the control groups, or from `/proc` for all processes in the namespace.
pub(super) struct Gauge {
    group: Arc<Group>,
    server: Arc<OnceLock<(Pid, OwnedFd)>>,
    /// The highest memory usage seen, for kernels that do not record it.
    peak: Arc<AtomicU64>,
}

impl Meter for Gauge {
    fn read(&self) -> BoxFuture<'_, Option<Usage>> {
        let (group, server) = (Arc::clone(&self.group), Arc::clone(&self.server));
        let peak = Arc::clone(&self.peak);
        async move {
            // Kernel files do not block for long, but there are several of them.
            let read = tokio::task::spawn_blocking(move || {
                if group.counts() {
                    return group.usage();
                }
                let (pid, pidfd) = server.get()?;
                let mut usage = census::usage(*pid)?;
                if dead(pidfd) {
                    // The process id may belong to another process by now.
                    return None;
                }
                let before = peak.fetch_max(usage.memory, Ordering::Relaxed);
                usage.memory_peak = before.max(usage.memory);
                Some(usage)
            });
            read.await.ok().flatten()
        }
        .boxed()
    }
}

fn dead(pidfd: &OwnedFd) -> bool {
    let mut polled = [PollFd::new(pidfd, PollFlags::IN)];
    !matches!(poll(&mut polled, Some(&Timespec::default())), Ok(0))
}
