//! H02: a server without a bridge is reached at its port, wherever it runs. The address stays the same permanently.

use std::net::TcpListener as StdListener;

use serde_json::{Value, json};
use testkit::{RawClient, wait_for};
use tokio::net::TcpListener;

use crate::support::{Host, LONG_DEADLINE, Platform, Site, refusal, with};

on_every_platform!(
    h02_a_server_without_a_bridge_is_reached_at_its_port,
    h02_a_given_port_is_that_one_and_a_taken_one_is_told,
);

/// Returns the address of its port.
async fn address(host: &Host, id: &str) -> String {
    let told = host.until(id, "running").await;
    assert_eq!(told["stdio_bridge"], false);
    assert_eq!(told["ports"][0]["port"], 8080);
    told["ports"][0]["address"].as_str().unwrap().to_owned()
}

async fn h02_a_server_without_a_bridge_is_reached_at_its_port(platform: Platform) {
    let site = Site::new(platform).await;
    let host = site.start().await;
    // An image or a command that listens on a port needs nothing else.
    let entry = with(
        site.entry("h02", &["--http", "127.0.0.1:8080"]),
        json!({"stdio_bridge": false, "ports": [8080]}),
    );
    let id = host.host(entry).await;
    let first = address(&host, &id).await;
    // Not the console's own address, whose cookies browsers would send to the server.
    assert!(first.starts_with("127.0.0.2:"), "{first}");
    let echo = host.tool(&id, "echo", json!({"n": 1})).await;
    assert_eq!(echo["structuredContent"]["n"], 1);
    // A client that knows the address reaches the server without the product.
    let own = RawClient::new(&format!("http://{first}/mcp"));
    let asked = json!({"jsonrpc": "2.0", "id": 7, "method": "initialize", "params": {
        "protocolVersion": "2025-11-25", "capabilities": {},
        "clientInfo": {"name": "t", "version": "1"},
    }});
    let answer = own.post(asked.to_string()).await;
    assert_eq!(answer.response()["result"]["serverInfo"]["name"], "h02");
    // Event streams arrive as they are written.
    let session = answer.header("mcp-session-id").unwrap().to_owned();
    let own = own.with("mcp-session-id", &session);
    let asked = json!({"jsonrpc": "2.0", "id": 8, "method": "tools/call", "params": {
        "name": "progress", "arguments": {"count": 3, "ms": 100}, "_meta": {"progressToken": "t"},
    }});
    let sent = own.send(
        http::Method::POST,
        &[("accept", "text/event-stream, application/json")],
        asked.to_string(),
    );
    let mut stream = sent.await;
    assert!(stream.is_event_stream());
    for number in 1..=3 {
        let event = stream.next_json(LONG_DEADLINE).await.unwrap();
        assert_eq!(event["params"]["progress"], number, "{event}");
    }
    let last = stream.next_json(LONG_DEADLINE).await.unwrap();
    assert_eq!(last["id"], 8, "{last}");
    // A large response, through the product.
    let bytes = 5 << 20;
    let big = host.said(&id, "big", json!({"bytes": bytes})).await;
    assert_eq!(big.len(), bytes);
    let called = json!({"name": "echo", "arguments": {"n": 2}});
    let answer = host.running.mcp("", "tools/call", called).await;
    assert_eq!(answer.response()["result"]["structuredContent"]["n"], 2);

    // The address stays the same after a crash, a restart, and a restart of the product.
    let crashed = host.call(&id, "crash", json!({})).await;
    assert!(!crashed.status.is_success());
    wait_for("its return", LONG_DEADLINE, async || {
        host.call(&id, "echo", json!({})).await.status == 200
    })
    .await;
    assert_eq!(address(&host, &id).await, first);
    host.order(&id, "restart").await;
    assert_eq!(address(&host, &id).await, first);
    host.stop().await;
    let host = site.start().await;
    assert_eq!(address(&host, &id).await, first);
    host.tool(&id, "echo", json!({"n": 1})).await;
    host.stop().await;
}

/// Returns a free port of this host outside the ephemeral range and the range for other servers.
fn free_port() -> u16 {
    let first = u16::try_from(std::process::id() % 5000).unwrap();
    let mut all = (10_000 + first..16_000).chain(10_000..16_000);
    let is_free = |port: &u16| StdListener::bind(("127.0.0.1", *port)).is_ok();
    all.find(is_free).unwrap()
}

async fn h02_a_given_port_is_that_one_and_a_taken_one_is_told(platform: Platform) {
    let site = Site::new(platform).await;
    let host = site.start().await;
    let port = free_port();
    let here = format!("127.0.0.1:{port}");
    let entry = |ports: Value| {
        with(
            site.entry("h02", &["--http", "127.0.0.1:8080"]),
            json!({"stdio_bridge": false, "ports": ports}),
        )
    };
    let (text, object) = (
        json!([format!("{port}:8080")]),
        json!([{"host": port, "container": 8080}]),
    );
    // A port in use is refused, and the error names the process that uses it.
    let taken = TcpListener::bind(&here).await.unwrap();
    let refused = host.ask("POST", "", entry(text.clone())).await;
    let own = std::fs::read_to_string("/proc/self/comm").unwrap();
    let holder = format!("`{}` (process {})", own.trim_end(), std::process::id());
    let words = refused.text();
    assert_eq!(
        refusal(&refused),
        (422, vec!["/ports".to_owned()]),
        "{words}"
    );
    let said = format!("port {port} of this host is taken by {holder}");
    assert!(words.contains(&said), "{words}");
    drop(taken);
    let id = host.host(entry(text)).await;
    assert_eq!(address(&host, &id).await, here);
    let told = host.until(&id, "running").await;
    let notice = told["ports"][0]["notice"].as_str().unwrap();
    assert!(notice.contains("127.0.0.2"), "{notice}");
    host.tool(&id, "echo", json!({})).await;
    // Another server cannot use the same port; the error names the first server.
    let second = with(entry(object.clone()), json!({"name": "h02-second"}));
    let refused = host.ask("POST", "", second).await.text();
    assert!(refused.contains("for the server `h02`"), "{refused}");

    // If the port is taken while the server is down, the server cannot start. That is not a crash, is reported once,
    // and ends when the port is free.
    host.ok("PUT", &format!("/{id}"), entry(object)).await;
    assert_eq!(address(&host, &id).await, here);
    host.order(&id, "stop").await;
    host.until(&id, "stopped").await;
    let taken = TcpListener::bind(&here).await.unwrap();
    host.order(&id, "start").await;
    let blocked = host.until(&id, "blocked").await;
    let reason = blocked["reason"].as_str().unwrap();
    assert!(reason.contains(&said), "{reason}");
    assert_eq!(blocked["last_crash"], Value::Null);
    let answer = host.call(&id, "echo", json!({})).await.text();
    assert!(answer.contains(&said), "{answer}");
    drop(taken);
    assert_eq!(address(&host, &id).await, here);
    assert_eq!(host.events_of(&id, "blocked").await.len(), 1);
    host.stop().await;
    let host = site.start().await;
    assert_eq!(address(&host, &id).await, here);
    host.tool(&id, "echo", json!({})).await;
    host.stop().await;
}
