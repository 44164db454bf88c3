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
    DEADLINE, Peer, Process, RawClient,
    peer::{MODERN, all_capabilities, answer},
    wait_for,
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

/// A server that speaks both eras at one URL is addressed in the era of each client, at the same time.
#[tokio::test]
async fn u14_a_server_of_both_eras_is_addressed_in_the_clients_era() {
    let (gateway, _server, url) = of_both_eras(Setup::new(), json!({})).await;
    gateway.logged("version=2026-07-28").await;
    for path in ["/mcp", "/mcp/-/both"] {
        let mut old = Peer::http(gateway.at(path), LEGACY, all_capabilities()).await;
        let mut new = Peer::http(gateway.at(path), MODERN, all_capabilities()).await;
        // A call of the modern client is in flight all the time. The server's requests still belong to the legacy client.
        let running = begin_tool(&mut new, "slow", json!({ "ms": 600_000 })).await;
        gateway.in_flight("both", 1, DEADLINE).await;
        for method in ["sampling/createMessage", "elicitation/create", "roots/list"] {
            let arguments = json!({ "method": method, "params": {} });
            let outcome = old.tool("server_request", arguments).await;
            assert_eq!(outcome.asked, [method], "{path}");
            let said: Value = serde_json::from_str(outcome.text()).unwrap();
            assert_eq!(said["result"], answer(method), "{path}");
        }
        new.cancel(running).await;
        // The modern client's state reaches the server unchanged.
        let input = new.tool("input", json!({ "state": "of the server" })).await;
        assert_eq!(input.asked, ["elicitation/create"], "{path}");
        let said: Value = serde_json::from_str(input.text()).unwrap();
        assert_eq!(said["requestState"], "of the server", "{path}");
        // Each subscription belongs to one conversation.
        let uris = names(&mut old, "resources/list", "resources", "uri").await;
        let both: Vec<&str> = uris.iter().map(String::as_str).collect();
        old.subscribe(&both).await;
        let listening = new.subscribe(&both).await;
        let updated = "notifications/resources/updated";
        for (peer, native) in [(&mut new, "scripted://0"), (&mut old, "scripted://1")] {
            let params = json!({ "method": updated, "params": { "uri": native } });
            peer.tool("notify", params).await;
        }
        for (peer, uri) in [(&mut old, &uris[1]), (&mut new, &uris[0])] {
            let heard = peer.notification(updated, DEADLINE).await.unwrap();
            assert_eq!(heard["params"]["uri"], **uri, "{path}");
        }
        // The catalog is one, and so are its changes, whichever conversation reports them.
        let count = if path == "/mcp" { 3 } else { 4 };
        old.tool("set_tools", json!({ "count": count })).await;
        for peer in [&mut old, &mut new] {
            let changed = peer.notification("notifications/tools/list_changed", DEADLINE);
            changed.await.unwrap();
            let tools = names(peer, "tools/list", "tools", "name").await;
            let listed = tools.iter().filter(|name| name.starts_with("tool_"));
            assert_eq!(listed.count(), count, "{path}");
        }
        if let Some(id) = listening {
            new.cancel(id).await;
        }
        // The server forgets the legacy session, as after a restart. The next call opens another one.
        let headers = session_of(&mut old).await;
        let forget = [("mcp-session-id", &*headers)];
        let forgotten = RawClient::new(&url).delete(&forget).await;
        assert_eq!(forgotten.status, 200);
        let next = session_of(&mut old).await;
        assert_ne!(next, headers, "{path}");
    }
}

/// An unused legacy conversation ends. The next call opens another one.
#[tokio::test]
async fn u14_an_unused_conversation_ends() {
    let setup = Setup::new().settings("[limits]\nserver_idle = \"1s\"\n");
    let (gateway, _server, url) = of_both_eras(setup, json!({})).await;
    let mut old = Peer::http(gateway.client(), LEGACY, all_capabilities()).await;
    let first = session_of(&mut old).await;
    let upstream = RawClient::new(&url).with("mcp-session-id", &first);
    let ping = json!({ "jsonrpc": "2.0", "id": 1, "method": "ping" }).to_string();
    wait_for("the session is deleted", DEADLINE, async || {
        upstream.post(ping.clone()).await.status == 404
    })
    .await;
    assert_ne!(session_of(&mut old).await, first);
}

/// Sessions with separate instances have one conversation each, in their client's era.
#[tokio::test]
async fn u14_separate_instances_are_in_their_clients_era() {
    let own = json!({ "sharing": "session" });
    let (gateway, _server, _url) = of_both_eras(Setup::new(), own).await;
    let mut sessions = Vec::new();
    for _ in 0..2 {
        let mut old = Peer::http(gateway.client(), LEGACY, all_capabilities()).await;
        let arguments = json!({ "method": "roots/list", "params": {} });
        let outcome = old.tool("server_request", arguments).await;
        assert_eq!(outcome.asked, ["roots/list"]);
        let session = session_of(&mut old).await;
        assert!(!sessions.contains(&session), "{session} is shared");
        sessions.push(session);
    }
    let mut new = Peer::http(gateway.client(), MODERN, all_capabilities()).await;
    let input = new.tool("input", json!({ "state": "of the server" })).await;
    let said: Value = serde_json::from_str(input.text()).unwrap();
    assert_eq!(said["requestState"], "of the server");
}

/// A gateway in front of a scripted server `both` that speaks both eras, with Toolwharf's `options` for its entry.
/// Returns the server's URL, too.
async fn of_both_eras(setup: Setup, options: Value) -> (Gateway, Process, String) {
    let arguments = ["--http", "127.0.0.1:0", "--both", "--resources", "2"];
    let mut server = Process::bin("testkit-scripted", arguments);
    let url = server.url().await;
    let entry = with(json!({ "type": "http", "url": url }), options);
    let gateway = setup.server("both", entry).connected().await;
    (gateway, server, url)
}

/// Returns the id of the session in which a call reaches the scripted server.
async fn session_of(peer: &mut Peer) -> String {
    let called = peer.tool("headers", json!({})).await;
    let headers: Value = serde_json::from_str(called.text()).unwrap();
    assert_eq!(headers["mcp-protocol-version"], LEGACY);
    headers["mcp-session-id"].as_str().unwrap().to_owned()
}
