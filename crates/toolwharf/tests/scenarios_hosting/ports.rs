//! H02: a server without a bridge is reached at its port, wherever it runs. Its address never changes.

use std::net::TcpListener as StdListener;

use serde_json::{Value, json};
use testkit::RawClient;
use tokio::net::TcpListener;

use crate::{
    common::{LEGACY, checks, rpc},
    support::{Host, LONG_DEADLINE, Platform, Site, with},
};

on_every_platform!(
    h02_a_server_without_a_bridge_is_reached_at_its_port,
    h02_a_given_port_is_that_one_and_a_taken_one_is_told,
);

/// Returns the address of a server's port.
async fn address(host: &Host, id: &str) -> String {
    let told = host.until(id, "running").await;
    assert_eq!(told["stdio_bridge"], false);
    assert_eq!(told["ports"][0]["port"], 8080);
    told["ports"][0]["address"].as_str().unwrap().to_owned()
}

/// A registration of a server that is reached at these ports.
fn entry(site: &Site, ports: Value) -> Value {
    let members = json!({"stdio_bridge": false, "ports": ports});
    site.entry_with("h02", &["--http", "127.0.0.1:8080"], members)
}

async fn h02_a_server_without_a_bridge_is_reached_at_its_port(platform: Platform) {
    let (site, host) = Site::started(platform).await;
    // An image or a command that listens on a port needs nothing else.
    let id = host.host(entry(&site, json!([8080]))).await;
    let first = address(&host, &id).await;
    // The server does not get the console's own address, because browsers would send it the console's cookies.
    assert!(first.starts_with("127.0.0.2:"), "{first}");
    host.echoes(&id).await;
    // A client that knows the address reaches the server without the product.
    let own = RawClient::new(&format!("http://{first}/mcp"));
    let answer = rpc::initialize(&own, LEGACY).await;
    assert_eq!(answer.response()["result"]["serverInfo"]["name"], "h02");
    // Event streams arrive as they are written.
    let session = answer.header("mcp-session-id").unwrap().to_owned();
    let own = own.with("mcp-session-id", &session);
    let progress = json!({"name": "progress", "arguments": {"count": 3, "ms": 100}, "_meta": {"progressToken": "t"}});
    let asked = rpc::message(8, "tools/call", progress).to_string();
    let accept = [("accept", "text/event-stream, application/json")];
    let mut stream = own.send(http::Method::POST, &accept, asked).await;
    assert!(stream.is_event_stream());
    for number in 1..=3 {
        let event = stream.next_json(LONG_DEADLINE).await.unwrap();
        assert_eq!(event["params"]["progress"], number, "{event}");
    }
    let last = stream.next_json(LONG_DEADLINE).await.unwrap();
    assert_eq!(last["id"], 8, "{last}");
    // A large response passes through the product.
    let bytes = 5 << 20;
    let big = host.said(&id, "big", json!({"bytes": bytes})).await;
    assert_eq!(big.len(), bytes);
    host.gateway_echoes().await;

    // The address stays the same after a crash, a restart, and a restart of the product.
    let crashed = host.call(&id, "crash", json!({})).await;
    assert!(!crashed.status.is_success());
    host.answers(&id).await;
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
    let (site, host) = Site::started(platform).await;
    let port = free_port();
    let here = format!("127.0.0.1:{port}");
    let text = entry(&site, json!([format!("{port}:8080")]));
    let object = entry(&site, json!([{"host": port, "container": 8080}]));
    // A port in use is refused, and the error names the process that uses it.
    let taken = TcpListener::bind(&here).await.unwrap();
    let words = host.refused(text.clone(), "/ports").await;
    let own = std::fs::read_to_string("/proc/self/comm").unwrap();
    let holder = format!("`{}` (process {})", own.trim_end(), std::process::id());
    let said = format!("port {port} of this host is taken by {holder}");
    checks::contains(&words, &[&said]);
    drop(taken);
    let id = host.host(text).await;
    assert_eq!(address(&host, &id).await, here);
    let told = host.until(&id, "running").await;
    checks::string(&told["ports"][0]["notice"], &["127.0.0.2"]);
    host.tool(&id, "echo", json!({})).await;
    // Another server cannot use the same port; the error names the first server.
    let second = with(object.clone(), json!({"name": "h02-second"}));
    let refused = host.ask("POST", "", second).await.text();
    checks::contains(&refused, &["for the server `h02`"]);

    // If the port is taken while the server is down, the server cannot start. This is reported once, and not as a
    // crash. The server starts when the port is free.
    host.ok("PUT", &format!("/{id}"), object).await;
    assert_eq!(address(&host, &id).await, here);
    host.order(&id, "stop").await;
    host.until(&id, "stopped").await;
    let taken = TcpListener::bind(&here).await.unwrap();
    host.order(&id, "start").await;
    let blocked = host.until(&id, "blocked").await;
    checks::string(&blocked["reason"], &[&said]);
    assert_eq!(blocked["last_crash"], Value::Null);
    let answer = host.call(&id, "echo", json!({})).await.text();
    checks::contains(&answer, &[&said]);
    drop(taken);
    assert_eq!(address(&host, &id).await, here);
    assert_eq!(host.events_of(&id, "blocked").await.len(), 1);
    host.stop().await;
    let host = site.start().await;
    assert_eq!(address(&host, &id).await, here);
    host.tool(&id, "echo", json!({})).await;
    host.stop().await;
}
