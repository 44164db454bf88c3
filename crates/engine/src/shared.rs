//! State shared by the engine's tasks: the servers, their views, and the listeners.
//!
//! Invariant: the task that makes a change also changes the views, while it holds a lock. A call takes this lock only if
//! its view does not exist yet.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, OnceLock, Weak},
    time::Duration,
};

use arc_swap::ArcSwap;
use catalog::{ListKind, ServerCache};
use mcp::{client::Identity, extensions};
use model::{AuditBodies, Limits, Program, ServerKey, ServerSpec, StartPolicy};
use parking_lot::Mutex;
use records::{
    audit::{Audit, Detail},
    event_log::EventLog,
};
use relevance::{Meanings, Past};
use store::{Store, Time};
use tokio::{sync::Semaphore, time::Instant};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    client_state::{
        announce::Announcer,
        apps,
        hold::{HeldCalls, HeldRuns, Holds},
        hub::Hub,
        savings::Savings,
        tasks::Tasks,
    },
    scope::Scope,
    server::{
        Server,
        callers::ServerId,
        gate::Gate,
        launch::{Connect, SHARED_CAPABILITIES},
        logins::Logins,
        place::Place,
        runtimes::Runtimes,
    },
    views::{
        fleet::Fleet,
        keeper::{Keeper, Views},
        view::View,
    },
};

/// Time for the removal of a container after its `SIGKILL`. On a busy machine, it takes seconds.
pub(crate) const REMOVAL_TIME: Duration = Duration::from_secs(5);

/// Long results that are read at the same time. Each takes memory for its whole text.
const MAX_READS: usize = 4;

pub(crate) struct Shared {
    pub(crate) connect: Arc<dyn Connect>,
    pub(crate) runtimes: Arc<Runtimes>,
    pub(crate) logins: Arc<dyn Logins>,
    /// Default time between the request to stop an instance and the kill.
    pub(crate) stop_grace: Duration,
    pub(crate) identity: Identity,
    pub(crate) hub: Arc<Hub>,
    pub(crate) announcer: Announcer,
    pub(crate) place: Place,
    pub(crate) held: HeldCalls,
    pub(crate) held_runs: HeldRuns,
    pub(crate) tasks: Tasks,
    pub(crate) opened: apps::Opened,
    pub(crate) savings: Savings,
    pub(crate) audit: Audit,
    pub(crate) memory: ServerCache,
    pub(crate) event_log: EventLog,
    /// Servers whose bodies are recorded regardless of the settings, and until when.
    pub(crate) recordings: ArcSwap<HashMap<ServerKey, Time>>,
    /// Set if other gateways may run the same servers.
    pub(crate) gate: OnceLock<Arc<dyn Gate>>,
    /// Compares meanings in searches. Set once its model is loaded, if there is one.
    pub(crate) meanings: OnceLock<Arc<Meanings>>,
    /// Earlier searches that led to a call.
    pub(crate) past: Arc<Past>,
    /// Runs the code of models, in sandboxes.
    pub(crate) code: OnceLock<code::Runner>,
    pub(crate) store: Store,
    /// Limits how many long results are in memory to be read.
    pub(crate) reads: Semaphore,
    pub(crate) over: CancellationToken,
    /// Cancelled when shutdown begins. After that, nothing is launched.
    pub(crate) closing: CancellationToken,
    /// Deadline for the exit of all servers. Set when shutdown begins.
    pub(crate) stop_by: OnceLock<Instant>,
    /// Removed servers that may not have stopped yet.
    parting: Mutex<BTreeMap<ServerKey, Weak<Server>>>,
    fleet: ArcSwap<Fleet>,
    views: ArcSwap<Views>,
    /// Locked while the fleet or the views are changed. A call locks it only if its view does not exist yet.
    keeper: Mutex<Keeper>,
    running: TaskTracker,
    /// Tasks that save data to the store.
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
        let (event_log, writing) = EventLog::new(store.clone());
        running.spawn(writing);
        let place = Place::default();
        Arc::new(Self {
            audit,
            event_log,
            recordings: ArcSwap::default(),
            memory: ServerCache::new(store.clone(), over.clone()),
            store,
            reads: Semaphore::new(MAX_READS),
            connect,
            runtimes,
            logins,
            stop_grace: fleet.settings.limits.stop_grace,
            keeper: Mutex::new(Keeper::new(identity.clone())),
            identity,
            hub: Arc::default(),
            announcer: Announcer::default(),
            held: Holds::new(place.clone()),
            held_runs: Holds::new(place.clone()),
            tasks: Tasks::new(place.clone()),
            place,
            opened: apps::Opened::default(),
            savings: Savings::default(),
            gate: OnceLock::new(),
            meanings: OnceLock::new(),
            past: Arc::default(),
            code: OnceLock::new(),
            over,
            closing: CancellationToken::new(),
            stop_by: OnceLock::new(),
            parting: Mutex::default(),
            fleet: ArcSwap::from_pointee(fleet),
            views: ArcSwap::from_pointee(Views::new_sync()),
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

    /// The client capabilities declared to shared servers, as JSON text.
    pub(crate) fn shared_capabilities(&self) -> String {
        let fleet = self.fleet.load();
        let mut text = SHARED_CAPABILITIES.as_bytes().to_vec();
        for (name, settings) in &fleet.settings.extensions {
            text = extensions::with(&text, name, settings).into_owned();
        }
        String::from_utf8_lossy(&text).into_owned()
    }

    /// The recorded parts of tool calls to this server. `None` if calls are not recorded.
    pub(crate) fn recorded_detail(&self, key: &ServerKey) -> Option<Detail> {
        let fleet = self.fleet.load();
        let audit = &fleet.settings.audit;
        let bodies = match self.recording(key) {
            Some(_) => AuditBodies::Full,
            None => audit.bodies,
        };
        let errors = audit.errors;
        audit.enabled.then_some(Detail { bodies, errors })
    }

    /// Returns whether calls are recorded.
    pub(crate) fn records_calls(&self) -> bool {
        self.fleet.load().settings.audit.enabled
    }

    /// The end of the temporary recording of bodies for this server, if there is one now.
    pub(crate) fn recording(&self, key: &ServerKey) -> Option<Time> {
        let recordings = self.recordings.load();
        let ends_at = recordings.get(key)?;
        (*ends_at > store::now()).then_some(*ends_at)
    }

    /// Time from now until the server must get `SIGKILL` because the gateway stops.
    pub(crate) fn time_left(&self, spec: &ServerSpec) -> Duration {
        let Some(by) = self.stop_by.get() else {
            return Duration::MAX;
        };
        let left = by.saturating_duration_since(Instant::now());
        match spec.launch().map(|launch| &launch.program) {
            Some(Program::Image { .. }) => left.saturating_sub(REMOVAL_TIME),
            _ => left,
        }
    }

    pub(crate) fn start_policy(&self) -> StartPolicy {
        self.fleet.load().settings.start
    }

    pub(crate) fn running(&self) -> &TaskTracker {
        &self.running
    }

    /// Runs a task owned by the engine. It ends with its server, its session or the gateway.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.running.spawn(task);
    }

    /// Like [`Shared::spawn`], for a task that saves data. Shutdown waits a limited time for it.
    pub(crate) fn spawn_writer(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.writing.spawn(task);
    }

    /// Waits until everything is saved.
    pub(crate) async fn written(&self) {
        self.writing.close();
        self.writing.wait().await;
        self.event_log.flush().await;
        self.audit.end().await;
    }

    /// Remembers a server until it has stopped.
    pub(crate) fn parts(&self, server: &Arc<Server>) {
        let mut parting = self.parting.lock();
        parting.retain(|_, server| server.strong_count() > 0);
        parting.insert(server.key().clone(), Arc::downgrade(server));
    }

    /// The removed server with this key, if it has not stopped yet.
    pub(crate) fn parting(&self, key: &ServerKey) -> Option<Arc<Server>> {
        let parting = self.parting.lock();
        parting.get(key)?.upgrade()
    }

    /// Replaces the fleet with a changed copy, and applies the change to the views of the scopes that it concerns.
    /// Changes are serialised.
    pub(crate) fn redeclare<T>(
        &self,
        concerns: impl Fn(&Scope) -> bool,
        change: impl FnOnce(&mut Fleet) -> T,
    ) -> T {
        let mut keeper = self.keeper.lock();
        let mut fleet = Fleet::clone(&self.fleet.load());
        let outcome = change(&mut fleet);
        let fleet = Arc::new(fleet);
        self.fleet.store(fleet.clone());
        let before = keeper.views().clone();
        keeper.redeclare(&fleet, &concerns);
        let listened = || self.hub.listened(&concerns);
        self.publish(&keeper, &before, &ListKind::ALL, listened);
        outcome
    }

    /// Applies changes of a server to the views that contain it, and tells the announcer that the lists in `kinds` may
    /// have changed.
    pub(crate) fn publish_of(&self, server: &Server, kinds: &[ListKind]) {
        let mut keeper = self.keeper.lock();
        let fleet = self.fleet.load();
        let before = keeper.views().clone();
        keeper.refresh(&fleet, server);
        let sees = |scope: &Scope| fleet.includes(scope, server);
        let listened = || self.hub.listened_of(server.name(), sees);
        self.publish(&keeper, &before, kinds, listened);
    }

    /// Publishes the views after a change. `listened`: the scopes whose clients may have to be notified.
    fn publish(
        &self,
        keeper: &Keeper,
        before: &Views,
        kinds: &[ListKind],
        listened: impl FnOnce() -> Vec<Scope>,
    ) {
        self.views.store(Arc::new(keeper.views().clone()));
        // After publishing: a client that listens from now on gets the new lists, and the announcer compares with the
        // published view.
        for scope in listened() {
            self.announcer
                .note(&scope, before.get(&scope).cloned(), kinds);
        }
    }

    /// Like [`Shared::publish_of`], after the server itself reported these lists as changed. Clients that see only this
    /// server are notified as if they were connected to it.
    pub(crate) fn publish_reported(&self, server: &Server, kinds: &[ListKind]) {
        self.publish_of(server, kinds);
        let fleet = self.fleet();
        let is_its_own = |scope: &Scope| scope.server.is_some() && fleet.sees(scope, server);
        for scope in self.hub.listened_of(server.name(), is_its_own) {
            self.announcer.note_reported(&scope, kinds);
        }
    }

    /// The server with this id, if it exists.
    pub(crate) fn server(&self, id: &ServerId) -> Option<Arc<Server>> {
        let fleet = self.fleet();
        let declared = fleet.get(&id.key)?;
        match id.values.is_empty() {
            true => Some(declared.clone()),
            false => declared.callers.get(&id.values),
        }
    }

    /// Forgets the views that contain a server of callers with header values.
    pub(crate) fn forget_views_of(&self, id: &ServerId) {
        let mut keeper = self.keeper.lock();
        keeper.forget_views_of(id);
        self.views.store(Arc::new(keeper.views().clone()));
    }

    /// The snapshot of a scope. `None` if the project or server does not exist.
    pub(crate) fn view(&self, scope: &Scope) -> Option<Arc<View>> {
        if let Some(view) = self.views.load().get(scope) {
            return Some(view.clone());
        }
        self.keep(|keeper, fleet| keeper.view(fleet, scope))
    }

    /// The view of this server, even if other servers have the same name or hide it in the scope.
    pub(crate) fn view_of(&self, scope: &Scope, server: &Arc<Server>) -> Arc<View> {
        match self.view(scope) {
            Some(view) if matches!(&*view.servers, [only] if Arc::ptr_eq(only, server)) => view,
            // Rare. The view is not stored, since only one view is stored for each scope.
            _ => {
                let (fleet, servers) = (self.fleet(), vec![server.clone()]);
                Arc::new(View::single(scope, servers, &fleet, &self.identity))
            }
        }
    }

    /// Like [`Shared::view`], with the current state of the servers that had not settled.
    pub(crate) fn view_now(&self, scope: &Scope) -> Option<Arc<View>> {
        self.keep(|keeper, fleet| keeper.view_now(fleet, scope))
    }

    fn keep<T>(&self, change: impl FnOnce(&mut Keeper, &Fleet) -> T) -> T {
        let mut keeper = self.keeper.lock();
        let outcome = change(&mut keeper, &self.fleet.load());
        self.views.store(Arc::new(keeper.views().clone()));
        outcome
    }
}
