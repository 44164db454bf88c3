//! One at a time of what has the same name. Two launches of a server would take each other's volumes away, or each
//! other; two installations of a package would be one too many.
//!
//! A launch that nobody waits for any more goes on to its end before the next one begins.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::unit::Error;

/// Longer than what a launch may take, but for pulling an image, which stops when it is unwanted.
const LAUNCH: Duration = Duration::from_secs(180);

pub(crate) struct Turns {
    known: Mutex<HashMap<String, Weak<Semaphore>>>,
    /// What is waited for, and for how long.
    what: &'static str,
    within: Duration,
}

/// Launches of servers.
impl Default for Turns {
    fn default() -> Self {
        Self::new("an earlier launch of the same server", LAUNCH)
    }
}

impl Turns {
    pub(crate) fn new(what: &'static str, within: Duration) -> Self {
        Self {
            known: Mutex::default(),
            what,
            within,
        }
    }

    /// Whoever holds this is the only one that works on it.
    pub(crate) async fn turn(&self, id: &str) -> Result<OwnedSemaphorePermit, Error> {
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

    use super::Turns;

    #[tokio::test]
    async fn one_at_a_time_and_none_remembered() {
        let turns = Turns::default();
        let first = turns.turn("a").await.unwrap();
        assert!(turns.turn("a").now_or_never().is_none());
        let other = turns.turn("b").await.unwrap();
        drop(first);
        drop(turns.turn("a").await.unwrap());
        drop(other);
        drop(turns.turn("c").await.unwrap());
        assert_eq!(turns.known.lock().len(), 1);
    }
}
