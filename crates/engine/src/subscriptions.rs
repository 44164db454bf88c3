//! What we watch at a server on behalf of clients.
//!
//! A legacy server is asked `resources/subscribe` per URI; a modern one has one `subscriptions/listen` stream
//! with all of them, opened anew when the set changes.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use mcp::{
    Era, Frame,
    client::{Event, Outgoing},
    json::quote,
    protocol::method,
};
use tokio::sync::Notify;

use crate::{gateway::Shared, launch::Connection, server::Server};

/// Resources of one server that clients may watch at a time.
const MAX_URIS: usize = 10_000;

/// The resources watched at one server.
#[derive(Default)]
pub(crate) struct Upstream {
    uris: Mutex<BTreeSet<String>>,
    changed: Notify,
}

impl Upstream {
    fn uris(&self) -> Vec<String> {
        self.uris
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .iter()
            .cloned()
            .collect()
    }

    /// Adds a URI; `false` if there are too many.
    pub(crate) fn add(&self, uri: &str) -> bool {
        let mut uris = self.uris.lock().unwrap_or_else(PoisonError::into_inner);
        if uris.len() >= MAX_URIS {
            return false;
        }
        if uris.insert(uri.to_owned()) {
            self.changed.notify_one();
        }
        true
    }

    pub(crate) fn remove(&self, uri: &str) {
        if self
            .uris
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(uri)
        {
            self.changed.notify_one();
        }
    }

    /// Keeps the subscriptions of one connection up; never ends by itself.
    pub(crate) async fn run(
        &self,
        server: &Server,
        shared: &Arc<Shared>,
        connection: &Arc<Connection>,
    ) {
        match connection.client.info().era {
            Era::Legacy => {
                for uri in self.uris() {
                    let members = format!("\"uri\":{}", quote(&uri));
                    if let Err(error) = connection
                        .client
                        .ask(method::RESOURCES_SUBSCRIBE, &members)
                        .await
                    {
                        tracing::warn!(server = %server.name(), "resubscribing failed: {error}");
                    }
                }
                std::future::pending().await
            }
            Era::Modern => loop {
                self.listen(server, shared, connection).await;
            },
        }
    }

    /// One listen stream, until the set changes or the stream ends.
    async fn listen(&self, server: &Server, shared: &Arc<Shared>, connection: &Arc<Connection>) {
        let info = connection.client.info();
        let uris = self.uris();
        let mut wanted: Vec<String> = ["tools", "prompts", "resources"]
            .into_iter()
            .filter(|capability| info.flag(capability, "listChanged"))
            .map(|capability| format!("\"{capability}ListChanged\":true"))
            .collect();
        if !uris.is_empty() {
            let uris: Vec<String> = uris.iter().map(|uri| quote(uri)).collect();
            wanted.push(format!("\"resourceSubscriptions\":[{}]", uris.join(",")));
        }
        if wanted.is_empty() {
            self.changed.notified().await;
            return;
        }
        let params = connection
            .client
            .own_params(&format!("\"notifications\":{{{}}}", wanted.join(",")));
        let request = Frame::request("0", method::LISTEN, Some(params.as_bytes()));
        let mut outgoing = Outgoing::new(&request);
        outgoing.listen = true;
        let mut stream = match connection.client.call(outgoing).await {
            Ok(stream) => stream,
            Err(error) => {
                tracing::debug!(server = %server.name(), "subscriptions/listen failed: {error}");
                tokio::time::sleep(Duration::from_secs(5)).await;
                return;
            }
        };
        loop {
            tokio::select! {
                () = self.changed.notified() => return,
                event = stream.next() => match event {
                    Ok(Event::Notification(frame)) if frame.method() == method::ACKNOWLEDGED => {}
                    Ok(Event::Notification(frame)) => server.notified(shared, connection, &frame).await,
                    Ok(Event::Request(_)) => {}
                    Ok(Event::Response(frame)) if frame.kind() == mcp::Kind::Error => {
                        tracing::debug!(server = %server.name(), "the server refused subscriptions/listen");
                        // It has none: nothing to try again until something else is wanted.
                        self.changed.notified().await;
                        return;
                    }
                    Ok(Event::Response(_)) | Err(_) => {
                        tokio::time::sleep(Duration::from_secs(1)).await;
                        return;
                    }
                },
            }
        }
    }
}
