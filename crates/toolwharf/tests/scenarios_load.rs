//! Scenarios G13 and G14: many clients at once, and the order and limit of calls to one server.

#![expect(clippy::unwrap_used, reason = "test helpers may panic")]

mod common;

use std::{path::Path, sync::Arc, time::Duration};

use bytes::Bytes;
use common::{LEGACY, Setup, rpc, scripted, with};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use testkit::{Bin, DEADLINE, Process, soak, wait_for, within};
use tokio::{net::TcpStream, task::JoinSet};

/// A client that keeps its connection open, so that a hundred thousand calls need only a hundred ports.
struct Client {
    sender: SendRequest<Full<Bytes>>,
    host: String,
    headers: Vec<(&'static str, String)>,
    _driver: JoinSet<()>,
}

impl Client {
    async fn new(url: &str) -> Self {
        let host = url.strip_prefix("http://").unwrap().to_owned();
        let stream = TcpStream::connect(&host).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .unwrap();
        let mut driver = JoinSet::new();
        driver.spawn(async move { connection.await.unwrap() });
        Self {
            sender,
            host,
            headers: Vec::new(),
            _driver: driver,
        }
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
        for (name, value) in &self.headers {
            request = request.header(*name, value);
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request
            .body(Full::new(Bytes::from(message.to_string())))
            .unwrap();
        // The connection's task may not have noticed yet that the last response was read completely.
        self.sender.ready().await.unwrap();
        let response = within("an answer", DEADLINE, self.sender.send_request(request))
            .await
            .unwrap();
        let (head, body) = response.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let answer = if body.is_empty() {
            Value::Null
        } else {
            serde_json::from_slice(&body)
                .unwrap_or_else(|why| panic!("{why}: {}", String::from_utf8_lossy(&body)))
        };
        (head.headers, answer)
    }

    async fn initialize(&mut self) {
        let (headers, _) = self.post(&rpc::hello(LEGACY), &[]).await;
        let session = headers["mcp-session-id"].to_str().unwrap().to_owned();
        self.headers.push(("mcp-session-id", session));
    }
}

/// A hundred clients of both eras with the same ids call five servers: no response is mixed up, lost or duplicated.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g13_every_answer_reaches_its_own_caller() {
    const CLIENTS: usize = 100;
    let calls = if soak() { 1000 } else { 40 };
    let mut remote = Process::bin(
        "testkit-scripted",
        ["--http", "127.0.0.1:0", "--name", "remote"],
    );
    let mut modern = Process::bin(
        "testkit-scripted",
        [
            "--http",
            "127.0.0.1:0",
            "--era",
            "modern",
            "--name",
            "modern",
        ],
    );
    let (remote_url, modern_url) = (remote.url().await, modern.url().await);
    let many = json!({"maxConcurrency": 16});
    let gateway = Setup::new()
        .settings("naming = \"always-prefix\"\n[log]\nlevel = \"warn\"\n")
        .server(
            "single",
            with(scripted("single", &[]), json!({"maxConcurrency": 1})),
        )
        .server("many", with(scripted("many", &[]), many.clone()))
        .server("new", with(scripted("new", &["--era", "modern"]), many))
        .server("remote", json!({"url": remote_url}))
        .server("modern", json!({"url": modern_url}))
        .connected()
        .await;
    let servers = ["single", "many", "new", "remote", "modern"];
    let url: Arc<str> = gateway.url.as_str().into();
    let mut clients = JoinSet::new();
    for client in 0..CLIENTS {
        let url = url.clone();
        clients.spawn(async move {
            let is_modern = client % 2 == 1;
            let mut peer = Client::new(&url).await;
            if !is_modern {
                peer.initialize().await;
            }
            for call in 0..calls {
                let server = servers[(client + call) % servers.len()];
                // Some payloads are long, so that responses arrive in pieces.
                let pad = "p".repeat(if call % 20 == 7 { 100_000 } else { call % 50 });
                let arguments = json!({"client": client, "call": call, "pad": pad});
                let name = format!("{server}__echo");
                // Every client uses the same ids, as numbers and as strings.
                let id = if call % 3 == 0 {
                    json!(call.to_string())
                } else {
                    json!(call)
                };
                let mut message = rpc::modern_call(id.clone(), &name, arguments.clone());
                let headers = rpc::call_headers(&name);
                let mut headers = &headers[..];
                if !is_modern {
                    message["params"].as_object_mut().unwrap().remove("_meta");
                    headers = &[];
                }
                let (_, answer) = peer.post(&message, headers).await;
                assert_eq!(answer["id"], id, "client {client} call {call}: {answer}");
                let got = &answer["result"]["structuredContent"];
                assert!(
                    *got == arguments,
                    "client {client} call {call} to {server} got {answer}"
                );
            }
        });
    }
    while let Some(client) = clients.join_next().await {
        client.unwrap();
    }
    let mut total = 0;
    for server in servers {
        total += gateway.metric("calls_total", Some(server)).await.unwrap();
        assert_eq!(
            gateway.metric("calls_in_flight", Some(server)).await,
            Some(0)
        );
    }
    assert_eq!(total, (CLIENTS * calls) as u64);
}

/// The same over one stdio connection: a client that sends requests without waiting for responses.
#[tokio::test]
async fn g13_pipelined_answers_reach_their_requests() {
    let count = if soak() { 100_000 } else { 2_000 };
    let (mut client, _dir) = Setup::new()
        .settings(
            "naming = \"always-prefix\"\n[limits]\nqueue_len = 100000\n[log]\nlevel = \"warn\"\n",
        )
        .server(
            "one",
            with(scripted("one", &[]), json!({"maxConcurrency": 8})),
        )
        .server("two", scripted("two", &["--era", "modern"]))
        .stdio();
    rpc::greet(&mut client).await;
    let mut seen = vec![false; count];
    for block in 0..count / 200 {
        for n in block * 200..(block + 1) * 200 {
            let server = if n % 3 == 0 { "one" } else { "two" };
            let call = rpc::call(n, &format!("{server}__echo"), json!({ "n": n }));
            client.send(call).await;
        }
        for _ in 0..200 {
            let answer = loop {
                let message = client.receive_json().await;
                // Notifications about a server's first lists may arrive in between.
                if message.get("method").is_none() {
                    break message;
                }
            };
            let n = usize::try_from(answer["id"].as_u64().unwrap_or_else(|| panic!("{answer}")))
                .unwrap();
            assert_eq!(answer["result"]["structuredContent"]["n"], n, "{answer}");
            assert!(
                !std::mem::replace(&mut seen[n], true),
                "{n} was answered twice"
            );
        }
    }
    assert!(seen.iter().all(|seen| *seen));
}

/// Exactly this many calls are at the server at once, and all calls are answered.
#[tokio::test]
async fn g14_the_concurrency_limit_holds() {
    let gateway = Setup::new()
        .server(
            "three",
            with(scripted("three", &[]), json!({"maxConcurrency": 3})),
        )
        .server(
            "one",
            with(scripted("one", &[]), json!({"maxConcurrency": 1})),
        )
        .settings("naming = \"always-prefix\"\n")
        .connected()
        .await;
    let mut peers = [gateway.legacy().await, gateway.modern().await];
    for (server, limit) in [("three", 3), ("one", 1)] {
        let mut begun = Vec::new();
        for _ in 0..12 {
            for (at, peer) in peers.iter_mut().enumerate() {
                let params = json!({"name": format!("{server}__hold"), "arguments": {"ms": 20}});
                begun.push((at, peer.begin("tools/call", params).await));
            }
        }
        for (at, id) in begun {
            let response = peers[at].finish(id).await;
            assert_eq!(response["result"]["content"][0]["text"], "held");
        }
        let counted = peers[0]
            .tool(&format!("{server}__counter"), json!({}))
            .await;
        let counted = &counted.result()["structuredContent"];
        assert_eq!(
            *counted,
            json!({"now": 0, "max": limit, "total": 24}),
            "{server}"
        );
    }
}

/// A server whose input is also written to `file`.
fn recorded(file: &Path) -> Value {
    json!({
        "command": "sh",
        "args": ["-c", "tee \"$0\" | exec \"$1\"", file, Bin::path("testkit-scripted")],
    })
}

/// Returns the calls in the order in which the server received them, by their argument `n`.
fn order(file: &Path) -> Vec<u64> {
    let text = std::fs::read_to_string(file).unwrap();
    let frames = text
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    frames
        .filter_map(|frame| frame["params"]["arguments"]["n"].as_u64())
        .collect()
}

/// Queued calls reach a server in the order of arrival, over HTTP …
#[tokio::test]
async fn g14_the_rest_queue_in_order() {
    let setup = Setup::new().settings("[limits]\nqueue_len = 10\n");
    let file = setup.folder().join("recorded");
    let one = with(recorded(&file), json!({"maxConcurrency": 1}));
    let gateway = setup.server("one", one).connected().await;
    let mut clients = [gateway.modern().await, gateway.legacy().await];
    let first = clients[0]
        .begin(
            "tools/call",
            json!({"name": "hold", "arguments": {"ms": 1500, "n": 0}}),
        )
        .await;
    gateway.in_flight("one", 1, DEADLINE).await;
    let mut begun = vec![(0, first)];
    for n in 1..=10u64 {
        let at = usize::try_from(n % 2).unwrap();
        begun.push((
            at,
            clients[at]
                .begin("tools/call", json!({"name": "echo", "arguments": {"n": n}}))
                .await,
        ));
        wait_for("the next queued call", DEADLINE, async || {
            gateway.metric("calls_waiting", Some("one")).await == Some(n)
        })
        .await;
    }
    // The queue is full: one more call is refused at once.
    let refused = within(
        "a refusal at once",
        Duration::from_secs(1),
        clients[0].tool("echo", json!({"n": 99})),
    )
    .await;
    assert_eq!(
        refused.response["error"]["data"]["reason"], "server_busy",
        "{refused:?}"
    );
    assert!(refused.response["error"]["data"]["retryAfterMs"].is_u64());
    for (at, id) in begun {
        let response = clients[at].finish(id).await;
        assert!(response.get("result").is_some(), "{response}");
    }
    assert_eq!(order(&file), (0..=10).collect::<Vec<_>>());
}

/// … and over stdio, where the order of the lines is the order of the requests.
#[tokio::test]
async fn g14_lines_of_a_pipe_stay_in_order() {
    let setup = Setup::new().settings("[limits]\nqueue_len = 1000\n");
    let file = setup.folder().join("recorded");
    let (mut client, _dir) = setup.server("one", recorded(&file)).stdio();
    rpc::greet(&mut client).await;
    let lines: Vec<String> = (0..500)
        .map(|n| rpc::call(n, "echo", json!({ "n": n })) + "\n")
        .collect();
    client.send_bytes(lines.concat().as_bytes()).await;
    let mut answered = 0;
    while answered < 500 {
        let message = client.receive_json().await;
        // If the server started after the client, there are notifications as well.
        if message.get("id").is_some() {
            assert!(message.get("result").is_some(), "{message}");
            answered += 1;
        }
    }
    assert_eq!(order(&file), (0..500).collect::<Vec<_>>());
}
