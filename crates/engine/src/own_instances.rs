//! Instances of a session's own: how they come about, what they say outside of calls, and which tools they list.
//!
//! A server may offer more tools to a client that can do more. The common instance is told that everything is possible,
//! so its list is the longest; a session with an instance of its own is shown only what that one lists. Names stay those
//! of the common list, for calls are routed by it.

use std::sync::{Arc, Weak};

use bytes::Bytes;
use mcp::{
    Frame,
    client::{Ambient, Event},
    outbox::Weight,
    protocol::method,
    server::Session,
};
use model::Sharing;
use tokio::sync::oneshot;

use crate::{
    catalog::{ListKind, fetch_list},
    connection::{Connection, Names},
    launch::{Launched, StartError},
    questions::{Open, Questions},
    server::{FIRST_START, Server},
    shared::Shared,
    unavailable::Unavailable,
    view::View,
};

/// The instance of this session, started if there is none, with what its client declares (JSON text).
pub(crate) async fn instance(
    shared: &Arc<Shared>,
    server: &Arc<Server>,
    session: &Arc<Session>,
    capabilities: &[u8],
) -> Result<Arc<Connection>, Unavailable> {
    let down = |reason: Arc<str>| Unavailable::Down {
        server: server.name().clone(),
        reason,
        retry_ms: None,
    };
    let limit = shared.limits().max_session_instances;
    let Some(slot) = server.instances.slot(session.id(), limit) else {
        let why =
            format!("{limit} sessions have an instance of it already (`max_session_instances`)");
        return Err(down(why.into()));
    };
    let started = slot.get_or_try_init(|| async {
        let capabilities = String::from_utf8_lossy(capabilities);
        let launched = Launched::default();
        let connecting = (shared.connect).connect(&server.spec, None, &capabilities, &launched);
        let (connection, ambient) = connecting.await?;
        let connection = Arc::new(connection);
        shared.spawn(forward(
            shared.clone(),
            server.clone(),
            Arc::downgrade(session),
            connection.clone(),
            ambient,
        ));
        Ok::<_, StartError>(connection)
    });
    match started.await {
        Ok(connection) => Ok(connection.clone()),
        Err(error) => {
            server.instances.forget(session.id());
            Err(down(error.reason))
        }
    }
}

/// Carries what comes outside of calls to the session, until either is gone.
async fn forward(
    shared: Arc<Shared>,
    server: Arc<Server>,
    session: Weak<Session>,
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
                let questions = Questions::new(shared.running(), &connection);
                let open = Open::new(&server.asked_now, session.caller());
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
    instances.forget_gone(&connection);
}

/// Whether a session sees lists of its own in this view.
pub(crate) fn has_own(view: &View) -> bool {
    view.servers
        .iter()
        .any(|server| server.spec.sharing == Sharing::Session)
}

/// What the session's own instances list; those that are not there yet are started. A server whose instance cannot be had
/// is left out: of it, the common list is shown.
pub(crate) async fn own_tools(
    shared: &Arc<Shared>,
    view: &View,
    session: &Arc<Session>,
    capabilities: &Bytes,
) -> Vec<(Arc<Server>, Names)> {
    let own = view
        .servers
        .iter()
        .filter(|server| server.spec.sharing == Sharing::Session);
    let asked = own.map(
        async |server| match of_one(shared, server, session, capabilities).await {
            Ok(names) => Some((server.clone(), names)),
            Err(why) => {
                tracing::debug!(server = %server.key(), "the common list is shown: {why}");
                None
            }
        },
    );
    let known = futures_util::future::join_all(asked).await;
    known.into_iter().flatten().collect()
}

/// What one server's instance for the session lists. An instance that takes long to start goes on to do so: the session
/// is told of its list when it is there.
async fn of_one(
    shared: &Arc<Shared>,
    server: &Arc<Server>,
    session: &Arc<Session>,
    capabilities: &Bytes,
) -> Result<Names, Arc<str>> {
    let existing = server.instances.existing(session.id());
    let known = existing.and_then(|instance| instance.own_tools.names());
    if let Some(known) = known {
        return Ok(known);
    }
    let (done, told) = oneshot::channel();
    let (engine, server, session) = (shared.clone(), server.clone(), session.clone());
    let capabilities = capabilities.clone();
    shared.spawn(async move {
        let fetched = fetch(&engine, &server, &session, &capabilities).await;
        if let Err(Ok(_)) = done.send(fetched) {
            let changed = Frame::notification(method::TOOLS_CHANGED, None);
            let outbox = session.outbox();
            outbox.push(Weight::Signal, changed.text().clone());
        }
    });
    match tokio::time::timeout(FIRST_START, told).await {
        Ok(Ok(fetched)) => fetched,
        _ => Err("its instance is still starting".into()),
    }
}

async fn fetch(
    shared: &Arc<Shared>,
    server: &Arc<Server>,
    session: &Arc<Session>,
    capabilities: &[u8],
) -> Result<Names, Arc<str>> {
    let starting = instance(shared, server, session, capabilities);
    let instance = tokio::time::timeout(server.spec.start_timeout, starting);
    let instance = instance
        .await
        .map_err(|_| "its instance did not come up in time")?;
    let instance = instance.map_err(|error| error.to_string())?;
    let before = instance.own_tools.changes();
    let items = fetch_list(&instance.client, ListKind::Tools, server.name().as_str()).await;
    let (items, _) = items.map_err(|error| error.to_string())?;
    let names: Names = Arc::new(items.into_iter().map(|item| item.native).collect());
    instance.own_tools.learn(&names, before);
    Ok(names)
}
