//! Numbers of calls: in the list of servers, in the metrics, in the records and by tool.

use serde_json::{Value, json};
use testkit::Peer;

use crate::common::{
    Gateway, Setup, item, names, scripted,
    shell::{json_of, on, transcript},
    with,
};

/// Asserts the numbers of server `one` in every place that shows them.
async fn check(gateway: &Gateway, calls: u64, errors: u64, requests: u64) {
    let listed = json_of(gateway, "ls").await;
    let one = item(&listed["servers"], "name", "one");
    let numbers = |of: &Value| (of["calls"].as_u64(), of["errors"].as_u64());
    assert_eq!(numbers(one), (Some(calls), Some(errors)), "{one:#}");
    assert_eq!(one["requests"], requests, "{one:#}");

    let records = json_of(gateway, "calls ls").await;
    let records = records.as_array().expect("a list");
    assert_eq!(records.len() as u64, calls, "{records:#?}");
    let failed = ["tool_error", "error", "timeout", "unknown"];
    let has_failed = |one: &&Value| failed.iter().any(|status| one["status"] == *status);
    let failed = records.iter().filter(has_failed).count();
    assert_eq!(failed as u64, errors, "{records:#?}");

    let tools = json_of(gateway, "tools top --server one").await;
    let tools = tools["tools"].as_array().expect("a list");
    let sum = |key: &str| tools.iter().filter_map(|tool| tool[key].as_u64()).sum();
    assert_eq!((sum("calls"), sum("errors")), (calls, errors), "{tools:#?}");

    for (metric, value) in [
        ("calls_total", calls),
        ("call_errors_total", errors),
        ("requests_total", requests),
    ] {
        let found = gateway.metric(metric, Some("one")).await;
        assert_eq!(found, Some(value), "{metric}");
    }
}

async fn use_it(peer: &mut Peer) {
    peer.tool("echo", json!({})).await.result();
    peer.tool("fail", json!({"text": "no luck"})).await;
    let refused = json!({"code": -32050, "message": "refused"});
    peer.tool("rpc_error", refused).await;
    peer.tool("never", json!({})).await;
    // These are not tool calls.
    let uris = names(peer, "resources/list", "resources", "uri").await;
    let resource = json!({"uri": uris[0]});
    peer.request("resources/read", resource).await.result();
    let prompt = json!({"name": "prompt_0"});
    peer.request("prompts/get", prompt).await.result();
}

#[tokio::test]
async fn every_place_counts_the_same_calls_and_errors() {
    let options = ["--resources", "1", "--prompts", "1"];
    let entry = with(scripted("one", &options), json!({"callTimeoutMs": 1000}));
    let gateway = Setup::new().server("one", entry).connected().await;
    check(&gateway, 0, 0, 0).await;
    use_it(&mut gateway.legacy().await).await;
    check(&gateway, 4, 3, 2).await;
    use_it(&mut gateway.modern().await).await;
    check(&gateway, 8, 6, 4).await;
    // A refused call is neither a call nor an error.
    transcript(
        &gateway,
        "
        $ stop one
        1$ tools call echo --server one
        ",
    )
    .await;
    check(&gateway, 8, 6, 4).await;
    let one = json_of(&gateway, "get one").await;
    assert!(one["refused"].as_u64() >= Some(1), "{one:#}");
    let shown = on(&gateway, "get one").await.code(0).out;
    assert!(shown.contains("8 (6 errors, 0 in flight"), "{shown}");
    assert!(shown.contains("other requests"), "{shown}");
}

#[tokio::test]
async fn the_table_of_tools_shows_the_slowest_first() {
    let gateway = Setup::new().scripted("one", &[]).connected().await;
    let empty = on(&gateway, "tools top").await.ends("tools top", 0, &[]);
    assert!(empty.err.contains("no calls found since"), "{empty:?}");
    let mut peer = gateway.legacy().await;
    for _ in 0..3 {
        peer.tool("echo", json!({})).await.result();
    }
    peer.tool("slow", json!({"ms": 300})).await.result();
    peer.tool("fail", json!({"text": "no luck"})).await;

    let table = on(&gateway, "tools top").await.code(0).out;
    let lines: Vec<Vec<&str>> = table
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(
        lines[0],
        ["TOOL", "SERVER", "CALLS", "ERRORS", "P50", "P95"]
    );
    assert_eq!(lines[1][..4], ["slow", "one", "1", "0"], "{table}");
    assert_eq!(lines.len(), 4, "{table}");
    let by_calls = on(&gateway, "tools top --sort calls").await.code(0).out;
    let first = by_calls.lines().nth(1).unwrap_or_default();
    assert!(first.starts_with("echo"), "{by_calls}");

    let tools = json_of(&gateway, "tools top --sort errors --since 1h").await;
    let fail = &tools["tools"][0];
    assert_eq!(
        (&fail["tool"], &fail["errors"]),
        (&json!("fail"), &json!(1))
    );
    let slow = item(&tools["tools"], "tool", "slow");
    let took = slow["p95_us"].as_u64().expect("a duration");
    // A percentile is the middle of a class that is 19 % wide.
    assert!((250_000..10_000_000).contains(&took), "{slow}");
    let none = json_of(&gateway, "tools top --server other").await;
    assert_eq!(none["tools"], json!([]));
    on(&gateway, "tools top --since never").await.ends(
        "--since never",
        2,
        &["expected a duration"],
    );
}
