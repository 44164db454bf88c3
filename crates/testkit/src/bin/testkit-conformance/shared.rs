//! What all sessions of the process have in common, and what one session has of its own.

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use rmcp::{
    RoleServer,
    model::{
        LoggingLevel, PromptListChangedNotification, RequestStateCodec,
        ResourceUpdatedNotification, ResourceUpdatedNotificationParam, ServerNotification,
        ToolListChangedNotification,
    },
    service::{Peer, SubscriptionSendError, SubscriptionSink},
};
use tokio::time::timeout;

use crate::{Era, tasks::Tasks};

/// How long one slow reader may hold up a broadcast.
const SEND_LIMIT: Duration = Duration::from_secs(1);

/// State of the whole process. Lists that a tool toggles and subscriptions that a tool triggers
/// must be seen across sessions, because a modern HTTP request is a session of its own.
pub(crate) struct Shared {
    pub(crate) era: Era,
    /// Whether the tool that `toggle_tool` adds is listed.
    pub(crate) extra_tool: AtomicBool,
    /// Whether the prompt that `test_trigger_prompt_change` adds is listed.
    pub(crate) extra_prompt: AtomicBool,
    /// Calls of `slow` that were cancelled.
    pub(crate) cancelled: AtomicU64,
    /// How often the watched resource was touched.
    pub(crate) touched: AtomicU64,
    /// Calls that go on after their answer.
    pub(crate) tasks: Tasks,
    /// Seals `requestState`.
    pub(crate) codec: RequestStateCodec,
    peers: Mutex<Vec<(Peer<RoleServer>, Arc<Session>)>>,
    sinks: Mutex<Vec<SubscriptionSink>>,
}

/// State of one legacy session.
pub(crate) struct Session {
    pub(crate) level: Mutex<LoggingLevel>,
    pub(crate) subscribed: Mutex<BTreeSet<String>>,
}

impl Default for Session {
    fn default() -> Self {
        Self {
            // Before the client says otherwise the server decides (2025-11-25, logging).
            level: Mutex::new(LoggingLevel::Debug),
            subscribed: Mutex::default(),
        }
    }
}

/// Something that subscribers are told.
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
        }
    }

    /// Remembers a legacy peer, which is told of changes without further asking.
    pub(crate) fn peer_add(&self, peer: Peer<RoleServer>, session: Arc<Session>) {
        let mut peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        peers.retain(|(known, _)| !known.is_transport_closed());
        peers.push((peer, session));
    }

    /// Remembers a modern subscription until it ends.
    pub(crate) fn sink_add(&self, sink: SubscriptionSink) {
        let mut sinks = self.sinks.lock().unwrap_or_else(PoisonError::into_inner);
        sinks.push(sink);
    }

    /// Tells everyone who asked for it.
    pub(crate) async fn announce(&self, change: Change) {
        let peers: Vec<_> = {
            let mut peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
            peers.retain(|(peer, _)| !peer.is_transport_closed());
            peers.clone()
        };
        for (peer, session) in peers {
            if let Change::Resource(uri) = &change
                && !lock(&session.subscribed).contains(uri)
            {
                continue;
            }
            // A peer that does not read or has left is not this call's problem.
            let _ = timeout(SEND_LIMIT, peer.send_notification(change.notification())).await;
        }
        let sinks = lock(&self.sinks).clone();
        for sink in sinks {
            let sent = timeout(SEND_LIMIT, sink.send(change.notification())).await;
            if let Ok(Err(SubscriptionSendError::SubscriptionClosed)) = sent {
                lock(&self.sinks).retain(|known| known.id() != sink.id());
            }
        }
    }

    /// Flips a listed item and says whether it is listed now.
    pub(crate) fn toggle(item: &AtomicBool) -> bool {
        !item.fetch_xor(true, Ordering::Relaxed)
    }
}

/// Locks, whatever became of another holder.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
