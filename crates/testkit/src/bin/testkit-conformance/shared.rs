//! State shared by all sessions of the process, and the state of one session.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use rmcp::{
    RoleServer,
    model::{
        LoggingLevel, PromptListChangedNotification, RequestStateCodec,
        ResourceUpdatedNotification, ResourceUpdatedNotificationParam, ServerNotification,
        ToolListChangedNotification,
    },
    service::{Peer, SubscriptionSendError, SubscriptionSink},
};
use tokio::time::{sleep, timeout};

use crate::{Era, tasks::Tasks};

/// The longest delay that one slow reader may cause in a broadcast.
const SEND_LIMIT: Duration = Duration::from_secs(1);

/// State of the whole process. Toggled lists and triggered subscriptions must be visible across sessions, because each
/// modern HTTP request is a separate session.
pub(crate) struct Shared {
    pub(crate) era: Era,
    /// True while the tool that `toggle_tool` adds is listed.
    pub(crate) extra_tool: AtomicBool,
    /// True while the prompt that `test_trigger_prompt_change` adds is listed.
    pub(crate) extra_prompt: AtomicBool,
    /// Calls of `slow` that were cancelled.
    pub(crate) cancelled: AtomicU64,
    /// Number of changes to the watched resource.
    pub(crate) touched: AtomicU64,
    /// Calls that continue as tasks after their response.
    pub(crate) tasks: Tasks,
    /// Seals `requestState`.
    pub(crate) codec: RequestStateCodec,
    peers: Mutex<Vec<(Peer<RoleServer>, Arc<Session>)>>,
    /// Sinks are numbered, because a sink's own id is a request id, and different clients choose the same ones.
    sinks: Mutex<BTreeMap<u64, SubscriptionSink>>,
    next_sink: AtomicU64,
    /// Subscriptions that may already be acknowledged but are not in `sinks` yet.
    opening: AtomicU64,
}

/// State of one legacy session.
pub(crate) struct Session {
    pub(crate) level: Mutex<LoggingLevel>,
    pub(crate) subscribed: Mutex<BTreeSet<String>>,
}

impl Default for Session {
    fn default() -> Self {
        Self {
            // Until the client sets a level, the server decides (2025-11-25, logging).
            level: Mutex::new(LoggingLevel::Debug),
            subscribed: Mutex::default(),
        }
    }
}

/// A change that subscribers are notified of.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    Tools,
    Prompts,
    Resource(String),
}

impl Change {
    fn notification(&self) -> ServerNotification {
        match self {
            Self::Tools => ToolListChangedNotification::default().into(),
            Self::Prompts => PromptListChangedNotification::default().into(),
            Self::Resource(uri) => {
                let params = ResourceUpdatedNotificationParam::new(uri.clone());
                ResourceUpdatedNotification::new(params).into()
            }
        }
    }
}

impl Shared {
    pub(crate) fn new(era: Era) -> Self {
        Self {
            era,
            extra_tool: AtomicBool::new(false),
            extra_prompt: AtomicBool::new(false),
            cancelled: AtomicU64::new(0),
            touched: AtomicU64::new(0),
            tasks: Tasks::default(),
            codec: RequestStateCodec::new(*b"no secret: this server only tests"),
            peers: Mutex::default(),
            sinks: Mutex::default(),
            next_sink: AtomicU64::new(0),
            opening: AtomicU64::new(0),
        }
    }

    /// Registers a legacy peer. Legacy peers are notified of list changes without subscribing.
    pub(crate) fn peer_add(&self, peer: Peer<RoleServer>, session: Arc<Session>) {
        let mut peers = self.peers.lock();
        peers.retain(|(known, _)| !known.is_transport_closed());
        peers.push((peer, session));
    }

    /// Announces that a subscription is about to be acknowledged. The SDK acknowledges before it hands the subscription
    /// over, and a change in between must not be lost.
    pub(crate) fn sink_expect(&self) {
        self.opening.fetch_add(1, Ordering::SeqCst);
    }

    /// Adds a modern subscription and returns its number, for `sink_remove`.
    pub(crate) fn sink_add(&self, sink: SubscriptionSink) -> u64 {
        let number = self.next_sink.fetch_add(1, Ordering::Relaxed);
        self.sinks.lock().insert(number, sink);
        let less = |opening: u64| Some(opening.saturating_sub(1));
        let _ = self
            .opening
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
        number
    }

    pub(crate) fn sink_remove(&self, number: u64) {
        self.sinks.lock().remove(&number);
    }

    /// Waits until subscriptions that are being opened are registered.
    async fn sinks_settle(&self) {
        let settled = async {
            while self.opening.load(Ordering::SeqCst) > 0 {
                sleep(Duration::from_millis(1)).await;
            }
        };
        if timeout(SEND_LIMIT, settled).await.is_err() {
            // The client disconnected before the acknowledgement, so no sink will be added.
            self.opening.store(0, Ordering::SeqCst);
        }
    }

    /// Notifies all subscribers.
    pub(crate) async fn announce(&self, change: Change) {
        let peers: Vec<_> = {
            let mut peers = self.peers.lock();
            peers.retain(|(peer, _)| !peer.is_transport_closed());
            peers.clone()
        };
        for (peer, session) in peers {
            if let Change::Resource(uri) = &change
                && !session.subscribed.lock().contains(uri)
            {
                continue;
            }
            // A peer that does not read or has disconnected must not fail this call.
            let _ = timeout(SEND_LIMIT, peer.send_notification(change.notification())).await;
        }
        self.sinks_settle().await;
        let sinks = self.sinks.lock().clone();
        for (number, sink) in sinks {
            let sent = timeout(SEND_LIMIT, sink.send(change.notification())).await;
            if let Ok(Err(SubscriptionSendError::SubscriptionClosed)) = sent {
                self.sink_remove(number);
            }
        }
    }

    /// Toggles whether an item is listed, and returns the new state.
    pub(crate) fn toggle(item: &AtomicBool) -> bool {
        !item.fetch_xor(true, Ordering::Relaxed)
    }
}
