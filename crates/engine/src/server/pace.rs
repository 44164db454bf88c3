//! Spaces out the errors for calls that find the queue full.
//!
//! Such a call costs the gateway nearly as much as one that is answered. Clients that repeat refused calls at once
//! could take the time of the calls that are answered, so errors beyond a rate are delayed. A delayed call has no place
//! in the queue.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Time between two errors that are not delayed further.
const INTERVAL: Duration = Duration::from_millis(5);
/// The errors of this much time may come at once.
const BURST: Duration = Duration::from_secs(1);
/// Maximum delay of an error, which tells its client to wait for as long.
const MAX_DELAY: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// When all errors so far would have been sent at [`INTERVAL`].
    until: Mutex<Option<Instant>>,
}

impl Pace {
    /// Counts an error, and waits until it may be sent.
    ///
    /// # Cancel safety
    /// The error stays counted.
    pub(crate) async fn wait(&self) {
        let delay = self.next(Instant::now());
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
    }

    fn next(&self, now: Instant) -> Duration {
        let mut until = self.until.lock();
        let before = until.map_or(now, |until| until.max(now));
        let next = (before + INTERVAL).min(now + BURST + MAX_DELAY);
        *until = Some(next);
        (next - now).saturating_sub(BURST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_burst_is_not_delayed_and_no_error_for_longer_than_a_second() {
        let pace = Pace::default();
        let now = Instant::now();
        assert!((0..200).all(|_| pace.next(now).is_zero()));
        assert_eq!(pace.next(now), INTERVAL);
        assert_eq!(pace.next(now), INTERVAL * 2);
        for _ in 0..1000 {
            assert!(pace.next(now) <= MAX_DELAY);
        }
        assert_eq!(pace.next(now), MAX_DELAY);
        // At the rate itself, errors are delayed no further, and after a pause not at all.
        assert_eq!(pace.next(now + INTERVAL), MAX_DELAY);
        assert!(pace.next(now + Duration::from_secs(3)).is_zero());
    }
}
