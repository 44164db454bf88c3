//! A whole gateway in one thread. Everything is real except for processes, sockets and the clock.
//!
//! - [`server`]: scripted MCP servers. [`connect`]: starts the servers, behind [`engine::Connect`]. [`client`]: clients
//!   of both eras.
//! - [`World`] combines them: servers of the configuration file, hosted servers and those of projects.
//!
//! # Time
//!
//! Tests run with `#[tokio::test(start_paused = true)]`: one thread, and a clock that advances to the next timer when
//! no task can run. A wait of minutes takes microseconds, and [`quiet`] (a millisecond of that clock) returns when
//! everything that needs no waiting has happened. Work without a timer takes no time, so durations can be compared
//! exactly.
//!
//! This holds as long as no other thread does any work: the clock would advance while it does, and time out the tasks
//! that wait for it. A store has such threads, so the tests use a closed one. It refuses background writes of the
//! engine immediately, in the same thread, and the engine continues as if the database were unavailable. Calls are not
//! recorded and definitions are not pinned. (With a working store, the clock would have to be held by a
//! `spawn_blocking` task while the store's threads work, and advanced by hand.)
//!
//! Writes are tested in a [`World::recorded`], with a working store and a real clock (`#[tokio::test]`). Such tests
//! wait for what they assert, and for nothing that takes long.

pub(crate) mod client;
pub(crate) mod connect;
pub(crate) mod server;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, LazyLock, Mutex},
    time::Duration,
};

use engine::{
    Command, Gateway, Left, Logins, NoLogins, Project, Runtimes, Scope, Status, server::Server,
};
use lifecycle::Last;
use mcp::{Era, client::Identity};
use model::{
    Declared, Heartbeat, Launch, Origin, Pinning, Place, Program, ProjectId, Remote, Sandbox,
    ServerKey, ServerName, ServerSpec, Settings,
};
use serde_json::json;
use store::{Location, Store};
use tempfile::TempDir;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use self::{
    client::{Client, with_headers},
    connect::{Nothing, Scene},
    server::{Script, Scripted},
};

/// Limit of any wait, by the paused clock.
const MAX_WAIT: Duration = Duration::from_secs(3600);

pub(crate) const ERAS: [Era; 2] = [Era::Legacy, Era::Modern];

/// A gateway and everything around it.
pub(crate) struct World {
    pub(crate) gateway: Gateway,
    scene: Arc<Scene>,
    hosted: Mutex<Vec<ServerSpec>>,
    tasks: TaskTracker,
    /// The store is closed, unless this is a recorded world.
    pub(crate) store: Store,
    _dir: Option<TempDir>,
}

impl World {
    pub(crate) fn new() -> Self {
        Self::with(|_| {})
    }

    /// A world with other settings.
    pub(crate) fn with(change: impl FnOnce(&mut Settings)) -> Self {
        let mut settings = unrecorded();
        change(&mut settings);
        Self::of(settings, Arc::new(NoLogins), CLOSED.clone(), None)
    }

    /// A world that stores its records, for tests whose clock is not paused.
    pub(crate) async fn recorded() -> Self {
        Self::recorded_with(|_| {}).await
    }

    /// Like [`World::recorded`], with other settings.
    pub(crate) async fn recorded_with(change: impl FnOnce(&mut Settings)) -> Self {
        let (store, dir) = open_store().await;
        let mut settings = Settings::default();
        change(&mut settings);
        Self::of(settings, Arc::new(NoLogins), store, Some(dir))
    }

    /// A world whose callers can sign in to servers.
    pub(crate) fn with_logins(logins: Arc<dyn Logins>) -> Self {
        Self::of(unrecorded(), logins, CLOSED.clone(), None)
    }

    fn of(settings: Settings, logins: Arc<dyn Logins>, store: Store, dir: Option<TempDir>) -> Self {
        let identity = Identity {
            name: "toolwharf".to_owned(),
            version: "1".to_owned(),
            chain: None,
        };
        let scene = Arc::new(Scene::new(identity.clone(), settings.limits.stop_grace));
        let runtimes = Arc::new(Runtimes::new(Nothing, BTreeMap::new(), BTreeSet::new()));
        let gateway = Gateway::with(
            settings,
            identity,
            scene.clone(),
            runtimes,
            logins,
            store.clone(),
        );
        Self {
            gateway,
            scene,
            hosted: Mutex::default(),
            tasks: TaskTracker::new(),
            store,
            _dir: dir,
        }
    }

    /// A world with one server, which is called `one` and follows this script.
    pub(crate) fn one(spec: ServerSpec, script: impl FnOnce(&mut Script)) -> (Self, Scripted) {
        let world = Self::new();
        let one = world.scripted("one");
        one.script(script);
        world.put(spec);
        (world, one)
    }

    /// Creates a world like [`World::one`], in which the server runs.
    pub(crate) async fn running(
        spec: ServerSpec,
        script: impl FnOnce(&mut Script),
    ) -> (Self, Scripted) {
        let (world, one) = Self::one(spec, script);
        world.up(&["one"]).await;
        (world, one)
    }

    /// Declares a server, or changes it.
    pub(crate) fn put(&self, spec: ServerSpec) {
        match spec.declared {
            Declared::Registered => self.host([spec]),
            _ => self.configure(&[spec]),
        }
    }

    /// Replaces the servers of the configuration file.
    pub(crate) fn configure(&self, specs: &[ServerSpec]) {
        self.gateway
            .reconfigure(specs.to_vec(), None, HashMap::new());
    }

    /// Registers these servers in addition to the existing ones.
    pub(crate) fn host(&self, specs: impl IntoIterator<Item = ServerSpec>) {
        self.host_left(specs, None);
    }

    /// Registers servers that an earlier run left in the state `last`.
    pub(crate) fn host_left(
        &self,
        specs: impl IntoIterator<Item = ServerSpec>,
        last: Option<Last>,
    ) {
        let mut hosted = self.hosted.lock().unwrap();
        for spec in specs {
            hosted.retain(|known| known.key() != spec.key());
            hosted.push(spec);
        }
        let left = last.map(|last| Left { last, crash: None });
        let hosted = hosted.iter().map(|spec| (spec.clone(), left.clone()));
        self.gateway.host(hosted.collect(), HashMap::new());
    }

    /// Removes a registration.
    pub(crate) fn unhost(&self, name: &str) {
        let mut hosted = self.hosted.lock().unwrap();
        hosted.retain(|spec| spec.name.as_str() != name);
        let hosted = hosted.iter().map(|spec| (spec.clone(), None));
        self.gateway.host(hosted.collect(), HashMap::new());
    }

    /// Sets up a project with these servers.
    pub(crate) fn project(&self, id: &str, specs: &[ServerSpec]) {
        let project = Project::default();
        self.gateway
            .project_set(&project_id(id), project, specs.to_vec(), HashMap::new());
    }

    /// The scripted server with a name that no project owns.
    pub(crate) fn scripted(&self, name: &str) -> Scripted {
        let (owner, name) = (None, server_name(name));
        self.scene.server(&ServerKey { owner, name })
    }

    /// The scripted server with this name for requests with this value of the header `X-Tenant`.
    pub(crate) fn scripted_for(&self, name: &str, tenant: &str) -> Scripted {
        let (owner, name) = (None, server_name(name));
        let key = ServerKey { owner, name };
        self.scene.server_for(&key, Some(tenant))
    }

    /// The scripted server that a project owns.
    pub(crate) fn owned(&self, project: &str, name: &str) -> Scripted {
        let (owner, name) = (Some(project_id(project)), server_name(name));
        self.scene.server(&ServerKey { owner, name })
    }

    /// The gateway's server with this name. If there are several, the first.
    pub(crate) fn server(&self, name: &str) -> Arc<Server> {
        let fleet = self.gateway.fleet();
        let found = fleet.all().find(|server| server.name().as_str() == name);
        found.expect("there is such a server").clone()
    }

    /// Returns the name of the server's state.
    pub(crate) fn state(&self, name: &str) -> &'static str {
        self.status(name).phase.word()
    }

    /// Waits until the server is in this state. Returns how long that took.
    pub(crate) async fn until_state(&self, name: &str, state: &str) -> Duration {
        let what = format!("`{name}` is {state}");
        until(&what, || self.state(name) == state).await
    }

    /// Waits until these servers are connected.
    pub(crate) async fn up(&self, names: &[&str]) {
        for name in names {
            self.until_state(name, "running").await;
        }
        quiet().await;
    }

    pub(crate) fn status(&self, name: &str) -> Status {
        self.server(name).status()
    }

    /// Stops everything, with 30 seconds for calls and servers to end.
    pub(crate) async fn shutdown(&self) {
        let by = Instant::now() + Duration::from_secs(30);
        self.gateway.shutdown(by).await;
    }

    pub(crate) async fn order(&self, name: &str, order: Command) {
        assert!(self.server(name).command(order).await, "it is hosted");
    }

    pub(crate) async fn client(&self, era: Era) -> Client {
        self.client_of(era, Scope::default()).await
    }

    /// A client of a project.
    pub(crate) async fn client_in(&self, era: Era, project: &str) -> Client {
        let scope = Scope {
            project: Some(project_id(project)),
            ..Scope::default()
        };
        self.client_of(era, scope).await
    }

    /// A client of one server's view.
    pub(crate) async fn client_at(&self, era: Era, server: &str) -> Client {
        let scope = Scope {
            server: Some(server_name(server)),
            ..Scope::default()
        };
        self.client_of(era, scope).await
    }

    /// A client of this value of the header `X-Tenant`.
    pub(crate) async fn client_for(&self, era: Era, tenant: &str) -> Client {
        let headers = [("x-tenant", tenant)];
        let scope = with_headers(&self.gateway, Scope::default(), &headers);
        self.client_of(era, scope).await
    }

    pub(crate) async fn client_of(&self, era: Era, scope: Scope) -> Client {
        let capabilities = client::all_capabilities();
        Client::new(era, &self.gateway, scope, capabilities, &self.tasks).await
    }

    /// A client that opens URLs.
    pub(crate) async fn client_that_opens(&self, era: Era) -> Client {
        let mut capabilities = client::all_capabilities();
        capabilities["elicitation"]["url"] = json!({});
        let (gateway, tasks) = (&self.gateway, &self.tasks);
        Client::new(era, gateway, Scope::default(), capabilities, tasks).await
    }

    pub(crate) async fn legacy(&self) -> Client {
        self.client(Era::Legacy).await
    }

    pub(crate) async fn modern(&self) -> Client {
        self.client(Era::Modern).await
    }
}

/// Settings for a closed store.
fn unrecorded() -> Settings {
    let mut settings = Settings {
        pinning: Pinning::Off,
        ..Settings::default()
    };
    settings.audit.enabled = false;
    settings
}

/// A store that refuses everything immediately. Shared by all worlds of this process.
static CLOSED: LazyLock<Store> = LazyLock::new(|| {
    let opening = std::thread::spawn(|| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        runtime.block_on(async {
            let (store, _dir) = open_store().await;
            store.close().await;
            store
        })
    });
    // This join blocks the thread of the test, and with it the test's clock.
    opening.join().expect("it does not panic")
});

async fn open_store() -> (Store, TempDir) {
    let dir = tempfile::tempdir().expect("a directory");
    let location = Location::Sqlite(dir.path().join("wharf.db"));
    let store = Store::open(&location).await.expect("a new database");
    (store, dir)
}

pub(crate) fn server_name(name: &str) -> ServerName {
    ServerName::parse(name).expect("a name")
}

pub(crate) fn project_id(id: &str) -> ProjectId {
    ProjectId::parse(id).expect("an id")
}

/// A secret given to every server in these tests.
fn key(value: &str) -> BTreeMap<String, String> {
    BTreeMap::from([("API_KEY".to_owned(), value.to_owned())])
}

/// Changes the server's key. The server has to be restarted, but its catalog stays known.
pub(crate) fn renewed(mut spec: ServerSpec) -> ServerSpec {
    match &mut spec.origin {
        Origin::Remote(remote) => remote.headers = key("renewed"),
        Origin::Launch(launch) => Arc::make_mut(launch).env = key("renewed"),
    }
    spec
}

fn launch(place: Place) -> Origin {
    let program = Program::Command {
        program: "scripted".to_owned(),
        args: Vec::new(),
    };
    Origin::Launch(Arc::new(Launch {
        env: key("first"),
        ..Launch::new(program, place)
    }))
}

/// A process of `mcp.json`.
pub(crate) fn stdio(name: &str) -> ServerSpec {
    ServerSpec::new(server_name(name), launch(Place::Host))
}

/// A server at a URL.
pub(crate) fn url(name: &str) -> ServerSpec {
    let remote = Remote {
        headers: key("first"),
        sse: true,
        ..Remote::new(format!("http://{name}.test/sse"))
    };
    ServerSpec::new(server_name(name), Origin::Remote(remote.into()))
}

/// A registered server, modified by `change`.
pub(crate) fn hosted(name: &str, change: impl FnOnce(&mut ServerSpec)) -> ServerSpec {
    hosted_as(name, &format!("{name}-0"), change)
}

/// A server registered under this id.
pub(crate) fn hosted_as(name: &str, id: &str, change: impl FnOnce(&mut ServerSpec)) -> ServerSpec {
    let sandbox = Place::Sandbox(Sandbox::new(id));
    let mut spec = ServerSpec {
        declared: Declared::Registered,
        heartbeat: Some(Heartbeat::default()),
        ..ServerSpec::new(server_name(name), launch(sandbox))
    };
    change(&mut spec);
    spec
}

/// Makes a project the owner of the server.
pub(crate) fn owned(project: &str, spec: ServerSpec) -> ServerSpec {
    ServerSpec {
        declared: Declared::Project,
        owner: Some(project_id(project)),
        ..spec
    }
}

/// Returns when nothing further happens until the clock advances.
pub(crate) async fn quiet() {
    tokio::time::sleep(Duration::from_millis(1)).await;
}

/// Waits until the condition holds. Returns how long that took, with a precision of about 1 %.
pub(crate) async fn until(what: &str, is: impl Fn() -> bool) -> Duration {
    let start = Instant::now();
    let mut step = Duration::from_millis(1);
    while !is() {
        assert!(start.elapsed() < MAX_WAIT, "not within an hour: {what}");
        tokio::time::sleep(step).await;
        step = step.max(start.elapsed() / 200);
    }
    start.elapsed()
}

/// Asserts that a duration is within this range of seconds.
#[track_caller]
pub(crate) fn takes(took: Duration, from: f64, to: f64) {
    let seconds = took.as_secs_f64();
    assert!((from..=to).contains(&seconds), "{seconds} s");
}
