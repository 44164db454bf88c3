//! Principals that may do nothing any more: what they have open ends.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;

/// A list of them, until somebody asks.
#[derive(Debug, Default)]
pub(super) struct Ended {
    principals: Mutex<Vec<Arc<str>>>,
    told: Notify,
}

impl Ended {
    pub(super) fn tell(&self, principals: impl IntoIterator<Item = Arc<str>>) {
        let mut ended = self
            .principals
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        ended.extend(principals);
        drop(ended);
        self.told.notify_one();
    }

    /// Those that ended since this was last asked; waits until there are some.
    pub(super) async fn next(&self) -> Vec<Arc<str>> {
        loop {
            let ended = std::mem::take(
                &mut *self
                    .principals
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner),
            );
            if !ended.is_empty() {
                return ended;
            }
            self.told.notified().await;
        }
    }
}
