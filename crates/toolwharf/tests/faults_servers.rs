//! Servers that misbehave: the affected call ends with a clear error, in bounded time and memory, and no other call is
//! affected.

#![expect(clippy::unwrap_used, reason = "test helpers may panic")]

mod common;

use std::{
    collections::{HashMap, HashSet},
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::Path,
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
    routing::post,
};
use common::{Gateway, LEGACY, Setup, counts, echo, is_away, says, with};
use futures_util::{StreamExt, stream};
use parking_lot::Mutex;
use serde_json::{Value, json};
use testkit::{DEADLINE, Outcome, Peer, peer, wait_for, within};
use tokio::{net::TcpListener, sync::watch, task::JoinSet, time::Instant};

/// The call timeout in these tests in milliseconds, and how much later the call may end. Their sum is shorter than
/// anything else that could end the call; the shortest of those is the 30 s limit for an unterminated line.
const CALL_TIMEOUT_MS: u64 = 2_000;
const TIMEOUT_SLACK: Duration = Duration::from_secs(10);

/// Calls another server continuously until stopped, and checks every response.
struct Witness {
    stop: tokio::sync::oneshot::Sender<()>,
    task: JoinSet<()>,
    answered: Arc<AtomicU64>,
}

impl Witness {
    async fn new(gateway: &Gateway) -> Self {
        let mut peer = gateway.modern().await;
        let (stop, mut stopped) = tokio::sync::oneshot::channel();
        let mut task = JoinSet::new();
        let answered = Arc::new(AtomicU64::new(0));
        let counter = answered.clone();
        task.spawn(async move {
            let mut count = 0u64;
            while stopped.try_recv() == Err(tokio::sync::oneshot::error::TryRecvError::Empty) {
                let answer = peer.tool("good__echo", json!({"count": count})).await;
                assert_eq!(answer.result()["structuredContent"]["count"], count);
                count += 1;
                counter.store(count, Ordering::Relaxed);
            }
        });
        Self {
            stop,
            task,
            answered,
        }
    }

    fn answered(&self) -> u64 {
        self.answered.load(Ordering::Relaxed)
    }

    /// Stops, and asserts at least `least` responses: more than if each call had waited for a misbehaving one.
    async fn finish(mut self, least: u64) {
        let _ = self.stop.send(());
        self.task.join_next().await.unwrap().unwrap();
        let count = self.answered.load(Ordering::Relaxed);
        assert!(count >= least, "only {count} other calls were answered");
    }
}

/// A call of a misbehaving tool and its outcome: the tool, its arguments, and a result with this `Text` or an `Error`
/// whose message contains it.
fn case(line: &str) -> (&str, Value, &str, &str) {
    let mut words = line.splitn(4, ' ');
    let mut word = || words.next().expect("four columns");
    let (tool, arguments) = (word(), word());
    let arguments = serde_json::from_str(arguments).expect(arguments);
    (tool, arguments, word(), word())
}

/// Runs one server per misbehaviour, and calls all of them at the same time.
#[tokio::test]
async fn every_misbehaviour_ends_with_a_clear_error() {
    // `late` answers half a second after `CALL_TIMEOUT_MS`.
    let table = r#"
        never {} Error did not answer
        garbage {"lines":2000} Text answered after garbage
        twice {} Text first
        forge {"kind":"plus"} Error did not answer
        forge {"kind":"minus"} Error did not answer
        forge {"kind":"string"} Text forged
        forge {"kind":"null"} Error is invalid: `id` must be a string or an integer
        forge {"kind":"1e3"} Error is invalid: `id` must be a string or an integer
        forge {"kind":"[1]"} Error is invalid: `id` must be a string or an integer
        forge {"kind":"plus","answer":true} Text true
        unterminated {} Error did not answer
        deep {"depth":100000} Error nested deeper than 128 levels
        unreadable {"kind":"utf8"} Error is invalid: not UTF-8
        unreadable {"kind":"nul"} Error is invalid: not JSON
        unreadable {"kind":"syntax"} Error is invalid: not JSON
        unreadable {"kind":"last"} Error is invalid: not UTF-8
        dupkeys {"kind":"nested"} Error duplicate key "content"
        dupkeys {"kind":"result"} Error duplicate key "result"
        dupkeys {"kind":"id"} Error duplicate key "id"
        crash {"code":3} Error disconnected
        late {"ms":2500} Error did not answer
        stderr {"bytes":20000000,"newlines":false} Text wrote to stderr
        fail {"text":"as_tools_do"} Text as_tools_do
        rpc_error {"code":-32123,"message":"my_words"} Error my_words
    "#;
    let lines = table.lines().map(str::trim).filter(|line| !line.is_empty());
    let cases: Vec<(&str, Value, &str, &str)> = lines.map(case).collect();
    let mut setup = Setup::new()
        .settings("naming = \"always-prefix\"\n[log]\nlevel = \"warn\"\n")
        .scripted("good", &[]);
    let options = json!({"callTimeoutMs": CALL_TIMEOUT_MS, "maxConcurrency": 4});
    for at in 0..cases.len() {
        setup = setup.tuned(&format!("bad{at}"), options.clone());
    }
    let gateway = setup.connected().await;
    let witness = Witness::new(&gateway).await;
    for version in [LEGACY, peer::MODERN] {
        let mut calls = JoinSet::new();
        for (at, (tool, arguments, ..)) in cases.iter().enumerate() {
            // The server may still be restarting after the previous call.
            gateway.up(&format!("bad{at}")).await;
            let client = gateway.client();
            let (tool, arguments) = (format!("bad{at}__{tool}"), arguments.clone());
            calls.spawn(async move {
                let mut peer = Peer::http(client, version, json!({})).await;
                let start = Instant::now();
                let answer = peer.tool(&tool, arguments).await;
                (at, answer.response, start.elapsed())
            });
        }
        while let Some(call) = calls.join_next().await {
            let (at, response, took) = call.unwrap();
            let (tool, arguments, end, part) = &cases[at];
            let what = format!("{tool} {arguments} ({version}): {response}");
            let limit = Duration::from_millis(CALL_TIMEOUT_MS) + TIMEOUT_SLACK;
            assert!(took < limit, "{took:?} {what}");
            if *end == "Text" {
                let text = &response["result"]["content"][0]["text"];
                assert_eq!(text, part, "{what}");
                continue;
            }
            let message = response["error"]["message"].as_str();
            let message = message.unwrap_or_else(|| panic!("{what}"));
            assert!(message.contains(part), "{what}");
            // Only a missing response counts as a timeout.
            let timed_out = response["error"]["data"]["reason"] == "timeout";
            assert_eq!(timed_out, *part == "did not answer", "{what}");
            let named = message.contains(&format!("bad{at}"));
            assert!(named || *tool == "rpc_error", "not named: {what}");
        }
        // Servers that are still running answer the next call correctly; no earlier output is mistaken for the
        // response.
        let mut peer = Peer::http(gateway.client(), version, json!({})).await;
        for (at, (tool, ..)) in cases.iter().enumerate() {
            if *tool == "unterminated" {
                continue;
            }
            let echo = format!("bad{at}__echo");
            let what = format!("{tool} to be usable again");
            wait_for(&what, Duration::from_secs(5), async || {
                let answer = peer.tool(&echo, json!({"after": at})).await;
                let after = &answer.response["result"]["structuredContent"]["after"];
                assert!(after.is_null() || *after == at, "{tool}: {answer:?}");
                *after == at
            })
            .await;
        }
    }
    witness.finish(10).await;
}

/// A late response is dropped and never given to another call, over stdio and HTTP.
#[tokio::test]
async fn late_answers_reach_nobody() {
    let mut remote = testkit::Process::bin("testkit-scripted", ["--http", "127.0.0.1:0"]);
    let url = remote.url().await;
    let options = json!({"callTimeoutMs": 200, "maxConcurrency": 8});
    let gateway = Setup::new()
        .settings("naming = \"always-prefix\"\n")
        .tuned("pipe", options.clone())
        .server("http", with(json!({"url": url}), options))
        .connected()
        .await;
    let mut peer = gateway.legacy().await;
    for server in ["pipe", "http"] {
        let mut late = Vec::new();
        for _ in 0..5 {
            let params = json!({"name": format!("{server}__late"), "arguments": {"ms": 400}});
            late.push(peer.begin("tools/call", params).await);
        }
        for id in late {
            let response = peer.finish(id).await;
            assert_eq!(response["error"]["data"]["reason"], "timeout", "{response}");
        }
        // The late responses arrive during these calls.
        let end = Instant::now() + Duration::from_millis(600);
        let mut n = 0;
        while Instant::now() < end {
            echo(&mut peer, &format!("{server}__echo"), n).await;
            n += 1;
        }
    }
}

/// A server writes 1 GiB without a newline: memory is bounded, its call ends, and other calls continue.
#[tokio::test]
async fn a_flood_without_a_newline_costs_bounded_memory() {
    let bytes: u64 = if testkit::soak() { 1 << 30 } else { 256 << 20 };
    let mut remote = testkit::Process::bin("testkit-scripted", ["--http", "127.0.0.1:0"]);
    let url = remote.url().await;
    let gateway = Setup::new()
        .settings("naming = \"always-prefix\"\n[limits]\nmax_line_bytes = \"8MiB\"\n")
        .server("http", json!({ "url": url }))
        .tuned("bad", json!({"callTimeoutMs": 20_000}))
        .scripted("good", &[])
        .serve()
        .await;
    gateway.up("good").await;
    let mut peer = gateway.legacy().await;
    // A line just below the limit passes.
    let big = peer.tool("bad__big", json!({"bytes": 8_000_000})).await;
    assert_eq!(big.text().len(), 8_000_000);
    let before = gateway.memory_peak();
    let witness = Witness::new(&gateway).await;
    // If calls had to wait for the flood, at most one would be answered during it, however long it takes. A busy
    // machine may not manage two during the first flood, so the flood is repeated.
    let mut floods = 0;
    let answer = loop {
        let before = witness.answered();
        let answer = peer.tool("bad__flood", json!({ "bytes": bytes })).await;
        if witness.answered() >= before + 2 {
            break answer;
        }
        floods += 1;
        assert!(floods < 5, "other calls wait for the flood");
        usable(&mut peer, "bad__echo").await;
    };
    witness.finish(2).await;
    let ended = answer.response.get("error").is_some() || answer.text() == "flooded";
    assert!(ended, "{answer:?}");
    let grown = gateway.memory_peak() - before;
    assert!(grown < 64 * 1024, "{grown} KiB for {bytes} bytes");
    // A line slightly over the limit fails its call at once, with the reason.
    for server in ["bad", "http"] {
        let big = format!("{server}__big");
        let long = peer.tool(&big, json!({"bytes": 9_000_000})).await;
        says(&long.response, &[&format!("`{server}`"), "long"]);
    }
    usable(&mut peer, "bad__echo").await;
}

/// Waits until a server answers calls of its `echo`, exposed as `tool`.
async fn usable(peer: &mut Peer, tool: &str) {
    wait_for("the server to be usable", DEADLINE, async || {
        let answer = peer.tool(tool, json!({"n": 1})).await;
        answer.response["result"]["structuredContent"]["n"] == 1
    })
    .await;
}

/// The default limit for a message, in bytes.
const MAX_MESSAGE_BYTES: u64 = 20 << 20;

/// Asserts that a call whose message was too long ended at once and with the reason.
fn too_long(answer: &Outcome, since: Duration, what: &str) {
    let longer = format!("longer than {MAX_MESSAGE_BYTES} bytes");
    eprintln!("{what}: {since:?} of 1 s");
    says(&answer.response, &[&longer, "max_line_bytes"]);
    // The call must end within one second after the limit is exceeded.
    assert!(since <= Duration::from_secs(1), "{what}: {since:?}");
}

/// Asserts that the gateway's private memory has not grown much beyond `before` KiB.
fn little_is_kept(gateway: &Gateway, before: u64, what: &str) {
    let grown = gateway.private_peak() - before;
    eprintln!("{what}: memory grew by {grown} KiB of at most 24 MiB");
    assert!(grown < 24 * 1024, "{what}: memory grew by {grown} KiB");
}

/// A line that exceeds every limit ends its call as soon as the limit is exceeded. Little of the line stays in memory,
/// even if many such lines follow each other.
#[tokio::test]
async fn a_line_that_is_too_long_ends_its_call_at_once() {
    let bytes: u64 = if testkit::soak() { 1 << 30 } else { 1 << 27 };
    let cases = [
        ("garbage", json!({ "bytes": bytes })),
        ("answer", json!({"bytes": bytes, "answer": true})),
        // This line ends only when the server exits.
        ("endless", json!({"bytes": 1_u64 << 50, "answer": true})),
    ];
    let mut setup = Setup::new()
        .settings("naming = \"always-prefix\"\n")
        .scripted("good", &[]);
    for (name, _) in &cases {
        setup = setup.tuned(name, json!({"callTimeoutMs": 6_000}));
    }
    let gateway = setup.serve().await;
    let mut peer = gateway.legacy().await;
    for server in cases.iter().map(|(name, _)| *name).chain(["good"]) {
        gateway.up(server).await;
        peer.tool(&format!("{server}__echo"), json!({})).await;
    }
    let before = gateway.private_peak();
    for (name, mut arguments) in cases {
        let mark = gateway.folder().join(name);
        arguments["mark"] = json!(mark);
        arguments["at"] = json!(MAX_MESSAGE_BYTES);
        let answer = peer.tool(&format!("{name}__flood"), arguments).await;
        let now = SystemTime::now();
        let passed = mark.metadata().unwrap().modified().unwrap();
        too_long(&answer, now.duration_since(passed).unwrap(), name);
        echo(&mut peer, "good__echo", 1).await;
        little_is_kept(&gateway, before, name);
    }
    // After the end of their line, these servers can be used again. Responses in the middle of the line are lost.
    for name in ["garbage", "answer"] {
        usable(&mut peer, &format!("{name}__echo")).await;
    }
}

/// Starts an HTTP server whose tools never finish their responses; the tool name selects the format. Returns the
/// server's URL.
async fn endless_http(passed: watch::Sender<Option<Instant>>) -> (String, JoinSet<()>) {
    async fn answer(passed: watch::Sender<Option<Instant>>, text: String) -> Response {
        let request: Value = serde_json::from_str(&text).unwrap();
        let result = match request["method"].as_str().unwrap() {
            "initialize" => json!({
                "protocolVersion": LEGACY,
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "endless", "version": "1"},
            }),
            "tools/list" => json!({"tools": [
                {"name": "json", "inputSchema": {"type": "object"}},
                {"name": "events", "inputSchema": {"type": "object"}},
            ]}),
            "tools/call" => {
                let events = request["params"]["name"] == "events";
                let begin = format!(
                    "{{\"jsonrpc\":\"2.0\",\"id\":{},\"result\":\"",
                    request["id"]
                );
                let (kind, first) = match events {
                    true => ("text/event-stream", format!("data: {begin}")),
                    false => ("application/json", begin),
                };
                let chunk = Bytes::from(vec![b'x'; 64 << 10]);
                let rest = stream::unfold(0, move |sent| {
                    let (passed, chunk) = (passed.clone(), chunk.clone());
                    async move {
                        let then = sent + chunk.len() as u64;
                        if (sent..then).contains(&MAX_MESSAGE_BYTES) {
                            passed.send_replace(Some(Instant::now()));
                        }
                        Some((chunk, then))
                    }
                });
                let body = stream::iter([first.into()]).chain(rest);
                let body = Body::from_stream(body.map(Ok::<_, Infallible>));
                return ([(header::CONTENT_TYPE, kind)], body).into_response();
            }
            _ => return StatusCode::ACCEPTED.into_response(),
        };
        axum::Json(json!({"jsonrpc": "2.0", "id": request["id"], "result": result})).into_response()
    }
    let router = Router::new().route("/mcp", post(move |text: String| answer(passed, text)));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/mcp", listener.local_addr().unwrap());
    let mut task = JoinSet::new();
    task.spawn(async { axum::serve(listener, router).await.unwrap() });
    (url, task)
}

/// A response over HTTP that is too long, as a body or as an event, also ends its call at once.
#[tokio::test]
async fn an_answer_over_http_that_is_too_long_ends_its_call_at_once() {
    let (passed, mut at) = watch::channel(None);
    let (url, _server) = endless_http(passed).await;
    let gateway = Setup::new()
        .server("far", json!({ "url": url }))
        .scripted("good", &[])
        .connected()
        .await;
    let mut peer = gateway.legacy().await;
    peer.tool("echo", json!({})).await;
    let before = gateway.private_peak();
    for name in ["json", "events", "json", "events"] {
        let answer = peer.tool(name, json!({})).await;
        let passed = *at.borrow_and_update();
        let passed = passed.expect("the server sends more than the limit");
        too_long(&answer, passed.elapsed(), name);
        echo(&mut peer, "echo", 1).await;
        little_is_kept(&gateway, before, name);
    }
}

/// Server output in the log is escaped, whatever it contains.
#[tokio::test]
async fn a_carriage_return_of_a_server_is_escaped_in_the_log() {
    let script = "printf 'seen\\rhidden\\n' >&2; exit 3";
    let gateway = Setup::new()
        .server("one", json!({"command": "sh", "args": ["-c", script]}))
        .serve()
        .await;
    gateway.logged("seen\\rhidden").await;
    assert!(!gateway.process.stderr().contains('\r'));
}

/// A server writes the same flood to stderr.
#[tokio::test]
async fn a_flood_of_stderr_costs_bounded_memory() {
    let setup = Setup::new().tuned("one", json!({"callTimeoutMs": 20_000}));
    let gateway = setup.connected().await;
    let mut peer = gateway.legacy().await;
    peer.tool("echo", json!({})).await;
    let before = gateway.memory_peak();
    for newlines in [true, false] {
        let flood = json!({"bytes": 100_000_000, "newlines": newlines});
        let answer = peer.tool("stderr", flood).await;
        assert_eq!(answer.text(), "wrote to stderr");
    }
    let grown = gateway.memory_peak() - before;
    assert!(grown < 16 * 1024, "memory grew by {grown} KiB");
}

/// A server crashes during a call with other calls in flight: all of them end, and the server is running again within 5
/// s.
#[tokio::test]
async fn a_crash_ends_all_its_calls_and_it_comes_back() {
    let gateway = Setup::new()
        .settings("naming = \"always-prefix\"\n")
        .tuned("one", json!({"maxConcurrency": 8}))
        .scripted("good", &[])
        .serve()
        .await;
    gateway.up("one").await;
    let mut peer = gateway.modern().await;
    let witness = Witness::new(&gateway).await;
    let slow = json!({"name": "one__slow", "arguments": {"ms": 60_000}});
    for code in [0, 7] {
        let mut begun = Vec::new();
        for _ in 0..5 {
            begun.push(peer.begin("tools/call", slow.clone()).await);
        }
        // A call that left the queue but was not sent yet would go to the next instance.
        counts(&mut peer, "one__running", 5, DEADLINE).await;
        let start = Instant::now();
        let crash = json!({"name": "one__crash", "arguments": {"code": code}});
        begun.push(peer.begin("tools/call", crash).await);
        for id in begun {
            let response = peer.finish_within(id, Duration::from_secs(2)).await;
            let response = response.expect("all calls end");
            assert!(is_away(&response), "{response}");
        }
        let limit = Duration::from_secs(5).saturating_sub(start.elapsed());
        wait_for("the server's return", limit, async || {
            let answer = peer.tool("one__echo", json!({})).await;
            answer.response.get("result").is_some()
        })
        .await;
        gateway.logged(&format!("exit code {code}")).await;
    }
    witness.finish(2).await;
}

/// A cancelled call no longer counts against the concurrency limit, even if the server never ends the call.
#[tokio::test]
async fn a_cancelled_call_gives_its_place_back() {
    let options = json!({"callTimeoutMs": 60_000, "maxConcurrency": 1});
    let gateway = Setup::new().tuned("one", options).connected().await;
    for mut peer in [gateway.legacy().await, gateway.modern().await] {
        // The server takes one call at a time: until `never` is cancelled, no other call is answered.
        let hanging = peer.begin("tools/call", json!({"name": "never"})).await;
        gateway.in_flight("one", 1, DEADLINE).await;
        peer.cancel(hanging).await;
        let next = echo(&mut peer, "echo", 1);
        within("the next call", Duration::from_secs(3), next).await;
    }
}

/// The sessions of a remote server, which can be forgotten.
#[derive(Default)]
struct Sessions {
    opened: u64,
    open: HashSet<String>,
    /// The server still opens sessions, but knows none of them.
    is_broken: bool,
    calls: u64,
}

type Remotes = Arc<Mutex<HashMap<String, Sessions>>>;

/// Starts remote servers, one per path, which differ in how they refuse an unknown session. Returns their URL.
async fn forgetful_http(remotes: Remotes) -> (String, JoinSet<()>) {
    fn refusal(kind: &str, id: &Value) -> Response {
        let rpc = |code: i64, message: &str| {
            let error = json!({"code": code, "message": message});
            axum::Json(json!({"jsonrpc": "2.0", "id": id, "error": error}))
        };
        match kind {
            "text" => (StatusCode::BAD_REQUEST, "No valid session ID").into_response(),
            "rpc" => rpc(-32001, "Session not found").into_response(),
            "instance" => {
                let unknown = rpc(-32001, "MCP session is unknown on this instance");
                (StatusCode::SERVICE_UNAVAILABLE, unknown).into_response()
            }
            _ => (StatusCode::INTERNAL_SERVER_ERROR, "out of order").into_response(),
        }
    }
    async fn answer(remotes: Remotes, kind: String, headers: HeaderMap, text: String) -> Response {
        let request: Value = serde_json::from_str(&text).unwrap();
        let mut remotes = remotes.lock();
        let sessions = remotes.entry(kind.clone()).or_default();
        let id = headers.get("mcp-session-id").map(|id| id.to_str().unwrap());
        let result = match request["method"].as_str().unwrap() {
            "server/discover" => return StatusCode::BAD_REQUEST.into_response(),
            "initialize" => {
                sessions.opened += 1;
                let id = sessions.opened.to_string();
                if !sessions.is_broken {
                    sessions.open.insert(id.clone());
                }
                let result = json!({
                    "protocolVersion": LEGACY,
                    "capabilities": {"tools": {}},
                    "serverInfo": {"name": kind, "version": "1"},
                });
                let result = json!({"jsonrpc": "2.0", "id": request["id"], "result": result});
                return ([("mcp-session-id", id)], axum::Json(result)).into_response();
            }
            "notifications/initialized" => return StatusCode::ACCEPTED.into_response(),
            _ if !id.is_some_and(|id| sessions.open.contains(id)) => {
                return refusal(&kind, &request["id"]);
            }
            "tools/list" => {
                json!({"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]})
            }
            "tools/call" => {
                sessions.calls += 1;
                json!({"content": [], "structuredContent": request["params"]["arguments"]})
            }
            _ => json!({}),
        };
        axum::Json(json!({"jsonrpc": "2.0", "id": request["id"], "result": result})).into_response()
    }
    let handler = move |Path(kind): Path<String>, headers: HeaderMap, text: String| {
        answer(remotes.clone(), kind, headers, text)
    };
    let router = Router::new().route("/{kind}", post(handler));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let mut task = JoinSet::new();
    task.spawn(async { axum::serve(listener, router).await.unwrap() });
    (url, task)
}

/// A remote server forgets its sessions: the next call opens a new one and works, or fails with the reason. A server
/// that refuses everything in the new session as well is not shown as running.
#[tokio::test]
async fn u09_a_remote_server_forgets_its_sessions() {
    let remotes = Remotes::default();
    let (url, _servers) = forgetful_http(remotes.clone()).await;
    let kinds = ["text", "rpc", "instance", "plain", "broken"];
    let mut setup = Setup::new().settings("naming = \"always-prefix\"\n");
    for kind in kinds {
        setup = setup.server(kind, json!({ "url": format!("{url}/{kind}") }));
    }
    let gateway = setup.connected().await;
    let mut peer = gateway.legacy().await;
    for kind in kinds {
        echo(&mut peer, &format!("{kind}__echo"), 1).await;
    }
    for (kind, sessions) in remotes.lock().iter_mut() {
        sessions.open.clear();
        sessions.is_broken = kind == "broken";
    }
    for kind in &kinds[..3] {
        echo(&mut peer, &format!("{kind}__echo"), 2).await;
        assert_eq!(remotes.lock()[*kind].calls, 2, "{kind}");
    }
    for kind in ["plain", "broken"] {
        let refused = peer.tool(&format!("{kind}__echo"), json!({})).await;
        says(&refused.response, &["HTTP 500: out of order"]);
    }
    usable(&mut peer, "plain__echo").await;
    let state = async || {
        let row = gateway.admin("/mcp/servers/broken").get(&[]).await;
        let row = row.collect(DEADLINE).await;
        serde_json::from_slice::<Value>(&row.body).unwrap()
    };
    wait_for("the broken server to be retried", DEADLINE, async || {
        let row = state().await;
        assert_ne!(row["status"], "running", "{row:#}");
        remotes.lock()["broken"].opened >= 3
    })
    .await;
    wait_for("the reason", DEADLINE, async || {
        let row = state().await;
        let reason = row["reason"].as_str().unwrap_or_default();
        row["status"] == "backoff"
            && reason.contains("refuses every request: ")
            && reason.contains("out of order")
    })
    .await;
    let away = peer.tool("broken__echo", json!({})).await;
    assert!(is_away(&away.response), "{away:?}");
    says(&away.response, &["out of order"]);
    // It comes back by itself.
    remotes.lock().get_mut("broken").unwrap().is_broken = false;
    usable(&mut peer, "broken__echo").await;
}
