//! G15 with servers of every older protocol version: everything that both sides support works in both directions.

#![expect(clippy::unwrap_used, reason = "test helpers may panic")]

mod common;

use common::{
    Gateway, LEGACY, Setup, names,
    real::npm,
    scripted,
    steps::{begin_tool, completions, resource},
    with,
};
use serde_json::{Value, json};
use testkit::{
    DEADLINE, Peer,
    peer::{MODERN, all_capabilities, answer},
};

const CLIENTS: [&str; 4] = ["2025-03-26", "2025-06-18", LEGACY, MODERN];

async fn client(gateway: &Gateway, version: &str) -> Peer {
    Peer::http(gateway.client(), version, all_capabilities()).await
}

async fn one_call_at_a_time(name: &str, entry: Value, version: &str) -> Gateway {
    let entry = with(entry, json!({ "maxConcurrency": 1 }));
    let gateway = Setup::new().server(name, entry).connected().await;
    gateway.logged(&format!("version={version}")).await;
    gateway
}

/// Calls a tool, and asserts that its progress is reported twice.
async fn progress(peer: &mut Peer, tool: &str, arguments: Value) {
    let meta = json!({ "progressToken": "p" });
    let params = json!({ "name": tool, "arguments": arguments, "_meta": meta });
    let slow = peer.request("tools/call", params).await;
    let reports = slow.notifications.iter();
    let reports = reports.filter(|note| note["params"]["progressToken"] == "p");
    assert_eq!(reports.count(), 2, "{slow:?}");
}

/// Asserts that a prompt can be read.
async fn prompt(peer: &mut Peer, params: Value) {
    let prompt = peer.request("prompts/get", params).await;
    assert!(prompt.result()["messages"].is_array(), "{prompt:?}");
}

/// The reference server of 2024, with the SDK of that time.
#[tokio::test]
async fn g15_a_real_server_of_2024_11_05() {
    let entry = npm("../everything-2024-11-05/dist/index.js", &[]);
    let gateway = one_call_at_a_time("old", entry, "2024-11-05").await;
    for version in CLIENTS {
        let mut peer = client(&gateway, version).await;
        let tools = names(&mut peer, "tools/list", "tools", "name").await;
        assert!(tools.contains(&"sampleLLM".to_owned()), "{tools:?}");
        let added = peer.tool("add", json!({ "a": 2, "b": 3 })).await;
        assert!(added.text().contains('5'), "{version}: {added:?}");
        // Tests sampling, progress, prompts, resources over several pages, subscriptions and log levels.
        let arguments = json!({ "prompt": "Hello", "maxTokens": 10 });
        let sampled = peer.tool("sampleLLM", arguments).await;
        assert_eq!(sampled.asked, ["sampling/createMessage"], "{version}");
        let said = sampled.text();
        assert!(said.starts_with("LLM sampling result"), "{said}");
        let steps = json!({ "duration": 0.1, "steps": 2 });
        progress(&mut peer, "longRunningOperation", steps).await;
        let params = json!({ "name": "complex_prompt", "arguments": { "temperature": "1" } });
        prompt(&mut peer, params).await;
        let uris = names(&mut peer, "resources/list", "resources", "uri").await;
        assert_eq!(uris.len(), 100, "{version}");
        assert_eq!(resource(&mut peer, &uris[90]).await["uri"], uris[90]);
        peer.log_level("error").await;
        let listening = peer.subscribe(&[&uris[0]]).await;
        if let Some(id) = listening {
            peer.cancel(id).await;
        }
        // Only unsupported features are refused.
        let params = json!({ "name": "add", "arguments": { "a": 1, "b": 1 }, "task": {} });
        let called = peer.request("tools/call", params).await;
        assert!(called.text().contains('2'), "{version}: {called:?}");
        let listed = peer.request("tasks/list", json!({})).await;
        assert_eq!(listed.response["error"]["code"], -32601, "{version}");
        let of = json!({ "type": "ref/prompt", "name": "complex_prompt" });
        let values = completions(&mut peer, of, "style", "a").await;
        assert_eq!(values, json!([]));
    }
}

/// Tests an intermediate version: requests in both directions, progress, cancellation, log messages, changes.
async fn revision(revision: &str) {
    let version = ["--protocol-version", revision];
    let options = [&version[..], &["--prompts", "2", "--resources", "2"]].concat();
    let gateway = one_call_at_a_time("mid", scripted("mid", &options), revision).await;
    for version in CLIENTS {
        let mut peer = client(&gateway, version).await;
        for method in ["sampling/createMessage", "elicitation/create", "roots/list"] {
            let arguments = json!({ "method": method, "params": {} });
            let outcome = peer.tool("server_request", arguments).await;
            assert_eq!(outcome.asked, [method], "{version}");
            let said: Value = serde_json::from_str(outcome.text()).unwrap();
            assert_eq!(said["result"], answer(method), "{version}");
        }
        progress(&mut peer, "progress", json!({ "count": 2 })).await;
        peer.log_level("info").await;
        let message = json!({ "level": "error", "data": "said" });
        let arguments = json!({ "method": "notifications/message", "params": message });
        peer.tool("notify", arguments).await;
        let heard = peer.notification("notifications/message", DEADLINE).await;
        assert_eq!(heard.unwrap()["params"]["data"], "said", "{version}");
        prompt(&mut peer, json!({ "name": "prompt_1" })).await;
        let uris = names(&mut peer, "resources/list", "resources", "uri").await;
        let listening = peer.subscribe(&[&uris[1]]).await;
        let updated = "notifications/resources/updated";
        let arguments = json!({ "method": updated, "params": { "uri": "scripted://1" } });
        peer.tool("notify", arguments).await;
        let updated = peer.notification(updated, DEADLINE).await;
        assert_eq!(updated.unwrap()["params"]["uri"], uris[1], "{version}");
        if let Some(id) = listening {
            peer.cancel(id).await;
        }
        let running = begin_tool(&mut peer, "slow", json!({ "ms": 600_000 })).await;
        // Only a call that has begun can be cancelled.
        gateway.in_flight("mid", 1, DEADLINE).await;
        peer.cancel(running).await;
        let echoed = peer.tool("echo", json!({ "after": version })).await;
        assert!(echoed.text().contains(version), "{echoed:?}");
    }
}

#[tokio::test]
async fn g15_servers_of_2025_03_26() {
    revision("2025-03-26").await;
}

#[tokio::test]
async fn g15_servers_of_2025_06_18() {
    revision("2025-06-18").await;
}
