//! The task that sees an instance to its end.
//!
//! It alone owns the [`Leader`]; everybody else only leaves requests. When it is aborted, with
//! the async runtime, the leader's `Drop` kills.

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

/// How long stderr may stay open when all that is known to hold it is dead.
const DRAIN: Duration = Duration::from_millis(500);
const LINGER_PAUSE: Duration = Duration::from_millis(5);
const LINGER_PAUSE_MAX: Duration = Duration::from_millis(100);

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
                    // Not dead all the same: wait for the next time.
                    Ok(mut ready) => if !leader.dead() { ready.clear_ready() },
                    Err(_) => tokio::time::sleep(LINGER_PAUSE_MAX).await,
                },
                step = ladder.next() => match step {
                    Step::Terminate => leader.terminate(),
                    Step::Kill => leader.kill(),
                    Step::GiveUp => {
                        tracing::warn!(label = shared.label, pid = ?shared.pid, "killed, and does not die");
                        // Those who wait have an answer; the task stays, to reap it yet.
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
        let _ = timeout(DRAIN, &mut stderr).await;
        drop(stderr);
        shared.log.close();
        exit.send_replace(Some(end.unwrap_or_default()));
    }
}

/// In a stop, what the leader left behind may use up the grace: often the leader was only a
/// wrapper and its child is the server, saving its data. A leader that ended by itself has
/// nothing to wait for.
async fn linger(leader: &Leader, ladder: &mut Ladder) {
    let mut pause = LINGER_PAUSE;
    while ladder.in_grace() {
        let session = leader.session();
        let scan = tokio::task::spawn_blocking(move || session.find().nothing());
        // It fails when the runtime ends, and then there is no time to linger.
        if scan.await.unwrap_or(true) {
            return;
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            _ = ladder.next() => {}
        }
        pause = (2 * pause).min(LINGER_PAUSE_MAX);
    }
}
