//! What a server says of itself while it is connected: its lists, their changes, and what belongs to no call.

use std::sync::{Arc, atomic::Ordering};
use std::time::Duration;

use mcp::{
    Frame, RpcError,
    client::{Ambient, Event},
    protocol::method,
};
use model::{Pinning, ServerKey, Sharing};
use tokio::time::Instant;

use crate::{
    catalog::{Catalog, Item, ListKind, fetch_list},
    connection::Connection,
    memory::Told,
    pinned::KeptBack,
    remember::News,
    server::{Server, State},
    shared::Shared,
};

/// The first wait before a list is asked for again that could not be had; it doubles, three times.
const AGAIN: Duration = Duration::from_secs(8);

impl Server {
    /// Takes stock of a connection that was just made, and serves what comes from it until it ends; says why it did. Tells
    /// when it is `ready` for calls.
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

    /// Learns what a server that was just connected offers, and makes it known.
    ///
    /// One that was there before takes calls at once, under the names that are known of it; what it does not
    /// list now stays as it was, and is asked for again.
    async fn take_stock(
        &self,
        shared: &Arc<Shared>,
        connection: &Arc<Connection>,
        launched: Instant,
        ready: &(impl Fn() + Sync),
    ) {
        let info = connection.client.info();
        let returns = self.change(|catalog| catalog.info.replace(info.clone()).is_some());
        if returns {
            ready();
        } else {
            // Wakes whoever waits for what it says of itself.
            self.state.send_modify(|_| {});
        }
        let mut missing = self.fetch(shared, connection, &ListKind::ALL).await;
        if self.is_blocked() {
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
        if !returns {
            ready();
        }
        // What is published says whether it is up.
        let is_up = |state: &State| matches!(state, State::Ready(_));
        let _ = self.state.subscribe().wait_for(is_up).await;
        self.settled.store(true, Ordering::Release);
        shared.publish_of(self, &ListKind::ALL);
        self.settle();
        self.keep(shared);
        let mut attempts = 0u32;
        while !missing.is_empty() {
            tokio::time::sleep(AGAIN.saturating_mul(1 << attempts)).await;
            attempts = (attempts + 1).min(3);
            let asked = std::mem::take(&mut missing);
            missing = self.fetch(shared, connection, &asked).await;
            if missing.len() < asked.len() {
                shared.publish_of(self, &asked);
                self.keep(shared);
            }
        }
    }

    /// Asks for these lists, one after the other; gives those that could not be had.
    ///
    /// One bad list hides no other, and leaves what is known of it.
    async fn fetch(
        &self,
        shared: &Arc<Shared>,
        connection: &Connection,
        kinds: &[ListKind],
    ) -> Vec<ListKind> {
        let mut missing = Vec::new();
        for kind in kinds {
            // What resources there are is each caller's own affair.
            let is_private = self.is_personal && *kind == ListKind::Resources;
            if is_private || !connection.client.info().has(kind.capability()) {
                self.change(|catalog| catalog.set(*kind, Vec::new()));
                continue;
            }
            match fetch_list(&connection.client, *kind, self.name().as_str()).await {
                Ok((items, behind)) => {
                    if *kind == ListKind::Tools {
                        if !self.look_behind(shared, connection, behind) {
                            connection.client.close(shared.stop_grace).await;
                            return missing;
                        }
                        self.compare(shared, &items);
                    }
                    self.change(|catalog| catalog.set(*kind, items));
                }
                Err(error) => {
                    tracing::warn!(server = %self.key(), "{} failed: {error}", kind.method());
                    missing.push(*kind);
                }
            }
        }
        missing
    }

    /// Saves the catalog for the next start, without the tools that cannot be remembered.
    fn keep(&self, shared: &Arc<Shared>) {
        let mut catalog = self.catalog();
        let is_unkept =
            |item: &Item| matches!(self.keeps_back(&item.native), Some(KeptBack::Unkept(_)));
        let tools = catalog.list(ListKind::Tools).clone();
        if tools.iter().any(is_unkept) {
            let kept = tools.iter().filter(|item| !is_unkept(item)).cloned();
            Arc::make_mut(&mut catalog).set(ListKind::Tools, kept.collect());
        }
        let digest = self.pinned.config().to_string();
        if shared.memory.catalog(self.key(), digest, catalog) {
            self.write_down(shared);
        }
    }

    fn write_down(&self, shared: &Arc<Shared>) {
        shared.spawn_writer(write_down(shared.clone(), self.key().clone()));
    }

    /// Notes how tools are defined, and whether that is how they were.
    fn compare(&self, shared: &Arc<Shared>, tools: &[Item]) {
        // Its successor may have another configuration: nothing is agreed to on the successor's behalf.
        if self.over.is_cancelled() {
            return;
        }
        let policy = shared.fleet().settings.pinning;
        let seen = self.pinned.compare(tools, policy);
        if seen.is_empty() {
            return;
        }
        for seen in &seen {
            let (key, tool) = (self.key(), seen.tool.as_str());
            match seen.news {
                News::Tool | News::Same => {}
                News::Configured => {
                    tracing::info!(server = %key, tool, "the definition of the tool has changed with the server's configuration, and is agreed to with it");
                }
                News::Words if policy == Pinning::Quarantine => {
                    tracing::warn!(server = %key, tool, "the definition of the tool has changed: kept back until it is approved");
                }
                News::Words => {
                    tracing::warn!(server = %key, tool, "the definition of the tool has changed: offered all the same");
                }
            }
        }
        if shared.memory.pins(self.key(), seen) {
            self.write_down(shared);
        }
    }

    /// Puts a changed catalog in the place of the old one. Only its own loop does.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut Catalog) -> T) -> T {
        let mut catalog = Catalog::clone(&self.catalog.load());
        let outcome = change(&mut catalog);
        self.catalog.store(Arc::new(catalog));
        outcome
    }

    /// Handles what comes outside of calls until the connection ends; says why it did.
    async fn serve(
        self: &Arc<Self>,
        shared: &Arc<Shared>,
        connection: &Arc<Connection>,
        mut ambient: Ambient,
    ) -> Arc<str> {
        let closed = connection.client.closed();
        let subscriptions = self.upstream.run(self.name(), connection, |frame| {
            self.notified(shared, frame)
        });
        let events = async {
            while let Some(event) = ambient.recv().await {
                self.ambient(shared, connection, event).await;
            }
            std::future::pending::<()>().await
        };
        let refreshing = async {
            loop {
                let kinds = self.refresh.next().await;
                self.fetch(shared, connection, &kinds).await;
                shared.publish_of(self, &kinds);
                self.keep(shared);
            }
        };
        tokio::select! {
            why = closed => why,
            () = refreshing => "unreachable: it goes on for ever".into(),
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
                // Nobody in particular is calling: a shared server has no client of its own (`sharing`).
                let answer = if request.method() == method::ROOTS_LIST {
                    Frame::result(request.id(), b"{\"roots\":[]}")
                } else {
                    refused(
                        &request,
                        "needs the one session with calls in flight that it belongs to",
                    )
                };
                let _ = connection.client.send(&answer).await;
            }
            // What a server wants to know at its start has to do with no call (server-filesystem asks for roots).
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
                        " (from now on the server gets the calls of one at a time: call again)",
                    );
                }
                let answer = refused(&request, &why);
                let _ = connection.client.send(&answer).await;
            }
            Event::Notification(frame) => self.notified(shared, &frame),
            Event::Response(_) => {}
        }
    }

    /// Sends it the calls of one session at a time from now on, unless its limit was set by hand: it asks its clients things,
    /// and does not say in which call. Returns whether it takes turns.
    fn take_turns(&self, shared: &Arc<Shared>) -> bool {
        // Where sessions have instances of their own, whoever uses the common one has no session to be asked.
        if self.spec.max_concurrency.is_some() || self.spec.sharing == Sharing::Session {
            return false;
        }
        if self.queue.take_turns() {
            tracing::warn!(
                server = %self.key(),
                "it asked a client something while calls of several sessions were in flight: from now on it gets the calls \
                 of one session at a time; \"sharing\": \"session\" gives each session an instance of its own"
            );
            self.change(|catalog| catalog.takes_turns = true);
            self.keep(shared);
        }
        true
    }

    /// A notification that belongs to no call.
    pub(crate) fn notified(&self, shared: &Shared, frame: &Frame) {
        match frame.method() {
            method::TOOLS_CHANGED => self.refresh.of(&[ListKind::Tools]),
            method::PROMPTS_CHANGED => self.refresh.of(&[ListKind::Prompts]),
            method::RESOURCES_CHANGED => {
                self.refresh.of(&[ListKind::Resources, ListKind::Templates]);
            }
            method::RESOURCE_UPDATED => {
                if let Some(native) = frame.object().and_then(|params| params.string("uri")) {
                    shared.hub.resource_updated(self.key(), &native, frame);
                }
            }
            // A task is its owner's alone.
            mcp::tasks::STATUS => shared.tasks.tell(self.key(), frame),
            mcp::tasks::STATUS_MODERN => {}
            method::MESSAGE => shared
                .hub
                .log_message(frame, |scope| shared.fleet().sees(scope, self)),
            _ => shared
                .hub
                .broadcast(frame, |scope| shared.fleet().sees(scope, self)),
        }
    }
}

/// Writes down what is noted of a server, and takes in what comes of it.
async fn write_down(shared: Arc<Shared>, key: ServerKey) {
    let tell = |told: Told<'_>| {
        let fleet = shared.fleet();
        if let Some(server) = fleet.get(&key)
            && server.pinned.told(&told)
        {
            shared.publish_of(server, &[ListKind::Tools]);
        }
    };
    shared.memory.write(&key, &tell).await;
}

/// The answer to a question that nobody can be asked.
fn refused(question: &Frame, why: &str) -> Frame {
    let what = format!(
        "{} {why}: configure the server with \"maxConcurrency\": 1 or \"sharing\": \"session\"",
        question.method()
    );
    let error = RpcError::new(mcp::error::METHOD_NOT_FOUND, what);
    Frame::error(question.id(), &error)
}
