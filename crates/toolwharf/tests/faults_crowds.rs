//! Many clients that each hold a few resources for a long time: connections, request bodies and unread responses are
//! bounded in total, and other clients are not affected.

#![expect(clippy::unwrap_used, reason = "test helpers may panic")]

mod common;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use common::{
    Gateway, LEGACY, Setup, holds,
    rpc::{self, call_headers},
    scripted,
    wire::{self, address},
};
use rustix::process::{Resource, getrlimit, setrlimit};
use serde_json::{Value, json};
use testkit::{DEADLINE, soak, wait_for, wait_for_some, within};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

/// The head of a request with a body of this length.
fn head(length: usize) -> String {
    wire::head("POST", "/mcp", &[], length)
}

/// The text of a modern tool call.
fn call(tool: &str, arguments: Value) -> String {
    rpc::modern_call(1, tool, arguments).to_string()
}

/// Counts the requests and successful responses of clients that send at a steady rate.
#[derive(Default)]
struct Goodput {
    asked: AtomicU64,
    answered: AtomicU64,
    over: AtomicBool,
}

/// Clients that call a tool ten times a second each, and one that polls the health check.
fn others(gateway: &Gateway, goodput: &Arc<Goodput>) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    for n in 0..8u32 {
        let (client, health) = (gateway.client(), gateway.at("/healthz"));
        let goodput = goodput.clone();
        tasks.spawn(async move {
            let text = call("echo", json!({"n": n}));
            while !goodput.over.load(Ordering::Relaxed) {
                let asking = async {
                    let reply = if n == 0 {
                        let reply = health.try_send(http::Method::GET, &[], "").await?;
                        reply.collect(DEADLINE).await
                    } else {
                        let text = text.clone();
                        let headers = call_headers("echo");
                        let reply = client.try_send(http::Method::POST, &headers, text).await?;
                        reply.collect(DEADLINE).await
                    };
                    Ok::<_, String>(reply.status == 200)
                };
                goodput.asked.fetch_add(1, Ordering::Relaxed);
                if matches!(timeout(Duration::from_secs(2), asking).await, Ok(Ok(true))) {
                    goodput.answered.fetch_add(1, Ordering::Relaxed);
                }
                sleep(Duration::from_millis(100)).await;
            }
        });
    }
    tasks
}

/// The behaviour of a slow client: it sends nothing, half a head, half a body, or one byte of either per second.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Slow {
    Silent,
    HalfHead,
    HalfBody,
    DrippingHead,
    DrippingBody,
}

impl Slow {
    const ALL: [Self; 5] = [
        Self::Silent,
        Self::HalfHead,
        Self::HalfBody,
        Self::DrippingHead,
        Self::DrippingBody,
    ];

    fn opening(self) -> String {
        let head = head(100_000);
        match self {
            Self::Silent => String::new(),
            Self::HalfHead | Self::DrippingHead => head[..head.len() / 2].to_owned(),
            Self::HalfBody | Self::DrippingBody => head + "{\"jsonrpc\"",
        }
    }

    fn drips(self) -> bool {
        matches!(self, Self::DrippingHead | Self::DrippingBody)
    }
}

/// Slow connections are closed ten seconds after their last progress, which single bytes are not. Other clients are
/// served normally.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_connections_are_closed_and_harm_no_one() {
    wire::raise_file_limit();
    let count = if soak() { 5000 } else { 500 };
    let setup = Setup::new().tuned("one", json!({"maxConcurrency": 8}));
    let gateway = setup.connected().await;
    let before = gateway.memory_peak();
    let goodput = Arc::<Goodput>::default();
    let mut others = others(&gateway, &goodput);
    let (mut writers, mut kept) = (Vec::new(), Vec::new());
    let mut closed = JoinSet::new();
    for n in 0..count {
        let kind = Slow::ALL[n % Slow::ALL.len()];
        let mut socket = TcpStream::connect(address(&gateway)).await.unwrap();
        let opened = Instant::now();
        socket.write_all(kind.opening().as_bytes()).await.unwrap();
        let (mut reader, writer) = socket.into_split();
        if kind.drips() {
            writers.push(writer);
        } else {
            // Closing this half would close the connection.
            kept.push(writer);
        }
        closed.spawn(async move {
            let mut scrap = Vec::new();
            let _ = reader.read_to_end(&mut scrap).await;
            (kind, opened.elapsed())
        });
    }
    let dripping = {
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            loop {
                sleep(Duration::from_secs(1)).await;
                for writer in &mut writers {
                    let _ = writer.try_write(b"x");
                }
            }
        });
        tasks
    };
    let mut last = (Slow::Silent, Duration::ZERO);
    for n in 0..count {
        let what = format!("the end of connection {n} of {count}");
        let next = within(&what, Duration::from_secs(75), closed.join_next());
        let (kind, after) = next.await.unwrap().unwrap();
        let least = Duration::from_secs(7);
        assert!(after > least, "{kind:?} was closed after {after:?}");
        if after > last.1 {
            last = (kind, after);
        }
    }
    goodput.over.store(true, Ordering::Relaxed);
    while others.join_next().await.is_some() {}
    drop((dripping, kept));
    let asked = goodput.asked.load(Ordering::Relaxed);
    let answered = goodput.answered.load(Ordering::Relaxed);
    // Timers and reads can be late when other tests run at the same time.
    let most = Duration::from_secs(if soak() { 10 } else { 15 });
    let (kind, after) = last;
    eprintln!("slow: {count} clients, the last ({kind:?}) closed after {after:?} (bound {most:?})");
    eprintln!("slow: {answered} of {asked} other requests answered (bound 95 %)");
    assert!(after <= most, "{kind:?} was closed after {after:?}");
    assert!(asked > 100, "{asked}");
    assert!(answered * 100 >= asked * 95, "{answered} of {asked}");
    let grown = gateway.memory_peak() - before;
    let each = grown / count as u64;
    assert!(each < 48, "{each} KiB for each slow connection");
}

/// Unfinished bodies use bounded memory over all connections. Small bodies are always accepted.
#[tokio::test]
async fn unfinished_bodies_take_bounded_memory() {
    const BODY_BYTES: usize = 15 << 20;
    let (count, room) = if soak() { (60, 256) } else { (6, 40) };
    let mut setup = Setup::new().scripted("one", &[]);
    if !soak() {
        setup = setup.settings("[limits]\nmax_bodies_bytes = \"40MiB\"\n");
    }
    let gateway = setup.connected().await;
    let before = gateway.memory_peak();
    let piece = vec![b' '; BODY_BYTES - 1];
    let mut open = Vec::new();
    let mut refused = 0;
    for _ in 0..count {
        let mut socket = TcpStream::connect(address(&gateway)).await.unwrap();
        socket.write_all(head(BODY_BYTES).as_bytes()).await.unwrap();
        let mut answer = vec![0; 4096];
        // The gateway may refuse the body at any time. Then the rest of it is not sent.
        let (mut reader, mut writer) = socket.split();
        let sending = writer.write_all(&piece);
        let answered = tokio::select! {
            count = reader.read(&mut answer) => Some(count.unwrap()),
            _ = sending => {
                let read = timeout(Duration::from_millis(500), reader.read(&mut answer)).await;
                read.ok().map(Result::unwrap)
            }
        };
        match answered {
            None => open.push(socket),
            Some(count) => {
                let answer = String::from_utf8_lossy(&answer[..count]).into_owned();
                assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
                holds(&answer, &["max_bodies_bytes", "retry-after"]);
                refused += 1;
            }
        }
    }
    assert!(open.len() >= 2, "{refused} of {count} refused");
    assert!(refused >= count / 3, "{refused} of {count} refused");
    // A small body is accepted, even in two pieces.
    let mut peer = gateway.modern().await;
    let pad = "p".repeat(40_000);
    let answer = peer.tool("echo", json!({"n": 1, "pad": pad})).await;
    assert_eq!(answer.result()["structuredContent"]["n"], 1);
    let grown = gateway.memory_peak() - before;
    assert!(grown < (room + 40) * 1024, "memory grew by {grown} KiB");
    // A client that disconnects frees its share.
    drop(open);
    let long = call("echo", json!({"pad": "p".repeat(12 << 20)}));
    wait_for("room", DEADLINE, async || {
        let client = gateway.client();
        let reply = client.post_with(&call_headers("echo"), long.clone()).await;
        reply.status == 200
    })
    .await;
}

/// Connections above the limit are reserved for a local administrator, health checks and servers that are being
/// started.
#[tokio::test]
async fn beyond_the_cap_there_is_room_for_the_administrator() {
    const MAX_CONNECTIONS: usize = 8;
    let settings = format!("[limits]\nmax_connections = {MAX_CONNECTIONS}\n");
    let mut gateway = Setup::new().settings(&settings).serve().await;
    let mut open = Vec::new();
    for _ in 0..MAX_CONNECTIONS {
        let mut socket = TcpStream::connect(address(&gateway)).await.unwrap();
        // The connection stays open after a response.
        let ask = "GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n";
        socket.write_all(ask.as_bytes()).await.unwrap();
        let answer = wire::read(&mut socket).await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        open.push(socket);
    }
    let reply = gateway.client().post("{}").await;
    assert_eq!(reply.status, 503, "{}", reply.text());
    assert!(reply.text().contains("max_connections"), "{}", reply.text());
    assert!(reply.header("retry-after").is_some());
    assert_eq!(gateway.at("/healthz").get(&[]).await.status, 200);
    let rest = gateway.admin("/mcp/servers");
    assert_eq!(rest.get(&[]).await.status, 200);
    assert_eq!(gateway.at("/api/v1/mcp/servers").get(&[]).await.status, 503);
    gateway.edit(|servers| {
        servers.insert("late".into(), scripted("late", &[]));
    });
    gateway.up("late").await;
    open.pop();
    wait_for("a place", DEADLINE, async || {
        gateway.client().post("{}").await.status == 400
    })
    .await;
}

/// The gateway raises its file limit to the maximum. Child processes get the original limit.
#[tokio::test]
async fn the_limit_of_files_is_raised_for_the_gateway_only() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = Some(1000);
    setrlimit(Resource::Nofile, limit).unwrap();
    let gateway = Setup::new().scripted("one", &[]).connected().await;
    let files = |pid: u32| {
        let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
        let mut lines = limits.lines();
        let line = lines.find(|line| line.starts_with("Max open files"));
        let fields: Vec<&str> = line.unwrap().split_whitespace().collect();
        (fields[3].to_owned(), fields[4].to_owned())
    };
    let (soft, hard) = files(gateway.process.pid());
    assert_eq!(soft, hard);
    let mut peer = gateway.modern().await;
    let pid = peer.tool("pid", json!({})).await.text().parse().unwrap();
    assert_eq!(files(pid), ("1000".to_owned(), hard));
}

/// Requests a response of `bytes` bytes that is never read, in one of three ways.
async fn ask_and_forget(gateway: &Gateway, n: usize, bytes: usize) -> Vec<TcpStream> {
    let legacy = rpc::call(2, "big", json!({"bytes": bytes}));
    let mut socket = wire::narrow(gateway).await;
    match n % 3 {
        // A modern client gets the response as one JSON text.
        0 => {
            let text = call("big", json!({"bytes": bytes}));
            let text = wire::post("/mcp", &call_headers("big"), &text);
            socket.write_all(text.as_bytes()).await.unwrap();
            vec![socket]
        }
        // A legacy client over streamable HTTP gets an event, which is stored for a reconnect.
        1 => {
            let reply = rpc::initialize(&gateway.client(), LEGACY).await;
            let session = reply.header("mcp-session-id").unwrap();
            let headers = [
                ("mcp-session-id", session),
                ("accept", "text/event-stream, application/json"),
            ];
            let text = wire::post("/mcp", &headers, &legacy);
            socket.write_all(text.as_bytes()).await.unwrap();
            vec![socket]
        }
        // A client over HTTP+SSE gets the response on the session's separate stream.
        _ => {
            let get = "GET /sse HTTP/1.1\r\nhost: localhost\r\naccept: text/event-stream\r\n\r\n";
            socket.write_all(get.as_bytes()).await.unwrap();
            let mut text = String::new();
            while !text.contains("sessionId=") || !text.ends_with("\n\n\r\n") {
                text += &wire::read(&mut socket).await;
            }
            let path = text.split("data: ").nth(1).unwrap().lines().next().unwrap();
            let mut poster = wire::narrow(gateway).await;
            let text = wire::post(path, &[], &legacy);
            poster.write_all(text.as_bytes()).await.unwrap();
            wire::read(&mut poster).await;
            vec![socket, poster]
        }
    }
}

/// Long unread responses use bounded memory over all clients. Beyond the limit, the clients that read least are
/// disconnected.
#[tokio::test]
async fn unread_answers_of_many_clients_take_bounded_memory() {
    const MAX_WAITING: u64 = 100;
    wire::raise_file_limit();
    let (count, bytes, room) = if soak() {
        (1000, 20_000_000, 256)
    } else {
        (40, 8_000_000, 32)
    };
    // The calls run one after the other, so the last one waits long for its turn.
    let options = json!({"maxConcurrency": 1, "callTimeoutMs": 600_000});
    let gateway = Setup::new()
        .settings(&format!("[limits]\nmax_unread_bytes = \"{room}MiB\"\n"))
        .tuned("one", options)
        .connected()
        .await;
    let (before, kept_before) = (gateway.memory_peak(), gateway.memory_now());
    let mut dead = Vec::new();
    for n in 0..count {
        if soak() {
            // Neither the length of the queue nor the time limit of its last call is exceeded.
            wait_for("a shorter queue", DEADLINE, async || {
                gateway.metric("calls_waiting", Some("one")).await < Some(MAX_WAITING)
            })
            .await;
        }
        dead.extend(ask_and_forget(&gateway, n, bytes).await);
    }
    wait_for("all answers", DEADLINE * 20, async || {
        gateway.metric("calls_total", Some("one")).await == Some(count as u64)
            && gateway.metric("calls_in_flight", Some("one")).await == Some(0)
    })
    .await;
    // The last response may still be in transit. When it arrives, it counts against the limit, and another client is
    // disconnected.
    let what = "the unread bytes to be within the limit";
    let unread = wait_for_some(what, DEADLINE, async || {
        let unread = gateway.metric("unread_bytes", None).await.unwrap();
        (unread <= room << 20).then_some(unread)
    })
    .await;
    assert!(unread > room << 18, "only {unread} bytes are unread");
    gateway
        .logged("disconnected a client that does not read")
        .await;
    // Memory that was needed for a moment is returned soon.
    let since = Instant::now();
    let kept = || gateway.memory_now().saturating_sub(kept_before);
    while soak() && kept() > room * 1024 && since.elapsed() < DEADLINE {
        sleep(Duration::from_millis(200)).await;
    }
    let kept = kept();
    eprintln!(
        "stalled: {count} clients, {unread} bytes unread, {} MiB more memory (bound {room} MiB)",
        kept / 1024
    );
    assert!(!soak() || kept <= room * 1024, "{kept} KiB");
    // A client that reads gets the whole response nevertheless.
    let mut peer = gateway.modern().await;
    let answer = peer.tool("big", json!({"bytes": bytes})).await;
    assert!(answer.text().len() >= bytes);
    let grown = gateway.memory_peak() - before;
    // A response in transit exists several times: as received, as rewritten, and as sent.
    let under_way = 8 * bytes as u64 / 1024;
    assert!(grown < room * 1024 + under_way, "grew by {grown} KiB");
}

/// Memory is returned after a peak: half a minute later the private memory is back to its previous level.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_returns_after_a_peak() {
    const LARGE_BYTES: usize = 8_000_000;
    let count = if soak() { 100 } else { 12 };
    let setup = Setup::new().tuned("one", json!({"maxConcurrency": 8}));
    let gateway = setup.connected().await;
    // Warms up every operation, so that everything that is created at first use exists.
    for _ in 0..20 {
        let client = gateway.client();
        let arguments = json!({"bytes": 100_000, "pad": "p".repeat(200_000)});
        let text = call("big", arguments);
        let reply = client.post_with(&call_headers("big"), text).await;
        assert_eq!(reply.status, 200);
        assert_eq!(gateway.at("/metrics").get(&[]).await.status, 200);
    }
    let own = || common::memory(gateway.process.pid(), "RssAnon:");
    let before = own();
    let mut peak = JoinSet::new();
    let start = |n: usize, peak: &mut JoinSet<_>| {
        let client = gateway.client();
        peak.spawn(async move {
            // Long responses alternate with long requests.
            let (bytes, pad) = match n % 2 {
                0 => (LARGE_BYTES, 1),
                _ => (1, LARGE_BYTES),
            };
            let text = call("big", json!({"bytes": bytes, "pad": "p".repeat(pad)}));
            client.post_with(&call_headers("big"), text).await.status
        });
    };
    // More than 12 clients at the same time would be refused or disconnected.
    for n in 0..12 {
        start(n, &mut peak);
    }
    let mut most = 0;
    let mut ended = 0;
    while ended < count {
        tokio::select! {
            status = peak.join_next() => {
                assert_eq!(status.unwrap().unwrap(), 200);
                ended += 1;
                if ended + peak.len() < count {
                    start(ended + peak.len(), &mut peak);
                }
            }
            () = sleep(Duration::from_millis(5)) => {}
        }
        most = most.max(own());
    }
    assert!(most > 3 * before, "no peak: {most} KiB after {before} KiB");
    let start = Instant::now();
    let mut least = most;
    while least * 10 > before * 12 {
        assert!(
            start.elapsed() < Duration::from_secs(30),
            "{before} KiB before, {most} KiB at the peak, {least} KiB half a minute later"
        );
        sleep(Duration::from_millis(200)).await;
        least = least.min(own());
    }
}
