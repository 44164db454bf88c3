//! Requests that many tests make.

use serde_json::{Value, json};
use testkit::{Bin, DEADLINE, Peer, Process, RawClient};

use super::{Gateway, chat};

/// A client of the REST API with the administrator's token.
pub(crate) fn admin(gateway: &Gateway, path: &str) -> RawClient {
    let client = gateway.at(&format!("/api/v1{path}"));
    client.with("authorization", &format!("Bearer {}", gateway.token()))
}

/// Begins a tool call and returns its id without waiting.
pub(crate) async fn begin_tool(peer: &mut Peer, name: &str, arguments: Value) -> u64 {
    let params = json!({ "name": name, "arguments": arguments });
    peer.begin("tools/call", params).await
}

/// Returns the ids of a process's children; empty if the process is gone.
pub(crate) fn children(pid: u32) -> Vec<u32> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task"));
    let threads = threads.into_iter().flatten().flatten();
    let lists = threads.map(|thread| std::fs::read_to_string(thread.path().join("children")));
    let all: Vec<String> = lists.flatten().collect();
    let mut pids: Vec<u32> = all
        .iter()
        .flat_map(|list| list.split_whitespace())
        .map(|pid| pid.parse().unwrap())
        .collect();
    pids.sort_unstable();
    pids.dedup();
    pids
}

/// Asserts that the agent's text in these events is `answer`, and returns the events.
#[track_caller]
pub(crate) fn replied(events: Vec<Value>, answer: &str) -> Vec<Value> {
    assert_eq!(chat::text(&events), answer, "{events:?}");
    events
}

/// Sends a REST request that must succeed, and returns the result.
pub(crate) async fn accepted(gateway: &Gateway, method: &str, path: &str, body: Value) -> Value {
    let body = match body {
        Value::Null => String::new(),
        body => body.to_string(),
    };
    let client = admin(gateway, path);
    let reply = client.send(method.parse().unwrap(), &[], body).await;
    let reply = reply.collect(DEADLINE).await;
    assert!(reply.status.is_success(), "{path}: {}", reply.text());
    serde_json::from_slice(&reply.body).unwrap_or_default()
}

/// Calls a tool without arguments, which must fail with this error code. Returns the response.
pub(crate) async fn refused(peer: &mut Peer, tool: &str, code: i64) -> Value {
    let response = peer.tool(tool, json!({})).await.response;
    assert_eq!(response["error"]["code"], code, "{tool}: {response}");
    response
}

/// Reads a resource and returns its first contents.
pub(crate) async fn resource(peer: &mut Peer, uri: &str) -> Value {
    let read = peer.request("resources/read", json!({ "uri": uri })).await;
    read.result()["contents"][0].clone()
}

/// Makes `rounds` calls of `tool`, which answers after `ms`, from each client at once, and waits for the results.
pub(crate) async fn hold_many(peers: &mut [Peer], rounds: usize, tool: &str, ms: u64) {
    let mut begun = Vec::new();
    for _ in 0..rounds {
        for (at, peer) in peers.iter_mut().enumerate() {
            let id = begin_tool(peer, tool, json!({ "ms": ms })).await;
            begun.push((at, id));
        }
    }
    for (at, id) in begun {
        let response = peers[at].finish(id).await;
        assert_eq!(response["result"]["content"][0]["text"], "held");
    }
}

/// Asks for completions of an argument, and returns the values.
pub(crate) async fn completions(peer: &mut Peer, of: Value, name: &str, value: &str) -> Value {
    let params = json!({ "ref": of, "argument": { "name": name, "value": value } });
    let outcome = peer.request("completion/complete", params).await;
    outcome.result()["completion"]["values"].clone()
}

/// The entry of the conformance server over stdio, in one era.
pub(crate) fn conformant_stdio(era: &str) -> Value {
    let command = Bin::path("testkit-conformance");
    json!({ "command": command, "args": ["--stdio", "--era", era] })
}

/// Starts the conformance server over HTTP with these arguments, and returns its URL.
pub(crate) async fn conformant_http(arguments: &[&str]) -> (Process, String) {
    let arguments = [&["--listen", "127.0.0.1:0"][..], arguments].concat();
    let mut server = Process::bin("testkit-conformance", arguments);
    let url = server.url().await;
    (server, url)
}
