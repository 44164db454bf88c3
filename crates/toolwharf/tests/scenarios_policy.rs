//! The policies that the configuration sets: start, sharing, naming.

mod common;

use std::time::Duration;

use common::{Gateway, LEGACY, Setup, checks, gone, noted, rpc, says, scripted, tools, with};
use serde_json::{Value, json};
use testkit::{DEADLINE, Peer, RawClient, wait_for};

/// Returns the lines that servers recorded, in words.
fn started(notes: &std::path::Path) -> Vec<Vec<String>> {
    let text = std::fs::read_to_string(notes).unwrap_or_default();
    let words = |line: &str| line.split(' ').map(str::to_owned).collect();
    text.lines().map(words).collect()
}

#[tokio::test]
async fn a10_sequential_starts_one_after_another() {
    let setup = Setup::new().settings("start = \"sequential\"\nnaming = \"always-prefix\"\n");
    let notes = setup.folder().join("notes");
    // The first servers take longest to start. In parallel, `c-up` would precede `a-up`.
    let gateway = setup
        .server("a", noted("a", &notes, "sleep 0.4; echo a-up >> \"$0\";"))
        .server("b", noted("b", &notes, "sleep 0.2; echo b-up >> \"$0\";"))
        .server("c", noted("c", &notes, "echo c-up >> \"$0\";"))
        .serve()
        .await;
    let started: Vec<_> = started(&notes).iter().map(|line| line[0].clone()).collect();
    assert_eq!(started, ["a", "a-up", "b", "b-up", "c", "c-up"]);
    let listed = tools(&mut gateway.legacy().await).await;
    assert_eq!(listed, ["a__tool_0", "b__tool_0", "c__tool_0"]);
}

/// The first failure aborts the start and names the server. No other server is left running.
#[tokio::test]
async fn a10_sequential_fails_with_the_first_failure() {
    let setup = Setup::new().settings("start = \"sequential\"\n[limits]\nstop_grace = \"1s\"\n");
    // This directory outlives the gateway's directory.
    let kept = tempfile::tempdir().unwrap();
    let notes = kept.path().join("notes");
    let stderr = setup
        .server("first", noted("first", &notes, ""))
        .server("broken", scripted("broken", &["--exit-at-start"]))
        .server("never", noted("never", &notes, ""))
        .spawn_and_fail()
        .await;
    checks::contains(stderr, &["`broken`", "exit code 5"]);
    let notes = started(&notes);
    assert_eq!(notes.len(), 1, "{notes:?}");
    assert_eq!(notes[0][0], "first");
    let pid = notes[0][1].parse().unwrap();
    gone(&[pid], true, Duration::from_secs(2)).await;
}

/// With `preserve`, a clash is an error, and both tools can still be reached.
#[tokio::test]
async fn a_clash_of_preserved_names_is_an_error() {
    let gateway = Setup::new()
        .settings("naming = \"preserve\"\n")
        .scripted("one", &["--no-builtin", "--tools", "2"])
        .scripted("two", &["--no-builtin", "--tools", "1"])
        .connected()
        .await;
    let mut peer = gateway.modern().await;
    let mut listed = tools(&mut peer).await;
    listed.sort();
    assert_eq!(listed, ["one__tool_0", "tool_1", "two__tool_0"]);
    for name in &listed {
        let answer = peer.tool(name, json!({"n": 1})).await;
        assert_eq!(answer.result()["structuredContent"]["n"], 1, "{name}");
    }
    let said = gateway.logged("both offer `tool_0`").await;
    assert!(said.contains("ERROR"), "{said}");
}

/// A server with a separate instance for each session, and at most this many instances.
async fn own_instances(limit: usize) -> Gateway {
    let limits = format!("[limits]\nmax_session_instances = {limit}\nstop_grace = \"1s\"\n");
    let own = with(scripted("own", &[]), json!({"sharing": "session"}));
    let setup = Setup::new().settings(&limits);
    setup.server("own", own).serve().await
}

async fn pid(peer: &mut Peer) -> u32 {
    let pid = peer.tool("pid", json!({})).await;
    pid.text().parse().expect("a process id")
}

/// Each session has a separate instance that ends with it, up to the limit, and sessions cannot see each other's
/// instances.
#[tokio::test]
async fn session_sharing_gives_each_session_its_own_instance() {
    let gateway = own_instances(2).await;
    let mut peers = Vec::new();
    let mut pids = Vec::new();
    for _ in 0..2 {
        let mut peer = gateway.legacy().await;
        assert!(tools(&mut peer).await.contains(&"echo".to_owned()));
        let first = pid(&mut peer).await;
        assert_eq!(pid(&mut peer).await, first, "a new instance for every call");
        pids.push(first);
        peers.push(peer);
    }
    assert_ne!(pids[0], pids[1]);
    let mut third = gateway.legacy().await;
    let refused = third.tool("pid", json!({})).await;
    says(&refused.response, &["max_session_instances"]);
    // Requests of a session's server go to the session's client.
    for peer in &mut peers {
        let request = json!({"method": "sampling/createMessage", "params": {}});
        let asked = peer.tool("server_request", request).await;
        assert_eq!(asked.asked, ["sampling/createMessage"], "{asked:?}");
        let answer: Value = serde_json::from_str(asked.text()).unwrap();
        assert_eq!(answer["result"]["model"], "test-model", "{answer}");
    }
    // A crash of one instance does not affect the other.
    let crashed = peers[0].tool("crash", json!({})).await;
    assert!(crashed.response.get("error").is_some());
    assert_eq!(pid(&mut peers[1]).await, pids[1]);
    wait_for("a new instance", Duration::from_secs(5), async || {
        let answer = peers[0].tool("pid", json!({})).await;
        let new = answer.response["result"]["content"][0]["text"].as_str();
        new.is_some_and(|pid| pid != pids[0].to_string())
    })
    .await;
    gone(&pids[..1], false, Duration::from_secs(2)).await;
}

/// A client that vanished without ending its session does not keep others out. If it was only idle, it gets 404 and
/// initialises again.
#[tokio::test]
async fn session_sharing_does_not_wait_for_abandoned_sessions() {
    let gateway = own_instances(1).await;
    let called = async |client: &RawClient| {
        let answer = client.post(rpc::call(2, "pid", json!({}))).await;
        answer.status
    };
    let abandoned = rpc::session(gateway.client(), LEGACY).await;
    assert_eq!(called(&abandoned).await, 200);
    let next = rpc::session(gateway.client(), LEGACY).await;
    assert_eq!(called(&next).await, 200);
    assert_eq!(called(&abandoned).await, 404);
    let again = rpc::session(gateway.client(), LEGACY).await;
    assert_eq!(called(&again).await, 200);
}

/// A session that ends stops its instance and makes room.
#[tokio::test]
async fn session_sharing_ends_with_the_session() {
    let gateway = own_instances(1).await;
    for _ in 0..3 {
        let client = rpc::session(gateway.client(), LEGACY).await;
        let answer = client.post(rpc::call(2, "pid", json!({}))).await.response();
        let pid = answer["result"]["content"][0]["text"].as_str();
        let pid = pid.unwrap_or_else(|| panic!("{answer}"));
        assert_eq!(client.delete(&[]).await.status, 204);
        gone(&[pid.parse().unwrap()], false, Duration::from_secs(5)).await;
    }
    // The same holds for a session over HTTP+SSE, which ends with its stream.
    let mut oldest = Peer::sse(gateway.at("/sse"), json!({})).await;
    let pid = pid(&mut oldest).await;
    drop(oldest);
    gone(&[pid], false, DEADLINE).await;
}
