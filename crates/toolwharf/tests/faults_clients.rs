//! Clients that disconnect, do not read, or read slowly: their requests are cancelled, their memory is bounded, and
//! other clients are not affected.

#![expect(clippy::unwrap_used, reason = "test helpers may panic")]

mod common;

use std::time::Duration;

use common::{
    Gateway, KINDS, LEGACY, Setup, counts, echo, rpc,
    wire::{self, narrow},
};
use serde_json::{Value, json};
use testkit::{DEADLINE, Peer, at_once, peer, soak, wait_for, within};
use tokio::{io::AsyncWriteExt, time::Instant};

/// The text of a modern tool call with this progress token.
fn modern_call(tool: &str, arguments: Value, token: &str) -> String {
    let mut body = rpc::modern_call(1, tool, arguments);
    body["params"]["_meta"]["progressToken"] = token.into();
    wire::post("/mcp", &rpc::call_headers(tool), &body.to_string())
}

/// Asserts that another client's call is answered in time.
async fn others_are_served(peer: &mut Peer, limit: Duration) {
    within("another's answer", limit, echo(peer, "echo", 1)).await;
}

/// A call whose events are not read uses bounded memory, and occupies the server only until the server has answered.
#[tokio::test]
async fn an_unread_stream_of_a_call_blocks_no_one() {
    let setup = Setup::new().tuned("one", json!({"maxConcurrency": 1}));
    let gateway = setup.connected().await;
    let before = gateway.memory_peak();
    // Every notification repeats a progress token of a megabyte, so the kernel's buffers are soon full.
    let token = "t".repeat(1 << 20);
    let call = modern_call("progress", json!({"count": 150, "ms": 10}), &token);
    let mut dead = narrow(&gateway).await;
    dead.write_all(call.as_bytes()).await.unwrap();
    let head = wire::read(&mut dead).await;
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    // The server takes one call at a time. The next call waits until the unread call has ended, and no longer.
    let mut peer = gateway.legacy().await;
    others_are_served(&mut peer, Duration::from_secs(15)).await;
    let grown = gateway.memory_peak() - before;
    assert!(grown < 64 * 1024, "memory grew by {grown} KiB");
}

/// A stream that is not read uses bounded memory. Other streams and calls are not affected.
#[tokio::test]
async fn an_unread_session_stream_costs_bounded_memory() {
    const UPDATED: &str = "notifications/resources/updated";
    let gateway = Setup::new()
        .scripted("one", &["--resources", "1"])
        .settings("[limits]\nclient_queue_len = 64\n")
        .connected()
        .await;
    let uri = "resource://one/scripted://0";
    let reply = rpc::initialize(&gateway.client(), LEGACY).await;
    let session = reply.header("mcp-session-id").unwrap();
    let client = gateway.client().with("mcp-session-id", session);
    let subscribe = rpc::message(2, "resources/subscribe", json!({"uri": uri}));
    assert_eq!(client.post(subscribe.to_string()).await.status, 200);
    let mut dead = narrow(&gateway).await;
    let open = wire::head("GET", "/mcp", &[("mcp-session-id", session)], 0);
    dead.write_all(open.as_bytes()).await.unwrap();
    wire::read(&mut dead).await;
    // One client reads slowly, another reads everything.
    let mut slow = gateway.modern().await;
    slow.subscribe(&[uri]).await;
    let mut good = gateway.legacy().await;
    good.subscribe(&[uri]).await;
    let mut source = gateway.modern().await;
    let before = gateway.memory_peak();
    let pad = "p".repeat(100_000);
    for n in 0..200 {
        let params = json!({"uri": "scripted://0", "n": n, "pad": pad});
        let arguments = json!({"method": UPDATED, "params": params});
        let start = Instant::now();
        assert_eq!(source.tool("notify", arguments).await.text(), "notified");
        at_once("the call", start);
        let told = good.notification(UPDATED, DEADLINE).await;
        let told = told.expect("an update");
        assert_eq!(told["params"]["n"], n, "an update is missing");
    }
    let grown = gateway.memory_peak() - before;
    // 64 messages for each of the two clients, plus kernel and allocator overhead.
    assert!(grown < 48 * 1024, "memory grew by {grown} KiB");
    let told = slow.notification(UPDATED, DEADLINE).await;
    assert!(told.is_some(), "the slow client gets no more messages");
}

/// Long responses that are not read do not block the next call, and the server is free again.
#[tokio::test]
async fn unread_answers_block_no_one() {
    let gateway = Setup::new().scripted("one", &[]).connected().await;
    let call = modern_call("big", json!({"bytes": 2_000_000}), "t");
    let mut dead = Vec::new();
    for _ in 0..8 {
        let mut socket = narrow(&gateway).await;
        socket.write_all(call.as_bytes()).await.unwrap();
        dead.push(socket);
    }
    let mut peer = gateway.modern().await;
    others_are_served(&mut peer, Duration::from_secs(10)).await;
    gateway.in_flight("one", 0, DEADLINE).await;
    drop(dead);
    echo(&mut peer, "echo", 2).await;
}

/// A stdio client that does not read its pipe uses bounded memory. When the pipe is closed, the gateway exits.
#[tokio::test]
async fn an_unread_pipe_is_bounded_and_ends() {
    let (mut client, _dir) = Setup::new()
        .tuned("one", json!({"maxConcurrency": 4}))
        .settings("[limits]\nstop_grace = \"1s\"\n")
        .stdio();
    client.ask(rpc::hello(LEGACY)).await;
    let pid = rpc::message(1, "tools/call", json!({"name": "pid"}));
    let pid = client.ask(pid).await;
    let pid = pid["result"]["content"][0]["text"].as_str().unwrap();
    let child: u32 = pid.parse().unwrap();
    for id in 2..32 {
        let call = rpc::call(id, "big", json!({"bytes": 4_000_000}));
        client.send(call).await;
    }
    let gateway = client.process().pid();
    // Once the child is idle, all output has been buffered or dropped.
    let mut last = (0, Instant::now());
    wait_for("the flood to end", DEADLINE, async || {
        let now = common::private(gateway);
        if now != last.0 {
            last = (now, Instant::now());
        }
        last.1.elapsed() > Duration::from_secs(2)
    })
    .await;
    let peak = common::memory(gateway, "VmHWM:");
    assert!(peak < 300 * 1024, "peak memory: {peak} KiB");
    client.close_stdin();
    client.process().wait(Duration::from_secs(20)).await;
    common::gone(&[child], true, Duration::from_secs(2)).await;
}

async fn cancelled(gateway: &Gateway, server: &str) -> u64 {
    let mut peer = gateway.modern().await;
    let tool = format!("{server}__cancelled_count");
    let count = peer.tool(&tool, json!({})).await;
    count.text().parse().unwrap()
}

/// A client that disconnects or cancels during a call cancels the call at the server. The test tries all ways to do so,
/// with every kind of server.
#[tokio::test]
async fn a_client_that_goes_cancels_its_call() {
    let many = json!({"maxConcurrency": 8, "callTimeoutMs": 120_000});
    let setup = Setup::new().settings("naming = \"always-prefix\"\n");
    let (setup, _remote) = setup.every_kind(&many).await;
    let gateway = setup.serve().await;
    for server in KINDS {
        gateway.up(server).await;
        let params = json!({"name": format!("{server}__slow"), "arguments": {"ms": 100_000}});
        let running = async || {
            gateway.in_flight(server, 1, DEADLINE).await;
            // Waits until the call has reached the server itself.
            let running = format!("{server}__running");
            counts(&mut gateway.modern().await, &running, 1, DEADLINE).await;
        };
        let mut expected = 0;
        let mut ended = async |how: &str| {
            expected += 1;
            let what = format!("the cancellation at {server} after {how}");
            wait_for(&what, Duration::from_secs(5), async || {
                cancelled(&gateway, server).await == expected
            })
            .await;
        };
        // A modern client closes its stream.
        let mut modern = gateway.modern().await;
        let id = modern.begin("tools/call", params.clone()).await;
        running().await;
        modern.cancel(id).await;
        ended("a closed stream").await;
        // A legacy client sends a cancellation.
        let mut legacy = gateway.legacy().await;
        let id = legacy.begin("tools/call", params.clone()).await;
        running().await;
        legacy.cancel(id).await;
        ended("notifications/cancelled").await;
        // A legacy client loses its connection.
        let mut legacy = Peer::http(gateway.client(), LEGACY, peer::all_capabilities()).await;
        legacy.begin("tools/call", params.clone()).await;
        running().await;
        drop(legacy);
        ended("a lost connection").await;
        // A client over HTTP+SSE sends a cancellation, then loses its connection.
        let mut oldest = Peer::sse(gateway.at("/sse"), json!({})).await;
        let id = oldest.begin("tools/call", params.clone()).await;
        running().await;
        oldest.cancel(id).await;
        ended("notifications/cancelled over SSE").await;
        oldest.begin("tools/call", params.clone()).await;
        running().await;
        drop(oldest);
        ended("a lost SSE stream").await;
        let in_flight = gateway.metric("calls_in_flight", Some(server)).await;
        assert_eq!(in_flight, Some(0));
    }
}

/// DELETE ends a session and its calls in flight.
#[tokio::test]
async fn the_end_of_a_session_ends_its_calls() {
    let limit = Duration::from_secs(5);
    let setup = Setup::new().tuned("one", json!({"maxConcurrency": 4}));
    let gateway = setup.connected().await;
    let client = rpc::session(gateway.client(), LEGACY).await;
    let call = rpc::call(2, "slow", json!({"ms": 60_000}));
    let calling = client.clone();
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn(async move { calling.post(call).await });
    // Waits until the call is at the server. It is queued and recorded a moment earlier.
    let mut peer = gateway.modern().await;
    counts(&mut peer, "running", 1, DEADLINE).await;
    assert_eq!(client.delete(&[]).await.status, 204);
    gateway.in_flight("one", 0, limit).await;
    // The client, which still waits for the response, gets an error.
    let reply = within("an end of the answer", limit, tasks.join_next()).await;
    assert!(reply.unwrap().is_ok());
    counts(&mut peer, "cancelled_count", 1, limit).await;
}

/// A client that sends its request byte by byte, or only half of it, delays no other client.
#[tokio::test]
async fn half_a_request_blocks_no_one() {
    let gateway = Setup::new().scripted("one", &[]).connected().await;
    let text = modern_call("echo", json!({"n": 3}), "t");
    let mut halves = Vec::new();
    for at in [1, 20, 200, text.len() - 1] {
        let mut socket = narrow(&gateway).await;
        socket.write_all(&text.as_bytes()[..at]).await.unwrap();
        halves.push(socket);
    }
    let mut drip = narrow(&gateway).await;
    drip.set_nodelay(true).unwrap();
    for byte in text.as_bytes() {
        drip.write_all(&[*byte]).await.unwrap();
        tokio::task::yield_now().await;
    }
    let answer = wire::read(&mut drip).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    echo(&mut gateway.legacy().await, "echo", 1).await;
    drop(halves);
    let calls = gateway.metric("calls_total", Some("one")).await;
    assert_eq!(calls, Some(2), "half a request was forwarded");
}

/// Limit of the memory of an idle stream.
const MAX_STREAM_KIB: u64 = 10;

/// Asserts that so many streams cost the gateway little memory.
fn cost_little(kind: &str, grown: u64, count: u64) {
    let each = grown as f64 / count as f64;
    eprintln!("idle: {each:.1} KiB for each of {count} {kind} (bound {MAX_STREAM_KIB} KiB)");
    assert!(
        grown <= MAX_STREAM_KIB * count,
        "memory grew by {grown} KiB"
    );
}

/// Idle streams of legacy clients use little memory: those of sessions, and those over HTTP+SSE.
#[tokio::test]
async fn idle_streams_of_legacy_clients_cost_little() {
    let (warm, count) = if soak() { (500, 6_000) } else { (50, 300) };
    wire::raise_file_limit();
    for kind in ["streams of sessions", "streams over HTTP+SSE"] {
        let gateway = Setup::new().scripted("one", &[]).connected().await;
        let open = async |count: u64| {
            let mut streams = Vec::new();
            for _ in 0..count {
                let stream = if kind == "streams of sessions" {
                    let session = rpc::session(gateway.client(), LEGACY).await;
                    session.get(&[("accept", "text/event-stream")]).await
                } else {
                    gateway.at("/sse").get(&[]).await
                };
                assert!(stream.is_event_stream(), "{}", stream.status);
                streams.push(stream);
            }
            streams
        };
        drop(open(warm).await);
        let before = gateway.memory_now();
        let streams = open(count).await;
        let grown = gateway.memory_now().saturating_sub(before);
        cost_little(kind, grown, count);
        drop(streams);
    }
}

/// An idle subscription stream uses as little memory as other streams.
#[tokio::test]
async fn an_idle_subscription_of_a_modern_client_costs_little() {
    let (warm, count) = if soak() { (500, 6_000) } else { (50, 500) };
    wire::raise_file_limit();
    let gateway = Setup::new().scripted("one", &[]).connected().await;
    let open = async |count: u64| {
        let mut streams = Vec::new();
        for _ in 0..count {
            let mut stream = rpc::listen(&gateway.client()).await;
            assert!(stream.is_event_stream(), "{}", stream.status);
            let acknowledged = stream.next_json(DEADLINE).await.unwrap();
            let method = &acknowledged["method"];
            assert_eq!(method, "notifications/subscriptions/acknowledged");
            streams.push(stream);
        }
        streams
    };
    let listeners = async |count| {
        wait_for("as many listeners", DEADLINE, async || {
            gateway.metric("listeners", None).await == Some(count)
        })
        .await;
    };
    drop(open(warm).await);
    listeners(0).await;
    let before = gateway.memory_now();
    let mut streams = open(count).await;
    listeners(count).await;
    let grown = gateway.memory_now().saturating_sub(before);
    cost_little("subscriptions of modern clients", grown, count);
    // Each subscribed client is notified of a change, and of the shutdown.
    let mut peer = gateway.modern().await;
    peer.tool("set_tools", json!({"count": 2})).await;
    for stream in &mut streams {
        let changed = stream.next_json(DEADLINE).await.unwrap();
        assert_eq!(changed["method"], "notifications/tools/list_changed");
    }
    gateway.process.signal(rustix::process::Signal::TERM);
    let end = streams[0].next_json(DEADLINE).await.unwrap();
    assert_eq!(end["result"]["resultType"], "complete", "{end}");
}
