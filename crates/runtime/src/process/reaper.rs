//! The task that sees an instance to its end.
//!
//! It alone owns the [`Leader`]; everybody else only leaves requests. When it is aborted, with
//! the async runtime, the leader's `Drop` kills.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::unix::AsyncFd;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::task::AbortOnDropHandle;

use super::Exit;
use super::handle::{Shared, Stop};
use super::leader::Leader;

/// How long a killed leader may take to die. One that hangs in the kernel can take for ever.
const DEATH: Duration = Duration::from_secs(3);
/// How long stderr may stay open when all that is known to hold it is dead.
const DRAIN: Duration = Duration::from_millis(500);
const LINGER_PAUSE: Duration = Duration::from_millis(5);
const LINGER_PAUSE_MAX: Duration = Duration::from_millis(100);

pub(super) struct Reaper {
    pub(super) leader: Leader,
    pub(super) pidfd: AsyncFd<OwnedFd>,
    pub(super) shared: Arc<Shared>,
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
                        tracing::warn!(label = shared.label, pid = shared.pid, "killed, and does not die");
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

/// What is to be done next, and when.
struct Ladder {
    requests: watch::Receiver<Stop>,
    rung: Rung,
}

#[derive(Clone, Copy)]
enum Rung {
    Running,
    Grace { until: Instant },
    Killed { until: Instant },
    GivenUp,
}

enum Step {
    Terminate,
    Kill,
    GiveUp,
}

impl Ladder {
    fn new(requests: watch::Receiver<Stop>) -> Self {
        Self {
            requests,
            rung: Rung::Running,
        }
    }

    /// A stop that was asked for, but came after the leader's own end: whether its group has to
    /// be told.
    fn catch_up(&mut self) -> bool {
        let stop = *self.requests.borrow();
        match (self.rung, stop) {
            (Rung::Running, Stop::By(until)) => {
                self.rung = Rung::Grace { until };
                true
            }
            _ => false,
        }
    }

    fn in_grace(&self) -> bool {
        matches!(self.rung, Rung::Grace { until } if until > Instant::now())
    }

    /// The next step, when its time has come.
    ///
    /// # Cancel safety
    ///
    /// No step is lost.
    async fn next(&mut self) -> Step {
        loop {
            let stop = *self.requests.borrow_and_update();
            let due = match (self.rung, stop) {
                (Rung::Running, Stop::No) => None,
                (Rung::Running, Stop::By(until)) => {
                    self.rung = Rung::Grace { until };
                    return Step::Terminate;
                }
                (Rung::Running | Rung::Grace { .. }, Stop::Now) => return self.kill(),
                (Rung::Grace { until }, Stop::By(sooner)) => {
                    let until = until.min(sooner);
                    self.rung = Rung::Grace { until };
                    Some(until)
                }
                (Rung::Grace { until } | Rung::Killed { until }, _) => Some(until),
                (Rung::GivenUp, _) => None,
            };
            tokio::select! {
                biased;
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                    return match self.rung {
                        Rung::Killed { .. } => { self.rung = Rung::GivenUp; Step::GiveUp }
                        _ => self.kill(),
                    };
                }
                changed = self.requests.changed() => if changed.is_err() {
                    return self.kill();
                },
            }
        }
    }

    fn kill(&mut self) -> Step {
        let until = Instant::now() + DEATH;
        self.rung = Rung::Killed { until };
        Step::Kill
    }
}
