//! What somebody wants of a server, kept until its loop gets to it.

use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

/// Orders that wait; one more is refused.
const ORDERS: usize = 16;

/// What somebody wants of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    Start,
    Stop,
    Restart,
}

/// An order, and who is told when the server has settled.
pub(crate) type Ordered = (Order, oneshot::Sender<()>);

/// Orders for a server, whether it has a loop or not.
pub(crate) struct Inbox {
    /// `None`: nobody will follow any.
    orders: Mutex<Option<Vec<Ordered>>>,
    bell: Notify,
}

impl Default for Inbox {
    fn default() -> Self {
        Self {
            orders: Mutex::new(Some(Vec::new())),
            bell: Notify::new(),
        }
    }
}

impl Inbox {
    pub(crate) fn push(&self, order: Ordered) -> bool {
        let mut orders = self.orders.lock();
        let Some(waiting) = orders.as_mut().filter(|waiting| waiting.len() < ORDERS) else {
            return false;
        };
        waiting.push(order);
        self.bell.notify_one();
        true
    }

    pub(crate) fn pop(&self) -> Option<Ordered> {
        let mut orders = self.orders.lock();
        let waiting = orders.as_mut()?;
        (!waiting.is_empty()).then(|| waiting.remove(0))
    }

    pub(crate) async fn next(&self) -> Ordered {
        loop {
            if let Some(order) = self.pop() {
                return order;
            }
            self.bell.notified().await;
        }
    }

    /// Waits until there is an order.
    pub(crate) async fn filled(&self) {
        while self.is_empty() {
            self.bell.notified().await;
        }
    }

    fn is_empty(&self) -> bool {
        self.orders.lock().as_ref().is_none_or(Vec::is_empty)
    }

    pub(crate) fn close(&self) {
        *self.orders.lock() = None;
    }
}
