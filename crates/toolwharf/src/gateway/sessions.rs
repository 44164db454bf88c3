//! The legacy sessions of all clients: bounded, bound to their principal, ended when idle.

use std::{
    collections::HashMap,
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use engine::{Gateway, Scope, hub::Registration};
use mcp::server::{Session, SessionId};

/// A session and what it is of.
struct Entry {
    session: Arc<Session>,
    scope: Scope,
    registration: Registration,
}

/// All sessions.
#[derive(Default)]
pub(crate) struct Sessions {
    by_id: RwLock<HashMap<SessionId, Entry>>,
}

impl Sessions {
    /// Adds a session; `false` if there are `limit` already.
    pub(crate) fn add(
        &self,
        gateway: &Gateway,
        session: &Arc<Session>,
        scope: Scope,
        limit: usize,
    ) -> bool {
        let mut by_id = self.by_id.write().unwrap_or_else(PoisonError::into_inner);
        if by_id.len() >= limit {
            return false;
        }
        let registration = gateway.attach(scope.clone(), session);
        by_id.insert(
            session.id().clone(),
            Entry {
                session: session.clone(),
                scope,
                registration,
            },
        );
        true
    }

    /// The session of that id and its scope, if it is this principal's. Who names no scope means the session's.
    pub(crate) fn find(
        &self,
        id: &str,
        principal: &str,
        scope: &Scope,
    ) -> Option<(Arc<Session>, Scope)> {
        self.find_any(id, principal)
            .filter(|(_, own)| scope == own || *scope == Scope::default())
    }

    /// The session of that id and its scope, if it is this principal's.
    pub(crate) fn find_any(&self, id: &str, principal: &str) -> Option<(Arc<Session>, Scope)> {
        let by_id = self.by_id.read().unwrap_or_else(PoisonError::into_inner);
        let entry = by_id
            .get(id)
            .filter(|entry| **entry.session.principal() == *principal)
            .filter(|entry| !entry.session.over().is_cancelled())?;
        entry.session.touch();
        Some((entry.session.clone(), entry.scope.clone()))
    }

    /// Ends a session.
    pub(crate) async fn end(&self, gateway: &Gateway, id: &SessionId) {
        let entry = self
            .by_id
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(id);
        if let Some(entry) = entry {
            gateway.detach(entry.registration).await;
        }
    }

    /// Ends the sessions that nothing was heard of for `idle`, and forgets those that were cut off; the others forget what they held for long enough.
    pub(crate) async fn reap(&self, gateway: &Gateway, idle: Duration) {
        let idle: Vec<SessionId> = {
            let by_id = self.by_id.read().unwrap_or_else(PoisonError::into_inner);
            by_id
                .iter()
                .inspect(|(_, entry)| entry.session.prune())
                .filter(|(_, entry)| {
                    entry.session.over().is_cancelled() || entry.session.idle() >= idle
                })
                .map(|(id, _)| id.clone())
                .collect()
        };
        for id in idle {
            tracing::debug!(session = ?id, "ended: idle, or cut off");
            self.end(gateway, &id).await;
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.by_id
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .len()
    }
}
