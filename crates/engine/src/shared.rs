//! What the tasks of the engine share: the servers, the views of them, and who is told of changes.
//!
//! Invariant: views are made by who changes something, under a lock that no call takes which finds its view.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, OnceLock, Weak},
    time::Duration,
};

use arc_swap::ArcSwap;
use mcp::{client::Identity, extensions};
use model::{AuditBodies, Limits, ServerKey, StartPolicy};
use parking_lot::Mutex;
use store::Store;
use tokio::time::Instant;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    announce::Announcer,
    apps,
    audit::Audit,
    catalog::ListKind,
    chronicle::Chronicle,
    fleet::Fleet,
    gate::Gate,
    hold::Holds,
    hub::Hub,
    launch::{Connect, SHARED_CAPABILITIES},
    logins::Logins,
    memory::Memory,
    place::Place,
    runtimes::Runtimes,
    scope::Scope,
    server::Server,
    tasks::Tasks,
    view::View,
};

pub(crate) struct Shared {
    pub(crate) connect: Arc<dyn Connect>,
    pub(crate) runtimes: Arc<Runtimes>,
    pub(crate) logins: Arc<dyn Logins>,
    /// From the polite request to end an instance until the kill, save where somebody says otherwise.
    pub(crate) stop_grace: Duration,
    pub(crate) identity: Identity,
    pub(crate) hub: Arc<Hub>,
    pub(crate) announcer: Announcer,
    pub(crate) place: Place,
    pub(crate) held: Holds,
    pub(crate) tasks: Tasks,
    pub(crate) opened: apps::Opened,
    pub(crate) audit: Audit,
    pub(crate) memory: Memory,
    pub(crate) chronicle: Chronicle,
    /// None if there is no other gateway that may run the same.
    pub(crate) gate: OnceLock<Arc<dyn Gate>>,
    pub(crate) over: CancellationToken,
    /// Nothing is launched any more.
    pub(crate) closing: CancellationToken,
    /// When the last server has to be gone, once the product stops.
    pub(crate) stop_by: OnceLock<Instant>,
    /// Servers that are no more, and may not be gone yet.
    parting: Mutex<BTreeMap<ServerKey, Weak<Server>>>,
    fleet: ArcSwap<Fleet>,
    views: ArcSwap<HashMap<Scope, Arc<View>>>,
    /// Held while the fleet or views are changed, never by a call that finds its view.
    publishing: Mutex<()>,
    running: TaskTracker,
    /// Those that write down what is to be remembered.
    writing: TaskTracker,
}

impl Shared {
    pub(crate) fn new(
        fleet: Fleet,
        identity: Identity,
        connect: Arc<dyn Connect>,
        runtimes: Arc<Runtimes>,
        logins: Arc<dyn Logins>,
        store: Store,
    ) -> Arc<Self> {
        let audit = Audit::new(store.call_writer());
        let running = TaskTracker::new();
        let over = CancellationToken::new();
        let (chronicle, writing) = Chronicle::new(store.clone());
        running.spawn(writing);
        let place = Place::default();
        Arc::new(Self {
            audit,
            chronicle,
            memory: Memory::new(store, over.clone()),
            connect,
            runtimes,
            logins,
            stop_grace: fleet.settings.limits.stop_grace,
            identity,
            hub: Arc::default(),
            announcer: Announcer::default(),
            held: Holds::new(place.clone()),
            tasks: Tasks::new(place.clone()),
            place,
            opened: apps::Opened::default(),
            gate: OnceLock::new(),
            over,
            closing: CancellationToken::new(),
            stop_by: OnceLock::new(),
            parting: Mutex::default(),
            fleet: ArcSwap::from_pointee(fleet),
            views: ArcSwap::default(),
            publishing: Mutex::default(),
            running,
            writing: TaskTracker::new(),
        })
    }

    pub(crate) fn fleet(&self) -> Arc<Fleet> {
        self.fleet.load_full()
    }

    pub(crate) fn limits(&self) -> Limits {
        self.fleet.load().settings.limits.clone()
    }

    /// What shared servers are told that their client can do: JSON text.
    pub(crate) fn shared_capabilities(&self) -> String {
        let fleet = self.fleet.load();
        let mut text = SHARED_CAPABILITIES.as_bytes().to_vec();
        for (name, settings) in &fleet.settings.extensions {
            text = extensions::with(&text, name, settings).into_owned();
        }
        String::from_utf8_lossy(&text).into_owned()
    }

    /// What is kept of the bodies of tool calls; `None` if calls are not recorded.
    pub(crate) fn recorded_bodies(&self) -> Option<AuditBodies> {
        let fleet = self.fleet.load();
        let audit = &fleet.settings.audit;
        audit.enabled.then_some(audit.bodies)
    }

    pub(crate) fn start_policy(&self) -> StartPolicy {
        self.fleet.load().settings.start
    }

    pub(crate) fn running(&self) -> &TaskTracker {
        &self.running
    }

    /// Runs a task that the engine owns: it ends with its server, its session or the product.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.running.spawn(task);
    }

    /// The same for one that writes something down: the product does not stop before it is done, if that is soon.
    pub(crate) fn spawn_writer(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.writing.spawn(task);
    }

    /// Waits until everything is written down.
    pub(crate) async fn written(&self) {
        self.writing.close();
        self.writing.wait().await;
        self.chronicle.flush().await;
        self.audit.end().await;
    }

    /// Remembers a server until it is gone.
    pub(crate) fn parts(&self, server: &Arc<Server>) {
        let mut parting = self.parting.lock();
        parting.retain(|_, server| server.strong_count() > 0);
        parting.insert(server.key().clone(), Arc::downgrade(server));
    }

    /// The server of that key that is no more, if it is not gone yet.
    pub(crate) fn parting(&self, key: &ServerKey) -> Option<Arc<Server>> {
        let parting = self.parting.lock();
        parting.get(key)?.upgrade()
    }

    /// Puts a changed fleet in the place of the old one. One at a time does.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut Fleet) -> T) -> T {
        let _one_at_a_time = self.publishing.lock();
        let mut fleet = Fleet::clone(&self.fleet.load());
        let outcome = change(&mut fleet);
        self.fleet.store(Arc::new(fleet));
        outcome
    }

    /// Makes every known view anew that `concerns`, and has those who listen there told if these lists changed.
    pub(crate) fn publish(&self, kinds: &[ListKind], concerns: impl Fn(&Scope) -> bool) {
        {
            let _one_at_a_time = self.publishing.lock();
            let mut views = HashMap::clone(&self.views.load());
            let fleet = self.fleet.load();
            let before: Vec<(Scope, Option<Arc<View>>)> = self
                .hub
                .listened(&concerns)
                .into_iter()
                .map(|scope| (scope.clone(), views.get(&scope).cloned()))
                .collect();
            views.retain(|scope, view| {
                if !concerns(scope) {
                    return true;
                }
                // The view over all projects is made when it is next asked for: it is large, rarely used,
                // and each of very many servers changes it.
                if scope.project.is_none() && !fleet.projects.is_empty() {
                    return false;
                }
                match self.build(&fleet, scope) {
                    Some(fresh) => {
                        *view = fresh;
                        true
                    }
                    None => false,
                }
            });
            self.views.store(Arc::new(views));
            // Not before: whoever tells compares with what is published.
            for (scope, before) in before {
                self.announcer.note(&scope, before, kinds);
            }
        }
    }

    /// [`Shared::publish`] for the scopes that see a server.
    pub(crate) fn publish_of(&self, server: &Server, kinds: &[ListKind]) {
        let fleet = self.fleet();
        self.publish(kinds, |scope| fleet.sees(scope, server));
    }

    fn build(&self, fleet: &Fleet, scope: &Scope) -> Option<Arc<View>> {
        let seen = fleet.seen(scope)?;
        Some(Arc::new(View::build(scope, seen, fleet, &self.identity)))
    }

    /// The snapshot of a scope; `None` if there is no such project or server.
    pub(crate) fn view(&self, scope: &Scope) -> Option<Arc<View>> {
        if let Some(view) = self.views.load().get(scope) {
            return Some(view.clone());
        }
        self.view_anew(scope)
    }

    /// The view of this one server, even if others of its name are in the scope or take its place there.
    pub(crate) fn view_of(&self, scope: &Scope, server: &Arc<Server>) -> Arc<View> {
        match self.view(scope) {
            Some(view) if matches!(&*view.servers, [only] if Arc::ptr_eq(only, server)) => view,
            // Rare, and not kept: a scope has one view.
            _ => {
                let (fleet, servers) = (self.fleet(), vec![server.clone()]);
                Arc::new(View::build(scope, servers, &fleet, &self.identity))
            }
        }
    }

    /// [`Shared::view`], made now.
    pub(crate) fn view_anew(&self, scope: &Scope) -> Option<Arc<View>> {
        let _one_at_a_time = self.publishing.lock();
        let view = self.build(&self.fleet.load(), scope)?;
        let mut views = HashMap::clone(&self.views.load());
        views.insert(scope.clone(), view.clone());
        self.views.store(Arc::new(views));
        Some(view)
    }
}
