//! Lists that a server has reported as changed and that are due to be fetched. Several notifications for one list lead
//! to a single fetch.

use catalog::ListKind;
use parking_lot::Mutex;
use tokio::sync::Notify;

#[derive(Default)]
pub(crate) struct Refresh {
    wanted: Mutex<[bool; 4]>,
    more: Notify,
}

impl Refresh {
    /// Marks these lists as due.
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
    /// Dropping the future loses nothing.
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
