//! Load on three replicas while they come to harm, and then the accounts of every call must balance.
//!
//! Each call has a text of its own, and is looked at from three sides that know nothing of each other: its client, the file that the
//! servers append to, and the records. Clients are of three kinds (2026-07-28, sessions, REST), and call two servers: `near`, which
//! every replica runs, and a registered one, which one of them runs.

use std::{
    collections::HashMap,
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
    support::{Hosted, LEASE, Proxy, Watched, Way},
};

const CLIENTS: usize = 12;
/// From one call of a client to its next, at least.
const PACE: Duration = Duration::from_millis(20);
/// By then a call has ended for its client.
const PATIENCE: Duration = Duration::from_secs(20);
/// Good calls of each server between two harms.
const GOOD: usize = 60;
/// How long the run with all harms takes, and in the soak.
const SHORT: Duration = Duration::from_secs(20);
const LONG: Duration = Duration::from_secs(600);
/// How long a replica is stopped in the soak.
const MINUTE: Duration = Duration::from_secs(60);
const META: &str = r#""_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"load","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}"#;

/// What a replica comes to.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Harm {
    /// `kill -9`, and a start of this version.
    Kill,
    /// Stopped for longer than its lease, and going on in the belief that it has it.
    Freeze,
    /// Cut off from the database for longer than its lease.
    CutOff,
    /// The database is silent for so long.
    Silence,
    /// An orderly end, and a start of this version.
    Restart,
}

/// In this order, of the first two, which are of the version before, one is upgraded at once and the other goes on.
const HARMS: [Harm; 5] = [
    Harm::Restart,
    Harm::Freeze,
    Harm::Kill,
    Harm::CutOff,
    Harm::Silence,
];

/// A call, as its client knows it.
pub(crate) struct Call {
    server: &'static str,
    /// As they were sent: records have their digest.
    arguments: String,
    /// Why it failed; `None`: it was answered well.
    failed: Option<String>,
    pub(crate) began: Instant,
    pub(crate) ended: Instant,
}

/// What all clients need to know.
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
    /// Three replicas on the database of that URL, each with a way of its own to it.
    pub(crate) async fn on(database: &str) -> Self {
        Self::with_lease(database, LEASE).await
    }

    pub(crate) async fn with_lease(database: &str, lease: &str) -> Self {
        Self::of(database, lease, 0).await
    }

    /// `old` of them are of the version before.
    async fn of(database: &str, lease: &str, old: usize) -> Self {
        let ledger = tempfile::tempdir().unwrap();
        // Whoever runs in a sandbox is somebody else, and not the same one at each replica.
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
            // It is everywhere before it is called.
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

    /// One that is not harmed.
    pub(crate) fn other(&self, at: usize) -> &Gateway {
        self.replicas[(at + 1) % self.replicas.len()]
            .as_ref()
            .unwrap()
    }

    /// Waits until there are so many replicas, as one that is not `at` sees it.
    pub(crate) async fn has(&self, at: usize, replicas: usize) {
        let admin = Api::admin(self.other(at));
        wait_for(&format!("{replicas} replicas"), DEADLINE, async || {
            let listed = admin.get("/replicas").await;
            listed["replicas"].as_array().unwrap().len() == replicas
        })
        .await;
    }

    /// Does it to a replica, and undoes it.
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
                harmed.process.signal(Signal::TERM);
                harmed.process.wait(DEADLINE).await;
                let again = harmed.upgraded().await;
                // The balancer has noticed, as it has to before the next one is ended.
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
                    tokio::time::sleep(MINUTE).await;
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

    /// Waits until both servers have answered [`GOOD`] calls more.
    pub(crate) async fn goes_on(&self) {
        self.answers(GOOD).await;
    }

    /// Waits until both servers have answered so many calls more.
    pub(crate) async fn answers(&self, calls: usize) {
        let before: Vec<usize> = self.counts();
        wait_for("calls to both servers", PATIENCE + DEADLINE, async || {
            let now = self.counts();
            now.iter()
                .zip(&before)
                .all(|(now, before)| now - before >= calls)
        })
        .await;
    }

    fn counts(&self) -> Vec<usize> {
        let counts = self.aim.good.iter();
        counts.map(|good| good.load(Ordering::Relaxed)).collect()
    }
}

/// A registered server that writes to the ledger.
async fn register(at: &Gateway, ledger: &Path) -> Hosted {
    let name = format!("far{}", std::process::id());
    let body = json!({
        "name": name,
        "command": Bin::path("testkit-scripted"),
        "args": ["--name", name],
        "max_concurrency": 8,
        "mounts": [{"host": ledger, "path": "/ledger", "read_only": false}],
    });
    let made = Api::admin(at).ok("POST", "/mcp/servers", body).await;
    let id = made["id"].as_str().unwrap().to_owned();
    Hosted { name, id }
}

/// One client: calls one after the other until it is told to stop.
async fn client(number: usize, aim: Arc<Aim>, going: watch::Receiver<bool>) -> Vec<(String, Call)> {
    let mut calls = Vec::new();
    let mut session = None;
    let mut pace = tokio::time::interval(PACE);
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
        let answered = match tokio::time::timeout(PATIENCE, answering).await {
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

/// What a call is answered with.
///
/// # Errors
/// Why it is not.
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
            // A session never ends with its replica.
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

/// The JSON of an answer, or of the last event of one that is a stream.
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

/// The binary of the version before.
fn before() -> PathBuf {
    const VARIABLE: &str = "TOOLWHARF_TEST_BEFORE";
    let Some(binary) = std::env::var_os(VARIABLE) else {
        panic!(
            "{VARIABLE} names no binary of the version before; run: cargo xtask before -- cargo nextest run"
        )
    };
    binary.into()
}

/// Clients that call all the time.
pub(crate) struct Load {
    clients: JoinSet<Vec<(String, Call)>>,
    go_on: watch::Sender<bool>,
    watched: Watched,
}

impl Load {
    /// Begins, and waits until all goes well.
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

    /// Ends, and compares the accounts; how many calls failed at `far` and at `near`. The record of a call of which `may_lack` is true may be missing,
    /// or lack the call's end.
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
        assert_eq!(
            self.watched.most(),
            1,
            "one instance of a registered server at a time"
        );
        failed
    }
}

/// Lets clients call three replicas, of which `old` are of the version before, while `harms` come one after the other, until the time is up;
/// how many calls failed at `far` and at `near`, and how many harms were done.
async fn balanced(old: usize, harms: &[Harm], time: Duration) -> ([usize; 2], usize) {
    let database = Database::create().await;
    let mut fleet = Fleet::of(database.url(), LEASE, old).await;
    let load = Load::on(&fleet).await;
    let until = Instant::now() + time;
    let mut done = 0;
    while done == 0 || Instant::now() < until || done < harms.len() {
        // Each of them once, then any.
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

/// Compares the three accounts.
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
            eprintln!("{text} failed at {}: {why}", call.server);
        }
        if !is_balanced {
            wrong.push(format!(
                "{text} at {} was carried out {times} times, recorded as {records:?}, and for its client {:?}",
                call.server, call.failed
            ));
        }
        failed[usize::from(call.server == "near")] += usize::from(!is_good);
    }
    assert!(
        wrong.is_empty(),
        "{} of {}: {wrong:#?}",
        wrong.len(),
        calls.len()
    );
    assert!(executed.is_empty(), "nobody called {executed:?}");
    eprintln!(
        "{} calls, failed: {} far, {} near; {lacking} without a whole record",
        calls.len(),
        failed[0],
        failed[1]
    );
    failed
}

/// The statuses of all records, by the digest of the arguments, once none is open.
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
        let page = admin
            .get(&format!("/calls?tool=append&limit=1000{after}"))
            .await;
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

/// `kill -9` of one of three: what is in flight there ends with an error, and nothing else does.
#[tokio::test]
async fn d02_only_what_is_in_flight_ends_with_its_replica() {
    let ([_, failed], deaths) = balanced(0, &[Harm::Kill], Duration::ZERO).await;
    assert!(failed <= CLIENTS * deaths, "{failed} of {deaths} deaths");
}

/// Replicas that are ended in order and started again, one after the other: no call fails, at whichever server.
#[tokio::test]
async fn d09_no_call_is_cut_by_a_rolling_restart() {
    let (failed, _) = balanced(0, &[Harm::Restart; 3], Duration::ZERO).await;
    assert_eq!(failed, [0, 0]);
}

/// Three replicas of the version before are upgraded one after the other: no call fails while both run.
#[tokio::test]
async fn d09_no_call_is_cut_by_a_rolling_upgrade() {
    let (failed, _) = balanced(3, &[Harm::Restart; 3], Duration::ZERO).await;
    assert_eq!(failed, [0, 0]);
}

/// All that can happen to a replica, beginning with two of the version before; in the soak for ten minutes.
#[tokio::test]
async fn d04_accounts_balance_whatever_happens_to_replicas() {
    balanced(2, &HARMS, if soak() { LONG } else { SHORT }).await;
}
