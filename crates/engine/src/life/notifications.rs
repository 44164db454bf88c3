//! Keeps a connected server's catalog up to date, and handles its messages that belong to no call.

use std::{
    collections::BTreeSet,
    pin::pin,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use bytes::Bytes;
use catalog::{Catalog, Item, KeptBack, List, ListKind, remember::News, server_cache::SaveOutcome};
use mcp::{
    Frame, RpcError,
    client::{Ambient, Event},
    json::Splice,
    protocol::method,
};
use model::{NativeName, Pinning, ServerKey, Sharing};
use records::event_log::Write;
use serde_json::json;
use tokio::time::Instant;

use crate::{
    client_state::hub::{Audience, Resource},
    life::{lists::RELIST_INTERVAL, second},
    log_message,
    scope::Scope,
    server::{Server, State, connection::Connection},
    shared::Shared,
};

/// Initial delay before a list that could not be fetched is requested again. It doubles up to three times.
const FETCH_RETRY_DELAY: Duration = Duration::from_secs(8);
/// Maximum number of log messages and the like that an instance may send to clients per second, outside of calls. All of
/// one second fit into the queue of a client.
const MAX_AMBIENT_PER_SECOND: u32 = 100;
/// Maximum time that calls to a restarted server wait for the comparison of its tools with the approved ones.
const COMPARISON_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of tools that an event about kept-back tools names.
const MAX_TOOLS_NAMED: usize = 20;

impl Server {
    /// Fetches the catalog over a new connection and handles its messages until it ends. Calls `ready` once the server
    /// can take calls. Returns why the connection ended.
    pub(crate) async fn converse(
        self: &Arc<Self>,
        shared: &Arc<Shared>,
        connection: &Arc<Connection>,
        ambient: Ambient,
        launched: Instant,
        ready: impl Fn() + Sync,
    ) -> Arc<str> {
        let working = async {
            self.take_stock(shared, connection, launched, &ready).await;
            std::future::pending::<()>().await
        };
        tokio::select! {
            why = self.serve(shared, connection, ambient) => why,
            () = working => "unreachable: it pends".into(),
        }
    }

    /// Fetches the lists of a newly connected server and publishes them.
    ///
    /// A server whose catalog was known before takes calls under the known names: immediately or, if changed tools are
    /// kept back or the server is at a URL, once its tools were fetched (and compared with the approved ones). If its
    /// tools cannot be fetched within [`COMPARISON_TIMEOUT`], it takes calls of the tools as they were approved. A list
    /// that cannot be fetched stays as it was and is requested again. A server that refuses its lists together with
    /// everything else (see `mcp::client`) is not ready: its connection has ended.
    async fn take_stock(
        &self,
        shared: &Arc<Shared>,
        connection: &Arc<Connection>,
        launched: Instant,
        ready: &(impl Fn() + Sync),
    ) {
        let info = connection.client.info();
        self.request_logs(shared, connection);
        self.known.status().lists = Default::default();
        let returns = self.change(|catalog| catalog.info.replace(info.clone()).is_some());
        let fetches_first =
            shared.fleet().settings.pinning == Pinning::Quarantine || connection.client.is_http();
        if returns && !fetches_first {
            ready();
        } else {
            // Wakes tasks that wait for the handshake.
            self.state.send_modify(|_| {});
        }
        let mut tools = pin!(self.fetch(shared, connection, &[ListKind::Tools]));
        let mut missing = if returns && fetches_first {
            match tokio::time::timeout(COMPARISON_TIMEOUT, &mut tools).await {
                Ok(_) if self.is_blocked() || connection.client.is_closed() => return,
                Ok(fetched) => {
                    ready();
                    fetched.missing
                }
                Err(_) => {
                    ready();
                    tools.await.missing
                }
            }
        } else {
            tools.await.missing
        };
        if !self.is_blocked() {
            let others = self.fetch(shared, connection, &ListKind::ALL[1..]).await;
            missing.extend(others.missing);
        }
        if self.is_blocked() || connection.client.is_closed() {
            return;
        }
        tracing::info!(
            server = %self.key(),
            version = %info.version,
            tools = self.catalog().list(ListKind::Tools).len(),
            ms = u64::try_from(launched.elapsed().as_millis()).unwrap_or(u64::MAX),
            "connected"
        );
        connection.is_known.store(true, Ordering::Relaxed);
        self.report_nothing(shared);
        if !returns {
            ready();
        }
        // Published views depend on whether the server is up.
        let is_up = |state: &State| matches!(state, State::Ready(_));
        let _ = self.state.subscribe().wait_for(is_up).await;
        self.mark_settled();
        shared.publish_of(self, &ListKind::ALL);
        self.settle();
        self.keep(shared);
        let mut attempts = 0u32;
        while !missing.is_empty() {
            tokio::time::sleep(FETCH_RETRY_DELAY.saturating_mul(1 << attempts)).await;
            attempts = (attempts + 1).min(3);
            let asked = std::mem::take(&mut missing);
            missing = self.fetch(shared, connection, &asked).await.missing;
            if missing.len() < asked.len() {
                shared.publish_of(self, &asked);
                self.keep(shared);
            }
        }
    }

    /// Saves the catalog for the next start, without tools whose definitions cannot be saved.
    fn keep(&self, shared: &Arc<Shared>) {
        if self.is_for_callers() {
            return;
        }
        let mut catalog = self.catalog();
        let is_unkept =
            |item: &Item| matches!(self.keeps_back(&item.native), Some(KeptBack::Unkept(_)));
        let tools = catalog.list(ListKind::Tools).clone();
        if tools.iter().any(is_unkept) {
            let kept = tools.iter().filter(|item| !is_unkept(item)).cloned();
            let list = List {
                items: kept.collect(),
                ..catalog.of(ListKind::Tools).clone()
            };
            Arc::make_mut(&mut catalog).set(ListKind::Tools, list);
        }
        let digest = self.pinned.config().to_string();
        if shared.memory.catalog(self.key(), digest, catalog) {
            self.write_down(shared);
        }
    }

    fn write_down(&self, shared: &Arc<Shared>) {
        shared.spawn_writer(write_down(shared.clone(), self.key().clone()));
    }

    /// Compares the tools' definitions with the pinned ones, and saves what is new.
    pub(super) fn compare(&self, shared: &Arc<Shared>, tools: &[Item]) {
        // This declaration of the server has ended. The next one may have another configuration, so approve nothing.
        if self.over.is_cancelled() {
            return;
        }
        let policy = shared.fleet().settings.pinning;
        let before = self.pinned.kept_back();
        let seen = self.pinned.compare(tools, policy);
        if seen.is_empty() {
            return;
        }
        self.report_kept_back(shared, &before);
        for seen in &seen {
            let (key, tool) = (self.key(), seen.tool.as_str());
            match seen.news {
                News::Tool | News::Same => {}
                News::Configured => {
                    tracing::info!(server = %key, tool, "the definition of the tool has changed along with the server's configuration, so it counts as approved");
                }
                News::Words if policy == Pinning::Quarantine => {
                    tracing::warn!(server = %key, tool, "the definition of the tool has changed: kept back until it is approved");
                }
                News::Words => {
                    tracing::warn!(server = %key, tool, "the definition of the tool has changed, but it is still offered");
                }
            }
        }
        if !self.is_for_callers() && shared.memory.pins(self.key(), seen) {
            self.write_down(shared);
        }
    }

    /// Records a warning about tools that are kept back and were not in `before`.
    fn report_kept_back(&self, shared: &Shared, before: &BTreeSet<NativeName>) {
        if shared.fleet().settings.pinning != Pinning::Quarantine || self.is_for_callers() {
            return;
        }
        let now = self.pinned.kept_back();
        let tools: Vec<&NativeName> = now.difference(before).collect();
        if tools.is_empty() {
            return;
        }
        let named = tools.iter().take(MAX_TOOLS_NAMED);
        let mut list: Vec<String> = named.clone().map(|tool| format!("`{tool}`")).collect();
        if tools.len() > MAX_TOOLS_NAMED {
            list.push(format!("{} more", tools.len() - MAX_TOOLS_NAMED));
        }
        let what = match tools.len() {
            1 => "1 tool is kept back until its definition is approved".to_owned(),
            count => {
                format!("{count} tools are kept back until their definitions are approved")
            }
        };
        let detail = json!({
            "name": self.name().as_str(),
            "message": format!("{what}: {}", list.join(", ")),
            "count": tools.len(),
            "tools": named.map(|tool| tool.as_str()).collect::<Vec<_>>(),
        });
        let is_elsewhere = {
            let mut status = self.known.status();
            status.warnings += 1;
            status.elsewhere
        };
        // The gateway that runs the server records its events.
        if is_elsewhere {
            return;
        }
        shared.event_log.write(Write::Event {
            project: self.spec.owner.clone(),
            id: self.spec.id(),
            name: self.name().clone(),
            kind: "kept-back",
            warning: true,
            detail,
        });
    }

    /// Replaces the catalog with a changed copy. Called only by the server's own loop.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut Catalog) -> T) -> T {
        let mut catalog = Catalog::clone(&self.catalog.load());
        let outcome = change(&mut catalog);
        self.catalog.store(Arc::new(catalog));
        outcome
    }

    /// Handles all messages that belong to no call, until the connection ends. Returns why it ended.
    async fn serve(
        self: &Arc<Self>,
        shared: &Arc<Shared>,
        connection: &Arc<Connection>,
        mut ambient: Ambient,
    ) -> Arc<str> {
        let closed = connection.client.closed();
        let subscriptions = self.upstream.run(self.name(), connection, |frame| {
            self.notified(shared, connection, frame)
        });
        let events = async {
            while let Some(event) = ambient.recv().await {
                self.ambient(shared, connection, event).await;
            }
            std::future::pending::<()>().await
        };
        let refreshing = async {
            loop {
                let told = tokio::time::timeout(RELIST_INTERVAL, self.refresh.next()).await;
                let is_told = told.is_ok();
                let kinds = told.unwrap_or_else(|_| self.unheard(connection));
                let fetched = self.fetch(shared, connection, &kinds).await;
                if is_told {
                    shared.publish_reported(self, &kinds);
                } else if fetched.changed {
                    shared.publish_of(self, &kinds);
                } else {
                    continue;
                }
                self.keep(shared);
            }
        };
        tokio::select! {
            why = closed => why,
            () = second::keep_watched(shared, self, connection) => "unreachable: it never returns".into(),
            () = refreshing => "unreachable: it never returns".into(),
            () = subscriptions => "subscriptions ended".into(),
            () = events => "events ended".into(),
        }
    }

    pub(crate) async fn ambient(
        &self,
        shared: &Arc<Shared>,
        connection: &Arc<Connection>,
        event: Event,
    ) {
        match event {
            Event::Request(request) => {
                // No call is in flight, and a shared server has no particular client (`sharing`).
                let answer = if request.method() == method::ROOTS_LIST {
                    Frame::result(request.id(), b"{\"roots\":[]}")
                } else {
                    refused(&request, "arrived while no call was in flight")
                };
                let _ = connection.client.send(&answer).await;
            }
            // During start-up, requests do not belong to calls (server-filesystem asks for roots).
            Event::Unclear(request)
                if request.method() == method::ROOTS_LIST
                    && !connection.is_known.load(Ordering::Relaxed) =>
            {
                let answer = Frame::result(request.id(), b"{\"roots\":[]}");
                let _ = connection.client.send(&answer).await;
            }
            Event::Unclear(request) => {
                let turns = self.take_turns(shared);
                let mut why = "could belong to calls of several sessions".to_owned();
                if turns {
                    why.push_str(
                        " (from now on the server gets the calls of one session at a time: call again)",
                    );
                }
                let answer = refused(&request, &why);
                let _ = connection.client.send(&answer).await;
            }
            Event::Notification(frame) => self.notified(shared, connection, &frame),
            Event::Response(_) => {}
        }
    }

    /// Makes the server take the calls of one session at a time, unless the user set `maxConcurrency`. Needed because
    /// its requests do not say which call they belong to. Returns whether it takes turns.
    fn take_turns(&self, shared: &Arc<Shared>) -> bool {
        // If sessions have separate instances, callers of the shared one have no session that could be asked.
        if self.spec.max_concurrency.is_some() || self.spec.sharing == Sharing::Session {
            return false;
        }
        if self.queue.take_turns() {
            tracing::warn!(
                server = %self.key(),
                "the server sent a request to a client while calls of several sessions were in flight: from now on it \
                 gets the calls of one session at a time; \"sharing\": \"session\" gives each session a separate instance"
            );
            self.change(|catalog| catalog.takes_turns = true);
            self.keep(shared);
        }
        true
    }

    /// Handles a notification that belongs to no call.
    pub(crate) fn notified(&self, shared: &Shared, connection: &Connection, frame: &Frame) {
        match frame.method() {
            method::TOOLS_CHANGED => self.refresh.of(&[ListKind::Tools]),
            method::PROMPTS_CHANGED => self.refresh.of(&[ListKind::Prompts]),
            method::RESOURCES_CHANGED => {
                self.refresh.of(&[ListKind::Resources, ListKind::Templates]);
            }
            method::RESOURCE_UPDATED => {
                if let Some(native) = frame.object().and_then(|params| params.string("uri")) {
                    let resource = Resource {
                        server: self.id().clone(),
                        native: native.into_owned(),
                        in_second: self.is_second(connection),
                    };
                    shared.hub.resource_updated(&resource, frame);
                }
            }
            // A task concerns only its owner.
            mcp::tasks::STATUS => shared.tasks.tell(self.id(), frame),
            mcp::tasks::STATUS_MODERN => {}
            // Sessions and people with separate instances hear from those.
            _ if self.is_for_all() => self.pass_on(shared, connection, frame, Audience::All),
            _ => {}
        }
    }

    /// Sends log messages, and notifications of unknown kinds, to the clients that they concern. If an instance sends
    /// more than [`MAX_AMBIENT_PER_SECOND`], the rest is dropped, because each message costs time for each client.
    pub(crate) fn pass_on(
        &self,
        shared: &Shared,
        connection: &Connection,
        frame: &Frame,
        to: Audience<'_>,
    ) {
        // These notifications concern only the sender of one request.
        if matches!(frame.method(), method::CANCELLED | method::PROGRESS) {
            return;
        }
        if !connection.ambient_rate.admits(MAX_AMBIENT_PER_SECOND) {
            if let Some(times) = self.repeats.count("ambient") {
                tracing::warn!(server = %self.key(), "dropped a log message: the server sends more than {MAX_AMBIENT_PER_SECOND} per second outside of calls{times}");
            }
            return;
        }
        let fleet = shared.fleet();
        let is_log = frame.method() == method::MESSAGE;
        // One text for all clients that see the server under the same name. It is a copy, because the frame may be a
        // small slice of a large buffer, and may wait for a slow client.
        let mut texts: [Option<Bytes>; 3] = Default::default();
        let exposed = |scope: &Scope| {
            let label = (is_log && scope.server.is_none()).then(|| self.label(scope).0);
            let at = label
                .as_ref()
                .map_or(0, |_| 1 + usize::from(scope.project.is_some()));
            let text = || {
                let mut splice = Splice::new();
                if let Some(label) = &label {
                    log_message::expose(frame, label.as_str(), &mut splice);
                }
                Bytes::copy_from_slice(&splice.apply(frame.text()))
            };
            let is_seen = fleet.sees(scope, self);
            is_seen.then(|| texts[at].get_or_insert_with(text).clone())
        };
        shared.hub.pass_on(frame, to, exposed);
    }

    /// Asks a newly connected server for log messages if a client has already set a level.
    pub(crate) fn request_logs(&self, shared: &Arc<Shared>, connection: &Arc<Connection>) {
        let fleet = shared.fleet();
        let is_seen = |scope: &Scope| fleet.sees(scope, self);
        if self.is_for_all() && shared.hub.has_log_level(is_seen) {
            let connection = connection.clone();
            let level = mcp::bridge::LOG_LEVELS[0];
            shared.spawn(async move { connection.ensure_level(level, false).await });
        }
    }
}

/// Saves a server's pending data, and applies the outcome to the server's pins.
async fn write_down(shared: Arc<Shared>, key: ServerKey) {
    let tell = |outcome: SaveOutcome<'_>| {
        let fleet = shared.fleet();
        let Some(server) = fleet.get(&key) else {
            return;
        };
        let before = server.pinned.kept_back();
        if server.pinned.saved(&outcome) {
            server.report_kept_back(&shared, &before);
            shared.publish_of(server, &[ListKind::Tools]);
        }
    };
    shared.memory.write(&key, &tell).await;
}

/// The error response to a request that cannot be passed to a client.
fn refused(question: &Frame, why: &str) -> Frame {
    let what = format!(
        "{} {why}: configure the server with \"maxConcurrency\": 1 or \"sharing\": \"session\"",
        question.method()
    );
    let error = RpcError::new(mcp::error::METHOD_NOT_FOUND, what);
    Frame::error(question.id(), &error)
}
