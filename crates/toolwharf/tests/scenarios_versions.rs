//! G15 with servers of every older protocol version: everything that both sides support works in both directions.

#![expect(clippy::unwrap_used, reason = "test helpers may panic")]

mod common;

use common::{Gateway, LEGACY, Setup, names, real::npm, scripted, with};
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
    let gateway = Setup::new().server(name, entry).serve().await;
    gateway.up(name).await;
    gateway.logged(&format!("version={version}")).await;
    gateway
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
        // Sampling, progress, prompts, resources over several pages, subscriptions, log levels.
        let arguments = json!({ "prompt": "Hello", "maxTokens": 10 });
        let sampled = peer.tool("sampleLLM", arguments).await;
        assert_eq!(sampled.asked, ["sampling/createMessage"], "{version}");
        assert!(
            sampled.text().starts_with("LLM sampling result"),
            "{sampled:?}"
        );
        let params = json!({
            "name": "longRunningOperation",
            "arguments": { "duration": 0.1, "steps": 2 },
            "_meta": { "progressToken": "p" },
        });
        let slow = peer.request("tools/call", params).await;
        let reports = slow.notifications.iter();
        let reports = reports.filter(|note| note["params"]["progressToken"] == "p");
        assert_eq!(reports.count(), 2, "{version}: {slow:?}");
        let params = json!({ "name": "complex_prompt", "arguments": { "temperature": "1" } });
        let prompt = peer.request("prompts/get", params).await;
        assert!(prompt.result()["messages"].is_array(), "{prompt:?}");
        let uris = names(&mut peer, "resources/list", "resources", "uri").await;
        assert_eq!(uris.len(), 100, "{version}");
        let read = peer
            .request("resources/read", json!({ "uri": uris[90] }))
            .await;
        assert_eq!(read.result()["contents"][0]["uri"], uris[90]);
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
        let params = json!({
            "ref": { "type": "ref/prompt", "name": "complex_prompt" },
            "argument": { "name": "style", "value": "a" },
        });
        let completed = peer.request("completion/complete", params).await;
        assert_eq!(completed.result()["completion"]["values"], json!([]));
    }
}

/// The versions in between: requests in both directions, progress, cancellation, log messages, changes.
async fn revision(revision: &str) {
    let options = [
        "--protocol-version",
        revision,
        "--prompts",
        "2",
        "--resources",
        "2",
    ];
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
        let params = json!({
            "name": "progress",
            "arguments": { "count": 2 },
            "_meta": { "progressToken": 5 },
        });
        let outcome = peer.request("tools/call", params).await;
        let reports = outcome.notifications.iter();
        let reports = reports.filter(|note| note["params"]["progressToken"] == 5);
        assert_eq!(reports.count(), 2, "{version}: {outcome:?}");
        peer.log_level("info").await;
        let message = json!({ "level": "error", "data": "said" });
        let arguments = json!({ "method": "notifications/message", "params": message });
        peer.tool("notify", arguments).await;
        let heard = peer.notification("notifications/message", DEADLINE).await;
        assert_eq!(heard.unwrap()["params"]["data"], "said", "{version}");
        let prompt = peer
            .request("prompts/get", json!({ "name": "prompt_1" }))
            .await;
        assert!(prompt.result()["messages"].is_array(), "{prompt:?}");
        let uris = names(&mut peer, "resources/list", "resources", "uri").await;
        let listening = peer.subscribe(&[&uris[1]]).await;
        let arguments = json!({
            "method": "notifications/resources/updated",
            "params": { "uri": "scripted://1" },
        });
        peer.tool("notify", arguments).await;
        let updated = "notifications/resources/updated";
        let updated = peer.notification(updated, DEADLINE).await;
        assert_eq!(updated.unwrap()["params"]["uri"], uris[1], "{version}");
        if let Some(id) = listening {
            peer.cancel(id).await;
        }
        let slow = json!({ "name": "slow", "arguments": { "ms": 600_000 } });
        let running = peer.begin("tools/call", slow).await;
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
