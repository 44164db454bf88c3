//! A live connection to an instance.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU8, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwapOption;
use http::HeaderValue;
use mcp::{
    Era,
    chain::Behind,
    client::{Client, Outgoing},
};
use model::Provider;
use parking_lot::Mutex;
use runtime::{Enforced, Handle, VisibleFiles};
use tokio::{sync::OnceCell, time::Instant};

use crate::{
    exchange::Caller,
    server::{gate::CALLER, logins::Issued},
};

/// A live connection to an instance.
pub struct Connection {
    pub client: Client,
    /// True if another gateway of the installation runs the instance, and this connection leads to that gateway.
    pub(crate) is_elsewhere: bool,
    /// The instance, if this gateway runs it.
    pub handle: Option<Handle>,
    /// How the instance is sandboxed, if it is.
    pub hosted: Option<Arc<Placement>>,
    /// The access token in the instance's environment.
    pub(crate) issued: Option<Issued>,
    /// The principal whose sign-in the instance uses, unless the instance is the shared one.
    pub(crate) whose: Option<Arc<str>>,
    pub(crate) level: AtomicU8,
    /// Messages that the instance sends to clients outside of calls.
    pub(crate) ambient_rate: Rate,
    /// The tools that the instance lists, if it belongs to one session.
    pub(crate) own_tools: OwnTools,
    /// True as soon as the server's lists were fetched. Until then, requests from the server count as part of its
    /// start-up.
    pub(crate) is_known: AtomicBool,
    /// The server's last report about itself and the gateways behind it, if it is a gateway.
    pub(crate) behind: ArcSwapOption<Behind>,
    /// The legacy conversation that exists in addition to this modern one.
    pub(crate) second: Second,
}

/// How an instance is sandboxed, and which limits are enforced.
#[derive(Clone, Debug)]
pub struct Placement {
    pub provider: Provider,
    /// Why this provider was chosen.
    pub why: Arc<str>,
    pub enforced: Arc<[Enforced]>,
    /// The files that the instance sees, if its runtime can list them.
    pub files: Option<Arc<VisibleFiles>>,
    /// The addresses on this host at which its ports are reached.
    pub ports: Vec<(u16, std::net::SocketAddr)>,
}

/// Counts events per second.
#[derive(Default)]
pub(crate) struct Rate(Mutex<Option<(Instant, u32)>>);

impl Rate {
    /// Counts an event. Returns `false` if more than `most` have happened within a second.
    pub(crate) fn admits(&self, most: u32) -> bool {
        let now = Instant::now();
        let mut second = self.0.lock();
        match &mut *second {
            Some((start, count)) if now - *start < Duration::from_secs(1) => {
                *count = count.saturating_add(1);
                *count <= most
            }
            over => {
                *over = Some((now, 1));
                true
            }
        }
    }
}

/// Native names of tools.
pub(crate) type Names = Arc<BTreeSet<Arc<str>>>;

/// The tools that one instance lists, if they are known.
#[derive(Default)]
pub(crate) struct OwnTools(Mutex<Known>);

#[derive(Default)]
struct Known {
    names: Option<Names>,
    /// Number of changes of the list so far. A list requested before the latest change is outdated.
    changes: u64,
}

impl OwnTools {
    pub(crate) fn names(&self) -> Option<Names> {
        self.0.lock().names.clone()
    }

    pub(crate) fn changes(&self) -> u64 {
        self.0.lock().changes
    }

    /// Stores a list that was requested after this number of changes, unless it has changed since.
    pub(crate) fn learn(&self, names: &Names, changes: u64) {
        let mut known = self.0.lock();
        if known.changes == changes {
            known.names = Some(names.clone());
        }
    }

    /// Forgets the list, because it has changed. The list is fetched again when needed.
    pub(crate) fn forget(&self) {
        let mut known = self.0.lock();
        known.names = None;
        known.changes += 1;
    }
}

/// The legacy conversation with a server that is connected in the modern era.
#[derive(Default)]
pub(crate) struct Second {
    slot: Mutex<Slot>,
    /// Set by each request for the conversation.
    is_used: AtomicBool,
}

/// The outcome of an attempt to open the conversation, once the attempt has ended.
type Slot = Arc<OnceCell<Opened>>;

pub(crate) enum Opened {
    Yes(Arc<Connection>),
    /// The server refuses `initialize`. Final for the life of the modern connection.
    Refused,
    /// It is unknown whether the server accepts `initialize`.
    Failed {
        retry_at: Instant,
    },
}

impl Second {
    /// The last attempt, or a new one if that has ended.
    pub(crate) fn slot(&self) -> Slot {
        self.is_used.store(true, Ordering::Relaxed);
        let mut slot = self.slot.lock();
        let is_over = match slot.get() {
            Some(Opened::Yes(connection)) => connection.client.is_closed(),
            Some(Opened::Failed { retry_at }) => *retry_at <= Instant::now(),
            Some(Opened::Refused) | None => false,
        };
        if is_over {
            *slot = Slot::default();
        }
        slot.clone()
    }

    /// The connection, if it is open.
    pub(crate) fn get(&self) -> Option<Arc<Connection>> {
        match self.slot.lock().get() {
            Some(Opened::Yes(connection)) => Some(connection.clone()),
            _ => None,
        }
    }

    /// Forgets the connection, unless it was requested since the last time, or a request holds it. The slot and the
    /// task that watches it account for two references.
    pub(crate) fn forget_unused(&self, unused: &Arc<Connection>) -> bool {
        let mut slot = self.slot.lock();
        let is_used = self.is_used.swap(false, Ordering::Relaxed)
            || Arc::strong_count(&slot) > 1
            || Arc::strong_count(unused) > 2;
        if !is_used {
            *slot = Slot::default();
        }
        !is_used
    }
}

impl Connection {
    /// A new connection. `handle` and `hosted`: see the fields of the same names.
    #[must_use]
    pub fn new(client: Client, handle: Option<Handle>, hosted: Option<Arc<Placement>>) -> Self {
        let behind = client.info().behind.clone().map(Arc::new);
        Self {
            client,
            is_elsewhere: false,
            handle,
            hosted,
            issued: None,
            whose: None,
            level: AtomicU8::new(u8::MAX),
            ambient_rate: Rate::default(),
            own_tools: OwnTools::default(),
            is_known: AtomicBool::new(false),
            behind: ArcSwapOption::new(behind),
            second: Second::default(),
        }
    }

    /// The legacy conversation `client` with the same instance.
    pub(crate) fn second_with(&self, client: Client) -> Self {
        Self {
            whose: self.whose.clone(),
            is_known: AtomicBool::new(true),
            ..Self::new(client, None, None)
        }
    }

    /// Names the caller in a request that goes to another gateway of the installation.
    pub(crate) fn name_caller(&self, outgoing: &mut Outgoing<'_>, caller: &Caller) {
        if self.is_elsewhere
            && let Ok(principal) = HeaderValue::from_str(&caller.principal)
        {
            outgoing.headers.push((CALLER, principal));
        }
    }

    /// Closes the connection, and stops the instance if this gateway runs it.
    pub(crate) async fn close(&self, grace: Duration) {
        match self.second.get() {
            Some(second) => {
                tokio::join!(self.client.close(grace), second.client.close(grace));
            }
            None => self.client.close(grace).await,
        }
        if let Some(handle) = &self.handle {
            handle.stop(grace).await;
        }
    }

    /// Asks the server to log from `level` on, if the connection belongs to one session. A shared server is asked for
    /// all levels, and each client's messages are filtered: by its level or, if it set none, by what the server would
    /// send by default.
    pub(crate) async fn ensure_level(&self, level: &'static str, is_own: bool) {
        let info = self.client.info();
        let level = if is_own {
            level
        } else {
            mcp::bridge::LOG_LEVELS[0]
        };
        let Some(rank) = mcp::bridge::LOG_LEVELS
            .iter()
            .position(|known| *known == level)
        else {
            return;
        };
        let rank = u8::try_from(rank).unwrap_or(u8::MAX);
        if info.era == Era::Modern
            || !info.has("logging")
            || self.level.swap(rank, Ordering::Relaxed) == rank
        {
            return;
        }
        let members = format!("\"level\":\"{level}\"");
        let asked = self.client.ask(mcp::protocol::method::SET_LEVEL, &members);
        match tokio::time::timeout(Duration::from_secs(5), asked).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => tracing::debug!("logging/setLevel failed: {error}"),
            Err(_) => tracing::debug!("logging/setLevel timed out"),
        }
    }
}
