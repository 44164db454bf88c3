//! The task that waits for an instance's exit and reaps it.
//!
//! It is the only owner of the [`Leader`]; others send it requests. If it is aborted together with the async runtime,
//! the drop of the leader kills the instance.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::unix::AsyncFd;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

use super::leader::Leader;
use crate::handle::{Exit, ProcessState};
use crate::ladder::{Ladder, Step};

/// Timeout for stderr to close after all processes known to hold it are dead.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(500);
const LINGER_POLL_INTERVAL: Duration = Duration::from_millis(5);
const MAX_LINGER_POLL_INTERVAL: Duration = Duration::from_millis(100);

pub(super) struct Reaper {
    pub(super) leader: Leader,
    pub(super) pidfd: AsyncFd<OwnedFd>,
    pub(super) shared: Arc<ProcessState>,
    pub(super) stderr: AbortOnDropHandle<()>,
    pub(super) exit: watch::Sender<Option<Exit>>,
}

impl Reaper {
    pub(super) async fn run(self) {
        let Self {
            leader,
            pidfd,
            shared,
            mut stderr,
            exit,
        } = self;
        let mut ladder = Ladder::new(shared.requests());
        while !leader.dead() {
            tokio::select! {
                ready = pidfd.readable() => match ready {
                    // The pidfd is readable although the leader is not dead: wait again.
                    Ok(mut ready) => if !leader.dead() { ready.clear_ready() },
                    Err(_) => tokio::time::sleep(MAX_LINGER_POLL_INTERVAL).await,
                },
                step = ladder.next() => match step {
                    Step::Terminate => leader.terminate(),
                    Step::Kill => leader.kill(),
                    Step::GiveUp => {
                        tracing::warn!(label = shared.label, pid = ?shared.pid, "the instance was killed but did not exit in time");
                        // Callers stop waiting; the task continues, to reap the leader when possible.
                        exit.send_replace(Some(Exit::default()));
                    }
                },
            }
        }
        drop(pidfd);
        if ladder.catch_up() {
            leader.terminate();
        }
        linger(&leader, &mut ladder).await;
        let end = tokio::task::spawn_blocking(move || leader.bury()).await;
        let _ = timeout(DRAIN_TIMEOUT, &mut stderr).await;
        drop(stderr);
        shared.log.close();
        exit.send_replace(Some(shared.explained(end.unwrap_or_default())));
    }
}

/// During a stop, processes left by the leader may use the rest of the grace period: often the leader was only a
/// wrapper, and its child is the server that is saving its data. If the leader exited by itself, there is no wait.
async fn linger(leader: &Leader, ladder: &mut Ladder) {
    let mut pause = LINGER_POLL_INTERVAL;
    while ladder.in_grace() {
        let session = leader.session();
        let scan = tokio::task::spawn_blocking(move || session.find().nothing());
        // The scan fails when the async runtime shuts down. Then waiting is impossible.
        if scan.await.unwrap_or(true) {
            return;
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            _ = ladder.next() => {}
        }
        pause = (2 * pause).min(MAX_LINGER_POLL_INTERVAL);
    }
}
