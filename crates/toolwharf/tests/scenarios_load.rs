//! Scenarios G13, G14, H17 and O09: many clients at once, the order and limit of calls to one server, more calls than it
//! can handle, and servers that exceed their limits.

#![expect(clippy::unwrap_used, reason = "test helpers may panic")]

mod common;

use std::{path::Path, sync::Arc, time::Duration};

use bytes::Bytes;
use common::{
    LEGACY, Setup, rpc, scripted,
    steps::{begin_tool, hold_many},
    with,
};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use testkit::{Bin, DEADLINE, Process, soak, wait_for, within};
use tokio::{
    net::TcpStream,
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval_at},
};

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
        let own = self.headers.iter();
        let own = own.map(|(name, value)| (*name, value.as_str()));
        for (name, value) in own.chain(headers.iter().copied()) {
            request = request.header(name, value);
        }
        let body = Full::new(Bytes::from(message.to_string()));
        let request = request.body(body).unwrap();
        // The connection's task may not have noticed yet that the last response was read completely.
        self.sender.ready().await.unwrap();
        let response = self.sender.send_request(request);
        let response = within("an answer", DEADLINE, response).await;
        let (head, body) = response.unwrap().into_parts();
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

/// A scripted server that gets this many calls at a time.
fn at_a_time(name: &str, options: &[&str], count: usize) -> Value {
    with(scripted(name, options), json!({ "maxConcurrency": count }))
}

/// A hundred clients of both eras with the same ids call five servers: no response is mixed up, lost or duplicated.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g13_every_answer_reaches_its_own_caller() {
    const CLIENTS: usize = 100;
    // The records of millions of calls would need gigabytes.
    let (calls, records) = match soak() {
        true => (90_000, "[audit]\nenabled = false\n"),
        false => (40, ""),
    };
    let http = ["--http", "127.0.0.1:0"];
    let modern = &["--era", "modern"][..];
    let mut remote = Process::bin("testkit-scripted", http);
    let mut new_remote = Process::bin("testkit-scripted", [&http[..], modern].concat());
    let gateway = Setup::new()
        .settings(&format!(
            "naming = \"always-prefix\"\n[log]\nlevel = \"warn\"\n{records}"
        ))
        .server("single", at_a_time("single", &[], 1))
        .server("many", at_a_time("many", &[], 16))
        .server("new", at_a_time("new", modern, 16))
        .server("remote", json!({"url": remote.url().await}))
        .server("modern", json!({"url": new_remote.url().await}))
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
        let left = gateway.metric("calls_in_flight", Some(server)).await;
        assert_eq!(left, Some(0), "{server}");
    }
    assert_eq!(total, (CLIENTS * calls) as u64);
    eprintln!("cross-talk: each of {total} responses reached its caller (bound: all)");
}

/// The same holds over one stdio connection, whose client sends requests without waiting for responses.
#[tokio::test]
async fn g13_pipelined_answers_reach_their_requests() {
    let (count, records) = match soak() {
        true => (1_000_000, "[audit]\nenabled = false\n"),
        false => (2_000, ""),
    };
    let limits = "[limits]\nqueue_len = 100000\n[log]\nlevel = \"warn\"\n";
    let (mut client, _dir) = Setup::new()
        .settings(&format!("naming = \"always-prefix\"\n{limits}{records}"))
        .server("one", at_a_time("one", &[], 8))
        .scripted("two", &["--era", "modern"])
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
            let n = answer["id"].as_u64();
            let n = usize::try_from(n.unwrap_or_else(|| panic!("{answer}"))).unwrap();
            assert_eq!(answer["result"]["structuredContent"]["n"], n, "{answer}");
            let again = std::mem::replace(&mut seen[n], true);
            assert!(!again, "{n} was answered twice");
        }
    }
    assert!(seen.iter().all(|seen| *seen));
    eprintln!("cross-talk: each of {count} pipelined responses reached its request (bound: all)");
}

/// Calls that the server handles at a time, and that wait for it.
const AT_ONCE: usize = 8;
const QUEUE_LEN: usize = 16;
/// Time between two calls of one client under overload.
const CALL_INTERVAL: Duration = Duration::from_millis(500);

/// The load of many clients, each of which waits for the response to its call before it makes the next one.
struct Load {
    clients: usize,
    /// From one call of a client to its next one, unless a response comes later.
    interval: Duration,
    /// The duration of a call at the server.
    hold: Duration,
    length: Duration,
}

impl Load {
    /// Makes the calls. Returns how many were answered, and how long each refusal took.
    async fn run(&self, url: &str) -> (usize, Vec<Duration>) {
        let mut clients = Vec::new();
        for _ in 0..self.clients {
            clients.push(Client::new(url).await);
        }
        let start = Instant::now();
        let until = start + self.length;
        let call = rpc::modern_call(1, "hold", json!({"ms": self.hold.as_millis() as u64}));
        let mut tasks = JoinSet::new();
        for (n, mut client) in (0u32..).zip(clients) {
            // The clients do not all call at the same moment.
            let first = start + self.interval * n / u32::try_from(self.clients).unwrap();
            let mut tick = interval_at(first, self.interval);
            tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
            let call = call.clone();
            tasks.spawn(async move {
                let (mut answered, mut refusals) = (0, Vec::new());
                loop {
                    tick.tick().await;
                    let begin = Instant::now();
                    if begin >= until {
                        return (answered, refusals);
                    }
                    let (_, answer) = client.post(&call, &rpc::call_headers("hold")).await;
                    if answer.get("result").is_some() {
                        answered += usize::from(Instant::now() < until);
                    } else {
                        let reason = &answer["error"]["data"]["reason"];
                        assert_eq!(reason, "server_busy", "{answer}");
                        refusals.push(begin.elapsed());
                    }
                }
            });
        }
        let (mut answered, mut refusals) = (0, Vec::new());
        for (of_client, refused) in tasks.join_all().await {
            answered += of_client;
            refusals.extend(refused);
        }
        (answered, refusals)
    }
}

/// A server whose calls sleep gets ten and fifty times the calls that it can handle. It answers about as many as without
/// overload, and the others are refused at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o09_an_overload_costs_no_goodput() {
    // A short run is too coarse for the bounds, and other tests compete with it.
    let factors: &[usize] = if soak() { &[10, 50] } else { &[10] };
    let (hold, length, min_share, max_refusal) = match soak() {
        true => (800, 60, 0.9, 50),
        false => (400, 4, 0.5, 1000),
    };
    let (hold, length) = (Duration::from_millis(hold), Duration::from_secs(length));
    let gateway = Setup::new()
        .settings(&format!("[limits]\nqueue_len = {QUEUE_LEN}\n"))
        .server("one", at_a_time("one", &[], AT_ONCE))
        .connected()
        .await;
    // As many clients as the server and its queue have room for.
    let full = Load {
        clients: AT_ONCE + QUEUE_LEN / 2,
        interval: Duration::from_millis(1),
        hold,
        length,
    };
    let (peak, refused) = full.run(&gateway.url).await;
    assert!(refused.is_empty(), "a call was refused without overload");
    for &factor in factors {
        // The clients whose calls are accepted make fewer calls than the others.
        let per_interval = CALL_INTERVAL.as_secs_f64() / hold.as_secs_f64();
        let calls = (AT_ONCE * factor) as f64 * per_interval;
        let over = Load {
            clients: calls as usize + AT_ONCE + QUEUE_LEN,
            interval: CALL_INTERVAL,
            hold,
            length,
        };
        let (answered, mut refused) = over.run(&gateway.url).await;
        let share = answered as f64 / peak as f64;
        refused.sort_unstable();
        assert!(!refused.is_empty(), "no call was refused");
        let p99 = refused[refused.len() * 99 / 100];
        eprintln!(
            "overload: {factor} times the capacity: {:.0} % of the peak (bound 90 %), p99 of {} refusals {p99:?} (bound \
             50 ms)",
            share * 100.0,
            refused.len()
        );
        assert!(share >= min_share, "{answered} of {peak}");
        assert!(p99 <= Duration::from_millis(max_refusal), "{p99:?}");
    }
}

/// Makes calls one after the other. Returns the duration below which 99 % of them are.
async fn p99(client: &mut Client, tool: &str, count: usize) -> Duration {
    let mut times = Vec::new();
    for n in 0..count {
        let begin = Instant::now();
        let call = rpc::modern_call(n, tool, json!({"n": n}));
        let (_, answer) = client.post(&call, &rpc::call_headers(tool)).await;
        assert_eq!(answer["result"]["structuredContent"]["n"], n, "{answer}");
        times.push(begin.elapsed());
    }
    times.sort_unstable();
    times[times.len() * 99 / 100]
}

/// Sandboxed servers that use as much as they can of a resource delay the calls of another server little.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn h17_hogs_delay_their_neighbours_little() {
    const MAX_SLOWDOWN: f64 = 1.5;
    let count = if soak() { 5_000 } else { 100 };
    let hogs = [
        ("alloc", json!({"mib": 256})),
        ("bomb", json!({"ms": 1000})),
        ("burn", json!({"ms": 1000})),
        ("flood_disk", json!({"path": "/data/full", "ms": 1000})),
        ("flood", json!({"bytes": 100_000_000})),
        ("stderr", json!({"bytes": 50_000_000, "newlines": true})),
    ];
    let limits = json!({"cpu": 0.5, "memory": "64M", "disk": "64M", "pids": 32});
    let limited = json!({"sandbox": limits, "volumes": ["/data"]});
    let mut setup = Setup::new()
        .settings("naming = \"always-prefix\"\n[hosting]\nproviders = [\"process\"]\n")
        .scripted("good", &[]);
    for n in 0..hogs.len() {
        let name = format!("hog{n}");
        setup = setup.tuned(&name, limited.clone());
    }
    let gateway = setup.connected().await;
    let mut client = Client::new(&gateway.url).await;
    let calm = p99(&mut client, "good__echo", count).await;
    let mut worst = 0.0_f64;
    for (n, (tool, arguments)) in hogs.into_iter().enumerate() {
        let name = format!("hog{n}__{tool}");
        let mut hog = Client::new(&gateway.url).await;
        let mut task = JoinSet::new();
        task.spawn(async move {
            let call = rpc::modern_call(1, &name, arguments);
            let mut tick = tokio::time::interval(Duration::from_millis(100));
            loop {
                tick.tick().await;
                hog.post(&call, &rpc::call_headers(&name)).await;
            }
        });
        let beside = p99(&mut client, "good__echo", count).await;
        drop(task);
        let slowdown = beside.as_secs_f64() / calm.as_secs_f64();
        eprintln!("hogs: p99 of another server {calm:?}, beside {tool} {beside:?}");
        worst = worst.max(slowdown);
    }
    eprintln!(
        "hogs: p99 of another server at most {worst:.2} times as long (bound {MAX_SLOWDOWN})"
    );
    // Other tests slow it down more in a short run.
    assert!(!soak() || worst <= MAX_SLOWDOWN, "{worst}");
}

/// Exactly this many calls are at the server at once, and all calls are answered.
#[tokio::test]
async fn g14_the_concurrency_limit_holds() {
    let gateway = Setup::new()
        .server("three", at_a_time("three", &[], 3))
        .server("one", at_a_time("one", &[], 1))
        .settings("naming = \"always-prefix\"\n")
        .connected()
        .await;
    let mut peers = [gateway.legacy().await, gateway.modern().await];
    for (server, limit) in [("three", 3), ("one", 1)] {
        hold_many(&mut peers, 12, &format!("{server}__hold"), 20).await;
        let counter = format!("{server}__counter");
        let counted = peers[0].tool(&counter, json!({})).await;
        let expected = json!({"now": 0, "max": limit, "total": 24});
        assert_eq!(counted.result()["structuredContent"], expected, "{server}");
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
    let frames = text.lines().map(serde_json::from_str::<Value>);
    let numbers = frames.map(|frame| frame.unwrap()["params"]["arguments"]["n"].as_u64());
    numbers.flatten().collect()
}

/// Over HTTP, queued calls reach a server in the order of arrival.
#[tokio::test]
async fn g14_the_rest_queue_in_order() {
    let setup = Setup::new().settings("[limits]\nqueue_len = 10\n");
    let file = setup.folder().join("recorded");
    let one = with(recorded(&file), json!({"maxConcurrency": 1}));
    let gateway = setup.server("one", one).connected().await;
    let mut clients = [gateway.modern().await, gateway.legacy().await];
    let first = json!({"ms": 1500, "n": 0});
    let first = begin_tool(&mut clients[0], "hold", first).await;
    gateway.in_flight("one", 1, DEADLINE).await;
    let mut begun = vec![(0, first)];
    for n in 1..=10u64 {
        let at = usize::try_from(n % 2).unwrap();
        let id = begin_tool(&mut clients[at], "echo", json!({"n": n})).await;
        begun.push((at, id));
        wait_for("the next queued call", DEADLINE, async || {
            gateway.metric("calls_waiting", Some("one")).await == Some(n)
        })
        .await;
    }
    // The queue is full: one more call is refused at once.
    let refused = clients[0].tool("echo", json!({"n": 99}));
    let refused = within("a refusal at once", Duration::from_secs(1), refused).await;
    let data = &refused.response["error"]["data"];
    assert_eq!(data["reason"], "server_busy", "{refused:?}");
    assert!(data["retryAfterMs"].is_u64());
    for (at, id) in begun {
        let response = clients[at].finish(id).await;
        assert!(response.get("result").is_some(), "{response}");
    }
    assert_eq!(order(&file), (0..=10).collect::<Vec<_>>());
}

/// Over stdio, queued calls reach a server in the order of their lines.
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
