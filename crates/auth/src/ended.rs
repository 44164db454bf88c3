//! A queue of principals that have lost all access and whose open sessions and streams must be closed.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;

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

    /// Returns the principals that ended since the last call; waits until there is one.
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
