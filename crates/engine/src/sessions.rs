//! Instances of their own for client sessions: servers with `sharing = "session"`.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use mcp::{
    client::{Ambient, Event},
    outbox::Weight,
    protocol::method,
    server::{Session, SessionId},
};
use tokio::sync::OnceCell;

use crate::{
    launch::{Connection, Launched, StartError},
    questions::{Open, Questions},
    server::{Server, Unavailable},
    shared::Shared,
};

/// The session instances of one server.
#[derive(Default)]
pub(crate) struct SessionInstances {
    by_session: Mutex<HashMap<SessionId, Arc<OnceCell<Arc<Connection>>>>>,
}

impl SessionInstances {
    fn slots(
        &self,
    ) -> std::sync::MutexGuard<'_, HashMap<SessionId, Arc<OnceCell<Arc<Connection>>>>> {
        self.by_session
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The instance of this session, started if there is none, with what its client declares (JSON text).
    pub(crate) async fn get(
        &self,
        server: &Arc<Server>,
        shared: &Arc<Shared>,
        session: &Arc<Session>,
        capabilities: &[u8],
    ) -> Result<Arc<Connection>, Unavailable> {
        let down = |reason: Arc<str>| Unavailable::Down {
            server: server.name().clone(),
            reason,
            retry_ms: None,
        };
        let slot = {
            let mut slots = self.slots();
            let limit = shared.limits().max_session_instances;
            if !slots.contains_key(session.id()) && slots.len() >= limit {
                let why = format!(
                    "{limit} sessions have an instance of it already (`max_session_instances`)"
                );
                return Err(down(why.into()));
            }
            slots.entry(session.id().clone()).or_default().clone()
        };
        let started = slot.get_or_try_init(|| async {
            let capabilities = String::from_utf8_lossy(capabilities);
            let (connection, ambient) = shared
                .connect
                .connect(&server.spec, &capabilities, &Launched::default())
                .await?;
            let connection = Arc::new(connection);
            shared.spawn(forward(
                server.clone(),
                shared.clone(),
                Arc::downgrade(session),
                connection.clone(),
                ambient,
            ));
            Ok::<_, StartError>(connection)
        });
        match started.await {
            Ok(connection) => Ok(connection.clone()),
            Err(error) => {
                self.slots().remove(session.id());
                Err(down(error.reason))
            }
        }
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

/// Carries what comes outside of calls to the session, until either is gone.
async fn forward(
    server: Arc<Server>,
    shared: Arc<Shared>,
    session: std::sync::Weak<Session>,
    connection: Arc<Connection>,
    mut ambient: Ambient,
) {
    let Some(over) = session.upgrade().map(|session| session.over().clone()) else {
        return;
    };
    loop {
        let event = tokio::select! {
            event = ambient.recv() => event,
            _ = connection.client.closed() => None,
            () = over.cancelled() => None,
        };
        let (Some(event), Some(session)) = (event, session.upgrade()) else {
            break;
        };
        match event {
            // All that it asks is for its one session, whatever is in flight.
            Event::Request(request) | Event::Unclear(request) => {
                let asked = session.ask(
                    session.outbox(),
                    request.method(),
                    Some(request.body()).filter(|b| !b.is_empty()),
                );
                let wait = shared.limits().held_call_ttl;
                let questions = Questions::new(&shared, &connection);
                let open = Open::new(&server, session.caller());
                questions.push(request, asked, wait, open);
                // Dropped, it waits for the answer in the background.
                drop(questions);
            }
            Event::Notification(frame) if frame.method() == method::RESOURCE_UPDATED => {
                server.notified(&shared, &frame);
            }
            Event::Notification(frame) => {
                if frame.method() == method::TOOLS_CHANGED {
                    connection.own_tools.forget();
                }
                session
                    .outbox()
                    .push(Weight::Notification, frame.text().clone());
            }
            Event::Response(_) => {}
        }
    }
    let instances = &server.instances;
    if let Some(session) = session.upgrade() {
        instances.close(session.id(), shared.stop_grace).await;
    }
    connection.close(shared.stop_grace).await;
    instances.slots().retain(|_, slot| {
        slot.get()
            .is_none_or(|kept| !Arc::ptr_eq(kept, &connection))
    });
}
