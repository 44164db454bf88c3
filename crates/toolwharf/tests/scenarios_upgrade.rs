//! Scenario O06: the running gateway hands over to another program, and no connection or call is dropped.

#![expect(clippy::unwrap_used, reason = "test helpers may panic")]

mod common;

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use common::{
    Gateway, LEGACY, Setup,
    cli::{self, Said},
    echo, holds, rpc, scripted, with,
};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use testkit::{Bin, DEADLINE, postgres::Database, soak, wait_for, within};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    task::JoinSet,
    time::{Instant, MissedTickBehavior},
};
use tokio_util::sync::CancellationToken;

/// Calls last at most a few hundred milliseconds, so a drain of this length ends none.
const SETTINGS: &str = "[limits]\nstop_grace = \"2s\"\ndrain = \"5s\"\n[log]\nlevel = \"info\"\n";
/// Clients, and the time from one call of a client to its next one: 1,000 calls per second.
const CLIENTS: usize = 32;
const INTERVAL: Duration = Duration::from_millis(32);
/// Duration of the calls that are in progress during each upgrade.
const SLOW_MS: u64 = 500;
/// Half of the second around an upgrade.
const HALF: Duration = Duration::from_millis(500);
const MAX_P99: Duration = Duration::from_millis(250);
/// Minimum calls in the second around an upgrade. While a development build starts, it and its clients need both cores of
/// a small machine, and about half of the 1,000 calls can be made.
const MIN_CALLS: usize = 250;

/// Runs `toolwharf upgrade` against this gateway.
async fn upgrade(gateway: &Gateway, program: Option<&Path>) -> Said {
    let mut command = common::configured(&Bin::path("toolwharf"), gateway.folder());
    command
        .args(["--output", "json", "--data-dir"])
        .arg(gateway.folder().join("data"))
        .arg("upgrade")
        .args(program)
        .kill_on_drop(true);
    cli::said(command, "").await
}

/// Runs an upgrade, which must succeed. Returns the process that serves now.
async fn upgraded(gateway: &Gateway) -> u32 {
    let said = upgrade(gateway, None).await.code(0);
    let pid = said.json()["upgraded"]["pid"].as_u64();
    u32::try_from(pid.unwrap_or_else(|| panic!("{said:?}"))).unwrap()
}

/// The process in the gateway's record, which commands use.
fn recorded(gateway: &Gateway) -> Option<u32> {
    let text = fs::read_to_string(gateway.folder().join("data/serve.json")).ok()?;
    let record: Value = serde_json::from_str(&text).ok()?;
    u32::try_from(record["pid"].as_u64()?).ok()
}

fn kill(pid: u32) {
    let pid = Pid::from_raw(pid.cast_signed()).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
}

/// A script in the gateway's folder, as the new program.
fn script(gateway: &Gateway, name: &str, text: &str) -> PathBuf {
    let file = gateway.folder().join(name);
    fs::write(&file, format!("#!/bin/sh\n{text}\n")).unwrap();
    fs::set_permissions(&file, PermissionsExt::from_mode(0o755)).unwrap();
    file
}

/// Calls `echo` on one connection, which the server must never close.
struct Client {
    sender: SendRequest<Full<Bytes>>,
    host: String,
    /// The session of a legacy client.
    session: Option<String>,
    driver: JoinSet<()>,
}

impl Client {
    async fn new(url: &str) -> Self {
        let host = url.strip_prefix("http://").unwrap().to_owned();
        let stream = TcpStream::connect(&host).await.expect("a connection");
        stream.set_nodelay(true).unwrap();
        let (sender, connection) = handshake(TokioIo::new(stream)).await.unwrap();
        let mut driver = JoinSet::new();
        driver.spawn(async move { connection.await.expect("an open connection") });
        Self {
            sender,
            host,
            session: None,
            driver,
        }
    }

    async fn legacy(url: &str) -> Self {
        let mut client = Self::new(url).await;
        let (head, _) = client.post(&rpc::hello(LEGACY), &[]).await;
        let session = head["mcp-session-id"].to_str().unwrap().to_owned();
        client.session = Some(session);
        client
    }

    async fn post(
        &mut self,
        message: &Value,
        headers: &[(&str, &str)],
    ) -> (http::HeaderMap, Value) {
        let mut request = http::Request::post("/mcp")
            .header("host", &self.host)
            .header("content-type", "application/json")
            .header("accept", "application/json, text/event-stream");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if let Some(session) = &self.session {
            request = request.header("mcp-session-id", session);
        }
        let request = request
            .body(Full::new(Bytes::from(message.to_string())))
            .unwrap();
        self.sender.ready().await.expect("an open connection");
        let answer = within("an answer", DEADLINE, self.sender.send_request(request)).await;
        let (head, body) = answer.expect("an answer").into_parts();
        let body = body.collect().await.expect("a whole answer").to_bytes();
        let text = String::from_utf8_lossy(&body);
        let answer = serde_json::from_str(&text);
        let answer = answer.unwrap_or_else(|why| panic!("{why}: {} {text}", head.status));
        (head.headers, answer)
    }

    /// Calls a tool, which must succeed. Returns the text of its result.
    async fn call(&mut self, tool: &str, arguments: Value) -> String {
        let mut message = rpc::modern_call(1, tool, arguments);
        let headers = rpc::call_headers(tool);
        let mut headers = &headers[..];
        if self.session.is_some() {
            message["params"].as_object_mut().unwrap().remove("_meta");
            headers = &[];
        }
        let (_, answer) = self.post(&message, headers).await;
        let is_answered = answer.get("result").is_some() && answer["result"]["isError"] != true;
        assert!(is_answered, "{tool}: {answer}");
        let text = answer["result"]["content"][0]["text"].as_str();
        text.unwrap_or_default().to_owned()
    }

    async fn close(self) {
        drop(self.sender);
        within(
            "the end of the connection",
            DEADLINE,
            self.driver.join_all(),
        )
        .await;
    }
}

/// Makes calls until `over`. Returns their begins and durations. Every fourth client uses a connection for each call,
/// every fourth has a session.
async fn calls(url: Arc<str>, number: usize, over: CancellationToken) -> Vec<(Instant, Duration)> {
    let is_single = number.is_multiple_of(4);
    let mut client = match number % 4 {
        1 => Client::legacy(&url).await,
        _ => Client::new(&url).await,
    };
    let mut tick = tokio::time::interval(INTERVAL);
    tick.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut all = Vec::new();
    while !over.is_cancelled() {
        tick.tick().await;
        let begin = Instant::now();
        if is_single {
            let before = std::mem::replace(&mut client, Client::new(&url).await);
            before.close().await;
        }
        client.call("echo", json!({ "n": all.len() })).await;
        all.push((begin, begin.elapsed()));
    }
    client.close().await;
    all
}

/// Makes slow calls until `over`, one after the other. They are in progress whenever a gateway hands over.
async fn slow_calls(url: Arc<str>, over: CancellationToken) {
    let mut client = Client::new(&url).await;
    while !over.is_cancelled() {
        client.call("slow", json!({ "ms": SLOW_MS })).await;
    }
}

/// The duration below which 99 % of the calls are that began in the second around this time.
fn p99(calls: &[(Instant, Duration)], at: Instant) -> Duration {
    let near = calls.iter().filter(|(begin, _)| {
        let begin = *begin;
        begin + HALF >= at && begin <= at + HALF
    });
    let mut near: Vec<Duration> = near.map(|(_, took)| *took).collect();
    assert!(
        near.len() >= MIN_CALLS,
        "{} calls in the second of an upgrade",
        near.len()
    );
    near.sort_unstable();
    near[near.len() * 99 / 100]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o06_upgrades_at_1000_calls_per_second_drop_nothing() {
    let count = if soak() { 100 } else { 20 };
    let one = with(scripted("one", &[]), json!({"maxConcurrency": 64}));
    let setup = Setup::new().settings(SETTINGS).server("one", one);
    let gateway = setup.connected().await;
    let url: Arc<str> = gateway.url.as_str().into();
    let over = CancellationToken::new();
    let mut clients = JoinSet::new();
    for number in 0..CLIENTS {
        clients.spawn(calls(url.clone(), number, over.clone()));
    }
    let mut slow = JoinSet::new();
    slow.spawn(slow_calls(url.clone(), over.clone()));
    let mut upgrades = Vec::new();
    let mut before = gateway.process.pid();
    for _ in 0..count {
        let pid = upgraded(&gateway).await;
        upgrades.push(Instant::now());
        assert_ne!(pid, before);
        before = pid;
    }
    tokio::time::sleep_until(upgrades[count - 1] + HALF).await;
    over.cancel();
    let all: Vec<_> = clients.join_all().await.concat();
    slow.join_all().await;
    let worst = upgrades.iter().map(|at| p99(&all, *at)).max().unwrap();
    println!(
        "upgrade: {} calls during {count} upgrades, none failed, p99 around an upgrade at most {worst:?} (bound \
         {MAX_P99:?})",
        all.len()
    );
    assert!(worst <= MAX_P99, "{worst:?}");
    // Commands find the last process.
    wait_for("the record of the last process", DEADLINE, async || {
        recorded(&gateway) == Some(before)
    })
    .await;
}

/// Connections without a request, and sessions, continue at the new process. SIGUSR2 starts the upgrade.
#[tokio::test]
async fn o06_idle_connections_and_sessions_continue() {
    let mut gateway = Setup::new()
        .settings(SETTINGS)
        .scripted("one", &[])
        .connected()
        .await;
    let mut fresh = TcpStream::connect(gateway.url.strip_prefix("http://").unwrap())
        .await
        .unwrap();
    let mut modern = Client::new(&gateway.url).await;
    let mut legacy = Client::legacy(&gateway.url).await;
    modern.call("echo", json!({})).await;
    legacy.call("echo", json!({})).await;
    let before = gateway.process.pid();
    gateway.process.signal(Signal::USR2);
    assert!(gateway.process.wait(DEADLINE).await.success());
    assert_ne!(recorded(&gateway), Some(before));
    modern.call("echo", json!({})).await;
    legacy.call("echo", json!({})).await;
    let request = format!(
        "GET /healthz HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n\r\n",
        modern.host
    );
    fresh.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    within("an answer", DEADLINE, fresh.read_to_string(&mut answer))
        .await
        .unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

/// A sandboxed server starts after the old gateway has exited, also if servers start one after the other.
#[tokio::test]
async fn o06_a_sandboxed_server_moves_to_the_new_process() {
    let notes = json!({"sandbox": true, "volumes": ["/notes"]});
    let settings =
        format!("start = \"sequential\"\n{SETTINGS}[hosting]\nproviders = [\"process\"]\n");
    let setup = Setup::new()
        .settings(&settings)
        .server("one", with(scripted("one", &[]), notes));
    let gateway = setup.connected().await;
    let mut client = Client::new(&gateway.url).await;
    let kept = json!({"path": "/notes/kept", "text": "kept"});
    client.call("write", kept.clone()).await;
    upgraded(&gateway).await;
    // Its call waits for the new instance, which has the same volume.
    assert_eq!(client.call("read", kept).await, "kept");
    gateway.logged("the old gateway is gone").await;
}

/// Without an overlap, a server that cannot run twice moves without a failed start.
#[tokio::test]
async fn o06_a_server_that_cannot_run_twice_starts_after_the_old_one() {
    let setup = Setup::new().settings(&format!("upgrade_overlap = false\n{SETTINGS}"));
    let [lock, failed] = ["lock", "failed"].map(|name| setup.folder().join(name));
    // The server holds the lock until it exits.
    let locks = format!(
        "exec 9> {}; flock -n 9 || {{ touch {}; exit 1; }}; exec \"$0\" --name one",
        lock.display(),
        failed.display()
    );
    let one = json!({"command": "sh", "args": ["-c", locks, Bin::path("testkit-scripted")]});
    let gateway = setup.server("one", one).connected().await;
    let mut client = Client::new(&gateway.url).await;
    client.call("echo", json!({})).await;
    upgraded(&gateway).await;
    client.call("echo", json!({})).await;
    assert!(!failed.exists());
}

/// A call that waits for the start of its server is answered, although the old gateway is stopping.
#[tokio::test]
async fn o06_a_call_that_waits_for_a_start_is_answered() {
    let setup = Setup::new().settings(&format!("upgrade_overlap = false\n{SETTINGS}"));
    let go = setup.folder().join("go");
    let waits = format!(
        "until test -e {}; do sleep 0.05; done; exec \"$0\" --name one",
        go.display()
    );
    let one = json!({"command": "sh", "args": ["-c", waits, Bin::path("testkit-scripted")]});
    let gateway = setup.server("one", one).serve().await;
    let mut client = Client::new(&gateway.url).await;
    let call = client.call("echo", json!({}));
    let upgrade = async {
        upgraded(&gateway).await;
        fs::write(&go, "").unwrap();
    };
    tokio::join!(call, upgrade);
    client.call("echo", json!({})).await;
}

#[tokio::test]
async fn o06_a_program_that_cannot_take_over_changes_nothing() {
    let gateway = common::with_one(&[]).await;
    let pid = gateway.process.pid();
    let mut header = [0; 64];
    let own = fs::read(Bin::path("testkit-scripted")).unwrap();
    header.copy_from_slice(&own[..64]);
    header[18..20].copy_from_slice(&[0xf3, 0]);
    let foreign = gateway.folder().join("foreign");
    fs::write(&foreign, header).unwrap();
    let text = gateway.folder().join("text");
    fs::write(&text, "text").unwrap();
    let missing = gateway.folder().join("missing");
    let fails = script(&gateway, "fails", "exit 3");
    let killed = script(&gateway, "killed", "kill -9 $$");
    let programs: [(&Path, &[&str]); 5] = [
        (
            &foreign,
            &["foreign is a program for another processor (riscv64)"],
        ),
        (&text, &["text cannot take over", "cannot be started"]),
        (&missing, &["cannot find the program", "missing"]),
        (&fails, &["fails cannot take over", "exit status: 3"]),
        (&killed, &["killed cannot take over", "signal: 9"]),
    ];
    for (program, parts) in programs {
        let said = upgrade(&gateway, Some(program)).await.code(1);
        holds(&said.err, parts);
    }

    // The new process finds invalid settings, and a disk on which it cannot write the address.
    let settings = fs::read_to_string(gateway.settings_file()).unwrap();
    gateway.replace(&gateway.settings_file(), "[limits]\ndrain = \"soon\"\n");
    upgrade(&gateway, None).await.code(1).says("drain");
    gateway.replace(&gateway.settings_file(), &settings);
    let blocked = gateway.folder().join("data/serve.json.new");
    fs::create_dir(&blocked).unwrap();
    upgrade(&gateway, None).await.code(1).says("serve.json.new");
    fs::remove_dir(&blocked).unwrap();

    assert_eq!(recorded(&gateway), Some(pid));
    gateway.logged("this process serves on").await;
    let mut peer = gateway.modern().await;
    echo(&mut peer, "echo", 1).await;
    assert_ne!(upgraded(&gateway).await, pid);
    echo(&mut peer, "echo", 2).await;
}

#[tokio::test]
async fn o06_of_two_upgrades_at_once_one_is_refused() {
    let gateway = common::with_one(&[]).await;
    let [begun, go] = ["begun", "go"].map(|name| gateway.folder().join(name));
    let waits = format!(
        "touch {}; until [ -e {} ]; do sleep 0.02; done; exit 3",
        begun.display(),
        go.display()
    );
    let waits = script(&gateway, "waits", &waits);
    let second = async {
        wait_for("the first upgrade", DEADLINE, async || begun.exists()).await;
        let said = upgrade(&gateway, None).await;
        fs::write(&go, "").unwrap();
        said
    };
    let (first, second) = tokio::join!(upgrade(&gateway, Some(&waits)), second);
    second.code(1).says("an upgrade is in progress");
    first.code(1).says("exit status: 3");
    upgraded(&gateway).await;
}

#[tokio::test]
async fn o06_kill_9_of_the_old_process_leaves_the_new_one() {
    let setup = Setup::new();
    let [starts, go] = ["starts", "go"].map(|name| setup.folder().join(name));
    let wait = format!(
        "echo >> {0}; if [ $(wc -l < {0}) -gt 1 ]; then until [ -e {1} ]; do sleep 0.02; done; fi; exec \"$0\" --name one",
        starts.display(),
        go.display()
    );
    let one = json!({"command": "sh", "args": ["-c", wait, Bin::path("testkit-scripted")]});
    let mut gateway = setup.server("one", one).connected().await;
    let pid = gateway.process.pid();
    let killed = async {
        wait_for("the server of the new process", DEADLINE, async || {
            fs::read_to_string(&starts).is_ok_and(|starts| starts.lines().count() > 1)
        })
        .await;
        kill(pid);
    };
    let (said, ()) = tokio::join!(upgrade(&gateway, None), killed);
    said.code(1).says("the gateway ended during the upgrade");
    gateway.process.wait(DEADLINE).await;
    fs::write(&go, "").unwrap();
    let mut peer = gateway.modern().await;
    echo(&mut peer, "echo", 1).await;
    assert_ne!(recorded(&gateway), Some(pid));
    // It is a gateway like any other, and its data directory is in use.
    upgraded(&gateway).await;
    echo(&mut peer, "echo", 2).await;
}

/// The old process exists only for its calls then.
#[tokio::test]
async fn o06_kill_9_of_the_new_process_leaves_the_calls_of_the_old_one() {
    let settings = SETTINGS.replace("5s", "30s");
    let mut gateway = Setup::new()
        .settings(&settings)
        .scripted("one", &[])
        .connected()
        .await;
    let [mut busy, mut other] = [
        Client::new(&gateway.url).await,
        Client::new(&gateway.url).await,
    ];
    let call = busy.call("slow", json!({ "ms": 8000 }));
    let killed = async {
        wait_for("the slow call", DEADLINE, async || {
            other.call("running", json!({})).await == "1"
        })
        .await;
        kill(upgraded(&gateway).await);
    };
    let (said, ()) = tokio::join!(call, killed);
    assert_eq!(said, "slept");
    assert!(gateway.process.wait(DEADLINE).await.success());
    let gateway = gateway.again().await;
    let mut peer = gateway.modern().await;
    echo(&mut peer, "echo", 1).await;
}

/// Both processes are replicas for a while. The next gateway removes the one that was killed.
#[tokio::test]
async fn o06_a_gateway_on_postgres_hands_over() {
    let database = Database::create().await;
    let mut gateway = Setup::new()
        .settings(SETTINGS)
        .env("TOOLWHARF_DATABASE_URL", database.url())
        .env("TOOLWHARF_MASTER_KEY", &"5a".repeat(32))
        .scripted("one", &[])
        .connected()
        .await;
    let mut client = Client::legacy(&gateway.url).await;
    client.call("echo", json!({})).await;
    let pid = upgraded(&gateway).await;
    client.call("echo", json!({})).await;
    assert!(gateway.process.wait(DEADLINE).await.success());
    kill(pid);
    let gateway = gateway.again().await;
    let mut peer = gateway.modern().await;
    echo(&mut peer, "echo", 1).await;
    let listed = gateway.admin("/replicas").get(&[]).await;
    let listed: Value = serde_json::from_str(&listed.collect(DEADLINE).await.text()).unwrap();
    assert_eq!(listed["replicas"].as_array().unwrap().len(), 1, "{listed}");
}

#[tokio::test]
async fn o06_kill_9_of_the_new_process_releases_everything() {
    let mut gateway = common::with_one(&[]).await;
    let pid = upgraded(&gateway).await;
    assert!(gateway.process.wait(DEADLINE).await.success());
    kill(pid);
    let gateway = gateway.again().await;
    let mut peer = gateway.modern().await;
    echo(&mut peer, "echo", 1).await;
}
