//! Gateways on one database, the proxy to it, and instances of servers, counted from outside.

use std::{
    fs,
    ops::Deref,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use rustix::process::Signal;
use serde_json::{Value, json};
pub(crate) use testkit::Way;
use testkit::{Bin, DEADLINE, Reply, postgres::Database, wait_for};

use crate::{
    api::Api,
    common::{Gateway, Setup, processes},
};

/// The replicas' lease: long enough for a busy machine, and short enough for a test.
pub(crate) const LEASE: &str = "4s";

/// Starts a gateway on the database at `url`. Later ones share the keys of the first.
pub(crate) async fn replica(url: &str, first: Option<&Gateway>) -> Gateway {
    made(url, first, PROCESS_SETTINGS, |setup| setup).await
}

/// Like [`replica`], with additional setup.
pub(crate) async fn replica_with(
    url: &str,
    first: Option<&Gateway>,
    more: impl FnOnce(Setup) -> Setup,
) -> Gateway {
    made(url, first, PROCESS_SETTINGS, more).await
}

/// Like [`replica`], with these hosting settings.
pub(crate) async fn replica_hosting(url: &str, first: Option<&Gateway>, hosting: &str) -> Gateway {
    made(url, first, hosting, |setup| setup).await
}

const PROCESS_SETTINGS: &str = "[hosting]\nproviders = [\"process\"]\n";

async fn made(
    url: &str,
    first: Option<&Gateway>,
    hosting: &str,
    more: impl FnOnce(Setup) -> Setup,
) -> Gateway {
    let setup = Setup::new()
        .env("TOOLWHARF_DATABASE_URL", url)
        .settings(&format!(
            "[limits]\nstop_grace = \"2s\"\ndrain = \"2s\"\n{hosting}[replicas]\nlease = \"{LEASE}\"\n"
        ));
    if let Some(first) = first {
        let data = setup.folder().join("data");
        fs::create_dir(&data).unwrap();
        for file in ["admin-token", "master.key"] {
            fs::copy(first.folder().join("data").join(file), data.join(file)).unwrap();
        }
    }
    more(setup).serve().await
}

pub(crate) async fn database() -> Database {
    Database::create().await
}

/// Two gateways on one database.
pub(crate) async fn two() -> (Database, Gateway, Gateway) {
    let database = database().await;
    let first = replica(database.url(), None).await;
    let second = replica(database.url(), Some(&first)).await;
    (database, first, second)
}

/// Two gateways on one database, and a server that the first one runs.
pub(crate) async fn two_with_server() -> (Database, Gateway, Gateway, Hosted) {
    two_with(json!({})).await
}

/// Like [`two_with_server`], with additional fields. The second gateway starts later, because it could run a new server
/// before the first one does.
pub(crate) async fn two_with(more: Value) -> (Database, Gateway, Gateway, Hosted) {
    let database = database().await;
    let first = replica(database.url(), None).await;
    let hosted = Hosted::register_with(&first, more).await;
    let second = replica(database.url(), Some(&first)).await;
    hosted.is(&second, "elsewhere").await;
    (database, first, second, hosted)
}

/// Ends a gateway with this signal.
pub(crate) async fn end(gateway: &mut Gateway, signal: Signal) {
    gateway.process.signal(signal);
    gateway.process.wait(DEADLINE).await;
}

pub(crate) async fn listed(at: &Gateway) -> Vec<Value> {
    let listed = Api::admin(at).get("/replicas").await;
    listed["replicas"].as_array().unwrap().clone()
}

/// Waits until a gateway refuses all keys, because they may have been revoked elsewhere.
pub(crate) async fn refuses_keys(at: &Gateway) {
    let admin = Api::admin(at);
    wait_for("keys to be refused", DEADLINE, async || {
        let listing = admin.ask("GET", "/api/v1/mcp/servers", "", &[]).await;
        listing.status == 503 && listing.text().contains("may have been revoked")
    })
    .await;
}

/// A registered scripted server with a unique name.
pub(crate) struct Hosted {
    pub(crate) name: String,
    pub(crate) id: String,
}

impl Hosted {
    /// Registers the server at a gateway, which then runs it.
    pub(crate) async fn register(at: &Gateway) -> Self {
        Self::register_with(at, json!({})).await
    }

    /// Like [`Hosted::register`], with additional fields.
    pub(crate) async fn register_with(at: &Gateway, more: Value) -> Self {
        let mut body = json!({"command": Bin::path("testkit-scripted"), "provider": "process"});
        let more = more.as_object().unwrap().clone();
        body.as_object_mut().unwrap().extend(more);
        let hosted = Self::of(at, "only", body).await;
        hosted.is(at, "running").await;
        hosted
    }

    /// Registers a server, and makes its name unique. It may not run yet.
    pub(crate) async fn of(at: &Gateway, name: &str, mut body: Value) -> Self {
        let name = format!("{name}{}", std::process::id());
        body["name"] = name.as_str().into();
        body["args"] = json!(["--name", name]);
        let made = Api::admin(at).ok("POST", "/mcp/servers", body).await;
        let id = made["id"].as_str().unwrap().to_owned();
        Self { name, id }
    }

    /// The path of the server in the API, and of a request below it.
    pub(crate) fn path(&self, below: &str) -> String {
        format!("/mcp/servers/{}{below}", self.id)
    }

    /// Calls a tool through a gateway. Returns any response.
    pub(crate) async fn call(&self, at: &Gateway, tool: &str, arguments: Value) -> Reply {
        let path = format!("/api/v1{}", self.path("/call"));
        let params = json!({"name": tool, "arguments": arguments});
        let call = json!({"method": "tools/call", "params": params}).to_string();
        Api::admin(at).ask("POST", &path, call, &[]).await
    }

    /// Calls a tool, which must succeed. Returns the text of its result.
    pub(crate) async fn said(&self, at: &Gateway, tool: &str, arguments: Value) -> String {
        let reply = self.call(at, tool, arguments).await;
        assert_eq!(reply.status, 200, "{tool}: {}", reply.text());
        let answer: Value = serde_json::from_slice(&reply.body).unwrap();
        let text = answer["result"]["content"][0]["text"].as_str();
        text.unwrap_or_else(|| panic!("{answer}")).to_owned()
    }

    pub(crate) async fn state(&self, at: &Gateway) -> Value {
        let path = format!("/api/v1{}", self.path(""));
        let reply = Api::admin(at).ask("GET", &path, "", &[]).await;
        serde_json::from_slice(&reply.body).unwrap_or_default()
    }

    /// Waits until a gateway shows the server in this state.
    pub(crate) async fn is(&self, at: &Gateway, state: &str) {
        self.is_within(DEADLINE, at, state).await;
    }

    pub(crate) async fn is_within(&self, limit: Duration, at: &Gateway, state: &str) {
        wait_for(&format!("{} to be {state}", self.name), limit, async || {
            self.state(at).await["status"] == state
        })
        .await;
    }

    /// Waits until a gateway shows the server as blocked for this reason.
    pub(crate) async fn is_blocked(&self, at: &Gateway, why: &str) {
        wait_for("it to be blocked", DEADLINE, async || {
            let state = self.state(at).await;
            let reason = state["reason"].as_str().unwrap_or_default();
            state["status"] == "blocked" && reason.contains(why)
        })
        .await;
    }

    /// Returns how many instances run on this machine.
    pub(crate) fn instances(&self) -> usize {
        self.pids().len()
    }

    /// Returns the process ids of the instances.
    pub(crate) fn pids(&self) -> Vec<String> {
        instances(&self.name)
    }

    /// Counts the instances until the returned value is dropped.
    pub(crate) fn watched(&self) -> Watched {
        let (over, most) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
        let (name, ended, seen) = (self.name.clone(), over.clone(), most.clone());
        let thread = std::thread::spawn(move || {
            while !ended.load(Ordering::Relaxed) {
                seen.fetch_max(instances(&name).len(), Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let thread = Some(thread);
        Watched { over, most, thread }
    }
}

pub(crate) struct Watched {
    over: Arc<AtomicBool>,
    most: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
}

impl Watched {
    /// Returns the largest number of instances at the same time.
    pub(crate) fn most(mut self) -> usize {
        self.over.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
        self.most.load(Ordering::Relaxed)
    }
}

/// Returns the processes of the scripted server of this name that run at the same time.
///
/// The processes are read one after the other. A process that was read before the newest one started does not count,
/// because it may have exited by then.
fn instances(name: &str) -> Vec<String> {
    let mut found = Vec::new();
    for process in fs::read_dir("/proc").unwrap().flatten() {
        let seen = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        let is_one = processes::is_scripted(&process.path(), name);
        let stat = fs::read_to_string(process.path().join("stat")).unwrap_or_default();
        // The name, in parentheses, is the second field; the start time is the twentieth after it, in hundredths of a
        // second.
        let fields = stat.rsplit(") ").next();
        let started = fields.and_then(|fields| fields.split(' ').nth(19));
        if let Some(started) = started.filter(|_| is_one) {
            let pid = process.file_name().to_string_lossy().into_owned();
            let seen = seen.tv_sec * 100 + seen.tv_nsec / 10_000_000;
            found.push((pid, started.parse().unwrap(), seen));
        }
    }
    let newest: i64 = found.iter().map(|one| one.1).max().unwrap_or(0);
    let found = found.into_iter().filter(|(_, _, seen)| *seen >= newest);
    found.map(|(pid, ..)| pid).collect()
}

/// A proxy to the database that can be cut and redirected.
pub(crate) struct Proxy {
    url: String,
    pub(crate) way: testkit::Proxy,
}

impl Deref for Proxy {
    type Target = testkit::Proxy;

    fn deref(&self) -> &Self::Target {
        &self.way
    }
}

impl Proxy {
    pub(crate) async fn to(url: &str) -> Self {
        let mut url: url::Url = url.parse().unwrap();
        let query: Vec<_> = url.query_pairs().into_owned().collect();
        let host = query.iter().find(|(key, _)| key == "host");
        assert!(host.is_none(), "the database is on TCP: {url}");
        let target = format!("{}:{}", url.host_str().unwrap(), url.port().unwrap_or(5432));
        let way = testkit::Proxy::to(&target).await;
        url.set_host(Some("127.0.0.1")).unwrap();
        url.set_port(Some(way.address().port())).unwrap();
        let url = url.to_string();
        Self { url, way }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }
}
