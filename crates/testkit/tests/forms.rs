//! The conformance server behaves the same for every kind of client, in everything that a gateway has to forward.

use std::time::Duration;

use serde_json::{Value, json};
use testkit::{
    DEADLINE, Peer, Process, RawClient, StdioClient,
    peer::{MODERN, all_capabilities, answer},
    wait_for,
};

const WATCHED: &str = "test://watched-resource";

/// Exercises every kind of message between client and server.
async fn check(mut peer: Peer) {
    for (tool, method) in [
        ("ask_sampling", "sampling/createMessage"),
        ("ask_elicitation", "elicitation/create"),
        ("ask_roots", "roots/list"),
    ] {
        let outcome = peer.tool(tool, json!({})).await;
        let said: Value = serde_json::from_str(outcome.text()).expect("JSON");
        assert_eq!(said, answer(method), "{tool}");
        assert_eq!(outcome.asked, [method], "{tool}");
    }
    let outcome = peer
        .tool("test_input_required_result_multi_round", json!({}))
        .await;
    assert_eq!(outcome.asked.len(), 2, "{outcome:?}");

    let params = json!({
        "name": "slow",
        "arguments": { "ms": 120 },
        "_meta": { "progressToken": "the token" },
    });
    let outcome = peer.request("tools/call", params).await;
    assert_eq!(outcome.text(), "slept 120 ms");
    let reports: Vec<_> = outcome
        .notifications
        .iter()
        .filter(|message| message["method"] == "notifications/progress")
        .collect();
    assert!(reports.len() >= 2, "{outcome:?}");
    assert_eq!(reports[0]["params"]["progressToken"], "the token");

    let count = async |peer: &mut Peer| -> u64 {
        let outcome = peer.tool("cancelled_count", json!({})).await;
        outcome.text().parse().expect("a number")
    };
    let before = count(&mut peer).await;
    let params = json!({
        "name": "slow",
        "arguments": { "ms": 600_000 },
        "_meta": { "progressToken": 7 },
    });
    let id = peer.begin("tools/call", params).await;
    // Only a call that has begun can be cancelled.
    let begun = async |peer: &mut Peer| loop {
        let report = peer.notification("notifications/progress", DEADLINE).await;
        if report.expect("progress")["params"]["progressToken"] == 7 {
            break;
        }
    };
    begun(&mut peer).await;
    peer.cancel(id).await;
    wait_for("the cancellation", DEADLINE, async || {
        count(&mut peer).await > before
    })
    .await;

    peer.log_level("warning").await;
    let arguments = json!({ "level": "info", "message": "not wanted" });
    assert_eq!(peer.tool("log_at", arguments).await.text(), "not logged");
    let arguments = json!({ "level": "error", "message": "wanted" });
    assert_eq!(peer.tool("log_at", arguments).await.text(), "logged");
    let logged = peer.notification("notifications/message", DEADLINE).await;
    assert_eq!(logged.expect("a log message")["params"]["data"], "wanted");

    let listening = peer.subscribe(&[WATCHED]).await;
    peer.tool("touch_resource", json!({})).await;
    let updated = "notifications/resources/updated";
    let updated = peer
        .notification(updated, DEADLINE)
        .await
        .expect("an update");
    assert_eq!(updated["params"]["uri"], WATCHED);
    peer.tool("toggle_tool", json!({})).await;
    let changed = "notifications/tools/list_changed";
    assert!(peer.notification(changed, DEADLINE).await.is_some());
    let tools = peer.request("tools/list", json!({})).await;
    assert!(tools.response.to_string().contains("toggled_tool"));
    if let Some(id) = listening {
        peer.cancel(id).await;
    }
}

async fn served(arguments: &[&str]) -> (Process, RawClient) {
    let mut all = vec!["--listen", "127.0.0.1:0"];
    all.extend(arguments);
    let mut server = Process::bin("testkit-conformance", all);
    let client = RawClient::new(&server.url().await);
    (server, client)
}

#[tokio::test]
async fn stdio_legacy() {
    for era in ["both", "legacy"] {
        let client = StdioClient::bin("testkit-conformance", ["--stdio", "--era", era]);
        check(Peer::stdio(client, "2025-11-25", all_capabilities()).await).await;
    }
}

#[tokio::test]
async fn stdio_modern() {
    for era in ["both", "modern"] {
        let client = StdioClient::bin("testkit-conformance", ["--stdio", "--era", era]);
        check(Peer::stdio(client, MODERN, all_capabilities()).await).await;
    }
}

#[tokio::test]
async fn http_legacy() {
    for version in ["2025-11-25", "2025-06-18", "2025-03-26"] {
        let (_server, client) = served(&["--era", "legacy"]).await;
        check(Peer::http(client, version, all_capabilities()).await).await;
    }
}

#[tokio::test]
async fn http_modern() {
    for arguments in [&["--era", "both"][..], &["--era", "modern"], &["--json"]] {
        let (_server, client) = served(arguments).await;
        check(Peer::http(client, MODERN, all_capabilities()).await).await;
    }
}

#[tokio::test]
async fn subscriptions_of_clients_with_the_same_ids_are_apart() {
    let (_server, client) = served(&[]).await;
    let mut stays = Peer::http(client.clone(), MODERN, json!({})).await;
    let mut leaves = Peer::http(client, MODERN, json!({})).await;
    stays.subscribe(&[WATCHED]).await;
    let listening = leaves.subscribe(&[WATCHED]).await;
    leaves.cancel(listening.expect("a modern client")).await;
    for _ in 0..3 {
        stays.tool("touch_resource", json!({})).await;
        let updated = "notifications/resources/updated";
        assert!(stays.notification(updated, DEADLINE).await.is_some());
    }
}

#[tokio::test]
async fn http_and_sse() {
    let (_server, client) = served(&["--sse"]).await;
    check(Peer::sse(client, all_capabilities()).await).await;
}

#[tokio::test]
async fn a_legacy_server_refuses_modern_requests_and_goes_on() {
    let discover = json!({ "jsonrpc": "2.0", "id": 1, "method": "server/discover", "params": {
        "_meta": {
            "io.modelcontextprotocol/protocolVersion": MODERN,
            "io.modelcontextprotocol/clientCapabilities": {},
        },
    }});
    let mut client = StdioClient::bin("testkit-conformance", ["--stdio", "--era", "legacy"]);
    let refusal = client.ask(discover.clone()).await;
    assert_eq!(refusal["error"]["code"], -32601);
    let mut peer = Peer::stdio(client, "2025-11-25", json!({})).await;
    let outcome = peer.tool("test_simple_text", json!({})).await;
    assert!(outcome.text().contains("simple text"));
    // Undeclared capabilities are not used.
    let outcome = peer.tool("ask_roots", json!({})).await;
    assert!(outcome.response.get("error").is_some(), "{outcome:?}");

    let (_server, client) = served(&["--era", "legacy"]).await;
    let headers = [
        ("mcp-protocol-version", MODERN),
        ("mcp-method", "server/discover"),
    ];
    let reply = client.post_with(&headers, discover.to_string()).await;
    assert_eq!(reply.status, 400);
    assert_eq!(reply.response()["error"]["code"], -32000);
}

#[tokio::test]
async fn a_modern_server_refuses_initialize() {
    let initialize = json!({
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": { "name": "test", "version": "1" },
        },
    });
    let mut client = StdioClient::bin("testkit-conformance", ["--stdio", "--era", "modern"]);
    let refusal = client.ask(initialize.clone()).await;
    assert!(refusal.get("error").is_some(), "{refusal}");
    let (_server, client) = served(&["--era", "modern"]).await;
    let reply = client.post(initialize.to_string()).await;
    assert!(reply.response().get("error").is_some(), "{}", reply.text());
}

#[tokio::test]
async fn the_server_ends_with_its_stdin() {
    let client = StdioClient::bin("testkit-conformance", ["--stdio"]);
    assert!(client.finish(Duration::from_secs(10)).await.success());
}
