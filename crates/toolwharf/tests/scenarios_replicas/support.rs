//! Gateways on one database, the proxy to it, and instances of servers, counted from outside.

use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use serde_json::{Value, json};
pub(crate) use testkit::Way;
use testkit::{Bin, DEADLINE, postgres::Database, wait_for};

use crate::{
    api::Api,
    common::{Gateway, Setup},
};

/// Long enough for a busy machine, and short enough for a test.
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
        let name = format!("only{}", std::process::id());
        let mut body = json!({
            "name": name,
            "command": Bin::path("testkit-scripted"),
            "args": ["--name", name],
            "provider": "process",
        });
        let more = more.as_object().unwrap().clone();
        body.as_object_mut().unwrap().extend(more);
        let made = Api::admin(at).ok("POST", "/mcp/servers", body).await;
        let id = made["id"].as_str().unwrap().to_owned();
        let hosted = Self { name, id };
        hosted.is(at, "running").await;
        hosted
    }

    pub(crate) async fn state(&self, at: &Gateway) -> Value {
        let path = format!("/api/v1/mcp/servers/{}", self.id);
        let reply = Api::admin(at).ask("GET", &path, "", &[]).await;
        serde_json::from_slice(&reply.body).unwrap_or_default()
    }

    /// Waits until a gateway shows the server in this state.
    pub(crate) async fn is(&self, at: &Gateway, state: &str) {
        wait_for(
            &format!("{} to be {state}", self.name),
            DEADLINE,
            async || self.state(at).await["status"] == state,
        )
        .await;
    }

    /// Returns how many instances run on this machine.
    pub(crate) fn instances(&self) -> usize {
        instances(&self.name).len()
    }

    /// Returns the process ids of the instances.
    pub(crate) fn pids(&self) -> Vec<String> {
        instances(&self.name)
    }

    /// Counts the instances until it is dropped.
    pub(crate) fn watched(&self) -> Watched {
        let (name, over, most) = (self.name.clone(), Arc::default(), Arc::default());
        let (ended, seen): (Arc<AtomicBool>, Arc<AtomicUsize>) = (over, most);
        let (over, most) = (ended.clone(), seen.clone());
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
/// The processes are read in turn. One that has ended before the newest one started does not count.
fn instances(name: &str) -> Vec<String> {
    let mut found = Vec::new();
    for process in fs::read_dir("/proc").unwrap().flatten() {
        let seen = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        let line = fs::read_to_string(process.path().join("cmdline")).unwrap_or_default();
        let mut words = line.split('\0');
        let is_one = words
            .next()
            .is_some_and(|program| program.ends_with("/testkit-scripted"))
            && words.any(|word| word == name);
        let stat = fs::read_to_string(process.path().join("stat")).unwrap_or_default();
        // The name, in parentheses, is the second field; the start is the twentieth after it, in hundredths of a second.
        let started = stat
            .rsplit(") ")
            .next()
            .and_then(|fields| fields.split(' ').nth(19));
        if let Some(started) = started.filter(|_| is_one) {
            let pid = process.file_name().to_string_lossy().into_owned();
            let seen = seen.tv_sec * 100 + seen.tv_nsec / 10_000_000;
            found.push((pid, started.parse().unwrap(), seen));
        }
    }
    let newest: i64 = found
        .iter()
        .map(|(_, started, _)| *started)
        .max()
        .unwrap_or(0);
    let found = found.into_iter().filter(|(_, _, seen)| *seen >= newest);
    found.map(|(pid, ..)| pid).collect()
}

/// A proxy to the database that can be cut and redirected.
pub(crate) struct Proxy {
    url: String,
    way: testkit::Proxy,
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

    /// `host:port`.
    pub(crate) fn address(&self) -> String {
        let url: url::Url = self.url.parse().unwrap();
        format!("{}:{}", url.host_str().unwrap(), url.port().unwrap())
    }

    /// Ends all connections and forwards new ones to another server, like an address that moves.
    pub(crate) async fn turn_to(&self, address: &str) {
        self.way.turn_to(address).await;
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    pub(crate) fn be(&self, way: Way) {
        self.way.be(way);
    }

    /// Ends all connections. A connection left in its authentication phase would block the creation and removal of
    /// databases for a minute.
    pub(crate) async fn close(self) {
        self.way.close().await;
    }
}
