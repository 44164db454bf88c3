//! A child that has been forked and not yet reaped, and the one place that signals and reaps.
//!
//! # Invariants
//!
//! - While a [`Leader`] exists its number is pinned, running or not, so signals to its group
//!   reach nobody else.
//! - Dropping one kills what belongs to it. That is the last resort, for a runtime that is
//!   shut down or a launch that nobody waits for any more; it waits for [`DROP`] at the most.

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
use crate::lineage::Lineage;
use crate::sentinel::Link;

/// How long what has been killed may take to die.
const BURY: Duration = Duration::from_secs(2);
const DROP: Duration = Duration::from_millis(200);
const PAUSE: Duration = Duration::from_millis(2);

pub(super) struct Leader {
    child: Child,
    pid: Pid,
    marker: String,
    link: Arc<Link>,
    cage: Option<Arc<dyn Cage>>,
    /// Whether it lived when it was killed from here.
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

    /// Readable when the leader is dead.
    pub(super) fn pidfd(&self) -> io::Result<OwnedFd> {
        Ok(pidfd_open(self.pid, PidfdFlags::NONBLOCK)?)
    }

    pub(super) fn dead(&self) -> bool {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        // An error means that somebody else reaped it. It should not happen; it is dead then.
        !matches!(waitid(WaitId::Pid(self.pid), options), Ok(None))
    }

    pub(super) fn terminate(&self) {
        if let Some(cage) = &self.cage {
            cage.terminate(self.pid);
            return;
        }
        // Fails only if there is nobody left to receive it.
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

    /// What the leader's session and group are known by.
    pub(super) fn session(&self) -> Lineage {
        Lineage::session(self.pid)
    }

    /// Kills all that is left, then reaps the leader. Blocks, for 2 seconds at the most once
    /// the leader is dead.
    pub(super) fn bury(mut self) -> Exit {
        self.finish(BURY).unwrap_or_default()
    }

    fn finish(&mut self, limit: Duration) -> Option<Exit> {
        self.kill();
        let deadline = Instant::now() + limit;
        let lineage = Lineage::instance(self.pid, &self.marker);
        let mut escaped = HashSet::new();
        let mut pause = PAUSE;
        loop {
            let found = lineage.kill();
            let left = found.members.len();
            let nothing = found.nothing() && self.cage.as_ref().is_none_or(|cage| cage.empty());
            escaped.extend(found.members);
            if nothing && self.dead() {
                break;
            }
            if Instant::now() >= deadline {
                tracing::warn!(pid = %self.pid, left, "killed processes do not die");
                break;
            }
            thread::sleep(pause);
            pause = (2 * pause).min(10 * PAUSE);
        }
        if !self.dead() {
            return None;
        }
        lineage.reap_adopted(&escaped);
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
        // If it does not die in time it stays listed, and the sentinel will see to it.
        if !self.reaped {
            let _ = self.finish(DROP);
        }
    }
}
