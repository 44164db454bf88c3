//! Lists that a server says have changed, until they are asked for: a burst of such words is one question.

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::catalog::ListKind;

#[derive(Default)]
pub(crate) struct Refresh {
    wanted: Mutex<[bool; 4]>,
    more: Notify,
}

impl Refresh {
    /// Has these lists asked for.
    pub(crate) fn of(&self, kinds: &[ListKind]) {
        {
            let mut wanted = self.wanted.lock();
            for kind in kinds {
                wanted[*kind as usize] = true;
            }
        }
        self.more.notify_one();
    }

    /// Waits for the next lists to fetch, and returns them. Only one task waits at a time.
    ///
    /// # Cancel safety
    /// Nothing is lost if it is dropped before it is ready.
    pub(crate) async fn next(&self) -> Vec<ListKind> {
        loop {
            let wanted = std::mem::take(&mut *self.wanted.lock());
            let kinds = ListKind::ALL
                .into_iter()
                .filter(|kind| wanted[*kind as usize]);
            let kinds: Vec<ListKind> = kinds.collect();
            if !kinds.is_empty() {
                return kinds;
            }
            self.more.notified().await;
        }
    }
}
