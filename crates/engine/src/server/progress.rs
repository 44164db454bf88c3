//! The time for which lists wait for servers in their first start.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;

/// Time that the first list may wait for a server in its first start.
pub(crate) const FIRST_START: Duration = Duration::from_secs(10);
/// The same while other servers come up. On a busy machine, many servers start one after another.
pub(crate) const MAX_FIRST_START: Duration = Duration::from_secs(20);
/// Servers are visibly starting for this long after one of them has come up.
const PROGRESS: Duration = Duration::from_secs(3);

/// When a server of the gateway last came up for the first time. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Progress(Arc<Mutex<Option<Instant>>>);

impl Progress {
    pub(crate) fn note(&self) {
        *self.0.lock() = Some(Instant::now());
    }

    /// Until when lists wait for a server that has been starting since `begin`.
    pub(crate) fn deadline(&self, begin: Instant) -> Instant {
        let progress = self.0.lock().map_or(begin, |last| last + PROGRESS);
        let patient = progress.min(begin + MAX_FIRST_START);
        patient.max(begin + FIRST_START)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn lists_wait_longer_while_servers_come_up() {
        let progress = Progress::default();
        let begin = Instant::now();
        let waits = || (progress.deadline(begin) - begin).as_secs();
        assert_eq!(waits(), 10);
        for (after, expected) in [(5, 10), (4, 12), (3, 15), (6, 20), (60, 20)] {
            tokio::time::advance(Duration::from_secs(after)).await;
            progress.note();
            assert_eq!(waits(), expected);
        }
    }
}
