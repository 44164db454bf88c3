//! Load on three replicas while faults are injected. Afterwards every call must be accounted for.
//!
//! Each call has a unique text and is checked from three independent sides: the client, the file that the servers
//! append to, and the call records. There are three kinds of clients (2026-07-28, sessions, REST). They call two
//! servers: `near`, which every replica runs, and a registered server, which one replica runs.

use std::{
    collections::{BTreeMap, HashMap},
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use http::Method;
use rand::RngExt as _;
use rustix::process::Signal;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use testkit::{Bin, DEADLINE, RawClient, peer, postgres::Database, soak, wait_for};
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{Instant, MissedTickBehavior},
};

use crate::{
    api::Api,
    common::{Gateway, Setup, replicas::Balancer, scripted, with},
    elsewhere::works,
    support::{Hosted, LEASE, Proxy, Watched, Way, end, listed},
};

const CLIENTS: usize = 12;
/// Minimum interval between two calls of a client.
const CALL_INTERVAL: Duration = Duration::from_millis(20);
/// Timeout of a call at the client.
const CALL_TIMEOUT: Duration = Duration::from_secs(20);
/// Number of successful calls that each server must have answered between two faults.
const MIN_GOOD_CALLS: usize = 60;
/// Duration of the run with all faults, in CI and in the soak.
const CI_DURATION: Duration = Duration::from_secs(20);
const SOAK_DURATION: Duration = Duration::from_secs(600);
/// Duration of a suspension in the soak.
const SUSPENSION: Duration = Duration::from_secs(60);
const META: &str = r#""_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"load","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}"#;

/// A fault that affects one replica.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Harm {
    /// SIGKILL, then a start of the current version.
    Kill,
    /// The replica is suspended for longer than its lease. When it is resumed, it believes that it still holds the
    /// lease.
    Freeze,
    /// Disconnected from the database for longer than its lease.
    CutOff,
    /// The database does not respond for longer than a lease.
    Silence,
    /// A graceful stop, then a start of the current version.
    Restart,
}

/// The first two replicas run the previous version: one is upgraded at once, the other keeps running for longer.
const HARMS: [Harm; 5] = [
    Harm::Restart,
    Harm::Freeze,
    Harm::Kill,
    Harm::CutOff,
    Harm::Silence,
];

/// A call from its client's view.
pub(crate) struct Call {
    server: &'static str,
    /// The arguments as they were sent. The call records contain their digest.
    arguments: String,
    /// The reason for the failure, or `None` if the call succeeded.
    failed: Option<String>,
    pub(crate) began: Instant,
    pub(crate) ended: Instant,
}

/// The gateways and servers that all clients use.
struct Aim {
    url: String,
    token: String,
    hosted: String,
    hosted_id: String,
    near: PathBuf,
    good: [AtomicUsize; 2],
}

pub(crate) struct Fleet {
    pub(crate) replicas: Vec<Option<Gateway>>,
    pub(crate) ways: Vec<Proxy>,
    pub(crate) hosted: Hosted,
    aim: Arc<Aim>,
    ledger: tempfile::TempDir,
    _balancer: Balancer,
}

impl Fleet {
    /// Three replicas on the database at this URL, each through a separate proxy.
    pub(crate) async fn on(database: &str) -> Self {
        Self::with_lease(database, LEASE).await
    }

    pub(crate) async fn with_lease(database: &str, lease: &str) -> Self {
        Self::of(database, lease, 0).await
    }

    /// `old` of the replicas run the previous version.
    async fn of(database: &str, lease: &str, old: usize) -> Self {
        let ledger = tempfile::tempdir().unwrap();
        // A sandboxed server runs as another user, which differs between replicas.
        let far = ledger.path().join("far");
        fs::write(&far, "").unwrap();
        for path in [ledger.path(), &far] {
            fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
        }
        let mut ways = Vec::new();
        let mut replicas: Vec<Gateway> = Vec::new();
        for number in 0..3 {
            let way = Proxy::to(database).await;
            let near = with(scripted("near", &[]), json!({"maxConcurrency": 100}));
            let setup = Setup::new()
                .server("near", near)
                .at_one_port()
                .of_replica(way.url(), replicas.first())
                .settings(&format!(
                    "[limits]\nstop_grace = \"2s\"\ndrain = \"5s\"\n[replicas]\nlease = \"{lease}\"\n\
                     [hosting]\nproviders = [\"process\"]\nmounts = [{:?}]\n",
                    ledger.path()
                ));
            let setup = match number < old {
                true => setup.program(&before()),
                false => setup,
            };
            replicas.push(setup.connected().await);
            ways.push(way);
        }
        let hosted = register(&replicas[0], ledger.path()).await;
        for replica in &replicas {
            // Waits until each replica knows the server.
            works(&hosted, replica).await;
        }
        let balancer = Balancer::before(&replicas).await;
        let aim = Aim {
            url: balancer.url.clone(),
            token: replicas[0].token(),
            hosted: hosted.name.clone(),
            hosted_id: hosted.id.clone(),
            near: ledger.path().join("near"),
            good: Default::default(),
        };
        Self {
            replicas: replicas.into_iter().map(Some).collect(),
            ways,
            hosted,
            aim: Arc::new(aim),
            ledger,
            _balancer: balancer,
        }
    }

    /// Returns a replica other than `at`.
    pub(crate) fn other(&self, at: usize) -> &Gateway {
        let other = &self.replicas[(at + 1) % self.replicas.len()];
        other.as_ref().unwrap()
    }

    /// Waits until a replica other than `at` sees this many replicas.
    pub(crate) async fn has(&self, at: usize, replicas: usize) {
        let other = self.other(at);
        wait_for(&format!("{replicas} replicas"), DEADLINE, async || {
            listed(other).await.len() == replicas
        })
        .await;
    }

    /// Injects a fault and ends it again.
    pub(crate) async fn harm(&mut self, at: usize, harm: Harm) {
        let signal = |fleet: &Self, signal| {
            let harmed = fleet.replicas[at].as_ref().unwrap();
            harmed.process.signal(signal);
        };
        match harm {
            Harm::Kill => {
                signal(self, Signal::KILL);
                let mut harmed = self.replicas[at].take().unwrap();
                harmed.process.wait(DEADLINE).await;
                self.has(at, 2).await;
                self.replicas[at] = Some(harmed.upgraded().await);
            }
            Harm::Restart => {
                let mut harmed = self.replicas[at].take().unwrap();
                end(&mut harmed, Signal::TERM).await;
                let again = harmed.upgraded().await;
                // The load balancer must notice the new replica before the next one is stopped.
                wait_for("calls at the new replica", DEADLINE, async || {
                    again.metric("calls_total", Some("near")).await > Some(0)
                })
                .await;
                self.replicas[at] = Some(again);
            }
            Harm::Freeze => {
                signal(self, Signal::STOP);
                self.has(at, 2).await;
                if soak() {
                    tokio::time::sleep(SUSPENSION).await;
                }
                signal(self, Signal::CONT);
            }
            Harm::CutOff | Harm::Silence => {
                self.ways[at].be(match harm {
                    Harm::CutOff => Way::Cut,
                    _ => Way::Stalled,
                });
                self.has(at, 2).await;
                self.ways[at].be(Way::Open);
            }
        }
        self.has(at, 3).await;
    }

    /// Waits until both servers have answered [`MIN_GOOD_CALLS`] more calls.
    pub(crate) async fn goes_on(&self) {
        self.answers(MIN_GOOD_CALLS).await;
    }

    /// Waits until both servers have answered `calls` more calls.
    pub(crate) async fn answers(&self, calls: usize) {
        let before: Vec<usize> = self.counts();
        let limit = CALL_TIMEOUT + DEADLINE;
        wait_for("calls to both servers", limit, async || {
            let now = self.counts();
            let mut both = now.iter().zip(&before);
            both.all(|(now, before)| now - before >= calls)
        })
        .await;
    }

    fn counts(&self) -> Vec<usize> {
        let counts = self.aim.good.iter();
        counts.map(|good| good.load(Ordering::Relaxed)).collect()
    }
}

/// Registers a server that writes to the ledger.
async fn register(at: &Gateway, ledger: &Path) -> Hosted {
    let mounts = json!([{"host": ledger, "path": "/ledger", "read_only": false}]);
    let command = Bin::path("testkit-scripted");
    let body = json!({"command": command, "max_concurrency": 8, "mounts": mounts});
    Hosted::of(at, "far", body).await
}

/// A client that makes one call after the other until stopped.
async fn client(number: usize, aim: Arc<Aim>, going: watch::Receiver<bool>) -> Vec<(String, Call)> {
    let mut calls = Vec::new();
    let mut session = None;
    let mut pace = tokio::time::interval(CALL_INTERVAL);
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while *going.borrow() {
        pace.tick().await;
        let text = format!("c{number}-{}", calls.len());
        let is_near = (number + calls.len()).is_multiple_of(2);
        let server = if is_near { "near" } else { "far" };
        let path = match is_near {
            true => aim.near.display().to_string(),
            false => "/ledger/far".to_owned(),
        };
        let arguments = format!(r#"{{"path":"{path}","text":"{text}"}}"#);
        let began = Instant::now();
        let answering = answer(number, &aim, is_near, &arguments, &mut session);
        let answered = match tokio::time::timeout(CALL_TIMEOUT, answering).await {
            Ok(answered) => answered,
            Err(_) => Err("no answer in time".to_owned()),
        };
        let failed = match answered {
            Ok(said) if said == text => None,
            Ok(said) => panic!("{text} was answered with {said}"),
            Err(why) => Some(why),
        };
        if failed.is_none() {
            aim.good[usize::from(is_near)].fetch_add(1, Ordering::Relaxed);
        }
        let call = Call {
            server,
            arguments,
            failed,
            began,
            ended: Instant::now(),
        };
        calls.push((text, call));
    }
    calls
}

/// Makes one call and returns the response.
///
/// # Errors
/// If the call failed, the reason.
async fn answer(
    number: usize,
    aim: &Aim,
    is_near: bool,
    arguments: &str,
    session: &mut Option<String>,
) -> Result<String, String> {
    let token = format!("Bearer {}", aim.token);
    let at =
        |path: &str| RawClient::new(&format!("{}{path}", aim.url)).with("authorization", &token);
    let server = if is_near { "near" } else { &aim.hosted };
    let tool = format!("{server}__append");
    let said = match number % 3 {
        0 => {
            let body = format!(
                r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"{tool}","arguments":{arguments},{META}}}}}"#
            );
            let client = at("/mcp")
                .with("mcp-protocol-version", peer::MODERN)
                .with("mcp-method", "tools/call")
                .with("mcp-name", &tool);
            ask(&client, body).await?
        }
        1 => {
            let id = match session.take() {
                Some(id) => id,
                None => opened(&at("/mcp")).await?,
            };
            let client = at("/mcp")
                .with("mcp-session-id", &id)
                .with("mcp-protocol-version", "2025-11-25");
            let body = format!(
                r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"{tool}","arguments":{arguments}}}}}"#
            );
            let asked = ask(&client, body).await;
            // A session survives the loss of its replica.
            *session = Some(id);
            asked?
        }
        _ => {
            let id = if is_near { "near" } else { &aim.hosted_id };
            let body = format!(
                r#"{{"method":"tools/call","params":{{"name":"append","arguments":{arguments}}}}}"#
            );
            ask(&at(&format!("/api/v1/mcp/servers/{id}/call")), body).await?
        }
    };
    let text = said["result"]["content"][0]["text"].as_str();
    text.map(str::to_owned).ok_or_else(|| said.to_string())
}

async fn opened(client: &RawClient) -> Result<String, String> {
    let params = json!({
        "protocolVersion": "2025-11-25", "capabilities": {},
        "clientInfo": {"name": "load", "version": "1"},
    });
    let body = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params});
    let answer = client.try_send(Method::POST, &[], body.to_string()).await?;
    let id = answer.header("mcp-session-id").map(str::to_owned);
    id.ok_or_else(|| format!("no session: {}", answer.status))
}

/// Returns a JSON response, or the last event of a stream.
async fn ask(client: &RawClient, body: String) -> Result<Value, String> {
    let both = ("accept", "application/json, text/event-stream");
    let mut answer = client.try_send(Method::POST, &[both], body).await?;
    let status = answer.status;
    let mut text = Vec::new();
    while let Some(chunk) = answer.next_chunk().await {
        text.extend_from_slice(&chunk);
    }
    let text = String::from_utf8_lossy(&text);
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("data: "));
    let json = lines.next_back().unwrap_or(&text);
    serde_json::from_str(json).map_err(|_| format!("{status}: {text}"))
}

/// Returns the binary of the previous version.
fn before() -> PathBuf {
    const VARIABLE: &str = "TOOLWHARF_TEST_BEFORE";
    let Some(binary) = std::env::var_os(VARIABLE) else {
        panic!(
            "{VARIABLE} names no binary of the previous version; run: cargo xtask before -- cargo nextest run"
        )
    };
    binary.into()
}

/// Clients that call continuously.
pub(crate) struct Load {
    clients: JoinSet<Vec<(String, Call)>>,
    go_on: watch::Sender<bool>,
    watched: Watched,
}

impl Load {
    /// Starts the clients and waits until all of them succeed.
    pub(crate) async fn on(fleet: &Fleet) -> Self {
        let watched = fleet.hosted.watched();
        let (go_on, going) = watch::channel(true);
        let mut clients = JoinSet::new();
        for number in 0..CLIENTS {
            clients.spawn(client(number, fleet.aim.clone(), going.clone()));
        }
        fleet.goes_on().await;
        Self {
            clients,
            go_on,
            watched,
        }
    }

    /// Stops the clients and checks the accounts. Returns how many calls failed at `far` and at `near`. If `may_lack`
    /// is true for a call, its record may be missing or incomplete.
    pub(crate) async fn balanced(
        mut self,
        fleet: &Fleet,
        may_lack: impl Fn(&Call) -> bool,
    ) -> [usize; 2] {
        self.go_on.send_replace(false);
        let mut calls = HashMap::new();
        while let Some(ended) = self.clients.join_next().await {
            calls.extend(ended.unwrap());
        }
        let failed = balance(fleet, &calls, may_lack).await;
        let most = self.watched.most();
        assert_eq!(most, 1, "instances of a registered server at a time");
        failed
    }
}

/// Runs clients against three replicas, of which `old` run the previous version, and injects `harms` one after the
/// other until `time` has passed. Returns how many calls failed at `far` and at `near`, and the number of faults.
async fn balanced(old: usize, harms: &[Harm], time: Duration) -> ([usize; 2], usize) {
    let database = Database::create().await;
    let mut fleet = Fleet::of(database.url(), LEASE, old).await;
    let load = Load::on(&fleet).await;
    let until = Instant::now() + time;
    let mut done = 0;
    while done == 0 || Instant::now() < until || done < harms.len() {
        // Injects each fault once, then random ones.
        let harm = match harms.get(done) {
            Some(harm) => *harm,
            None => harms[rand::rng().random_range(0..harms.len())],
        };
        let at = done % fleet.replicas.len();
        eprintln!("{harm:?} of {at} after {:?} good calls", fleet.counts());
        fleet.harm(at, harm).await;
        fleet.goes_on().await;
        done += 1;
    }
    (load.balanced(&fleet, |_| false).await, done)
}

/// Checks the three accounts against each other.
async fn balance(
    fleet: &Fleet,
    calls: &HashMap<String, Call>,
    may_lack: impl Fn(&Call) -> bool,
) -> [usize; 2] {
    let mut executed: HashMap<String, usize> = HashMap::new();
    for file in ["near", "far"] {
        let text = fs::read_to_string(fleet.ledger.path().join(file)).unwrap();
        for line in text.lines() {
            *executed.entry(line.to_owned()).or_default() += 1;
        }
    }
    let recorded = records(fleet).await;
    let mut wrong = Vec::new();
    let (mut failed, mut lacking) = ([0, 0], 0);
    let mut reasons: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for (text, call) in calls {
        let times = executed.remove(text).unwrap_or(0);
        let digest = hex::encode(Sha256::digest(&call.arguments));
        let records: &[String] = recorded.get(&digest).map_or(&[], Vec::as_slice);
        let is_good = call.failed.is_none();
        let is_recorded = (times == 0 || records.len() == 1) && (!is_good || records == ["ok"]);
        let is_balanced = times <= 1
            && records.len() <= 1
            && (!is_good || times == 1)
            && (is_recorded || may_lack(call))
            && records.iter().all(|status| status != "open");
        lacking += usize::from(!is_recorded);
        if let Some(why) = &call.failed {
            *reasons.entry((call.server, why)).or_default() += 1;
        }
        if !is_balanced {
            wrong.push(format!(
                "{text} at {} ran {times} times, was recorded as {records:?}, and failed for its client with {:?}",
                call.server, call.failed
            ));
        }
        failed[usize::from(call.server == "near")] += usize::from(!is_good);
    }
    for ((server, why), calls) in reasons {
        eprintln!("{calls} calls failed at {server}: {why}");
    }
    let (few, all) = (wrong.len(), calls.len());
    assert!(wrong.is_empty(), "{few} of {all} wrong: {wrong:#?}");
    assert!(executed.is_empty(), "no client called {executed:?}");
    let [far, near] = failed;
    eprintln!("{all} calls, failed: {far} far, {near} near; {lacking} without a complete record");
    failed
}

/// Returns the statuses of all records by the digest of their arguments, once no record is open.
async fn records(fleet: &Fleet) -> HashMap<String, Vec<String>> {
    let admin = Api::admin(fleet.other(0));
    wait_for("the end of all records", DEADLINE, async || {
        let open = admin.get("/calls?status=open").await;
        open["calls"].as_array().unwrap().is_empty()
    })
    .await;
    let mut all: HashMap<String, Vec<String>> = HashMap::new();
    let mut after = String::new();
    loop {
        let path = format!("/calls?tool=append&limit=1000{after}");
        let page = admin.get(&path).await;
        for row in page["calls"].as_array().unwrap() {
            let digest = row["arguments_digest"].as_str().unwrap().to_owned();
            let status = row["status"].as_str().unwrap().to_owned();
            all.entry(digest).or_default().push(status);
        }
        match page["next"].as_str() {
            Some(next) => after = format!("&after={next}"),
            None => return all,
        }
    }
}

/// One of three replicas is killed with SIGKILL. Calls in flight at that replica fail, and no others.
#[tokio::test]
async fn d02_only_what_is_in_flight_ends_with_its_replica() {
    let ([_, failed], deaths) = balanced(0, &[Harm::Kill], Duration::ZERO).await;
    assert!(failed <= CLIENTS * deaths, "{failed} in {deaths} kills");
}

/// Replicas are stopped gracefully and restarted one after the other: no call to any server fails.
#[tokio::test]
async fn d09_no_call_is_cut_by_a_rolling_restart() {
    let (failed, _) = balanced(0, &[Harm::Restart; 3], Duration::ZERO).await;
    assert_eq!(failed, [0, 0]);
}

/// Three replicas of the previous version are upgraded one after the other: no call fails while both versions run.
#[tokio::test]
async fn d09_no_call_is_cut_by_a_rolling_upgrade() {
    let (failed, _) = balanced(3, &[Harm::Restart; 3], Duration::ZERO).await;
    assert_eq!(failed, [0, 0]);
}

/// Injects all faults, starting with two replicas of the previous version. A soak run takes ten minutes.
#[tokio::test]
async fn d04_accounts_balance_whatever_happens_to_replicas() {
    balanced(2, &HARMS, if soak() { SOAK_DURATION } else { CI_DURATION }).await;
}
