//! Resources that the gateway watches at a server on behalf of clients.
//!
//! A legacy server gets one `resources/subscribe` per URI. A modern one gets a single `subscriptions/listen` stream for
//! all URIs. When the set changes, a new stream is opened, and the old one is closed once the new one is acknowledged.
//! An event in between may be reported twice but is never missed.

use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use mcp::{
    Era, Frame,
    client::{Call, CallError, Event, Outgoing},
    json::quote,
    protocol::method,
};
use model::ServerName;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

use crate::server::connection::Connection;

/// Resources of one server that clients may watch at a time.
const MAX_URIS: usize = 10_000;

/// Time to wait for a server to acknowledge a subscription. After that it counts as acknowledged.
const ACKNOWLEDGE_TIMEOUT: Duration = Duration::from_secs(5);

/// The resources watched at one server.
#[derive(Default)]
pub(crate) struct Upstream {
    uris: Mutex<BTreeSet<String>>,
    changed: Notify,
    /// True if a modern server has refused `subscriptions/listen`.
    refused: AtomicBool,
    /// URIs that a modern server has acknowledged.
    acknowledged: watch::Sender<BTreeSet<String>>,
}

impl Upstream {
    fn uris(&self) -> Vec<String> {
        self.uris.lock().iter().cloned().collect()
    }

    /// Returns whether anything is watched.
    pub(crate) fn is_watching(&self) -> bool {
        !self.uris.lock().is_empty()
    }

    /// Waits until anything is watched. Only one task waits for changes at a time.
    pub(crate) async fn watching(&self) {
        while !self.is_watching() {
            self.changed.notified().await;
        }
    }

    /// Returns whether a modern server does not report changes, although it declares that.
    pub(crate) fn is_refused(&self) -> bool {
        self.refused.load(Ordering::Relaxed)
    }

    /// Adds a URI. Returns `false` if there are too many.
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

    /// Adds a URI and waits until a modern server watches it, so that no change after the response is missed. Returns
    /// `false` if there are too many.
    pub(crate) async fn add_acknowledged(&self, uri: &str) -> bool {
        if !self.add(uri) {
            return false;
        }
        let mut acknowledged = self.acknowledged.subscribe();
        let watched = acknowledged.wait_for(|watched| watched.contains(uri));
        let _ = tokio::time::timeout(ACKNOWLEDGE_TIMEOUT, watched).await;
        true
    }

    pub(crate) fn remove(&self, uri: &str) {
        if self.uris.lock().remove(uri) {
            self.changed.notify_one();
        }
    }

    /// Keeps the subscriptions of one connection alive and passes on its notifications. Never returns.
    pub(crate) async fn run(
        &self,
        server: &ServerName,
        connection: &Connection,
        notified: impl Fn(&Frame) + Sync,
    ) {
        // Acknowledgements of an earlier connection do not count.
        self.acknowledged.send_replace(BTreeSet::new());
        self.refused.store(false, Ordering::Relaxed);
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

    /// Runs one listen stream until the set changes or the stream ends. `last` is kept open until the new stream is
    /// acknowledged. Returns the stream to keep open in the same way.
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
        // The gateway that runs a server also reports the server's log messages on this stream.
        let has_logs = connection.is_elsewhere && info.has("logging");
        if wanted.is_empty() && !has_logs {
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
        let late = tokio::time::sleep(ACKNOWLEDGE_TIMEOUT);
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
                        self.refused.store(true, Ordering::Relaxed);
                        // The server does not support it. Retrying is useless until the set changes.
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

/// The next event of the stream. Waits forever if `None`.
async fn next_of(stream: &mut Option<Call>) -> Result<Event, CallError> {
    match stream {
        Some(stream) => stream.next().await,
        None => std::future::pending().await,
    }
}
