//! A third-party server: npm's server-everything, hosted as a command and as an image.

use serde_json::{Value, json};

use crate::{
    common::{
        checks,
        real::{EVERYTHING, npm},
    },
    support::{Platform, Site, with},
};

/// The server's entry. `cargo xtask docker` builds the image from what `cargo xtask setup` installed.
fn everything(platform: Platform) -> Value {
    if platform.runs_images() {
        return json!({"name": "everything", "image": platform.image("everything")});
    }
    with(npm(EVERYTHING, &[]), json!({"name": "everything"}))
}

on_every_platform!(a_real_server_is_hosted_and_in_the_gateway);

async fn a_real_server_is_hosted_and_in_the_gateway(platform: Platform) {
    let (_site, host) = Site::started(platform).await;
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
    // Every client of the gateway gets the same tools.
    let tools = host.tools_of_all().await;
    let is_there = tools.iter().any(|tool| tool["name"] == "get-sum");
    assert!(is_there, "{tools:?}");
    let sum = json!({"name": "get-sum", "arguments": {"a": 19, "b": 23}});
    let answer = host.running.mcp("", "tools/call", sum).await.response();
    checks::string(&answer["result"]["content"][0]["text"], &["42"]);
    host.stop().await;
}
