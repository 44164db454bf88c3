//! Headers of callers that are passed on to a server at a URL: `"X-Tenant": "${header:X-Tenant}"`.

#![expect(clippy::unwrap_used, reason = "test helpers may panic")]

mod common;

use axum::{
    Router,
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
    routing::post,
};
use common::{LEGACY, Setup, says, tools};
use serde_json::{Value, json};
use testkit::{DEADLINE, Peer, RawClient, peer};
use tokio::{net::TcpListener, task::JoinSet};

/// Secret values of callers, which must appear nowhere.
const TENANTS: [&str; 2] = ["tenant-7f3a", "tenant-91bc"];
const UPSTREAM: &str = "Bearer upstream-5d20";

/// Starts a legacy server whose tools are named after the tenant. Each tool returns the headers of its request.
async fn tenants() -> (String, JoinSet<()>) {
    async fn answer(headers: HeaderMap, text: String) -> Response {
        let request: Value = serde_json::from_str(&text).unwrap();
        let tenant = headers["x-tenant"].to_str().unwrap();
        let result = match request["method"].as_str().unwrap() {
            "server/discover" => return StatusCode::BAD_REQUEST.into_response(),
            "initialize" => json!({
                "protocolVersion": LEGACY,
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "tenants", "version": "1"},
            }),
            "tools/list" => {
                let tool = |name: String| json!({"name": name, "inputSchema": {"type": "object"}});
                let own = tenant.trim_start_matches("tenant-");
                json!({"tools": [tool("headers".to_owned()), tool(format!("of_{own}"))]})
            }
            "tools/call" => {
                let sent = headers.iter();
                let sent = sent.map(|(name, value)| (name.as_str(), value.to_str().unwrap()));
                let sent: serde_json::Map<String, Value> = sent
                    .map(|(name, value)| (name.to_owned(), value.into()))
                    .collect();
                json!({"content": [], "structuredContent": sent})
            }
            _ if request.get("id").is_none() => return StatusCode::ACCEPTED.into_response(),
            _ => json!({}),
        };
        axum::Json(json!({"jsonrpc": "2.0", "id": request["id"], "result": result})).into_response()
    }
    let router = Router::new().route("/mcp", post(answer));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/mcp", listener.local_addr().unwrap());
    let mut task = JoinSet::new();
    task.spawn(async { axum::serve(listener, router).await.unwrap() });
    (url, task)
}

fn sending(client: RawClient, tenant: &str) -> RawClient {
    let client = client.with("x-tenant", tenant).with("cookie", "a=b");
    client.with("x-upstream-authorization", UPSTREAM)
}

#[tokio::test]
async fn headers_of_callers_are_passed_on() {
    let (url, _server) = tenants().await;
    let headers = json!({
        "X-Tenant": "${header:X-Tenant}",
        "X-Zone": "zone ${header:X-Zone:-eu}",
        "Authorization": "${header:X-Upstream-Authorization}",
    });
    let gateway = Setup::new()
        .server("crm", json!({"url": url, "headers": headers}))
        .scripted("other", &["--no-builtin", "--tools", "1"])
        .serve()
        .await;
    gateway.up("other").await;
    for version in [LEGACY, peer::MODERN] {
        for tenant in TENANTS {
            let client = sending(gateway.client(), tenant).with("x-more", "kept");
            let mut peer = Peer::http(client, version, peer::all_capabilities()).await;
            let own = tenant.replace("tenant-", "of_");
            assert_eq!(tools(&mut peer).await, ["headers", &own, "tool_0"]);
            let called = peer.tool("headers", json!({"of": tenant})).await;
            let sent = &called.result()["structuredContent"];
            assert_eq!(sent["x-tenant"], tenant);
            assert_eq!(sent["x-zone"], "zone eu");
            assert_eq!(sent["authorization"], UPSTREAM);
            assert_eq!(
                (&sent["cookie"], &sent["x-more"]),
                (&Value::Null, &Value::Null)
            );
        }
        // Without the headers, only this server is missing.
        let mut peer = Peer::http(gateway.client(), version, peer::all_capabilities()).await;
        assert_eq!(tools(&mut peer).await, ["tool_0"]);
        let refused = peer.tool("headers", json!({})).await;
        says(
            &refused.response,
            &["`crm`", "`x-tenant`", "`x-upstream-authorization`"],
        );
    }
    // A direct call over REST has headers, too. The caller's own token is not passed on.
    let call = json!({"method": "tools/call", "params": {"name": "headers", "arguments": {}}});
    let client = sending(gateway.admin("/mcp/servers/crm/call"), TENANTS[0]);
    let reply = client.post(call.to_string()).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    let told: Value = serde_json::from_slice(&reply.body).unwrap();
    let sent = &told["result"]["structuredContent"];
    assert_eq!(
        (&sent["x-tenant"], &sent["authorization"]),
        (&json!(TENANTS[0]), &json!(UPSTREAM))
    );
    // A value must be valid.
    let hello = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": LEGACY, "capabilities": {}, "clientInfo": {"name": "c", "version": "1"},
    }});
    let long = gateway.client().with("x-tenant", &"a".repeat(9000));
    let reply = long.post(hello.to_string()).await;
    assert_eq!(reply.status, 400, "{}", reply.text());
    assert!(
        reply.text().contains("`x-tenant` is longer than"),
        "{}",
        reply.text()
    );
    // No value is told, logged or stored.
    let mut texts = vec![gateway.process.stderr(), gateway.metrics().await];
    for path in ["/mcp/servers", "/mcp/servers/crm", "/calls"] {
        let reply = gateway.admin(path).get(&[]).await;
        texts.push(reply.collect(DEADLINE).await.text());
    }
    for file in std::fs::read_dir(gateway.folder().join("data")).unwrap() {
        let file = file.unwrap().path();
        if file.is_file() {
            texts.push(String::from_utf8_lossy(&std::fs::read(file).unwrap()).into_owned());
        }
    }
    assert!(texts.iter().any(|text| text.contains("crm")));
    for secret in [TENANTS[0], TENANTS[1], UPSTREAM] {
        assert!(!texts.iter().any(|text| text.contains(secret)), "{secret}");
    }
}

#[tokio::test]
async fn the_callers_own_authorization_is_never_passed_on() {
    let (url, _server) = tenants().await;
    let passed = json!({"X-Tenant": "${header:X-Tenant}"});
    let own = json!({"X-Tenant": "t", "Authorization": "${header:Authorization}"});
    let gateway = Setup::new()
        .server("crm", json!({"url": url, "headers": passed}))
        .server("own", json!({"url": url, "headers": own}))
        .serve()
        .await;
    let client = gateway.client().with("x-tenant", TENANTS[0]);
    let client = client.with("authorization", &format!("Bearer {}", gateway.token()));
    let mut peer = Peer::http(client, LEGACY, peer::all_capabilities()).await;
    let called = peer.tool("headers", json!({})).await;
    assert_eq!(
        called.result()["structuredContent"]["authorization"],
        Value::Null
    );
    let row = gateway.admin("/mcp/servers/own").get(&[]).await;
    let row: Value = serde_json::from_slice(&row.collect(DEADLINE).await.body).unwrap();
    assert_eq!(row["status"], "blocked", "{row:#}");
    let reason = row["reason"].as_str().unwrap();
    assert!(reason.contains("is never passed on"), "{reason}");
}
