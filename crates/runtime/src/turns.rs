//! One launch of a server at a time: two would take each other's volumes away, or each other.
//!
//! A launch that nobody waits for any more goes on to its end before the next one begins.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::unit::Error;

/// Longer than what a launch may take, but for pulling an image, which stops when it is unwanted.
const WAIT: Duration = Duration::from_secs(180);

#[derive(Default)]
pub(crate) struct Turns(Mutex<HashMap<String, Weak<Semaphore>>>);

impl Turns {
    /// Whoever holds this is the only one that works on the server.
    pub(crate) async fn turn(&self, id: &str) -> Result<OwnedSemaphorePermit, Error> {
        let turn = self.of(id).acquire_owned();
        match timeout(WAIT, turn).await {
            Ok(Ok(turn)) => Ok(turn),
            _ => Err(Error::Timeout {
                what: "an earlier launch of the same server",
                within: WAIT,
            }),
        }
    }

    fn of(&self, id: &str) -> Arc<Semaphore> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
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
        assert_eq!(turns.0.lock().unwrap().len(), 1);
    }
}
