//! Distributes notifications to clients: legacy sessions and `subscriptions/listen` streams of modern clients.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use catalog::ListKind;
use mcp::{
    Frame,
    json::{Splice, quote},
    outbox::{Outbox, Weight},
    protocol::{meta, method},
    server::{Session, SessionId},
};
use model::{ServerName, fair_share};

use crate::{log_message, scope::Scope, server::callers::ServerId};
use parking_lot::{Mutex, RwLock};

/// The lists whose changes a listener wants to receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Filter {
    pub tools: bool,
    pub prompts: bool,
    pub resources: bool,
}

impl Filter {
    pub const ALL: Self = Self {
        tools: true,
        prompts: true,
        resources: true,
    };

    fn wants(self, kind: ListKind) -> bool {
        match kind {
            ListKind::Tools => self.tools,
            ListKind::Prompts => self.prompts,
            ListKind::Resources | ListKind::Templates => self.resources,
        }
    }
}

/// The clients that a notification outside of calls concerns.
#[derive(Clone, Copy)]
pub enum Audience<'a> {
    /// All that see the server.
    All,
    /// The sessions of one principal.
    Principal(&'a str),
    Session(&'a SessionId),
}

/// One client that receives notifications.
pub struct Listener {
    pub scope: Scope,
    pub filter: Filter,
    pub outbox: Arc<Outbox>,
    /// The principal whose limit of watched resources applies.
    pub principal: Arc<str>,
    /// The legacy session, if the listener is one.
    pub session: Option<Arc<Session>>,
    /// The id of the `subscriptions/listen` request as JSON text, if the listener is such a stream.
    pub tag: Option<Bytes>,
    /// Watched resources, and their URIs as the client knows them.
    uris: Mutex<HashMap<Resource, String>>,
}

/// A resource that clients watch, in one conversation with its server.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Resource {
    pub server: ServerId,
    pub native: String,
    /// True if the resource is watched in the legacy conversation with a server that is connected in the modern era.
    /// Each conversation has its own notifications.
    pub in_second: bool,
}

impl Listener {
    #[must_use]
    pub fn new(scope: Scope, filter: Filter, outbox: Arc<Outbox>, principal: Arc<str>) -> Self {
        Self {
            scope,
            filter,
            outbox,
            principal,
            session: None,
            tag: None,
            uris: Mutex::default(),
        }
    }

    /// Returns whether the listener can receive notifications. A session can once it is initialised; a stdio pipe in
    /// the modern era never can.
    fn is_ready(&self) -> bool {
        self.session
            .as_ref()
            .is_none_or(|session| session.face().is_some())
    }

    /// The notification with the listener's tag added.
    fn tagged(&self, frame: &Frame, mut splice: Splice<'_>) -> Bytes {
        if let Some(tag) = &self.tag {
            let member = format!(
                "\"{}\":{}",
                meta::SUBSCRIPTION_ID,
                String::from_utf8_lossy(tag)
            );
            match (frame.object(), frame.meta()) {
                (_, Some(own)) => {
                    splice.set(frame.text(), &own, meta::SUBSCRIPTION_ID, tag.to_vec())
                }
                (Some(params), None) => {
                    splice.set(frame.text(), &params, "_meta", format!("{{{member}}}"))
                }
                (None, None) => splice.insert(
                    frame.text(),
                    &mcp::json::trimmed(frame.text()),
                    format!("\"params\":{{\"_meta\":{{{member}}}}}").as_bytes(),
                ),
            };
        }
        splice.apply(frame.text())
    }
}

/// All listeners.
#[derive(Default)]
pub struct Hub {
    listeners: RwLock<Listeners>,
    next: AtomicU64,
    watched: Mutex<Watched>,
}

/// Listeners by scope and by id.
type ByScope = HashMap<Scope, HashMap<u64, Arc<Listener>>>;

#[derive(Default)]
struct Listeners {
    /// By the server to which their scope is limited.
    by_server: HashMap<Option<ServerName>, ByScope>,
    count: usize,
}

impl Listeners {
    fn insert(&mut self, id: u64, listener: Arc<Listener>) {
        let scope = &listener.scope;
        let by_scope = self.by_server.entry(scope.server.clone()).or_default();
        let own = by_scope.entry(scope.clone()).or_default();
        self.count += usize::from(own.insert(id, listener).is_none());
    }

    fn remove(&mut self, id: u64, scope: &Scope) {
        let Some(by_scope) = self.by_server.get_mut(&scope.server) else {
            return;
        };
        if let Some(own) = by_scope.get_mut(scope) {
            self.count -= usize::from(own.remove(&id).is_some());
            if own.is_empty() {
                by_scope.remove(scope);
            }
        }
        if by_scope.is_empty() {
            self.by_server.remove(&scope.server);
        }
    }

    fn all(&self) -> impl Iterator<Item = &Arc<Listener>> {
        let scopes = self.by_server.values().flat_map(HashMap::values);
        scopes.flat_map(HashMap::values)
    }

    fn of(&self, scope: &Scope) -> impl Iterator<Item = &Arc<Listener>> {
        let by_scope = self.by_server.get(&scope.server);
        let own = by_scope.and_then(|by_scope| by_scope.get(scope));
        own.into_iter().flat_map(HashMap::values)
    }
}

/// Counts of watched resources. May be locked while a listener's own list is locked, but not the other way round.
#[derive(Default)]
struct Watched {
    total: usize,
    by_resource: HashMap<Resource, usize>,
    by_principal: HashMap<Arc<str>, usize>,
}

/// Decrements a count. Returns whether the count is now zero.
fn decrement<K, Q>(counts: &mut HashMap<K, usize>, key: &Q) -> bool
where
    K: std::hash::Hash + Eq + std::borrow::Borrow<Q>,
    Q: std::hash::Hash + Eq + ?Sized,
{
    match counts.get_mut(key) {
        Some(count) if *count > 1 => {
            *count -= 1;
            false
        }
        Some(_) => counts.remove(key).is_some(),
        None => false,
    }
}

/// Keeps a listener registered until it is dropped.
pub struct Registration {
    hub: Arc<Hub>,
    id: u64,
    listener: Arc<Listener>,
}

impl Registration {
    #[must_use]
    pub fn listener(&self) -> &Arc<Listener> {
        &self.listener
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let mut listeners = self.hub.listeners.write();
        listeners.remove(self.id, &self.listener.scope);
    }
}

impl Hub {
    /// Registers a listener until the registration is dropped.
    #[must_use]
    pub fn register(self: &Arc<Self>, listener: Listener) -> Registration {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let listener = Arc::new(listener);
        self.listeners.write().insert(id, listener.clone());
        Registration {
            hub: self.clone(),
            id,
            listener,
        }
    }

    fn each(&self, mut visit: impl FnMut(&Listener)) {
        self.listeners.read().all().for_each(|one| visit(one));
    }

    /// Returns whether a client that `wanted` selects has a stream open: a session's, or `subscriptions/listen`.
    #[must_use]
    pub fn has_open_stream(&self, wanted: impl Fn(&Listener) -> bool) -> bool {
        let listeners = self.listeners.read();
        let is_open = |listener: &Arc<Listener>| {
            let session = listener.session.as_ref();
            wanted(listener) && session.is_none_or(|session| session.is_in_use())
        };
        listeners.all().any(is_open)
    }

    /// Number of listeners.
    #[must_use]
    pub fn len(&self) -> usize {
        self.listeners.read().count
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The listener of a legacy session.
    #[must_use]
    pub fn of_session(&self, session: &Session) -> Option<Arc<Listener>> {
        let listeners = self.listeners.read();
        let own = |listener: &&Arc<Listener>| {
            listener
                .session
                .as_ref()
                .is_some_and(|own| own.id() == session.id())
        };
        listeners.all().find(own).cloned()
    }

    /// Adds a resource to those watched by a listener. Returns whether the listener is the first to watch it. `None`:
    /// the principal has used up its fair share of the limit `most`.
    pub fn watch(
        &self,
        listener: &Listener,
        resource: &Resource,
        exposed: &str,
        most: usize,
    ) -> Option<bool> {
        let mut uris = listener.uris.lock();
        if let Some(known) = uris.get_mut(resource) {
            exposed.clone_into(known);
            return Some(false);
        }
        let mut watched = self.watched.lock();
        let held = watched.by_principal.get(&listener.principal).copied();
        if !fair_share(held.unwrap_or(0), watched.total, most) {
            return None;
        }
        watched.total += 1;
        let principal = listener.principal.clone();
        *watched.by_principal.entry(principal).or_default() += 1;
        let count = watched.by_resource.entry(resource.clone()).or_default();
        *count += 1;
        let first = *count == 1;
        uris.insert(resource.clone(), exposed.to_owned());
        Some(first)
    }

    /// Stops watching a resource. Returns true if this was the last listener that watched it.
    pub fn unwatch(&self, listener: &Listener, resource: &Resource) -> bool {
        let mut uris = listener.uris.lock();
        if uris.remove(resource).is_none() {
            return false;
        }
        let mut watched = self.watched.lock();
        watched.total -= 1;
        decrement(&mut watched.by_principal, &*listener.principal);
        decrement(&mut watched.by_resource, resource)
    }

    /// The resources that a listener watches.
    #[must_use]
    pub fn watched_by(listener: &Listener) -> Vec<Resource> {
        listener.uris.lock().keys().cloned().collect()
    }

    /// The scopes that have listeners and for which `wanted` returns true.
    #[must_use]
    pub fn listened(&self, wanted: impl Fn(&Scope) -> bool) -> Vec<Scope> {
        let listeners = self.listeners.read();
        listened(listeners.by_server.values(), wanted)
    }

    /// Like [`Hub::listened`], for scopes that may contain a server of this name.
    #[must_use]
    pub fn listened_of(&self, server: &ServerName, wanted: impl Fn(&Scope) -> bool) -> Vec<Scope> {
        let listeners = self.listeners.read();
        let limits = [None, Some(server.clone())];
        let limits = limits.iter();
        listened(
            limits.filter_map(|limit| listeners.by_server.get(limit)),
            wanted,
        )
    }

    /// Notifies the listeners of a scope that these lists have changed.
    pub fn lists_changed(&self, kinds: &[ListKind], scope: &Scope) {
        let mut frames: Vec<(ListKind, Frame)> = Vec::new();
        for kind in kinds {
            if !frames
                .iter()
                .any(|(known, _)| known.changed() == kind.changed())
            {
                frames.push((*kind, Frame::notification(kind.changed(), None)));
            }
        }
        for listener in self.listeners.read().of(scope) {
            if !listener.is_ready() {
                continue;
            }
            for (kind, frame) in &frames {
                if listener.filter.wants(*kind) {
                    listener
                        .outbox
                        .push(Weight::Signal, listener.tagged(frame, Splice::new()));
                }
            }
        }
    }

    /// Notifies the listeners that watch the resource.
    pub fn resource_updated(&self, resource: &Resource, frame: &Frame) {
        self.each(|listener| {
            let Some(exposed) = listener.uris.lock().get(resource).cloned() else {
                return;
            };
            let mut splice = Splice::new();
            if let Some(uri) = frame.object().and_then(|params| params.find("uri")) {
                splice.replace(uri, quote(&exposed).into_bytes());
            }
            listener
                .outbox
                .push(Weight::Notification, listener.tagged(frame, splice));
        });
    }

    /// Returns whether a session in one of these scopes has set a log level.
    #[must_use]
    pub fn has_log_level(&self, sees: impl Fn(&Scope) -> bool) -> bool {
        let listeners = self.listeners.read();
        let has_level = |listener: &Arc<Listener>| {
            let session = listener.session.as_ref();
            session.is_some_and(|session| session.log_level().is_some()) && sees(&listener.scope)
        };
        listeners.all().any(has_level)
    }

    /// Sends a notification that belongs to no call, such as a log message, to the legacy sessions of its audience.
    /// Modern clients get none (2026-07-28 server/utilities/logging). Other gateways of the installation get those for
    /// all, and send them to their own clients. `exposed` returns the text for the clients of a scope that see the
    /// server.
    pub fn pass_on(
        &self,
        frame: &Frame,
        to: Audience<'_>,
        mut exposed: impl FnMut(&Scope) -> Option<Bytes>,
    ) {
        let is_log = frame.method() == method::MESSAGE;
        self.each(|listener| {
            let session = listener.session.as_ref();
            let is_meant = match (to, session) {
                (Audience::All, Some(_)) => true,
                (Audience::All, None) => listener.scope.is_bare,
                (Audience::Principal(principal), Some(_)) => *listener.principal == *principal,
                (Audience::Session(id), Some(session)) => session.id() == id,
                (_, None) => false,
            };
            if !is_meant || !listener.is_ready() {
                return;
            }
            let least = session.and_then(|session| session.log_level());
            if is_log && !log_message::is_wanted(frame, least) {
                return;
            }
            if let Some(text) = exposed(&listener.scope) {
                listener.outbox.push(Weight::Ambient, text);
            }
        });
    }
}

/// The wanted scopes with a listener that can receive notifications.
fn listened<'l>(
    by_scope: impl Iterator<Item = &'l ByScope>,
    wanted: impl Fn(&Scope) -> bool,
) -> Vec<Scope> {
    let wanted = by_scope.flatten().filter(|(scope, _)| wanted(scope));
    let ready = wanted.filter(|(_, own)| own.values().any(|listener| listener.is_ready()));
    ready.map(|(scope, _)| scope.clone()).collect()
}
