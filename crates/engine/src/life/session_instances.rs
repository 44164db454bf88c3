//! Instances for a single session or caller: starting them, their messages that belong to no call, and the tools that
//! they list.
//!
//! A server may offer more tools to a client with more capabilities. The shared instance declares all capabilities, so
//! its list is the longest. A session with a separate instance sees only the tools that this instance lists. Names are
//! taken from the shared list, since calls are routed by it.

use std::sync::{Arc, Weak};

use bytes::Bytes;
use catalog::{ListKind, fetch_list};
use mcp::{
    Era, Frame, RpcError,
    client::{Ambient, Event},
    outbox::Weight,
    protocol::method,
    server::Session,
};
use model::Sharing;
use tokio::sync::oneshot;

use crate::{
    client_state::hub::Audience,
    life::{second, tokens},
    server::{
        Server,
        connection::{Connection, Names},
        launch::{self, Hindrance, Launched, StartError},
        progress::FIRST_START,
        questions::{Open, Questions},
        sessions::Holder,
        unavailable::Unavailable,
    },
    shared::Shared,
    views::view::View,
};

/// Why a server with volumes cannot have separate instances for sessions or users.
const HAS_VOLUMES: &str = "it has volumes, which instances of several sessions or users cannot share: remove them, or share one instance \
                       (`\"sharing\": \"shared\"`, or `login = \"shared\"` of its `[logins]` table)";

/// The instance of this session. Started if needed, declaring the client's capabilities (JSON text), and in the
/// client's era if the server speaks both.
pub(crate) async fn instance(
    shared: &Arc<Shared>,
    server: &Arc<Server>,
    session: &Arc<Session>,
    whose: &Arc<str>,
    era: Era,
    capabilities: &[u8],
) -> Result<Arc<Connection>, Unavailable> {
    let capabilities = String::from_utf8_lossy(capabilities);
    let holder = session.id().into();
    let begin = |connection: &Arc<Connection>, ambient| {
        shared.spawn(forward(
            shared.clone(),
            server.clone(),
            Arc::downgrade(session),
            connection.clone(),
            ambient,
        ));
    };
    started(
        shared,
        server,
        &holder,
        Some((session, era)),
        whose,
        &capabilities,
        begin,
    )
    .await
}

/// The instance of a caller, for a server with a sign-in per caller. Started if needed.
pub(crate) async fn of_principal(
    shared: &Arc<Shared>,
    server: &Arc<Server>,
    principal: &Arc<str>,
) -> Result<Arc<Connection>, Unavailable> {
    let capabilities = shared.shared_capabilities();
    let holder = Holder::Principal(principal.clone());
    let begin = |connection: &Arc<Connection>, ambient| {
        shared.spawn(watch(
            shared.clone(),
            server.clone(),
            principal.clone(),
            connection.clone(),
            ambient,
        ));
    };
    started(
        shared,
        server,
        &holder,
        None,
        principal,
        &capabilities,
        begin,
    )
    .await
}

/// `session`: the session of a single client, and the era of its conversation if the server speaks both.
async fn started(
    shared: &Arc<Shared>,
    server: &Arc<Server>,
    holder: &Holder,
    session: Option<(&Arc<Session>, Era)>,
    whose: &Arc<str>,
    capabilities: &str,
    begin: impl Fn(&Arc<Connection>, Ambient),
) -> Result<Arc<Connection>, Unavailable> {
    let down = |reason: Arc<str>, needs_login: bool| Unavailable::Down {
        server: server.name().clone(),
        reason,
        retry_ms: None,
        needs_login,
    };
    let sandbox = server.spec.launch().and_then(|launch| launch.sandbox());
    if sandbox.is_some_and(|sandbox| !sandbox.volumes.is_empty()) {
        return Err(down(HAS_VOLUMES.into(), false));
    }
    let limit = shared.limits().max_session_instances;
    let is_listening = |principal: &str| {
        shared
            .hub
            .has_open_stream(|listener| *listener.principal == *principal)
    };
    let owner = session.map(|(session, _)| session);
    let slot = (server.instances).slot(holder, owner, limit, is_listening);
    let Some((slot, evicted)) = slot else {
        let why = format!(
            "the instances of {limit} sessions or users are all in use (raise `max_session_instances` or try again)"
        );
        return Err(down(why.into(), false));
    };
    if let Some(evicted) = evicted {
        tracing::info!(server = %server.key(), "stopping the instance that was unused longest, because {limit} is the maximum (`max_session_instances`)");
        shared.spawn(evicted.end(shared.stop_grace));
    }
    let whose = server.is_personal.then_some(whose);
    let started = slot.get_or_try_init(|| async {
        let launched = Launched::under(server.fence.lock().clone());
        // Containers and pods are named after their sandbox. With the same name, they would stop each other.
        let mine = sandbox.map(|_| launch::apart(&server.spec));
        let spec = mine.as_ref().unwrap_or(server.filled_spec());
        let connecting = (shared.connect).connect(spec, whose, capabilities, &launched);
        let (mut connection, mut ambient) = connecting.await?;
        if matches!(session, Some((_, Era::Legacy))) {
            (connection, ambient) = second::instead(server, connection, ambient).await;
        }
        let connection = Arc::new(connection);
        server.hide_token(&connection);
        begin(&connection, ambient);
        Ok::<_, StartError>(connection)
    });
    match started.await {
        Ok(connection) => Ok(connection.clone()),
        Err(error) => {
            server.instances.forget(holder);
            let needs_login = error.hindrance() == Some(Hindrance::Login);
            Err(down(error.reason, needs_login))
        }
    }
}

/// Watches a caller's instance until it ends or has been idle for the configured time. Of the notifications that belong
/// to no call, only updates of watched resources and log messages are passed on. All others are dropped: the caller sees
/// the lists of the shared instance.
async fn watch(
    shared: Arc<Shared>,
    server: Arc<Server>,
    principal: Arc<str>,
    connection: Arc<Connection>,
    mut ambient: Ambient,
) {
    let over = server.over.clone();
    let mut used = u64::MAX;
    let outlived = tokens::outlived(&shared, &server, &connection);
    let mut outlived = std::pin::pin!(outlived);
    loop {
        let idle = tokio::time::sleep(shared.limits().server_idle);
        tokio::select! {
            event = next(&mut ambient) => match event {
                Some(Event::Request(request) | Event::Unclear(request)) => {
                    let refusal = RpcError::internal("no call is in flight, so no client can be asked");
                    connection.client.send_behind(Frame::error(request.id(), &refusal));
                }
                Some(Event::Notification(frame)) if frame.method() == method::RESOURCE_UPDATED => {
                    server.notified(&shared, &connection, &frame);
                }
                Some(Event::Notification(frame)) if frame.method() == method::MESSAGE => {
                    server.pass_on(&shared, &connection, &frame, Audience::Principal(&principal));
                }
                _ => {}
            },
            _ = connection.client.closed() => break,
            () = over.cancelled() => break,
            () = &mut outlived => break,
            () = idle => {
                let seen = server.stats.used();
                if seen == used && server.instances.forget_unused(&connection) {
                    break;
                }
                used = seen;
            }
        }
    }
    connection.close(shared.stop_grace).await;
    server.instances.forget_gone(&connection);
}

/// The next message that belongs to no call. Never completes if the server cannot send any (a modern server at a URL).
async fn next(ambient: &mut Ambient) -> Option<Event> {
    match ambient.recv().await {
        None => std::future::pending().await,
        event => event,
    }
}

/// Passes messages that belong to no call to the session, until the session or the instance ends.
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
    let mut outlived = Box::pin(tokens::outlived(&shared, &server, &connection));
    loop {
        let event = tokio::select! {
            event = next(&mut ambient) => event,
            _ = connection.client.closed() => None,
            () = over.cancelled() => None,
            () = &mut outlived => None,
        };
        let (Some(event), Some(session)) = (event, session.upgrade()) else {
            break;
        };
        match event {
            // The instance belongs to one session, so that session's client gets all requests of the instance,
            // regardless of the calls in flight.
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
                // A dropped `Questions` waits for the response in the background.
                drop(questions);
            }
            Event::Notification(frame) if frame.method() == method::RESOURCE_UPDATED => {
                server.notified(&shared, &connection, &frame);
            }
            Event::Notification(frame)
                if matches!(
                    frame.method(),
                    method::TOOLS_CHANGED | method::PROMPTS_CHANGED | method::RESOURCES_CHANGED
                ) =>
            {
                if frame.method() == method::TOOLS_CHANGED {
                    connection.own_tools.forget();
                }
                let changed = Frame::notification(frame.method(), None);
                let outbox = session.outbox();
                outbox.push(Weight::Signal, changed.text().clone());
            }
            Event::Notification(frame) => {
                server.pass_on(
                    &shared,
                    &connection,
                    &frame,
                    Audience::Session(session.id()),
                );
            }
            Event::Response(_) => {}
        }
    }
    connection.close(shared.stop_grace).await;
    server.instances.forget_gone(&connection);
}

/// Returns whether a session's lists in this view depend on separate instances.
pub(crate) fn has_own(view: &View) -> bool {
    view.servers
        .iter()
        .any(|server| server.spec.sharing == Sharing::Session)
}

/// The tools that the session's instances list. Instances are started if needed. If an instance is unavailable, its
/// server is left out, and clients see the server's shared list.
pub(crate) async fn own_tools(
    shared: &Arc<Shared>,
    view: &View,
    session: &Arc<Session>,
    whose: &Arc<str>,
    era: Era,
    capabilities: &Bytes,
) -> Vec<(Arc<Server>, Names)> {
    let own = view
        .servers
        .iter()
        .filter(|server| server.spec.sharing == Sharing::Session);
    let asked = own.map(async |server| {
        match of_one(shared, server, session, whose, era, capabilities).await {
            Ok(names) => Some((server.clone(), names)),
            Err(why) => {
                tracing::debug!(server = %server.key(), "using the shared instance's list of tools instead of this session's: {why}");
                None
            }
        }
    });
    let known = futures_util::future::join_all(asked).await;
    known.into_iter().flatten().collect()
}

/// The tools that one server's instance for the session lists. If starting takes long, it continues in the background,
/// and the session is notified when the list is there.
async fn of_one(
    shared: &Arc<Shared>,
    server: &Arc<Server>,
    session: &Arc<Session>,
    whose: &Arc<str>,
    era: Era,
    capabilities: &Bytes,
) -> Result<Names, Arc<str>> {
    let existing = server.instances.existing(&session.id().into());
    let known = existing.and_then(|instance| instance.own_tools.names());
    if let Some(known) = known {
        return Ok(known);
    }
    let (done, told) = oneshot::channel();
    let (engine, server, session) = (shared.clone(), server.clone(), session.clone());
    let (whose, capabilities) = (whose.clone(), capabilities.clone());
    shared.spawn(async move {
        let fetched = fetch(&engine, &server, &session, &whose, era, &capabilities).await;
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
    whose: &Arc<str>,
    era: Era,
    capabilities: &[u8],
) -> Result<Names, Arc<str>> {
    let starting = instance(shared, server, session, whose, era, capabilities);
    let limit = server.spec.start_timeout;
    let instance = tokio::time::timeout(limit, starting);
    let instance = instance
        .await
        .map_err(|_| format!("its instance did not start within {} ms", limit.as_millis()))?;
    let instance = instance.map_err(|error| error.to_string())?;
    if let Some(level) = session.log_level() {
        Box::pin(instance.ensure_level(level, true)).await;
    }
    let before = instance.own_tools.changes();
    let list = fetch_list(&instance.client, ListKind::Tools).await;
    let (list, _) = list.map_err(|error| error.to_string())?;
    let names = list.items.iter().map(|item| item.native.clone());
    let names: Names = Arc::new(names.collect());
    instance.own_tools.learn(&names, before);
    Ok(names)
}
