//! P06 and P07: servers of a project that are reached by URL.

use std::time::Duration;

use serde_json::json;
use testkit::{DEADLINE, Process, wait_for, within};
use tokio::time::Instant;

use crate::{
    api::Api,
    common::{
        Gateway, checks, echoes, is_away,
        real::{everything_at, everything_on, free_port, said},
        scripted, tools,
    },
    support::{Db, both, legacy, works},
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
    let naming = json!({"naming": "always-prefix"});
    api.put("/projects/a", naming).await;
    let secret = json!({"value": "sesame"});
    api.put("/projects/a/secrets/KEY", secret).await;
    let headers = json!({"X-Api-Key": "${KEY}", "Authorization": "Bearer b"});
    let found = json!({"url": url, "headers": headers});
    let mut typed = found.clone();
    typed["type"] = "sse".into();
    for (name, entry) in [("typed", typed), ("found", found)] {
        let made = api.server("a", name, entry).await;
        // Header values are not shown to readers of the status.
        assert_eq!(made["headers"], json!(["Authorization", "X-Api-Key"]));
    }
    for mut peer in both(&gateway, "a").await {
        for server in ["typed", "found"] {
            let headers = peer.tool(&format!("{server}__headers"), json!({})).await;
            let headers = &headers.result()["structuredContent"];
            let expected = json!({"x-api-key": "sesame", "authorization": "Bearer b"});
            checks::members(headers, expected);
        }
    }
}

async fn p06_server_everything_over_sse_and_http(db: &Db) {
    let (_sse, sse) = everything_at("sse", "/sse").await;
    let (_http, http) = everything_at("streamableHttp", "/mcp").await;
    let gateway = db.setup().serve().await;
    let api = Api::admin(&gateway);
    for (project, url) in [("sse", sse), ("http", http)] {
        let entry = json!({"type": project, "url": url, "headers": {"X-Test": "1"}});
        api.project(project).await;
        let made = api.server(project, "everything", entry).await;
        assert_eq!(made["transport"], project);
        for mut peer in both(&gateway, project).await {
            assert!(tools(&mut peer).await.contains(&"get-sum".to_owned()));
            let sum = peer.tool("get-sum", json!({"a": 2, "b": 40})).await;
            checks::contains(said(sum.result()), &["42"]);
        }
    }
}

async fn p07_a_dropped_sse_stream_fails_calls_at_once_and_comes_back(db: &Db) {
    let (server, url) = sse_server("127.0.0.1:0").await;
    let gateway = db.setup().serve().await;
    let api = Api::admin(&gateway);
    api.project("a").await;
    let remote = json!({"type": "sse", "url": url});
    api.server("a", "remote", remote).await;
    let local = scripted("local", &["--no-builtin", "--tools", "1"]);
    api.server("a", "local", local).await;
    let mut peer = legacy(&gateway, "a").await;
    let listed = tools(&mut peer).await;
    // The stream is cut while another call is in flight: both calls end with an error at once.
    let other = peer.begin("tools/call", json!({"name": "never"})).await;
    let limit = Duration::from_secs(5);
    let cut = peer.tool("drop_stream", json!({}));
    let cut = within("the cut call's end", limit, cut).await;
    assert!(is_away(&cut.response), "{cut:?}");
    let other = peer.finish_within(other, limit).await;
    assert!(is_away(&other.expect("the other call ends")));
    echoes("the stream's return", DEADLINE, &mut peer).await;

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
        works(&mut peer, "tool_0").await;
    }
    assert!(start.elapsed() < limit, "{:?}", start.elapsed());
    assert_eq!(tools(&mut peer).await, listed, "the tools left the list");
    wait_for("two attempts", DEADLINE, async || {
        waits(&gateway).len() >= 2
    })
    .await;
    let address = url.strip_prefix("http://").unwrap();
    let address = address.strip_suffix("/sse").unwrap();
    let (_server, _) = sse_server(address).await;
    // The limit is longer than the cooldown, in case a busy machine has caused one.
    let limit = Duration::from_secs(90);
    echoes("the server's return", limit, &mut peer).await;
    let waits = waits(&gateway);
    assert!(waits.windows(2).all(|pair| pair[0] < pair[1]), "{waits:?}");
}

/// Returns the waits after each failed attempt since the server was last connected.
fn waits(gateway: &Gateway) -> Vec<u64> {
    let stderr = gateway.process.stderr();
    let remote = stderr.lines().filter(|line| line.contains("remote"));
    let mut waits = Vec::new();
    for line in remote {
        let wait = line.split_once("retry_ms=");
        let wait = wait.and_then(|(_, wait)| wait.split(' ').next());
        match wait {
            // The server was connected before this attempt.
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
    let entry = json!({"type": "sse", "url": url});
    api.server("a", "everything", entry).await;
    let mut peer = legacy(&gateway, "a").await;
    let echo = json!({"message": "x"});
    let echoed = peer.tool("echo", echo.clone()).await;
    assert_eq!(said(echoed.result()), "Echo: x");
    let asked = json!({"name": "trigger-long-running-operation", "arguments": {"duration": 60, "steps": 60}});
    let long = peer.begin("tools/call", asked).await;
    wait_for("the long call", DEADLINE, async || {
        api.get("/mcp/servers/everything?project=a").await["in_flight"] == 1
    })
    .await;
    drop(server);
    let cut = peer.finish_within(long, Duration::from_secs(5)).await;
    let cut = cut.expect("the call ends");
    // The error names the server, at whichever step of the call it disconnected.
    assert_eq!(cut["error"]["data"]["server"], "everything", "{cut}");
    let _server = everything_on(port, "sse").await;
    // The limit is longer than the cooldown, because the server takes a while to start.
    wait_for("its return", Duration::from_secs(90), async || {
        let answer = peer.tool("echo", echo.clone()).await;
        !is_away(&answer.response) && said(answer.result()) == "Echo: x"
    })
    .await;
}
