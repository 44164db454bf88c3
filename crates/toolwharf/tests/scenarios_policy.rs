//! The policies of DESIGN.md through configuration: start, sharing, naming.

mod common;

use std::time::Duration;

use common::{LEGACY, Setup, gone, scripted, tools, with};
use serde_json::{Value, json};
use testkit::{DEADLINE, Peer, peer, wait_for, within};

/// A server that records its name at startup, then runs `rest`.
fn noted(name: &str, notes: &std::path::Path, rest: &str) -> Value {
    let script =
        format!("echo {name} >> \"$0\"; {rest} exec \"$1\" --name {name} --no-builtin --tools 1");
    json!({"command": "sh", "args": ["-c", script, notes, testkit::Bin::path("testkit-scripted")]})
}

fn started(notes: &std::path::Path) -> Vec<String> {
    let text = std::fs::read_to_string(notes).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

#[tokio::test]
async fn a10_sequential_starts_one_after_another() {
    let setup = Setup::new().settings("start = \"sequential\"\nnaming = \"always-prefix\"\n");
    let notes = setup.folder().join("notes");
    // The first servers are the slowest: started in parallel, they would not be first.
    let gateway = setup
        .server("a", noted("a", &notes, "sleep 0.4; echo a-up >> \"$0\";"))
        .server("b", noted("b", &notes, "sleep 0.2; echo b-up >> \"$0\";"))
        .server("c", noted("c", &notes, "echo c-up >> \"$0\";"))
        .serve()
        .await;
    assert_eq!(started(&notes), ["a", "a-up", "b", "b-up", "c", "c-up"]);
    let mut peer = gateway.legacy().await;
    assert_eq!(
        tools(&mut peer).await,
        ["a__tool_0", "b__tool_0", "c__tool_0"]
    );
}

/// The first failure aborts the start and names the server. No other server is left running.
#[tokio::test]
async fn a10_sequential_fails_with_the_first_failure() {
    let setup = Setup::new().settings("start = \"sequential\"\n[limits]\nstop_grace = \"1s\"\n");
    // Outlives the gateway's directory.
    let kept = tempfile::tempdir().unwrap();
    let notes = kept.path().join("notes");
    let stderr = setup
        .server("first", noted("first", &notes, "echo $$ >> \"$0\";"))
        .server("broken", scripted("broken", &["--exit-at-start"]))
        .server("never", noted("never", &notes, ""))
        .spawn_and_fail()
        .await;
    assert!(
        stderr.contains("`broken`") && stderr.contains("exit code 5"),
        "{stderr}"
    );
    let notes = started(&notes);
    assert_eq!(notes[0], "first");
    assert_eq!(notes.len(), 2, "{notes:?}");
    gone(&[notes[1].parse().unwrap()], true, Duration::from_secs(2)).await;
}

/// Nothing is started before it is needed, and then once, however many requests need it first.
#[tokio::test]
async fn lazy_servers_start_at_their_first_use() {
    let setup = Setup::new().settings("start = \"lazy\"\nnaming = \"always-prefix\"\n");
    let notes = setup.folder().join("notes");
    let gateway = setup
        .server("a", noted("a", &notes, "sleep 0.3;"))
        .server("b", noted("b", &notes, ""))
        .serve()
        .await;
    let mut peers = [gateway.legacy().await, gateway.modern().await];
    assert!(started(&notes).is_empty(), "a handshake started a server");
    for peer in &mut peers {
        peer.begin("tools/list", json!({})).await;
    }
    for peer in &mut peers {
        assert_eq!(tools(peer).await, ["a__tool_0", "b__tool_0"]);
        assert_eq!(
            peer.tool("a__tool_0", json!({"n": 1})).await.result()["structuredContent"]["n"],
            1
        );
    }
    let mut notes = started(&notes);
    notes.sort();
    assert_eq!(notes, ["a", "b"], "each server must start once");
}

/// A slow server delays no other.
#[tokio::test]
async fn parallel_servers_do_not_wait_for_each_other() {
    let setup = Setup::new().settings("naming = \"always-prefix\"\n");
    let notes = setup.folder().join("notes");
    let go = setup.folder().join("go");
    let wait = format!("until [ -e '{}' ]; do sleep 0.05; done;", go.display());
    let gateway = setup
        .server("slow", noted("slow", &notes, &wait))
        .server("quick", noted("quick", &notes, ""))
        .serve()
        .await;
    gateway.up("quick").await;
    let mut peer = gateway.legacy().await;
    let answer = peer.tool("quick__tool_0", json!({"n": 1})).await;
    assert_eq!(answer.result()["structuredContent"]["n"], 1);
    // Only now can the other server start.
    std::fs::write(&go, "").unwrap();
    assert_eq!(tools(&mut peer).await, ["slow__tool_0", "quick__tool_0"]);
}

#[tokio::test]
async fn naming_policies() {
    for (policy, expected) in [
        (
            "prefix-on-conflict",
            vec!["one__tool_0", "tool_1", "two__tool_0"],
        ),
        (
            "always-prefix",
            vec!["one__tool_0", "one__tool_1", "two__tool_0"],
        ),
        ("last-wins", vec!["tool_1", "tool_0"]),
        // A clash is an error, and both tools can still be reached.
        ("preserve", vec!["one__tool_0", "tool_1", "two__tool_0"]),
    ] {
        let gateway = Setup::new()
            .settings(&format!("naming = \"{policy}\"\n"))
            .scripted("one", &["--no-builtin", "--tools", "2"])
            .scripted("two", &["--no-builtin", "--tools", "1"])
            .connected()
            .await;
        let mut peer = gateway.modern().await;
        let mut listed = tools(&mut peer).await;
        let mut expected: Vec<String> = expected.into_iter().map(str::to_owned).collect();
        listed.sort();
        expected.sort();
        assert_eq!(listed, expected, "{policy}");
        for name in &listed {
            assert_eq!(
                peer.tool(name, json!({"n": 1})).await.result()["structuredContent"]["n"],
                1,
                "{policy}: {name}"
            );
        }
        if policy == "preserve" {
            let said = gateway.logged("both offer `tool_0`").await;
            assert!(said.contains("ERROR"), "{said}");
        }
    }
}

/// Each session has a separate instance that ends with it, up to the limit, and sessions cannot see each other's
/// instances.
#[tokio::test]
async fn session_sharing_gives_each_session_its_own_instance() {
    let gateway = Setup::new()
        .settings("[limits]\nmax_session_instances = 2\nstop_grace = \"1s\"\n")
        .server(
            "own",
            with(scripted("own", &[]), json!({"sharing": "session"})),
        )
        .serve()
        .await;
    let mut peers = Vec::new();
    let mut pids = Vec::new();
    for _ in 0..2 {
        let mut peer = Peer::http(gateway.client(), LEGACY, peer::all_capabilities()).await;
        assert!(tools(&mut peer).await.contains(&"echo".to_owned()));
        let pid: u32 = peer.tool("pid", json!({})).await.text().parse().unwrap();
        assert_eq!(
            peer.tool("pid", json!({})).await.text(),
            pid.to_string(),
            "a new instance for every call"
        );
        pids.push(pid);
        peers.push(peer);
    }
    assert_ne!(pids[0], pids[1]);
    let mut third = gateway.legacy().await;
    let refused = third.tool("pid", json!({})).await;
    let message = refused.response["error"]["message"].as_str().unwrap();
    assert!(message.contains("max_session_instances"), "{message}");
    // Requests of a session's server go to the session's client.
    for peer in &mut peers {
        let asked = peer
            .tool(
                "server_request",
                json!({"method": "sampling/createMessage", "params": {}}),
            )
            .await;
        assert_eq!(asked.asked, ["sampling/createMessage"], "{asked:?}");
        let answer: Value = serde_json::from_str(asked.text()).unwrap();
        assert_eq!(answer["result"]["model"], "test-model", "{answer}");
    }
    // A crash of one instance does not affect the other.
    let crashed = peers[0].tool("crash", json!({})).await;
    assert!(crashed.response.get("error").is_some());
    assert_eq!(
        peers[1].tool("pid", json!({})).await.text(),
        pids[1].to_string()
    );
    wait_for("a new instance", Duration::from_secs(5), async || {
        let answer = peers[0].tool("pid", json!({})).await;
        answer.response["result"]["content"][0]["text"]
            .as_str()
            .is_some_and(|pid| pid != pids[0].to_string())
    })
    .await;
    gone(&pids[..1], false, Duration::from_secs(2)).await;
}

/// A session that ends stops its instance and makes room.
#[tokio::test]
async fn session_sharing_ends_with_the_session() {
    let gateway = Setup::new()
        .settings("[limits]\nmax_session_instances = 1\nstop_grace = \"1s\"\n")
        .server(
            "own",
            with(scripted("own", &[]), json!({"sharing": "session"})),
        )
        .serve()
        .await;
    let params = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}});
    let hello =
        json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}).to_string();
    let call =
        json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "pid"}})
            .to_string();
    for _ in 0..3 {
        let reply = gateway.client().post(hello.clone()).await;
        let client = gateway
            .client()
            .with("mcp-session-id", reply.header("mcp-session-id").unwrap());
        let answer = client.post(call.clone()).await.response();
        let pid = answer["result"]["content"][0]["text"]
            .as_str()
            .unwrap_or_else(|| panic!("{answer}"));
        assert_eq!(client.delete(&[]).await.status, 204);
        gone(&[pid.parse().unwrap()], false, Duration::from_secs(5)).await;
    }
    // The same for a session over HTTP+SSE, which ends with its stream.
    let mut oldest = Peer::sse(gateway.at("/sse"), json!({})).await;
    let pid: u32 = oldest.tool("pid", json!({})).await.text().parse().unwrap();
    drop(oldest);
    within(
        "the instance's end",
        DEADLINE,
        gone(&[pid], false, DEADLINE),
    )
    .await;
}

/// A name that begins with a server's name and `__` belongs to that server, whatever others list.
#[tokio::test]
async fn always_prefix_cannot_be_captured() {
    let gateway = Setup::new()
        .settings("naming = \"always-prefix\"\n")
        .scripted(
            "a",
            &["--no-builtin", "--also", "b__env", "--also", "b__none"],
        )
        .scripted("a__b", &["--no-builtin", "--also", "env"])
        .connected()
        .await;
    let mut peer = gateway.legacy().await;
    let listed = peer.request("tools/list", json!({})).await;
    let listed = listed.result()["tools"].as_array().unwrap().clone();
    let of = |server: &str| -> Vec<String> {
        let of = listed
            .iter()
            .filter(|tool| tool["_meta"]["dev.toolwharf/server"] == server);
        of.map(|tool| tool["name"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(of("a__b"), ["a__b__env"]);
    let of_a = of("a");
    assert_eq!(of_a.len(), 2);
    for name in ["a__b__env", &of_a[0], &of_a[1]] {
        let answer = peer.tool(name, json!({"n": 1})).await;
        assert_eq!(answer.result()["structuredContent"]["n"], 1, "{name}");
    }
    // The server has no such tool, and the other server's tool is not used instead.
    let refused = peer.tool("a__b__none", json!({})).await;
    assert_eq!(refused.response["error"]["code"], -32602, "{refused:?}");
}
