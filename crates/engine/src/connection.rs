//! A live conversation with an instance.

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

use crate::{exchange::Caller, gate::CALLER, logins::Issued};

/// A live conversation with an instance.
pub struct Connection {
    pub client: Client,
    /// Whether another gateway of the installation runs the instance, and this is a conversation with that gateway.
    pub(crate) is_elsewhere: bool,
    /// The instance, where it is ours.
    pub handle: Option<Handle>,
    /// What its sandbox is made by, where it has one.
    pub hosted: Option<Arc<Placement>>,
    /// The access token in the instance's environment.
    pub(crate) issued: Option<Issued>,
    /// The principal whose sign-in it has, where it is not the one of all.
    pub(crate) whose: Option<Arc<str>>,
    pub(crate) level: AtomicU8,
    /// The tools that it lists, where it is a session's own.
    pub(crate) own_tools: OwnTools,
    /// Whether its server's lists were asked for: what it wanted of its own accord at its start is over.
    pub(crate) is_known: AtomicBool,
    /// What the server last said of itself and those behind it, if it is a gateway.
    pub(crate) behind: ArcSwapOption<Behind>,
}

/// What an instance's sandbox is made by, and what of it is enforced.
#[derive(Clone, Debug)]
pub struct Placement {
    pub provider: Provider,
    /// Why it is this provider.
    pub why: Arc<str>,
    pub enforced: Arc<[Enforced]>,
    /// Which files it sees, where its runtime can list them.
    pub files: Option<Arc<VisibleFiles>>,
    /// Where its ports are reached on this host.
    pub ports: Vec<(u16, std::net::SocketAddr)>,
}

/// Native names of tools.
pub(crate) type Names = Arc<BTreeSet<Arc<str>>>;

/// The tools that one instance lists, as far as that is known.
#[derive(Default)]
pub(crate) struct OwnTools(Mutex<Known>);

#[derive(Default)]
struct Known {
    names: Option<Names>,
    /// How often the list has changed: what was asked for before that is out of date.
    changes: u64,
}

impl OwnTools {
    pub(crate) fn names(&self) -> Option<Names> {
        self.0.lock().names.clone()
    }

    pub(crate) fn changes(&self) -> u64 {
        self.0.lock().changes
    }

    /// Takes in a list that was asked for after so many changes, if there has been none since.
    pub(crate) fn learn(&self, names: &Names, changes: u64) {
        let mut known = self.0.lock();
        if known.changes == changes {
            known.names = Some(names.clone());
        }
    }

    /// The list has changed: it is asked for when it is next wanted.
    pub(crate) fn forget(&self) {
        let mut known = self.0.lock();
        known.names = None;
        known.changes += 1;
    }
}

impl Connection {
    /// A conversation that was just made; `handle` and `hosted` as in the fields of these names.
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
            own_tools: OwnTools::default(),
            is_known: AtomicBool::new(false),
            behind: ArcSwapOption::new(behind),
        }
    }

    /// Says whose request it is, where that depends on who asks.
    pub(crate) fn name_caller(&self, outgoing: &mut Outgoing<'_>, caller: &Caller) {
        if self.is_elsewhere
            && let Ok(principal) = HeaderValue::from_str(&caller.principal)
        {
            outgoing.headers.push((CALLER, principal));
        }
    }

    /// Ends the conversation, and the instance behind it if it is ours.
    pub(crate) async fn close(&self, grace: Duration) {
        self.client.close(grace).await;
        if let Some(handle) = &self.handle {
            handle.stop(grace).await;
        }
    }

    /// Asks the server to log from `level` on, if it is one session's own. A shared one is asked for all that it has: each
    /// client gets of that what it wants, and one that set no level what the server would send it.
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
            Err(_) => tracing::debug!("logging/setLevel had no answer"),
        }
    }
}
