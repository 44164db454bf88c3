//! What is around one running server, and what is left to do when it has ended.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open, pidfd_send_signal};
use tokio_util::task::AbortOnDropHandle;

use super::cgroup::Group;
use super::volume::Opened;
use crate::handle::Exit;
use crate::lineage::{Lineage, Stat};
use crate::process::{Cage, Stdin};
use crate::unit::{Meter, Usage};

/// 128 and `SIGKILL`: what bubblewrap ends with when the server was killed.
const KILLED: i32 = 137;
const SIGKILL: i32 = 9;

pub(super) struct Cell {
    group: Arc<Group>,
    /// The server itself, from when it is known.
    server: OnceLock<(Pid, OwnedFd)>,
    rest: Mutex<Rest>,
}

/// What ends with the server.
#[derive(Default)]
struct Rest {
    volumes: Option<Opened>,
    tasks: Vec<AbortOnDropHandle<()>>,
    /// Of a server that is not spoken to over it, but might end at its end.
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
            server: OnceLock::new(),
            rest: Mutex::new(rest),
        }
    }

    /// It is this process that is, or becomes, the server.
    pub(super) fn found(&self, pid: Pid) -> io::Result<()> {
        let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
        let _ = self.server.set((pid, pidfd));
        Ok(())
    }

    pub(super) fn own(&self, task: AbortOnDropHandle<()>) {
        self.rest().tasks.push(task);
    }

    pub(super) fn keep(&self, stdin: Stdin) {
        self.rest().stdin = Some(stdin);
    }

    fn rest(&self) -> MutexGuard<'_, Rest> {
        self.rest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Cage for Cell {
    fn terminate(&self, leader: Pid) {
        drop(self.rest().stdin.take());
        let Some((server, pidfd)) = self.server.get() else {
            // There is no server yet that could save anything.
            let _ = kill_process_group(leader, Signal::KILL);
            return;
        };
        let _ = pidfd_send_signal(pidfd, Signal::TERM);
        // The rest of its group, but for the leader. The first process inside does not hear it.
        for pid in Lineage::session(leader).find().members {
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
        let server_killed = exit.code == Some(KILLED) || exit.signal == Some(SIGKILL);
        exit.out_of_memory = server_killed && !killed && self.group.out_of_memory() > 0;
        self.group.remove();
        // Only now that nobody uses them any more.
        let Rest {
            volumes,
            tasks,
            stdin,
        } = std::mem::take(&mut *self.rest());
        drop((volumes, tasks, stdin));
        exit
    }
}

/// What the control groups count.
pub(super) struct Gauge(Arc<Group>);

impl Gauge {
    pub(super) fn new(group: Arc<Group>) -> Self {
        Self(group)
    }
}

impl Meter for Gauge {
    fn read(&self) -> BoxFuture<'_, Option<Usage>> {
        let group = Arc::clone(&self.0);
        async move {
            // Files of the kernel's do not block for long, but there are eight of them.
            let read = tokio::task::spawn_blocking(move || group.usage());
            read.await.ok().flatten()
        }
        .boxed()
    }
}
