//! JSON-RPC messages as a raw client sends them.

use serde_json::{Value, json};
use testkit::{RawClient, Reply, StdioClient, Streaming, peer::MODERN};

use super::LEGACY;

pub(crate) fn message(id: impl Into<Value>, method: &str, params: Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id.into(), "method": method, "params": params})
}

/// A `tools/call` as text.
pub(crate) fn call(id: impl Into<Value>, tool: &str, arguments: Value) -> String {
    let params = json!({"name": tool, "arguments": arguments});
    message(id, "tools/call", params).to_string()
}

/// The `initialize` of a legacy client without capabilities.
pub(crate) fn hello(version: &str) -> Value {
    let params = json!({"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}});
    message("hello", "initialize", params)
}

pub(crate) async fn initialize(client: &RawClient, version: &str) -> Reply {
    client.post(hello(version).to_string()).await
}

/// Opens a session with that protocol version.
pub(crate) async fn session(client: RawClient, version: &str) -> RawClient {
    let reply = initialize(&client, version).await;
    let id = reply.header("mcp-session-id");
    let id = id.unwrap_or_else(|| panic!("{}", reply.text()));
    client.with("mcp-session-id", id)
}

/// Initializes a legacy client of `toolwharf stdio` and waits for the tools of all servers.
pub(crate) async fn greet(client: &mut StdioClient) {
    client.ask(hello(LEGACY)).await;
    client.ask(message("list", "tools/list", json!({}))).await;
}

/// The `_meta` of a modern request.
pub(crate) fn meta() -> Value {
    json!({
        "io.modelcontextprotocol/protocolVersion": MODERN,
        "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    })
}

/// A modern request.
pub(crate) fn modern(id: impl Into<Value>, method: &str, mut params: Value) -> Value {
    params["_meta"] = meta();
    message(id, method, params)
}

/// The headers of a modern request that names no tool, prompt or resource.
pub(crate) fn headers(method: &str) -> [(&str, &str); 2] {
    [("mcp-protocol-version", MODERN), ("mcp-method", method)]
}

/// Opens a modern client's subscription to changes of the tool list.
pub(crate) async fn listen(client: &RawClient) -> Streaming {
    let method = "subscriptions/listen";
    let params = json!({"notifications": {"toolsListChanged": true}});
    let body = modern(1, method, params).to_string();
    client
        .send(http::Method::POST, &headers(method), body)
        .await
}

/// The headers of a modern `tools/call`.
pub(crate) fn call_headers(tool: &str) -> [(&str, &str); 3] {
    [
        ("mcp-protocol-version", MODERN),
        ("mcp-method", "tools/call"),
        ("mcp-name", tool),
    ]
}

/// A modern `tools/call`. It needs [`call_headers`].
pub(crate) fn modern_call(id: impl Into<Value>, tool: &str, arguments: Value) -> Value {
    modern(
        id,
        "tools/call",
        json!({"name": tool, "arguments": arguments}),
    )
}
