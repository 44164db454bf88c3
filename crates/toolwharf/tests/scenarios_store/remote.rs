//! P06 and P07: servers of a project that are reached by URL.

use std::time::Duration;

use serde_json::json;
use testkit::{DEADLINE, Process, wait_for, within};
use tokio::time::Instant;

use crate::{
    api::Api,
    common::{
        is_away,
        real::{everything_at, everything_on, free_port, said},
        scripted, tools,
    },
    support::{Db, legacy, modern},
};

on_both!(
    p06_sse_connects_with_its_headers,
    p06_server_everything_over_sse_and_http,
    p07_a_dropped_sse_stream_fails_calls_at_once_and_comes_back,
    p07_server_everything_comes_back,
);

/// A scripted server over HTTP+SSE.
async fn sse_server(address: &str) -> (Process, String) {
    let mut process = Process::bin("testkit-scripted", ["--sse-http", address]);
    let url = process.url().await;
    (process, url)
}

async fn p06_sse_connects_with_its_headers(db: &Db) {
    let (_server, url) = sse_server("127.0.0.1:0").await;
    let gateway = db.setup().serve().await;
    let api = Api::admin(&gateway);
    api.put("/projects/a", json!({"naming": "always-prefix"}))
        .await;
    api.put("/projects/a/secrets/KEY", json!({"value": "sesame"}))
        .await;
    let headers = json!({"X-Api-Key": "${KEY}", "Authorization": "Bearer b"});
    for (name, entry) in [
        (
            "typed",
            json!({"type": "sse", "url": url, "headers": headers}),
        ),
        ("found", json!({"url": url, "headers": headers})),
    ] {
        let made = api.server("a", name, entry).await;
        // Header values are not shown to readers of the status.
        assert_eq!(made["headers"], json!(["Authorization", "X-Api-Key"]));
    }
    for mut peer in [legacy(&gateway, "a").await, modern(&gateway, "a").await] {
        for server in ["typed", "found"] {
            let headers = peer.tool(&format!("{server}__headers"), json!({})).await;
            let headers = &headers.result()["structuredContent"];
            assert_eq!(headers["x-api-key"], "sesame", "{server}: {headers}");
            assert_eq!(headers["authorization"], "Bearer b", "{server}: {headers}");
        }
    }
}

async fn p06_server_everything_over_sse_and_http(db: &Db) {
    let (_sse, sse) = everything_at("sse", "/sse").await;
    let (_http, http) = everything_at("streamableHttp", "/mcp").await;
    let gateway = db.setup().serve().await;
    let api = Api::admin(&gateway);
    for (project, entry) in [
        (
            "sse",
            json!({"type": "sse", "url": sse, "headers": {"X-Test": "1"}}),
        ),
        (
            "http",
            json!({"type": "http", "url": http, "headers": {"X-Test": "1"}}),
        ),
    ] {
        api.project(project).await;
        let made = api.server(project, "everything", entry).await;
        assert_eq!(made["transport"], project);
        for mut peer in [
            legacy(&gateway, project).await,
            modern(&gateway, project).await,
        ] {
            assert!(tools(&mut peer).await.contains(&"get-sum".to_owned()));
            let sum = peer.tool("get-sum", json!({"a": 2, "b": 40})).await;
            assert!(said(sum.result()).contains("42"), "{sum:?}");
        }
    }
}

async fn p07_a_dropped_sse_stream_fails_calls_at_once_and_comes_back(db: &Db) {
    let (server, url) = sse_server("127.0.0.1:0").await;
    let gateway = db.setup().serve().await;
    let api = Api::admin(&gateway);
    api.project("a").await;
    api.server("a", "remote", json!({"type": "sse", "url": url}))
        .await;
    let local = scripted("local", &["--no-builtin", "--tools", "1"]);
    api.server("a", "local", local).await;
    let mut peer = legacy(&gateway, "a").await;
    let listed = tools(&mut peer).await;
    // The stream is cut with another call in flight: both calls end with an error, at once.
    let other = peer.begin("tools/call", json!({"name": "never"})).await;
    let limit = Duration::from_secs(5);
    let cut = within(
        "the cut call's end",
        limit,
        peer.tool("drop_stream", json!({})),
    )
    .await;
    assert!(is_away(&cut.response), "{cut:?}");
    let other = peer.finish_within(other, limit).await;
    assert!(is_away(&other.expect("the other call hangs")));
    wait_for("the stream's return", DEADLINE, async || {
        !is_away(&peer.tool("echo", json!({})).await.response)
    })
    .await;

    // The server is down for longer: no call waits for it, the lists stay, and attempts become rarer.
    drop(server);
    wait_for("the end to be noticed", limit, async || {
        is_away(&peer.tool("echo", json!({})).await.response)
    })
    .await;
    let start = Instant::now();
    for _ in 0..20 {
        let answer = peer.tool("echo", json!({})).await;
        assert!(is_away(&answer.response), "{answer:?}");
        let data = &answer.response["error"]["data"];
        assert_eq!(data["server"], "remote");
        assert!(data["retryAfterMs"].is_u64(), "{data}");
        let answer = peer.tool("tool_0", json!({"n": 2})).await;
        assert_eq!(answer.result()["structuredContent"]["n"], 2);
    }
    assert!(start.elapsed() < limit, "{:?}", start.elapsed());
    assert_eq!(tools(&mut peer).await, listed, "the tools left the list");
    wait_for("two attempts", DEADLINE, async || {
        waits(&gateway).len() >= 2
    })
    .await;
    let address = url
        .strip_prefix("http://")
        .unwrap()
        .strip_suffix("/sse")
        .unwrap();
    let (_server, _) = sse_server(address).await;
    // Longer than the cooldown, in case a busy machine has caused one.
    wait_for("the server's return", Duration::from_secs(90), async || {
        !is_away(&peer.tool("echo", json!({})).await.response)
    })
    .await;
    let waits = waits(&gateway);
    assert!(waits.windows(2).all(|pair| pair[0] < pair[1]), "{waits:?}");
}

/// Returns the waits after each failed attempt since the server was last connected.
fn waits(gateway: &crate::common::Gateway) -> Vec<u64> {
    let stderr = gateway.process.stderr();
    let remote = stderr.lines().filter(|line| line.contains("remote"));
    let mut waits = Vec::new();
    for line in remote {
        let wait = line
            .split_once("retry_ms=")
            .and_then(|(_, wait)| wait.split(' ').next());
        match wait {
            // It was connected a moment ago.
            Some("0") => waits.clear(),
            Some(wait) => waits.push(wait.parse().unwrap()),
            None => {}
        }
    }
    waits
}

async fn p07_server_everything_comes_back(db: &Db) {
    let port = free_port().await;
    let server = everything_on(port, "sse").await;
    let gateway = db.setup().serve().await;
    let api = Api::admin(&gateway);
    api.project("a").await;
    let url = format!("http://127.0.0.1:{port}/sse");
    api.server("a", "everything", json!({"type": "sse", "url": url}))
        .await;
    let mut peer = legacy(&gateway, "a").await;
    let echo = json!({"message": "x"});
    assert_eq!(
        said(peer.tool("echo", echo.clone()).await.result()),
        "Echo: x"
    );
    let asked = json!({"name": "trigger-long-running-operation", "arguments": {"duration": 60, "steps": 60}});
    let long = peer.begin("tools/call", asked).await;
    wait_for("the long call", DEADLINE, async || {
        api.get("/mcp/servers/everything?project=a").await["in_flight"] == 1
    })
    .await;
    drop(server);
    let cut = peer.finish_within(long, Duration::from_secs(5)).await;
    let cut = cut.expect("the call hangs");
    // Whichever part of the call the server disconnected in.
    assert_eq!(cut["error"]["data"]["server"], "everything", "{cut}");
    let _server = everything_on(port, "sse").await;
    // Longer than the cooldown, because the server takes a while to start.
    wait_for("its return", Duration::from_secs(90), async || {
        let answer = peer.tool("echo", echo.clone()).await;
        !is_away(&answer.response) && said(answer.result()) == "Echo: x"
    })
    .await;
}
