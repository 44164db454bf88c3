//! Orders to start, stop or restart a server, kept until its loop carries them out.

use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

/// Waiting orders per server. Further ones are refused.
const MAX_ORDERS: usize = 16;

/// An order from a user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    Start,
    Stop,
    Restart,
}

/// An order, and the sender to notify when the server has settled.
pub(crate) type Ordered = (Command, oneshot::Sender<()>);

/// The orders of a server, whether or not its loop is running.
pub(crate) struct Inbox {
    /// `None`: closed, no order will be carried out.
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
        let Some(waiting) = orders.as_mut().filter(|waiting| waiting.len() < MAX_ORDERS) else {
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

    /// Waits until an order arrives.
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
