//! Servers and expectations shared by several of these tests.

use agent::NativeTool;
use serde_json::{Value, json};
use testkit::llm::{asks, turns};

use crate::shared::{Set, TestServers, set_with};

pub(super) fn recipes() -> TestServers {
    let names = ["create", "list", "get", "update", "delete"];
    names
        .into_iter()
        .fold(TestServers::default(), |servers, name| {
            servers.echo("recipes", &format!("{name}_recipe"))
        })
        .echo("web", "fetch")
}

pub(super) fn results(of: &[(&str, &str, bool)]) -> Value {
    let results: Vec<_> = of
        .iter()
        .map(|(id, text, is_error)| json!({ "id": id, "equals": text, "is_error": is_error }))
        .collect();
    json!({ "tool_results": results })
}

/// A set whose model calls three tools: one that ends at once, one that hangs, and a native one that hangs.
pub(super) async fn hanging() -> Set {
    let servers = TestServers::default()
        .echo("a", "quick")
        .with("a", "slow", |_| std::future::pending());
    let hangs = NativeTool::new("hangs", "", json!({ "type": "object" }), |_| {
        std::future::pending()
    });
    let script = turns(&[asks(&[
        ("t1", "slow", json!({})),
        ("t2", "quick", json!({ "n": 1 })),
        ("t3", "hangs", json!({})),
    ])]);
    set_with(&script, servers, |_| {}, vec![hangs]).await
}
