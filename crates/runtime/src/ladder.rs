//! The way down of an instance that is to stop: asked, then killed, then given up.
//!
//! It only says what is due; who owns the instance does it.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::handle::Stop;

/// How long what was killed may take to die. One that hangs in the kernel can take for ever.
const DEATH: Duration = Duration::from_secs(3);

/// What is to be done next, and when.
pub(crate) struct Ladder {
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

pub(crate) enum Step {
    Terminate,
    Kill,
    GiveUp,
}

impl Ladder {
    pub(crate) fn new(requests: watch::Receiver<Stop>) -> Self {
        Self {
            requests,
            rung: Rung::Running,
        }
    }

    /// A stop that was asked for, but came after the leader's own end: whether its group has to
    /// be told.
    pub(crate) fn catch_up(&mut self) -> bool {
        let stop = *self.requests.borrow();
        match (self.rung, stop) {
            (Rung::Running, Stop::By(until)) => {
                self.rung = Rung::Grace { until };
                true
            }
            _ => false,
        }
    }

    pub(crate) fn in_grace(&self) -> bool {
        matches!(self.rung, Rung::Grace { until } if until > Instant::now())
    }

    /// The next step, when its time has come.
    ///
    /// # Cancel safety
    ///
    /// No step is lost.
    pub(crate) async fn next(&mut self) -> Step {
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
