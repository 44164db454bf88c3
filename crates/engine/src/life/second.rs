//! The second conversation with a server that speaks both eras at one URL.
//!
//! Such a server is connected in the modern era. Legacy clients are better served in the legacy era, because the server
//! can then send requests to them during a call, as if they were connected directly. The legacy conversation is opened
//! at the first request that needs it, and closed with the modern connection, or when it has been unused for the
//! configured time. Everything else belongs to the server as a whole: its catalog, pins, queue, records and state.

use std::{
    pin::pin,
    sync::{Arc, Weak},
    time::Duration,
};

use mcp::{
    Frame, RpcError,
    client::{Ambient, Event},
    protocol::method,
};
use tokio::time::Instant;

use crate::{
    client_state::hub::Audience,
    server::{
        Server,
        connection::{Connection, Opened},
    },
    shared::Shared,
};

/// Maximum wait for the response to `initialize`. A call waits for this response, and without it is made over the
/// modern connection.
const OPEN_TIMEOUT: Duration = Duration::from_secs(5);
/// Delay before `initialize` is sent again to a server that did not answer it.
const OPEN_RETRY_DELAY: Duration = Duration::from_secs(300);
/// Delay before a conversation in which clients watch resources is opened again.
const REOPEN_DELAY: Duration = Duration::from_secs(1);

/// The connection for legacy clients: the second conversation, or `first` if the server has no other era.
pub(crate) async fn for_legacy(
    shared: &Arc<Shared>,
    server: &Arc<Server>,
    first: Arc<Connection>,
) -> Arc<Connection> {
    if !first.client.may_be_legacy_too() {
        return first;
    }
    let slot = first.second.slot();
    // Boxed, since it is rarely needed and calls move this future.
    let opened = slot.get_or_init(|| Box::pin(open(shared, server, &first)));
    match opened.await {
        Opened::Yes(second) => second.clone(),
        Opened::Refused | Opened::Failed { .. } => first,
    }
}

async fn open(shared: &Arc<Shared>, server: &Arc<Server>, first: &Arc<Connection>) -> Opened {
    let wait = OPEN_TIMEOUT.min(server.spec.start_timeout);
    match first.client.legacy_too(wait).await {
        Ok(Some((client, ambient))) => {
            let version = client.info().version;
            tracing::info!(server = %server.key(), %version, "connected for legacy clients, too");
            let second = Arc::new(first.second_with(client));
            server.request_logs(shared, &second);
            let (of_server, beside) = (server.clone(), Arc::downgrade(first));
            let watching = watch(shared.clone(), of_server, beside, second.clone(), ambient);
            shared.spawn(watching);
            Opened::Yes(second)
        }
        Ok(None) => Opened::Refused,
        Err(error) => {
            let why = server.redact(&error.to_string());
            tracing::warn!(server = %server.key(), "cannot open a legacy connection, so requests of legacy clients are translated: {why}");
            Opened::Failed {
                retry_at: Instant::now() + OPEN_RETRY_DELAY,
            }
        }
    }
}

/// Replaces a session's new modern connection by a legacy conversation, if the server also speaks the legacy era.
pub(crate) async fn instead(
    server: &Server,
    first: Connection,
    ambient: Ambient,
) -> (Connection, Ambient) {
    let wait = OPEN_TIMEOUT.min(server.spec.start_timeout);
    match first.client.legacy_too(wait).await {
        Ok(Some((client, ambient))) => (Connection { client, ..first }, ambient),
        Ok(None) => (first, ambient),
        Err(error) => {
            let why = server.redact(&error.to_string());
            tracing::warn!(server = %server.key(), "cannot open a legacy connection for this session, so its requests are translated: {why}");
            (first, ambient)
        }
    }
}

/// Handles messages that belong to no call, until the conversation ends, or has been unused for the configured time.
async fn watch(
    shared: Arc<Shared>,
    server: Arc<Server>,
    first: Weak<Connection>,
    second: Arc<Connection>,
    mut ambient: Ambient,
) {
    let Some(modern) = first.upgrade().map(|first| first.client.clone()) else {
        return second.client.close(shared.stop_grace).await;
    };
    let resubscribing = async {
        if server.is_personal {
            return std::future::pending().await;
        }
        let watched = &server.watched_in_second;
        watched.run(server.name(), &second, |_| {}).await
    };
    let mut resubscribing = pin!(resubscribing);
    loop {
        tokio::select! {
            Some(event) = ambient.recv() => handle(&shared, &server, &second, event).await,
            _ = second.client.closed() => break,
            _ = modern.closed() => break,
            () = server.over.cancelled() => break,
            () = &mut resubscribing => {}
            () = tokio::time::sleep(shared.limits().server_idle) => {
                let is_watched = server.watched_in_second.is_watching();
                let Some(first) = first.upgrade() else { break };
                if !is_watched && first.second.forget_unused(&second) {
                    break;
                }
            }
        }
    }
    second.client.close(shared.stop_grace).await;
}

async fn handle(
    shared: &Arc<Shared>,
    server: &Arc<Server>,
    second: &Arc<Connection>,
    event: Event,
) {
    match event {
        event if !server.is_personal => server.ambient(shared, second, event).await,
        // Changes of lists are ignored, because the caller sees the lists of the shared instance.
        Event::Notification(frame) if frame.method() == method::RESOURCE_UPDATED => {
            server.notified(shared, second, &frame);
        }
        Event::Notification(frame) if frame.method() == method::MESSAGE => {
            if let Some(principal) = &second.whose {
                server.pass_on(shared, second, &frame, Audience::Principal(principal));
            }
        }
        Event::Request(request) | Event::Unclear(request) => {
            let refusal = RpcError::internal("no call is in flight, so no client can be asked");
            let refusal = Frame::error(request.id(), &refusal);
            second.client.send_behind(refusal);
        }
        Event::Notification(_) | Event::Response(_) => {}
    }
}

/// Reopens the second conversation, in addition to `first`, whenever it has ended while clients watch resources in it.
/// Never returns.
pub(crate) async fn keep_watched(
    shared: &Arc<Shared>,
    server: &Arc<Server>,
    first: &Arc<Connection>,
) {
    let watched = &server.watched_in_second;
    loop {
        watched.watching().await;
        let second = for_legacy(shared, server, first.clone()).await;
        let delay = match Arc::ptr_eq(&second, first) {
            true => OPEN_RETRY_DELAY,
            false => {
                second.client.closed().await;
                REOPEN_DELAY
            }
        };
        drop(second);
        tokio::time::sleep(delay).await;
    }
}
