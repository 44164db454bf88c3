//! Packages of `npx` and `uvx` that servers of the file are started from, and how they move on to newer versions. The
//! registry is one of the test's own.

use serde_json::{Value, json};
use testkit::{Registry, wait_for_some};

use crate::{
    packages,
    support::{Host, LONG, Site},
};

/// A product that knows only this registry, with these settings.
async fn site(registry: Option<&Registry>, settings: &str) -> Site {
    let mut site = packages::site().await;
    site.kept.settings(&format!(
        "[limits]\nstop_grace = \"2s\"\n[hosting]\nproviders = [\"process\"]\n{settings}"
    ));
    registries(&mut site, registry);
    site
}

/// `None`: nobody listens where the registries should be.
fn registries(site: &mut Site, registry: Option<&Registry>) {
    let npm = registry.map_or(packages::NO_REGISTRY.to_owned(), Registry::npm);
    let pypi = registry.map_or(packages::NO_REGISTRY.to_owned(), Registry::pypi);
    packages::registries(site, Some(&npm), Some(&pypi));
}

fn tool(name: &str, description: &str) -> Value {
    json!({"name": name, "description": description, "inputSchema": {"type": "object"}})
}

async fn running(host: &Host, name: &str) -> Value {
    wait_for_some(&format!("{name} to run"), LONG, async || {
        let path = format!("/servers/{name}");
        let row = host.running.ok("GET", &path, Value::Null).await;
        (row["state"] == "running").then_some(row)
    })
    .await
}

/// The version that answers.
async fn version(host: &Host, name: &str, tool: &str) -> String {
    let params = json!({"name": tool, "arguments": {}});
    let scope = format!("-/{name}");
    let reply = host.running.mcp(&scope, "tools/call", params).await;
    let answer: Value = serde_json::from_str(&reply.text()).unwrap();
    let text = answer["result"]["content"][0]["text"].as_str();
    text.unwrap_or_else(|| panic!("{answer}")).to_owned()
}

#[tokio::test]
async fn the_file_s_servers_are_pinned_where_the_settings_say_so() {
    let registry = Registry::new().await;
    registry.publish("1.0.0", &json!([tool("hello", "Says hello")]));
    let mut site = site(Some(&registry), "[defaults]\npackages = \"pinned\"\n").await;
    site.kept.servers(json!({
        "node": {"command": "npx", "args": ["-y", Registry::PACKAGE]},
        "python": {"command": "uvx", "args": [Registry::PACKAGE]},
    }));
    let host = site.start().await;
    for name in ["node", "python"] {
        let row = running(&host, name).await;
        assert_eq!((&row["sandbox"], &row["tools"]), (&Value::Null, &json!(1)));
    }
    host.stop().await;
    assert_eq!(packages::shelved(&site).len(), 4);
    // Nothing is asked of a registry any more, and a newer version is nothing to it.
    registry.publish("1.1.0", &json!([tool("hello", "Says hello")]));
    registries(&mut site, None);
    let host = site.start().await;
    for name in ["node", "python"] {
        running(&host, name).await;
        assert_eq!(version(&host, name, "hello").await, "1.0.0");
    }
    host.stop().await;
}

#[tokio::test]
async fn the_file_s_servers_are_confined_where_the_settings_say_so() {
    let registry = Registry::new().await;
    registry.publish("1.0.0", &json!([tool("hello", "Says hello")]));
    let site = site(Some(&registry), "[defaults]\nsandbox = true\n").await;
    let mut entry = json!({"command": "npx", "args": ["-y", Registry::PACKAGE]});
    // Which `npx` itself needs.
    entry["env"] = json!({"npm_config_registry": registry.npm()});
    let mut out = entry.clone();
    out["sandbox"] = false.into();
    site.kept.servers(json!({"in": entry, "out": out}));
    let host = site.start().await;
    let (within, without) = (running(&host, "in").await, running(&host, "out").await);
    assert_eq!(
        (&within["sandbox"], &without["sandbox"]),
        (&json!("process"), &Value::Null)
    );
    host.stop().await;
}
