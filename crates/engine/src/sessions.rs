//! Which sessions have an instance of their own of a server: one with `sharing = "session"`.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use mcp::server::SessionId;
use tokio::sync::OnceCell;

use crate::connection::Connection;

/// A session's own instance, once it is started.
pub(crate) type Slot = Arc<OnceCell<Arc<Connection>>>;

/// The session instances of one server.
#[derive(Default)]
pub(crate) struct SessionInstances {
    by_session: Mutex<HashMap<SessionId, Slot>>,
}

impl SessionInstances {
    fn slots(&self) -> std::sync::MutexGuard<'_, HashMap<SessionId, Slot>> {
        self.by_session
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The place of a session's instance, made if there is none; `None`: `limit` sessions have one already.
    pub(crate) fn slot(&self, session: &SessionId, limit: usize) -> Option<Slot> {
        let mut slots = self.slots();
        if !slots.contains_key(session) && slots.len() >= limit {
            return None;
        }
        Some(slots.entry(session.clone()).or_default().clone())
    }

    pub(crate) fn forget(&self, session: &SessionId) {
        self.slots().remove(session);
    }

    /// Forgets an instance that is gone, whichever session had it.
    pub(crate) fn forget_gone(&self, gone: &Arc<Connection>) {
        let is_kept = |slot: &Slot| slot.get().is_none_or(|kept| !Arc::ptr_eq(kept, gone));
        self.slots().retain(|_, slot| is_kept(slot));
    }

    /// Ends the instance of a session that is over.
    pub(crate) async fn close(&self, session: &SessionId, grace: Duration) {
        let slot = self.slots().remove(session);
        if let Some(connection) = slot.and_then(|slot| slot.get().cloned()) {
            connection.close(grace).await;
        }
    }

    pub(crate) async fn close_all(&self, grace: Duration) {
        let slots: Vec<_> = self.slots().drain().collect();
        let closing = slots
            .into_iter()
            .filter_map(|(_, slot)| slot.get().cloned())
            .map(|connection| async move {
                connection.close(grace).await;
            });
        futures_util::future::join_all(closing).await;
    }

    /// The connection of a session, if it has one.
    pub(crate) fn existing(&self, session: &SessionId) -> Option<Arc<Connection>> {
        self.slots()
            .get(session)
            .and_then(|slot| slot.get().cloned())
    }
}
