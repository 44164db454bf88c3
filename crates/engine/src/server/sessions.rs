//! Instances of a server that belong to one session (`sharing = "session"`) or to one caller (`login = "user"`).
//!
//! Their number is limited. When the limit is reached, the instance that has been unused longest is stopped, but never
//! one with a call in flight, or whose client has a stream open.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
    time::Duration,
};

use mcp::server::{Session, SessionId};
use parking_lot::Mutex;
use tokio::{sync::OnceCell, time::Instant};

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
    by_holder: Mutex<HashMap<Holder, Owned>>,
}

/// An instance and its owner.
struct Owned {
    slot: Slot,
    /// The owner, if that is a session.
    session: Option<Weak<Session>>,
    /// When the owner last needed the instance.
    used_at: Instant,
}

impl Owned {
    /// Returns whether a call uses the instance or waits for its start, or its session is in use.
    fn is_in_use(&self) -> bool {
        // Without a call, only this table refers to the slot, and only the slot and the task that watches the
        // connection refer to that.
        let has_call = |connection| Arc::strong_count(connection) > 2;
        let session = self.session.as_ref().and_then(Weak::upgrade);
        Arc::strong_count(&self.slot) > 1
            || self.slot.get().is_some_and(has_call)
            || session.is_some_and(|session| session.is_in_use())
    }
}

/// An instance that is stopped because another one needs its slot.
pub(crate) struct Evicted {
    slot: Slot,
    session: Option<Arc<Session>>,
}

impl Evicted {
    /// Ends the instance's session, so that the client initialises again instead of continuing with another instance.
    /// The returned future stops the instance.
    pub(crate) fn end(self, grace: Duration) -> impl Future<Output = ()> + Send + use<> {
        if let Some(session) = self.session {
            session.end();
        }
        close([self.slot], grace)
    }
}

impl SessionInstances {
    /// The slot of an owner, created if needed. If `limit` owners have one already, the one that has been unused
    /// longest is removed and returned too. `None`: all are in use. `session` is the owner, if that is a session;
    /// `is_listening` returns whether another owner has a stream open.
    pub(crate) fn slot(
        &self,
        holder: &Holder,
        session: Option<&Arc<Session>>,
        limit: usize,
        is_listening: impl Fn(&str) -> bool,
    ) -> Option<(Slot, Option<Evicted>)> {
        let mut owned = self.by_holder.lock();
        let evicted = match owned.contains_key(holder) || owned.len() < limit {
            true => None,
            false => {
                let is_listening = |holder: &Holder| match holder {
                    Holder::Principal(principal) => is_listening(principal),
                    Holder::Session(_) => false,
                };
                let unused = owned
                    .iter()
                    .filter(|(holder, one)| !one.is_in_use() && !is_listening(holder));
                let longest = unused.min_by_key(|(_, one)| one.used_at)?.0.clone();
                let evicted = owned.remove(&longest)?;
                Some(Evicted {
                    slot: evicted.slot,
                    session: evicted.session.and_then(|session| session.upgrade()),
                })
            }
        };
        let own = owned.entry(holder.clone()).or_insert_with(|| Owned {
            slot: Slot::default(),
            session: session.map(Arc::downgrade),
            used_at: Instant::now(),
        });
        own.used_at = Instant::now();
        Some((own.slot.clone(), evicted))
    }

    pub(crate) fn forget(&self, holder: &Holder) {
        self.by_holder.lock().remove(holder);
    }

    /// Forgets an instance that is gone.
    pub(crate) fn forget_gone(&self, gone: &Arc<Connection>) {
        let is_kept = |slot: &Slot| slot.get().is_none_or(|kept| !Arc::ptr_eq(kept, gone));
        self.by_holder.lock().retain(|_, own| is_kept(&own.slot));
    }

    /// Stops an owner's instance.
    pub(crate) async fn close(&self, holder: &Holder, grace: Duration) {
        let own = self.by_holder.lock().remove(holder);
        close(own.map(|own| own.slot), grace).await;
    }

    /// Stops the instances that use a principal's sign-in.
    pub(crate) async fn close_of(&self, principal: &Arc<str>, grace: Duration) {
        let is_theirs = |holder: &Holder, own: &mut Owned| match holder {
            Holder::Principal(owner) => owner == principal,
            Holder::Session(_) => {
                (own.slot.get()).is_some_and(|it| it.whose.as_ref() == Some(principal))
            }
        };
        let slots: Vec<Slot> = {
            let mut all = self.by_holder.lock();
            let theirs = all.extract_if(is_theirs);
            theirs.map(|(_, own)| own.slot).collect()
        };
        close(slots, grace).await;
    }

    pub(crate) async fn close_all(&self, grace: Duration) {
        let all = std::mem::take(&mut *self.by_holder.lock());
        close(all.into_values().map(|own| own.slot), grace).await;
    }

    /// Forgets an instance, unless a call holds it. The slot and the task that watches it account for two references.
    pub(crate) fn forget_unused(&self, unused: &Arc<Connection>) -> bool {
        let mut slots = self.by_holder.lock();
        if Arc::strong_count(unused) > 2 {
            return false;
        }
        slots.retain(|_, own| (own.slot.get()).is_none_or(|kept| !Arc::ptr_eq(kept, unused)));
        true
    }

    /// An owner's connection, if it exists.
    pub(crate) fn existing(&self, holder: &Holder) -> Option<Arc<Connection>> {
        self.by_holder
            .lock()
            .get(holder)
            .and_then(|own| own.slot.get().cloned())
    }
}

async fn close(slots: impl IntoIterator<Item = Slot>, grace: Duration) {
    let connections = slots.into_iter().filter_map(|slot| slot.get().cloned());
    let closing = connections.map(async |connection| connection.close(grace).await);
    futures_util::future::join_all(closing).await;
}

#[cfg(test)]
mod tests {
    use mcp::outbox::Bounds;

    use super::*;

    const LIMIT: usize = 2;

    fn principal(name: &str) -> Holder {
        Holder::Principal(name.into())
    }

    /// Takes the slot of an owner, later than all others were taken. Returns the slot, and whether another
    /// owner lost its slot. `None`: all are in use.
    async fn take(
        all: &SessionInstances,
        holder: Holder,
        session: Option<&Arc<Session>>,
        listening: &str,
    ) -> Option<(Slot, bool)> {
        tokio::time::advance(Duration::from_secs(1)).await;
        let (slot, evicted) = all.slot(&holder, session, LIMIT, |one| one == listening)?;
        let is_evicting = evicted.is_some();
        if let Some(evicted) = evicted {
            evicted.end(Duration::ZERO).await;
        }
        Some((slot, is_evicting))
    }

    #[tokio::test(start_paused = true)]
    async fn s05_the_instance_that_is_unused_longest_makes_room() {
        let all = SessionInstances::default();
        let knows = |name: &str| all.by_holder.lock().contains_key(&principal(name));
        for name in ["ada", "bob", "ada"] {
            let (_, is_evicting) = take(&all, principal(name), None, "").await.unwrap();
            assert!(!is_evicting, "{name}");
        }
        take(&all, principal("cleo"), None, "").await.unwrap();
        assert!(knows("ada") && !knows("bob"));
        // Ada has a stream open.
        take(&all, principal("dan"), None, "ada").await.unwrap();
        assert!(knows("ada") && knows("dan"));
        // Dan waits for the start of an instance.
        let starting = take(&all, principal("dan"), None, "ada").await.unwrap();
        assert!(take(&all, principal("eve"), None, "ada").await.is_none());
        drop(starting);
        take(&all, principal("eve"), None, "ada").await.unwrap();
        assert!(knows("ada") && knows("eve"));
    }

    #[tokio::test(start_paused = true)]
    async fn s05_a_session_ends_when_its_instance_makes_room() {
        let all = SessionInstances::default();
        let bounds = Bounds {
            messages: 1,
            bytes: 1,
        };
        let sessions = [(); 4].map(|()| Session::new("ada".into(), bounds));
        let [first, second, third, fourth] = &sessions;
        let taken = async |session: &Arc<Session>| {
            take(&all, session.id().into(), Some(session), "")
                .await
                .is_some()
        };
        assert!(taken(first).await && taken(second).await);
        let open = first.hold_open();
        assert!(taken(third).await);
        assert!(second.over().is_cancelled() && !first.over().is_cancelled());
        let _open = third.hold_open();
        assert!(!taken(fourth).await);
        drop(open);
        assert!(taken(fourth).await);
        assert!(first.over().is_cancelled() && !third.over().is_cancelled());
    }
}
