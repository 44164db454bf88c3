//! What we watch at a server on behalf of clients.
//!
//! A legacy server is asked `resources/subscribe` per URI; a modern one has one `subscriptions/listen` stream
//! with all of them. When the set changes, the next stream is acknowledged before the last one is given up:
//! what happens in between may be told twice, and is never missed.

use std::{collections::BTreeSet, time::Duration};

use mcp::{
    Era, Frame,
    client::{Call, CallError, Event, Outgoing},
    json::quote,
    protocol::method,
};
use model::ServerName;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

use crate::connection::Connection;

/// Resources of one server that clients may watch at a time.
const MAX_URIS: usize = 10_000;

/// How long a server has to acknowledge what it is asked to watch, before it is taken for granted.
const ACKNOWLEDGE: Duration = Duration::from_secs(5);

/// The resources watched at one server.
#[derive(Default)]
pub(crate) struct Upstream {
    uris: Mutex<BTreeSet<String>>,
    changed: Notify,
    /// What a modern server has acknowledged to watch.
    acknowledged: watch::Sender<BTreeSet<String>>,
}

impl Upstream {
    fn uris(&self) -> Vec<String> {
        self.uris.lock().iter().cloned().collect()
    }

    /// Whether anything is watched.
    pub(crate) fn is_watching(&self) -> bool {
        !self.uris.lock().is_empty()
    }

    /// Adds a URI; `false` if there are too many.
    pub(crate) fn add(&self, uri: &str) -> bool {
        let mut uris = self.uris.lock();
        if uris.len() >= MAX_URIS {
            return false;
        }
        if uris.insert(uri.to_owned()) {
            self.changed.notify_one();
        }
        true
    }

    /// Adds a URI and waits until a modern server watches it, so that no change after the answer is missed.
    /// `false` if there are too many.
    pub(crate) async fn add_acknowledged(&self, uri: &str) -> bool {
        if !self.add(uri) {
            return false;
        }
        let mut acknowledged = self.acknowledged.subscribe();
        let watched = acknowledged.wait_for(|watched| watched.contains(uri));
        let _ = tokio::time::timeout(ACKNOWLEDGE, watched).await;
        true
    }

    pub(crate) fn remove(&self, uri: &str) {
        if self.uris.lock().remove(uri) {
            self.changed.notify_one();
        }
    }

    /// Keeps the subscriptions of one connection up, and tells what comes of them; never ends by itself.
    pub(crate) async fn run(
        &self,
        server: &ServerName,
        connection: &Connection,
        notified: impl Fn(&Frame) + Sync,
    ) {
        // What an earlier connection had is gone with it.
        self.acknowledged.send_replace(BTreeSet::new());
        match connection.client.info().era {
            Era::Legacy => {
                for uri in self.uris() {
                    let members = format!("\"uri\":{}", quote(&uri));
                    if let Err(error) = connection
                        .client
                        .ask(method::RESOURCES_SUBSCRIBE, &members)
                        .await
                    {
                        tracing::warn!(%server, "resubscribing failed: {error}");
                    }
                }
                std::future::pending().await
            }
            Era::Modern => {
                let mut last = None;
                loop {
                    last = self.listen(server, connection, &notified, last).await;
                }
            }
        }
    }

    /// One listen stream, until the set changes or the stream ends. `last` goes on until this one is
    /// acknowledged; what is returned is to go on likewise.
    async fn listen(
        &self,
        server: &ServerName,
        connection: &Connection,
        notified: &(impl Fn(&Frame) + Sync),
        mut last: Option<Call>,
    ) -> Option<Call> {
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
            drop(last);
            self.changed.notified().await;
            return None;
        }
        let params = connection
            .client
            .own_params(&format!("\"notifications\":{{{}}}", wanted.join(",")));
        let request = Frame::request("0", method::LISTEN, Some(params.as_bytes()));
        let outgoing = Outgoing::new(&request);
        let mut stream = match connection.client.call(outgoing).await {
            Ok(stream) => stream,
            Err(error) => {
                tracing::debug!(%server, "subscriptions/listen failed: {error}");
                tokio::time::sleep(Duration::from_secs(5)).await;
                return None;
            }
        };
        let mut acknowledged = false;
        let late = tokio::time::sleep(ACKNOWLEDGE);
        tokio::pin!(late);
        loop {
            tokio::select! {
                () = self.changed.notified(), if acknowledged => return Some(stream),
                () = &mut late, if !acknowledged => {
                    acknowledged = true;
                    last = None;
                }
                event = next_of(&mut last) => match event {
                    Ok(Event::Notification(frame)) if frame.method() != method::ACKNOWLEDGED => {
                        notified(&frame);
                    }
                    Ok(Event::Notification(_) | Event::Request(_) | Event::Unclear(_)) => {}
                    Ok(Event::Response(_)) | Err(_) => last = None,
                },
                event = stream.next() => match event {
                    Ok(Event::Notification(frame)) if frame.method() == method::ACKNOWLEDGED => {
                        acknowledged = true;
                        last = None;
                        self.acknowledged.send_replace(uris.iter().cloned().collect());
                    }
                    Ok(Event::Notification(frame)) => notified(&frame),
                    Ok(Event::Request(_) | Event::Unclear(_)) => {}
                    Ok(Event::Response(frame)) if frame.kind() == mcp::Kind::Error => {
                        tracing::debug!(%server, "the server refused subscriptions/listen");
                        // It has none: nothing to try again until something else is wanted.
                        self.acknowledged.send_replace(uris.iter().cloned().collect());
                        self.changed.notified().await;
                        return None;
                    }
                    Ok(Event::Response(_)) | Err(_) => {
                        tokio::time::sleep(Duration::from_secs(1)).await;
                        return None;
                    }
                },
            }
        }
    }
}

/// The next event of a stream, if there is one.
async fn next_of(stream: &mut Option<Call>) -> Result<Event, CallError> {
    match stream {
        Some(stream) => stream.next().await,
        None => std::future::pending().await,
    }
}
