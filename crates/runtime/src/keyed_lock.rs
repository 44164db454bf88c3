//! Keyed locks: one operation per name at a time. Two launches of a server would remove each other's volumes or
//! containers, and a package must not be installed twice at the same time.
//!
//! A cancelled launch still finishes before the next one starts.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::unit::Error;

/// Timeout for an earlier launch. Longer than any launch, except an image pull, which stops when the launch is
/// cancelled.
const LAUNCH_TIMEOUT: Duration = Duration::from_secs(180);

pub struct KeyedLock {
    known: Mutex<HashMap<String, Weak<Semaphore>>>,
    /// What a waiting caller waits for, as named in errors, and the timeout of the wait.
    what: &'static str,
    within: Duration,
}

/// Locks for launches of servers.
impl Default for KeyedLock {
    fn default() -> Self {
        Self::new("wait for an earlier launch of the server", LAUNCH_TIMEOUT)
    }
}

impl KeyedLock {
    pub(crate) fn new(what: &'static str, within: Duration) -> Self {
        Self {
            known: Mutex::default(),
            what,
            within,
        }
    }

    /// Waits for the lock. Only the holder of the permit may work on `id`.
    pub async fn turn(&self, id: &str) -> Result<OwnedSemaphorePermit, Error> {
        let turn = self.of(id).acquire_owned();
        match timeout(self.within, turn).await {
            Ok(Ok(turn)) => Ok(turn),
            _ => Err(Error::Timeout {
                what: self.what,
                within: self.within,
            }),
        }
    }

    fn of(&self, id: &str) -> Arc<Semaphore> {
        let mut known = self.known.lock();
        if let Some(turn) = known.get(id).and_then(Weak::upgrade) {
            return turn;
        }
        known.retain(|_, turn| turn.strong_count() > 0);
        let turn = Arc::new(Semaphore::new(1));
        known.insert(id.to_owned(), Arc::downgrade(&turn));
        turn
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::KeyedLock;

    #[tokio::test]
    async fn one_at_a_time_and_none_remembered() {
        let keyed_lock = KeyedLock::default();
        let first = keyed_lock.turn("a").await.unwrap();
        assert!(keyed_lock.turn("a").now_or_never().is_none());
        let other = keyed_lock.turn("b").await.unwrap();
        drop(first);
        drop(keyed_lock.turn("a").await.unwrap());
        drop(other);
        drop(keyed_lock.turn("c").await.unwrap());
        assert_eq!(keyed_lock.known.lock().len(), 1);
    }
}
