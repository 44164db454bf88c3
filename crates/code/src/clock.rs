//! The clock of a run, which stands still while a person is asked something.
//!
//! Invariant: however long it stands still, a run ends after [`Limits::total`].

use std::future::pending;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::limits::Limits;

/// Stops the clock of one run. Clones share the clock.
#[derive(Clone, Debug)]
pub struct Clock(watch::Sender<usize>);

/// The clock stands still until all of these are dropped.
#[derive(Debug)]
pub struct Pause(watch::Sender<usize>);

impl Default for Clock {
    fn default() -> Self {
        Self(watch::Sender::new(0))
    }
}

impl Clock {
    #[must_use]
    pub fn pause(&self) -> Pause {
        self.0.send_modify(|pauses| *pauses += 1);
        Pause(self.0.clone())
    }

    #[must_use]
    pub fn is_stopped(&self) -> bool {
        *self.0.borrow() > 0
    }
}

impl Drop for Pause {
    fn drop(&mut self) {
        self.0.send_modify(|pauses| *pauses -= 1);
    }
}

/// The time that a run has left.
pub(crate) struct Countdown {
    pauses: watch::Receiver<usize>,
    /// The time that was left when the clock was started.
    left: Duration,
    /// `None`: the clock stands still.
    started: Option<Instant>,
    last: Instant,
}

impl Countdown {
    pub(crate) fn start(clock: &Clock, limits: &Limits) -> Self {
        let now = Instant::now();
        Self {
            pauses: clock.0.subscribe(),
            left: limits.wall,
            started: Some(now),
            last: now + limits.total.max(limits.wall),
        }
    }

    /// The end of the run, unless the clock is stopped before.
    pub(crate) fn end(&self) -> Instant {
        let end = self.started.map(|started| started + self.left);
        end.map_or(self.last, |end| end.min(self.last))
    }

    /// Returns whether the run ends because of its total time.
    pub(crate) fn is_last(&self) -> bool {
        self.end() == self.last
    }

    /// Waits until the clock stops or continues. Returns the time that is left if it continues.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub(crate) async fn changed(&mut self) -> Option<Duration> {
        loop {
            if self.pauses.changed().await.is_err() {
                return pending().await;
            }
            let stands_still = *self.pauses.borrow_and_update() > 0;
            match self.started {
                Some(started) if stands_still => {
                    self.left = self.left.saturating_sub(started.elapsed());
                    self.started = None;
                    return None;
                }
                None if !stands_still => {
                    self.started = Some(Instant::now());
                    return Some(self.left);
                }
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use tokio::time::advance;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn pauses_are_not_counted() {
        let limits = Limits {
            wall: 10 * SECOND,
            total: 100 * SECOND,
            ..Limits::default()
        };
        let clock = Clock::default();
        let mut countdown = Countdown::start(&clock, &limits);
        let begin = Instant::now();
        let after = |countdown: &Countdown| countdown.end() - begin;
        assert_eq!(after(&countdown), 10 * SECOND);
        advance(3 * SECOND).await;
        let first = clock.pause();
        assert_eq!(countdown.changed().await, None);
        assert_eq!(after(&countdown), 100 * SECOND);
        // A second pause at the same time changes nothing, and neither does its end.
        let second = clock.clone().pause();
        drop(first);
        assert_eq!(countdown.changed().now_or_never(), None);
        advance(20 * SECOND).await;
        drop(second);
        assert_eq!(countdown.changed().await, Some(7 * SECOND));
        assert_eq!(after(&countdown), 30 * SECOND);
        assert!(!countdown.is_last());
        // The total is bounded.
        let _third = clock.pause();
        assert_eq!(countdown.changed().await, None);
        assert!(countdown.is_last());
    }
}
