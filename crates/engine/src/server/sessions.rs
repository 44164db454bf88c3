//! Instances of a server that belong to one session (`sharing = "session"`) or to one caller (`login = "user"`).

use std::{collections::HashMap, sync::Arc, time::Duration};

use mcp::server::SessionId;
use parking_lot::Mutex;
use tokio::sync::OnceCell;

use crate::server::connection::Connection;

/// The owner of a separate instance.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Holder {
    Session(SessionId),
    Principal(Arc<str>),
}

impl From<&SessionId> for Holder {
    fn from(id: &SessionId) -> Self {
        Self::Session(id.clone())
    }
}

/// The instance of an owner, once it is started.
pub(crate) type Slot = Arc<OnceCell<Arc<Connection>>>;

/// The owned instances of one server.
#[derive(Default)]
pub(crate) struct SessionInstances {
    by_holder: Mutex<HashMap<Holder, Slot>>,
}

impl SessionInstances {
    /// The slot of an owner, created if needed. `None`: `limit` owners have one already.
    pub(crate) fn slot(&self, holder: &Holder, limit: usize) -> Option<Slot> {
        let mut slots = self.by_holder.lock();
        if !slots.contains_key(holder) && slots.len() >= limit {
            return None;
        }
        Some(slots.entry(holder.clone()).or_default().clone())
    }

    pub(crate) fn forget(&self, holder: &Holder) {
        self.by_holder.lock().remove(holder);
    }

    /// Forgets an instance that is gone.
    pub(crate) fn forget_gone(&self, gone: &Arc<Connection>) {
        let is_kept = |slot: &Slot| slot.get().is_none_or(|kept| !Arc::ptr_eq(kept, gone));
        self.by_holder.lock().retain(|_, slot| is_kept(slot));
    }

    /// Stops an owner's instance.
    pub(crate) async fn close(&self, holder: &Holder, grace: Duration) {
        let slot = self.by_holder.lock().remove_entry(holder);
        close(slot.into_iter().collect(), grace).await;
    }

    /// Stops the instances that use a principal's sign-in.
    pub(crate) async fn close_of(&self, principal: &Arc<str>, grace: Duration) {
        let is_theirs = |holder: &Holder, slot: &Slot| match holder {
            Holder::Principal(owner) => owner == principal,
            Holder::Session(_) => {
                (slot.get()).is_some_and(|it| it.whose.as_ref() == Some(principal))
            }
        };
        let mut slots = HashMap::new();
        {
            let mut all = self.by_holder.lock();
            slots.extend(all.extract_if(|holder, slot| is_theirs(holder, slot)));
        }
        close(slots, grace).await;
    }

    pub(crate) async fn close_all(&self, grace: Duration) {
        let slots = std::mem::take(&mut *self.by_holder.lock());
        close(slots, grace).await;
    }

    /// Forgets an instance, unless a call holds it. The slot and the task that watches it account for two references.
    pub(crate) fn forget_unused(&self, unused: &Arc<Connection>) -> bool {
        let mut slots = self.by_holder.lock();
        if Arc::strong_count(unused) > 2 {
            return false;
        }
        slots.retain(|_, slot| slot.get().is_none_or(|kept| !Arc::ptr_eq(kept, unused)));
        true
    }

    /// An owner's connection, if it exists.
    pub(crate) fn existing(&self, holder: &Holder) -> Option<Arc<Connection>> {
        self.by_holder
            .lock()
            .get(holder)
            .and_then(|slot| slot.get().cloned())
    }
}

async fn close(slots: HashMap<Holder, Slot>, grace: Duration) {
    let connections = slots.into_values().filter_map(|slot| slot.get().cloned());
    let closing = connections.map(async |connection| connection.close(grace).await);
    futures_util::future::join_all(closing).await;
}
