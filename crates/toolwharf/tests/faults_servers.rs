//! Servers that misbehave: the affected call ends with a clear error, in bounded time and memory, and no other call is
//! affected.

#![expect(clippy::unwrap_used, reason = "test helpers may panic")]

mod common;

use std::{
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
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::post,
};
use common::{Gateway, LEGACY, Setup, scripted, with};
use futures_util::{StreamExt, stream};
use serde_json::{Value, json};
use testkit::{DEADLINE, Outcome, Peer, peer, wait_for, within};
use tokio::{net::TcpListener, sync::watch, task::JoinSet, time::Instant};

/// The call timeout in these tests in milliseconds, and how much later the call may end. Together shorter than anything
/// else that could end the call; the shortest of those is the 30 s limit for an unterminated line.
const CALL_TIMEOUT_MS: u64 = 2_000;
const TIMEOUT_SLACK: Duration = Duration::from_secs(10);

fn limited(name: &str) -> Value {
    with(
        scripted(name, &[]),
        json!({"callTimeoutMs": CALL_TIMEOUT_MS, "maxConcurrency": 4}),
    )
}

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

/// The expected outcome of a call to a misbehaving tool.
enum End {
    /// A result with this text.
    Text(&'static str),
    /// An error whose message contains this.
    Error(&'static str),
}

/// One server per misbehaviour, all at once.
#[tokio::test]
async fn every_misbehaviour_ends_with_a_clear_error() {
    use End::{Error, Text};
    let cases: Vec<(&str, Value, End)> = vec![
        ("never", json!({}), Error("did not answer")),
        (
            "garbage",
            json!({"lines": 2000}),
            Text("answered after garbage"),
        ),
        ("twice", json!({}), Text("first")),
        ("forge", json!({"kind": "plus"}), Error("did not answer")),
        ("forge", json!({"kind": "minus"}), Error("did not answer")),
        ("forge", json!({"kind": "string"}), Error("did not answer")),
        ("forge", json!({"kind": "null"}), Error("did not answer")),
        ("forge", json!({"kind": "1e3"}), Error("did not answer")),
        ("forge", json!({"kind": "[1]"}), Error("did not answer")),
        (
            "forge",
            json!({"kind": "plus", "answer": true}),
            Text("true"),
        ),
        ("unterminated", json!({}), Error("did not answer")),
        (
            "deep",
            json!({"depth": 100_000}),
            Error("nested deeper than 128 levels"),
        ),
        (
            "unreadable",
            json!({"kind": "utf8"}),
            Error("refused: not UTF-8"),
        ),
        (
            "unreadable",
            json!({"kind": "nul"}),
            Error("refused: not JSON"),
        ),
        (
            "unreadable",
            json!({"kind": "syntax"}),
            Error("refused: not JSON"),
        ),
        (
            "unreadable",
            json!({"kind": "last"}),
            Error("refused: not UTF-8"),
        ),
        (
            "dupkeys",
            json!({"kind": "nested"}),
            Error("duplicate key \"content\""),
        ),
        (
            "dupkeys",
            json!({"kind": "result"}),
            Error("duplicate key \"result\""),
        ),
        (
            "dupkeys",
            json!({"kind": "id"}),
            Error("duplicate key \"id\""),
        ),
        ("crash", json!({"code": 3}), Error("went away")),
        (
            "late",
            json!({"ms": CALL_TIMEOUT_MS + 500}),
            Error("did not answer"),
        ),
        (
            "stderr",
            json!({"bytes": 20_000_000, "newlines": false}),
            Text("wrote to stderr"),
        ),
        ("fail", json!({"text": "as tools do"}), Text("as tools do")),
        (
            "rpc_error",
            json!({"code": -32123, "message": "its own words"}),
            Error("its own words"),
        ),
    ];
    let mut setup = Setup::new()
        .settings("naming = \"always-prefix\"\n[log]\nlevel = \"warn\"\n")
        .scripted("good", &[]);
    for at in 0..cases.len() {
        let name = format!("bad{at}");
        setup = setup.server(&name, limited(&name));
    }
    let gateway = setup.serve().await;
    for at in 0..cases.len() {
        gateway.up(&format!("bad{at}")).await;
    }
    gateway.up("good").await;
    let witness = Witness::new(&gateway).await;
    for version in [LEGACY, peer::MODERN] {
        let mut calls = JoinSet::new();
        for (at, (tool, arguments, _)) in cases.iter().enumerate() {
            // The server may still be restarting after the previous call.
            wait_for("the server", DEADLINE, async || {
                gateway.metric("server_up", Some(&format!("bad{at}"))).await == Some(1)
            })
            .await;
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
            let (tool, arguments, end) = &cases[at];
            let what = format!("{tool} {arguments} ({version}): {response}");
            assert!(
                took < Duration::from_millis(CALL_TIMEOUT_MS) + TIMEOUT_SLACK,
                "{took:?} {what}"
            );
            match end {
                Text(text) => {
                    assert_eq!(response["result"]["content"][0]["text"], *text, "{what}");
                }
                Error(part) => {
                    let message = response["error"]["message"]
                        .as_str()
                        .unwrap_or_else(|| panic!("{what}"));
                    assert!(message.contains(part), "{what}");
                    // Only a missing response counts as a timeout.
                    assert_eq!(
                        response["error"]["data"]["reason"] == "timeout",
                        *part == "did not answer",
                        "{what}"
                    );
                    if *tool != "rpc_error" {
                        assert!(
                            message.contains(&format!("bad{at}")),
                            "the server is not named: {what}"
                        );
                    }
                }
            }
        }
        // Servers that are still running answer the next call correctly; no earlier output is mistaken for the
        // response.
        let mut peer = Peer::http(gateway.client(), version, json!({})).await;
        for (at, (tool, _, _)) in cases.iter().enumerate() {
            if *tool == "unterminated" {
                continue;
            }
            wait_for(
                &format!("{tool} to be usable again"),
                Duration::from_secs(5),
                async || {
                    let answer = peer
                        .tool(&format!("bad{at}__echo"), json!({"after": at}))
                        .await;
                    let after = &answer.response["result"]["structuredContent"]["after"];
                    assert!(after.is_null() || *after == at, "{tool}: {answer:?}");
                    *after == at
                },
            )
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
        .server("pipe", with(scripted("pipe", &[]), options.clone()))
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
            let answer = peer
                .tool(&format!("{server}__echo"), json!({ "n": n }))
                .await;
            assert_eq!(answer.result()["structuredContent"]["n"], n);
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
        .server(
            "bad",
            with(scripted("bad", &[]), json!({"callTimeoutMs": 20_000})),
        )
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
    // machine may not manage two during the first flood, so it is repeated.
    let mut floods = 0;
    let answer = loop {
        let before = witness.answered();
        let answer = peer.tool("bad__flood", json!({ "bytes": bytes })).await;
        if witness.answered() >= before + 2 {
            break answer;
        }
        floods += 1;
        assert!(floods < 5, "other calls wait for the flood");
        usable(&mut peer).await;
    };
    witness.finish(2).await;
    let ended = answer.response.get("error").is_some() || answer.text() == "flooded";
    assert!(ended, "{answer:?}");
    let grown = gateway.memory_peak() - before;
    assert!(grown < 64 * 1024, "{grown} KiB more for {bytes} bytes");
    // A line slightly over the limit fails its call at once, with the reason.
    for server in ["bad", "http"] {
        let long = peer
            .tool(&format!("{server}__big"), json!({"bytes": 9_000_000}))
            .await;
        let message = long.response["error"]["message"]
            .as_str()
            .expect("an error");
        assert!(message.contains(&format!("`{server}`")), "{message}");
        assert!(message.contains("long"), "{message}");
    }
    usable(&mut peer).await;
}

async fn usable(peer: &mut Peer) {
    wait_for("the server to be usable", DEADLINE, async || {
        peer.tool("bad__echo", json!({"n": 1})).await.response["result"]["structuredContent"]["n"]
            == 1
    })
    .await;
}

/// The default limit for a message, in bytes.
const MAX_MESSAGE_BYTES: u64 = 20 << 20;

/// Asserts that a call whose message was too long ended at once and with the reason.
fn too_long(answer: &Outcome, since: Duration, what: &str) {
    let message = answer.response["error"]["message"].as_str();
    let message = message.unwrap_or_else(|| panic!("{what}: {answer:?}"));
    let longer = format!("longer than {MAX_MESSAGE_BYTES} bytes");
    assert!(message.contains(&longer), "{what}: {message}");
    assert!(message.contains("max_line_bytes"), "{what}: {message}");
    eprintln!("{what}: {since:?} of 1 s");
    // One second is promised from the moment when the limit is exceeded.
    assert!(since <= Duration::from_secs(1), "{what}: {since:?}");
}

/// A line that exceeds every limit ends its call as soon as this is known. Little of it is kept, even if many follow
/// each other.
#[tokio::test]
async fn a_line_that_is_too_long_ends_its_call_at_once() {
    let bytes: u64 = if testkit::soak() { 1 << 30 } else { 1 << 27 };
    let cases = [
        ("garbage", json!({ "bytes": bytes })),
        ("answer", json!({"bytes": bytes, "answer": true})),
        // This line ends only with its server.
        ("endless", json!({"bytes": 1_u64 << 50, "answer": true})),
    ];
    let mut setup = Setup::new()
        .settings("naming = \"always-prefix\"\n")
        .scripted("good", &[]);
    for (name, _) in &cases {
        let options = json!({"callTimeoutMs": 6_000});
        setup = setup.server(name, with(scripted(name, &[]), options));
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
        let witness = peer.tool("good__echo", json!({"n": 1})).await;
        assert_eq!(witness.result()["structuredContent"]["n"], 1);
        let grown = gateway.private_peak() - before;
        eprintln!("{name}: {grown} KiB more of 24 MiB");
        assert!(grown < 24 * 1024, "{name}: {grown} KiB more");
    }
    // Servers whose line ends can be used again. Responses in the middle of their flood are lost.
    for name in ["garbage", "answer"] {
        wait_for("the server to be usable again", DEADLINE, async || {
            let echo = peer.tool(&format!("{name}__echo"), json!({"n": 2})).await;
            echo.response["result"]["structuredContent"]["n"] == 2
        })
        .await;
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

/// The same for a response over HTTP, as a body or as an event.
#[tokio::test]
async fn an_answer_over_http_that_is_too_long_ends_its_call_at_once() {
    let (passed, mut at) = watch::channel(None);
    let (url, _server) = endless_http(passed).await;
    let gateway = Setup::new()
        .server("far", json!({ "url": url }))
        .scripted("good", &[])
        .serve()
        .await;
    let mut peer = gateway.legacy().await;
    gateway.up("far").await;
    gateway.up("good").await;
    peer.tool("echo", json!({})).await;
    let before = gateway.private_peak();
    for name in ["json", "events", "json", "events"] {
        let answer = peer.tool(name, json!({})).await;
        let passed = at
            .borrow_and_update()
            .expect("it sends more than the limit");
        too_long(&answer, passed.elapsed(), name);
        let witness = peer.tool("echo", json!({"n": 1})).await;
        assert_eq!(witness.result()["structuredContent"]["n"], 1);
        let grown = gateway.private_peak() - before;
        eprintln!("{name}: {grown} KiB more of 24 MiB");
        assert!(grown < 24 * 1024, "{name}: {grown} KiB more");
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

/// The same flood on stderr.
#[tokio::test]
async fn a_flood_of_stderr_costs_bounded_memory() {
    let gateway = Setup::new()
        .server(
            "one",
            with(scripted("one", &[]), json!({"callTimeoutMs": 20_000})),
        )
        .connected()
        .await;
    let mut peer = gateway.legacy().await;
    peer.tool("echo", json!({})).await;
    let before = gateway.memory_peak();
    for newlines in [true, false] {
        let answer = peer
            .tool(
                "stderr",
                json!({"bytes": 100_000_000, "newlines": newlines}),
            )
            .await;
        assert_eq!(answer.text(), "wrote to stderr");
    }
    let grown = gateway.memory_peak() - before;
    assert!(grown < 16 * 1024, "{grown} KiB more");
}

/// A server crashes during a call with other calls in flight: all of them end, and the server is running again within 5
/// s.
#[tokio::test]
async fn a_crash_ends_all_its_calls_and_it_comes_back() {
    let gateway = Setup::new()
        .settings("naming = \"always-prefix\"\n")
        .server(
            "one",
            with(scripted("one", &[]), json!({"maxConcurrency": 8})),
        )
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
        // A call that has a place but was not sent yet would go to the next instance.
        wait_for("the calls at the server", DEADLINE, async || {
            peer.tool("one__running", json!({})).await.text() == "5"
        })
        .await;
        let start = Instant::now();
        begun.push(
            peer.begin(
                "tools/call",
                json!({"name": "one__crash", "arguments": {"code": code}}),
            )
            .await,
        );
        for id in begun {
            let response = peer
                .finish_within(id, Duration::from_secs(2))
                .await
                .expect("a call hangs");
            assert_eq!(
                response["error"]["data"]["reason"], "server_unavailable",
                "{response}"
            );
        }
        wait_for(
            "the server's return",
            Duration::from_secs(5).saturating_sub(start.elapsed()),
            async || {
                peer.tool("one__echo", json!({}))
                    .await
                    .response
                    .get("result")
                    .is_some()
            },
        )
        .await;
        gateway.logged(&format!("exit code {code}")).await;
    }
    witness.finish(2).await;
}

/// A cancellation frees the call's place, even if the server never ends the call.
#[tokio::test]
async fn a_cancelled_call_gives_its_place_back() {
    let gateway = Setup::new()
        .server(
            "one",
            with(
                scripted("one", &[]),
                json!({"callTimeoutMs": 60_000, "maxConcurrency": 1}),
            ),
        )
        .connected()
        .await;
    for mut peer in [gateway.legacy().await, gateway.modern().await] {
        // The server takes one call at a time: until `never` is cancelled, no other call is answered.
        let hanging = peer.begin("tools/call", json!({"name": "never"})).await;
        wait_for("the call at the server", DEADLINE, async || {
            gateway.metric("calls_in_flight", Some("one")).await == Some(1)
        })
        .await;
        peer.cancel(hanging).await;
        let answer = within(
            "the next call",
            Duration::from_secs(3),
            peer.tool("echo", json!({"n": 1})),
        )
        .await;
        assert_eq!(answer.result()["structuredContent"]["n"], 1);
    }
}
