//! A forked child that has not been reaped yet. Only this module signals and reaps children.
//!
//! # Invariants
//!
//! - While a [`Leader`] exists, its process id cannot be reused, whether it is running or not. So signals to its group
//!   reach no other process.
//! - Dropping a leader kills its processes, as a last resort when the async runtime is shut down or a launch was
//!   cancelled. The drop waits at most [`DROP_TIMEOUT`].

use std::collections::HashSet;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt as _;
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, pidfd_open,
    waitid,
};
use tokio::time::Instant;

use super::cage::Cage;
use crate::handle::Exit;
use crate::process_tree::ProcessTree;
use crate::sentinel::Link;

/// Timeouts for killed processes to die.
const BURY_TIMEOUT: Duration = Duration::from_secs(2);
const DROP_TIMEOUT: Duration = Duration::from_millis(200);
const POLL_INTERVAL: Duration = Duration::from_millis(2);

pub(super) struct Leader {
    child: Child,
    pid: Pid,
    marker: String,
    link: Arc<Link>,
    cage: Option<Arc<dyn Cage>>,
    /// True if the leader was alive when this module killed it.
    killed: AtomicBool,
    reaped: bool,
}

impl Leader {
    pub(super) fn new(
        child: Child,
        marker: String,
        link: Arc<Link>,
        cage: Option<Arc<dyn Cage>>,
    ) -> Self {
        let pid = Pid::from_child(&child);
        Self {
            child,
            pid,
            marker,
            link,
            cage,
            killed: AtomicBool::new(false),
            reaped: false,
        }
    }

    pub(super) fn pid(&self) -> Pid {
        self.pid
    }

    /// Becomes readable when the leader is dead.
    pub(super) fn pidfd(&self) -> io::Result<OwnedFd> {
        Ok(pidfd_open(self.pid, PidfdFlags::NONBLOCK)?)
    }

    pub(super) fn dead(&self) -> bool {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        // An error should not happen: something else has reaped the leader, which is then dead.
        !matches!(waitid(WaitId::Pid(self.pid), options), Ok(None))
    }

    pub(super) fn terminate(&self) {
        if let Some(cage) = &self.cage {
            cage.terminate(self.pid);
            return;
        }
        // Fails only if no process is left to receive the signal.
        let _ = kill_process_group(self.pid, Signal::TERM);
    }

    pub(super) fn kill(&self) {
        if !self.dead() {
            self.killed.store(true, Ordering::Relaxed);
        }
        let _ = kill_process_group(self.pid, Signal::KILL);
        // A leader can move itself into another group of its session.
        let _ = kill_process(self.pid, Signal::KILL);
        if let Some(cage) = &self.cage {
            cage.kill();
        }
    }

    /// The session and group of the leader.
    pub(super) fn session(&self) -> ProcessTree {
        ProcessTree::session(self.pid)
    }

    /// Kills all remaining processes, then reaps the leader. Blocks at most 2 seconds once the leader is dead.
    pub(super) fn bury(mut self) -> Exit {
        self.finish(BURY_TIMEOUT).unwrap_or_default()
    }

    fn finish(&mut self, limit: Duration) -> Option<Exit> {
        self.kill();
        let deadline = Instant::now() + limit;
        let process_tree = ProcessTree::instance(self.pid, &self.marker);
        let mut escaped = HashSet::new();
        let mut pause = POLL_INTERVAL;
        loop {
            let found = process_tree.kill(&[]);
            let left = found.members.len();
            let nothing = found.nothing() && self.cage.as_ref().is_none_or(|cage| cage.empty());
            escaped.extend(found.members);
            if nothing && self.dead() {
                break;
            }
            if Instant::now() >= deadline {
                tracing::warn!(pid = %self.pid, left, "killed processes did not exit within {limit:?}");
                break;
            }
            thread::sleep(pause);
            pause = (2 * pause).min(10 * POLL_INTERVAL);
        }
        if !self.dead() {
            return None;
        }
        process_tree.reap_adopted(&escaped);
        self.link.forget(self.pid);
        self.reaped = true;
        let status = self.child.wait().ok()?;
        let exit = Exit {
            code: status.code(),
            signal: status.signal(),
            ..Exit::default()
        };
        Some(match &self.cage {
            Some(cage) => cage.end(exit, self.killed.load(Ordering::Relaxed)),
            None => exit,
        })
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        // A leader that does not die in time stays registered, so that the sentinel kills it.
        if !self.reaped {
            let _ = self.finish(DROP_TIMEOUT);
        }
    }
}
