//! A third-party server: npm's server-everything, hosted as a command and as an image.

use serde_json::{Value, json};
use testkit::conformance::node_modules;

use crate::support::{Platform, Site};

/// The server's entry. `cargo xtask docker` builds the image from what `cargo xtask setup` installed.
fn everything(platform: Platform) -> Value {
    if platform.runs_images() {
        return json!({"name": "everything", "image": platform.image("everything")});
    }
    let modules = node_modules();
    let script = modules.join("@modelcontextprotocol/server-everything/dist/index.js");
    assert!(
        script.exists(),
        "{} is missing; run: cargo xtask setup",
        script.display()
    );
    json!({"name": "everything", "command": modules.join("node/bin/node"), "args": [script]})
}

on_every_platform!(a_real_server_is_hosted_and_in_the_gateway);

async fn a_real_server_is_hosted_and_in_the_gateway(platform: Platform) {
    let site = Site::new(platform).await;
    let host = site.start().await;
    let mut entry = everything(platform);
    // Half a core of a busy machine is too little to start Node.js.
    entry["resource_limits"] = json!({"cpu": 2, "memory": "1G"});
    entry["start_timeout_ms"] = 80_000.into();
    let id = host.host(entry).await;
    let told = host.status(&id).await;
    assert_eq!(told["provider"], platform.word());
    assert!(told["tools"].as_u64().unwrap() >= 10, "{told:#}");
    let echo = host.said(&id, "echo", json!({"message": "hello"})).await;
    assert!(echo.contains("hello"), "{echo}");
    // The same for every client of the gateway.
    let tools = host
        .running
        .mcp("", "tools/list", json!({}))
        .await
        .response();
    let tools = tools["result"]["tools"].as_array().unwrap().clone();
    assert!(
        tools.iter().any(|tool| tool["name"] == "get-sum"),
        "{tools:?}"
    );
    let sum = json!({"name": "get-sum", "arguments": {"a": 19, "b": 23}});
    let answer = host.running.mcp("", "tools/call", sum).await.response();
    let said = answer["result"]["content"][0]["text"].as_str().unwrap();
    assert!(said.contains("42"), "{answer}");
    host.stop().await;
}
