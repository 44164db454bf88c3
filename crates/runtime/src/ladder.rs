//! The escalation of a stop: terminate, kill, give up.
//!
//! The ladder only says which step is due. The owner of the instance performs the step.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::handle::Stop;

/// Timeout for a killed instance to die. A process that hangs in the kernel may never die.
const DEATH_TIMEOUT: Duration = Duration::from_secs(3);

/// Decides which step is next, and when.
pub struct Ladder {
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

pub enum Step {
    Terminate,
    Kill,
    GiveUp,
}

impl Ladder {
    pub fn new(requests: watch::Receiver<Stop>) -> Self {
        Self {
            requests,
            rung: Rung::Running,
        }
    }

    /// Applies a stop request that came after the leader exited by itself. Returns whether the leader's group must
    /// still be terminated.
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

    /// Waits until the next step is due.
    ///
    /// # Cancel safety
    ///
    /// No step is lost.
    pub async fn next(&mut self) -> Step {
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
        let until = Instant::now() + DEATH_TIMEOUT;
        self.rung = Rung::Killed { until };
        Step::Kill
    }
}
