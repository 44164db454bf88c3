//! Legacy sessions of all clients. Their number is limited, each is bound to its principal, and idle ones end.
//!
//! When the limit is reached, the longest unused session of the principal with the most sessions ends. A client that
//! keeps opening sessions therefore ends its own. A session with an open stream or a request in flight does not count
//! as unused.
//!
//! An unknown session id may be from before a restart: [`super::seal`] can read it. A session that has ended here is
//! never resumed: the last [`MAX_ENDED`] are remembered.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use engine::{Gateway, Scope, hub::Registration};
use mcp::server::{Session, SessionId};
use model::fair_share;
use parking_lot::RwLock;

/// Number of sessions that one eviction examines.
const EVICTION_SCAN: usize = 64;
/// Maximum number of ended sessions that are remembered.
const MAX_ENDED: usize = 16 << 10;
/// Leading characters of the id by which an ended session is remembered. Two ids with the same prefix are as unlikely
/// as guessing an id.
const ENDED_CHARS: usize = 22;

/// A session with its scope and registration.
pub(super) struct Entry {
    session: Arc<Session>,
    scope: Scope,
    registration: Registration,
    /// True if the session was opened here, false if it was resumed from its id.
    is_own: bool,
}

#[derive(Default)]
pub(crate) struct Sessions {
    all: RwLock<All>,
}

#[derive(Default)]
struct All {
    by_id: HashMap<SessionId, Entry>,
    by_principal: HashMap<Arc<str>, Own>,
    ended: Ended,
}

/// Sessions that have ended, oldest first.
#[derive(Default)]
struct Ended {
    known: HashSet<Box<str>>,
    order: VecDeque<Box<str>>,
}

impl Ended {
    fn note(&mut self, id: &SessionId) {
        let start: Box<str> = start(id.as_str()).into();
        if self.known.insert(start.clone()) {
            self.order.push_back(start);
        }
        if self.order.len() > MAX_ENDED
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
    }
}

fn start(id: &str) -> &str {
    id.get(..ENDED_CHARS).unwrap_or(id)
}

/// Sessions of one principal.
#[derive(Default)]
struct Own {
    count: usize,
    /// Session ids in the order in which they were last examined, oldest first. Some of the sessions may have ended.
    ids: VecDeque<SessionId>,
}

impl All {
    fn add(&mut self, entry: Entry) {
        let session = &entry.session;
        let own = self.by_principal.entry(session.principal().clone());
        let own = own.or_default();
        own.count += 1;
        own.ids.push_back(session.id().clone());
        self.by_id.insert(session.id().clone(), entry);
    }

    fn remove(&mut self, id: &SessionId) -> Option<Entry> {
        let entry = self.by_id.remove(id)?;
        self.ended.note(id);
        let principal = entry.session.principal();
        if let Some(own) = self.by_principal.get_mut(principal) {
            own.count -= 1;
            if own.count == 0 {
                self.by_principal.remove(principal);
            } else if own.ids.len() > 2 * own.count + EVICTION_SCAN {
                own.ids.retain(|id| self.by_id.contains_key(id));
            }
        }
        Some(entry)
    }

    fn knows(&self, id: &str) -> bool {
        self.by_id.contains_key(id) || self.ended.known.contains(start(id))
    }

    fn holds(&self, principal: &str) -> usize {
        self.by_principal.get(principal).map_or(0, |own| own.count)
    }

    /// Removes and returns the longest unused session of the principal among the next [`EVICTION_SCAN`].
    fn evict(&mut self, principal: &str) -> Option<Entry> {
        let own = self.by_principal.get_mut(principal)?;
        let mut longest: Option<(Duration, SessionId)> = None;
        for _ in 0..own.ids.len().min(EVICTION_SCAN) {
            let id = own.ids.pop_front()?;
            let Some(entry) = self.by_id.get(&id) else {
                continue;
            };
            own.ids.push_back(id.clone());
            let idle = if entry.session.over().is_cancelled() {
                Duration::MAX
            } else {
                entry.session.idle()
            };
            let least = longest.as_ref().map_or(Duration::ZERO, |(idle, _)| *idle);
            if idle > least {
                longest = Some((idle, id));
            }
        }
        let (_, id) = longest?;
        self.remove(&id)
    }

    /// Makes room for one more session of the principal, with at most `limit` sessions in total. `Some(None)`: there is
    /// room. `Some(Some(…))`: this session has to end first. `None`: no session can end.
    fn make_room(&mut self, principal: &str, limit: usize) -> Option<Option<Entry>> {
        let held = self.holds(principal);
        if fair_share(held, self.by_id.len(), limit) {
            return Some(None);
        }
        let most = self.by_principal.iter().max_by_key(|(_, own)| own.count);
        let most = most.map(|(principal, own)| (principal.clone(), own.count));
        if let Some((holder, count)) = most
            && count > held
            && let Some(entry) = self.evict(&holder)
        {
            return Some(Some(entry));
        }
        self.evict(principal).map(Some)
    }
}

impl Sessions {
    /// Adds a session, which is notified of changes that callers with the header values of `scope` see. `Some(None)`:
    /// there was room. `Some(Some(…))`: this session has to end for it. `None`: no session can end, or the session is
    /// already known.
    pub(super) fn add(
        &self,
        gateway: &Gateway,
        session: &Arc<Session>,
        scope: Scope,
        is_own: bool,
        limit: usize,
    ) -> Option<Option<Entry>> {
        let mut all = self.all.write();
        if all.knows(session.id().as_str()) {
            return None;
        }
        let ended = all.make_room(session.principal(), limit)?;
        let registration = gateway.attach(scope.clone(), session);
        // Each request of the session has its own header values.
        let scope = scope.without_values();
        all.add(Entry {
            session: session.clone(),
            scope,
            registration,
            is_own,
        });
        Some(ended)
    }

    /// Finds the session with this id, and its scope, if it belongs to the principal.
    pub(crate) fn find_any(&self, id: &str, principal: &str) -> Option<(Arc<Session>, Scope)> {
        let all = self.all.read();
        let entry = all
            .by_id
            .get(id)
            .filter(|entry| **entry.session.principal() == *principal)
            .filter(|entry| !entry.session.over().is_cancelled())?;
        entry.session.touch();
        Some((entry.session.clone(), entry.scope.clone()))
    }

    /// Returns true if the session was opened here and is still open.
    pub(super) fn is_own(&self, id: &str) -> bool {
        self.all
            .read()
            .by_id
            .get(id)
            .is_some_and(|entry| entry.is_own)
    }

    /// Returns true if the session is or was open here.
    pub(super) fn knows(&self, id: &str) -> bool {
        self.all.read().knows(id)
    }

    pub(crate) async fn end(&self, gateway: &Gateway, id: &SessionId) {
        let entry = self.all.write().remove(id);
        if let Some(entry) = entry {
            entry.end(gateway).await;
        }
    }

    /// Ends sessions that were idle for `idle` and removes those that were cut off. All other sessions discard their
    /// expired state.
    pub(crate) async fn reap(&self, gateway: &Gateway, idle: Duration) {
        let idle: Vec<SessionId> = {
            let all = self.all.read();
            let sessions = all.by_id.iter().inspect(|(_, entry)| entry.session.prune());
            let idle = sessions.filter(|(_, entry)| {
                entry.session.over().is_cancelled() || entry.session.idle() >= idle
            });
            idle.map(|(id, _)| id.clone()).collect()
        };
        for id in idle {
            tracing::debug!(session = ?id, "ended a session: it was idle, or its client was disconnected");
            self.end(gateway, &id).await;
        }
    }

    /// Ends all sessions of a principal. The sessions have ended when this returns; [`Self::reap`] later releases their
    /// resources.
    pub(crate) fn revoke(&self, principal: &str) {
        let sessions: Vec<Arc<Session>> = {
            let all = self.all.read();
            let own = all.by_principal.get(principal).map(|own| own.ids.iter());
            let own = own.into_iter().flatten();
            own.filter_map(|id| Some(all.by_id.get(id)?.session.clone()))
                .collect()
        };
        for session in sessions {
            session.end();
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.all.read().by_id.len()
    }
}

impl Entry {
    pub(super) async fn end(self, gateway: &Gateway) {
        gateway.detach(self.registration).await;
    }
}
