//! Clients that disconnect, do not read, or read slowly: their requests are cancelled, their memory is bounded, and
//! other clients are not affected.

#![expect(clippy::unwrap_used, reason = "test helpers may panic")]

mod common;

use std::time::Duration;

use common::{Gateway, LEGACY, Setup, scripted, with};
use serde_json::{Value, json};
use testkit::{DEADLINE, Peer, Process, at_once, peer, wait_for, wait_for_some, within};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
    time::Instant,
};

const MODERN_VERSION: &str = "2026-07-28";

/// A connection with the smallest possible receive buffer.
async fn narrow(gateway: &Gateway) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let address = gateway
        .url
        .strip_prefix("http://")
        .unwrap()
        .parse()
        .unwrap();
    socket.connect(address).await.unwrap()
}

fn head(method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> String {
    let mut head = format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         accept: application/json, text/event-stream\r\ncontent-length: {}\r\n",
        body.len()
    );
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head + "\r\n" + body
}

/// The text of a modern tool call.
fn modern_call(tool: &str, arguments: Value) -> String {
    let meta = json!({
        "progressToken": "t",
        "io.modelcontextprotocol/protocolVersion": MODERN_VERSION,
        "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let params = json!({"name": tool, "arguments": arguments, "_meta": meta});
    let body =
        json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).to_string();
    let headers = [
        ("mcp-protocol-version", MODERN_VERSION),
        ("mcp-method", "tools/call"),
        ("mcp-name", tool),
    ];
    head("POST", "/mcp", &headers, &body)
}

/// A call whose events are not read uses bounded memory, and holds its place at the server only as long as the server
/// needs.
#[tokio::test]
async fn an_unread_stream_of_a_call_blocks_no_one() {
    let one = with(scripted("one", &[]), json!({"maxConcurrency": 1}));
    let gateway = Setup::new().server("one", one).serve().await;
    gateway.up("one").await;
    let before = gateway.memory_peak();
    // A progress token of a megabyte is repeated in every notification: soon more than kernel buffers hold.
    let call = modern_call("progress", json!({"count": 150, "ms": 10}));
    let call = call.replace(
        "\"progressToken\":\"t\"",
        &format!("\"progressToken\":\"{}\"", "t".repeat(1 << 20)),
    );
    let body = call.split_once("\r\n\r\n").unwrap().1;
    let headers = [
        ("mcp-protocol-version", MODERN_VERSION),
        ("mcp-method", "tools/call"),
        ("mcp-name", "progress"),
    ];
    let call = head("POST", "/mcp", &headers, body);
    let mut dead = narrow(&gateway).await;
    dead.write_all(call.as_bytes()).await.unwrap();
    let mut first = [0; 64];
    let count = within("the head of the stream", DEADLINE, dead.read(&mut first))
        .await
        .unwrap();
    assert!(first[..count].starts_with(b"HTTP/1.1 200"));
    // The server takes one call at a time. This call waits until the other one has ended, and no longer.
    let mut peer = gateway.legacy().await;
    let answer = within(
        "another's answer",
        Duration::from_secs(15),
        peer.tool("echo", json!({"n": 1})),
    )
    .await;
    assert_eq!(answer.result()["structuredContent"]["n"], 1, "{answer:?}");
    let grown = gateway.memory_peak() - before;
    assert!(grown < 64 * 1024, "{grown} KiB more");
}

/// A stream that is not read uses bounded memory. Other streams and calls are not affected.
#[tokio::test]
async fn an_unread_session_stream_costs_bounded_memory() {
    let gateway = Setup::new()
        .scripted("one", &["--resources", "1"])
        .settings("[limits]\nclient_queue_len = 64\n")
        .connected()
        .await;
    let uri = "resource://one/scripted://0";
    let params = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}});
    let hello = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params});
    let reply = gateway.client().post(hello.to_string()).await;
    let session = reply.header("mcp-session-id").unwrap().to_owned();
    let client = gateway.client().with("mcp-session-id", &session);
    let subscribe =
        json!({"jsonrpc": "2.0", "id": 2, "method": "resources/subscribe", "params": {"uri": uri}});
    assert_eq!(client.post(subscribe.to_string()).await.status, 200);
    let mut dead = narrow(&gateway).await;
    let open = head("GET", "/mcp", &[("mcp-session-id", &session)], "");
    dead.write_all(open.as_bytes()).await.unwrap();
    let mut first = [0; 16];
    within("the head of the stream", DEADLINE, dead.read(&mut first))
        .await
        .unwrap();
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
        let arguments = json!({"method": "notifications/resources/updated", "params": params});
        let start = Instant::now();
        assert_eq!(source.tool("notify", arguments).await.text(), "notified");
        at_once("the call", start);
        let told = good
            .notification("notifications/resources/updated", DEADLINE)
            .await
            .expect("an update");
        assert_eq!(told["params"]["n"], n, "an update is missing");
    }
    let grown = gateway.memory_peak() - before;
    // 64 messages for each of the two clients, plus kernel and allocator overhead.
    assert!(grown < 48 * 1024, "{grown} KiB more");
    let told = slow
        .notification("notifications/resources/updated", DEADLINE)
        .await;
    assert!(told.is_some(), "the slow client gets no more messages");
}

/// Long responses that are not read do not block the next call, and the server is free again.
#[tokio::test]
async fn unread_answers_block_no_one() {
    let gateway = Setup::new().scripted("one", &[]).serve().await;
    gateway.up("one").await;
    let mut dead = Vec::new();
    for _ in 0..8 {
        let mut socket = narrow(&gateway).await;
        socket
            .write_all(modern_call("big", json!({"bytes": 2_000_000})).as_bytes())
            .await
            .unwrap();
        dead.push(socket);
    }
    let mut peer = gateway.modern().await;
    let answer = within(
        "another's answer",
        Duration::from_secs(10),
        peer.tool("echo", json!({"n": 1})),
    )
    .await;
    assert_eq!(answer.result()["structuredContent"]["n"], 1);
    wait_for("the places", DEADLINE, async || {
        gateway.metric("calls_in_flight", Some("one")).await == Some(0)
    })
    .await;
    drop(dead);
    let answer = peer.tool("echo", json!({"n": 2})).await;
    assert_eq!(answer.result()["structuredContent"]["n"], 2);
}

/// A pipe that is not read uses bounded memory. When it is closed, the gateway exits.
#[tokio::test]
async fn an_unread_pipe_is_bounded_and_ends() {
    let (mut client, _dir) = Setup::new()
        .server(
            "one",
            with(scripted("one", &[]), json!({"maxConcurrency": 4})),
        )
        .settings("[limits]\nstop_grace = \"1s\"\n")
        .stdio();
    let params = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}});
    client
        .ask(json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}))
        .await;
    let pid = client
        .ask(json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "pid"}}))
        .await;
    let child: u32 = pid["result"]["content"][0]["text"]
        .as_str()
        .unwrap()
        .parse()
        .unwrap();
    for id in 2..32 {
        let params = json!({"name": "big", "arguments": {"bytes": 4_000_000}});
        client
            .send_json(
                &json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}),
            )
            .await;
    }
    let gateway = client.process().pid();
    // When the child is idle, everything that can be buffered is buffered or dropped.
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
    assert!(peak < 300 * 1024, "{peak} KiB");
    client.close_stdin();
    client.process().wait(Duration::from_secs(20)).await;
    common::gone(&[child], true, Duration::from_secs(2)).await;
}

async fn cancelled(gateway: &Gateway, server: &str) -> u64 {
    let mut peer = gateway.modern().await;
    let count = peer
        .tool(&format!("{server}__cancelled_count"), json!({}))
        .await;
    count.text().parse().unwrap()
}

/// A client that disconnects or cancels during a call cancels the call at the server: in every way, for every kind of
/// server.
#[tokio::test]
async fn a_client_that_goes_cancels_its_call() {
    let mut old = Process::bin("testkit-scripted", ["--http", "127.0.0.1:0"]);
    let mut new = Process::bin(
        "testkit-scripted",
        ["--http", "127.0.0.1:0", "--era", "modern"],
    );
    let mut sse = Process::bin("testkit-scripted", ["--sse-http", "127.0.0.1:0"]);
    let (old_url, new_url, sse_url) = (old.url().await, new.url().await, sse.url().await);
    let many = json!({"maxConcurrency": 8, "callTimeoutMs": 120_000});
    let gateway = Setup::new()
        .settings("naming = \"always-prefix\"\n")
        .server("pipe", with(scripted("pipe", &[]), many.clone()))
        .server(
            "newpipe",
            with(scripted("newpipe", &["--era", "modern"]), many.clone()),
        )
        .server("old", with(json!({"url": old_url}), many.clone()))
        .server("new", with(json!({"url": new_url}), many.clone()))
        .server("sse", with(json!({"type": "sse", "url": sse_url}), many))
        .serve()
        .await;
    for server in ["pipe", "newpipe", "old", "new", "sse"] {
        gateway.up(server).await;
        let params = json!({"name": format!("{server}__slow"), "arguments": {"ms": 100_000}});
        let running = async || {
            wait_for("the call at the server", DEADLINE, async || {
                gateway.metric("calls_in_flight", Some(server)).await == Some(1)
            })
            .await;
            // The call has reached the server itself.
            let mut peer = gateway.modern().await;
            wait_for("the call to reach the server", DEADLINE, async || {
                peer.tool(&format!("{server}__running"), json!({}))
                    .await
                    .text()
                    == "1"
            })
            .await;
        };
        let mut expected = 0;
        let mut ended = async |how: &str| {
            expected += 1;
            wait_for_some(
                &format!("the cancellation at {server} after {how}"),
                Duration::from_secs(5),
                async || (cancelled(&gateway, server).await == expected).then_some(()),
            )
            .await;
        };
        // A modern client closes its stream.
        let mut modern = gateway.modern().await;
        let id = modern.begin("tools/call", params.clone()).await;
        running().await;
        modern.cancel(id).await;
        ended("a closed stream").await;
        // A legacy client sends a cancellation …
        let mut legacy = gateway.legacy().await;
        let id = legacy.begin("tools/call", params.clone()).await;
        running().await;
        legacy.cancel(id).await;
        ended("notifications/cancelled").await;
        // … or loses its connection …
        let mut legacy = Peer::http(gateway.client(), LEGACY, peer::all_capabilities()).await;
        legacy.begin("tools/call", params.clone()).await;
        running().await;
        drop(legacy);
        ended("a lost connection").await;
        // … or does either over HTTP+SSE.
        let mut oldest = Peer::sse(gateway.at("/sse"), json!({})).await;
        let id = oldest.begin("tools/call", params.clone()).await;
        running().await;
        oldest.cancel(id).await;
        ended("notifications/cancelled over SSE").await;
        oldest.begin("tools/call", params.clone()).await;
        running().await;
        drop(oldest);
        ended("a lost SSE stream").await;
        assert_eq!(
            gateway.metric("calls_in_flight", Some(server)).await,
            Some(0)
        );
    }
}

/// DELETE ends a session and its calls in flight.
#[tokio::test]
async fn the_end_of_a_session_ends_its_calls() {
    let gateway = Setup::new()
        .server(
            "one",
            with(scripted("one", &[]), json!({"maxConcurrency": 4})),
        )
        .serve()
        .await;
    gateway.up("one").await;
    let params = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}});
    let hello = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params});
    let reply = gateway.client().post(hello.to_string()).await;
    let client = gateway
        .client()
        .with("mcp-session-id", reply.header("mcp-session-id").unwrap());
    let params = json!({"name": "slow", "arguments": {"ms": 60_000}});
    let call = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params});
    let calling = client.clone();
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn(async move { calling.post(call.to_string()).await });
    // Waits until the call is at the server. It is queued and recorded a moment earlier.
    let mut peer = gateway.modern().await;
    wait_for("the call at the server", DEADLINE, async || {
        peer.tool("running", json!({})).await.text() == "1"
    })
    .await;
    assert_eq!(client.delete(&[]).await.status, 204);
    wait_for("the call's end", Duration::from_secs(5), async || {
        gateway.metric("calls_in_flight", Some("one")).await == Some(0)
    })
    .await;
    // A client that still waits for the response gets an error.
    let reply = within(
        "an end of the answer",
        Duration::from_secs(5),
        tasks.join_next(),
    )
    .await;
    assert!(reply.unwrap().is_ok());
    wait_for("the cancellation", Duration::from_secs(5), async || {
        peer.tool("cancelled_count", json!({})).await.text() == "1"
    })
    .await;
}

/// A client that sends its request byte by byte, or only half of it, delays no other client.
#[tokio::test]
async fn half_a_request_blocks_no_one() {
    let gateway = Setup::new().scripted("one", &[]).connected().await;
    let text = modern_call("echo", json!({"n": 3}));
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
    let mut answer = [0; 1024];
    let count = within("the answer", DEADLINE, drip.read(&mut answer))
        .await
        .unwrap();
    assert!(answer[..count].starts_with(b"HTTP/1.1 200"));
    let mut peer = gateway.legacy().await;
    assert_eq!(
        peer.tool("echo", json!({"n": 1})).await.result()["structuredContent"]["n"],
        1
    );
    drop(halves);
    assert_eq!(
        gateway.metric("calls_total", Some("one")).await,
        Some(2),
        "half a request was forwarded"
    );
}

/// An idle subscription stream uses as little memory as other streams.
#[tokio::test]
async fn an_idle_subscription_of_a_modern_client_costs_little() {
    const KIB_EACH: u64 = 10;
    let (warm, count) = if testkit::soak() {
        (500, 5_000)
    } else {
        (50, 500)
    };
    let files = rustix::process::Resource::Nofile;
    let mut limit = rustix::process::getrlimit(files);
    limit.current = limit.maximum;
    rustix::process::setrlimit(files, limit).unwrap();
    let gateway = Setup::new().scripted("one", &[]).serve().await;
    gateway.up("one").await;
    let open = async |count: u64| {
        let mut streams = Vec::new();
        for id in 0..count {
            let meta = json!({
                "io.modelcontextprotocol/protocolVersion": MODERN_VERSION,
                "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "1"},
                "io.modelcontextprotocol/clientCapabilities": {},
            });
            let params = json!({"notifications": {"toolsListChanged": true}, "_meta": meta});
            let method = "subscriptions/listen";
            let body = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
            let headers = [
                ("mcp-protocol-version", MODERN_VERSION),
                ("mcp-method", method),
            ];
            let body = body.to_string();
            let client = gateway.client();
            let mut stream = client.send(http::Method::POST, &headers, body).await;
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
    assert!(grown <= KIB_EACH * count, "{grown} KiB more for {count}");
    // Each of them is notified of a change, and of the shutdown.
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
