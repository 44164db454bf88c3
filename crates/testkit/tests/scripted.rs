//! Tests behaviour of the scripted server that the gateway's tests rely on. Those tests would not notice if it were
//! missing.

use serde_json::{Value, json};
use testkit::{DEADLINE, StdioClient, wait_for};

fn call(id: Value, tool: &str, arguments: Value) -> Value {
    json!({
        "jsonrpc": "2.0",
        "id": id,
        "method": "tools/call",
        "params": { "name": tool, "arguments": arguments },
    })
}

async fn started(arguments: &[&str]) -> StdioClient {
    let mut client = StdioClient::bin("testkit-scripted", arguments);
    let answer = client.ask(initialize()).await;
    assert_eq!(answer["result"]["protocolVersion"], "2025-11-25");
    client
        .send_json(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }))
        .await;
    client
}

fn initialize() -> Value {
    json!({
        "jsonrpc": "2.0",
        "id": 0,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": { "name": "test", "version": "1" },
        },
    })
}

fn text(answer: &Value) -> &str {
    answer["result"]["content"][0]["text"]
        .as_str()
        .unwrap_or_else(|| panic!("no text in {answer}"))
}

#[tokio::test]
async fn calls_run_at_once_and_are_counted() {
    let mut client = started(&[]).await;
    for id in 0..8 {
        client
            .send_json(&call(json!(id), "hold", json!({ "ms": 200 })))
            .await;
    }
    for _ in 0..8 {
        assert_eq!(text(&client.receive_json().await), "held");
    }
    let answer = client.ask(call(json!(9), "counter", json!({}))).await;
    let report = &answer["result"]["structuredContent"];
    assert_eq!(report["total"], 8);
    assert_eq!(report["now"], 0);
    assert!(report["max"].as_u64() >= Some(2), "{report}");
}

#[tokio::test]
async fn misbehaviour_on_the_wire() {
    let mut client = started(&[]).await;
    client.send_json(&call(json!(1), "twice", json!({}))).await;
    assert_eq!(text(&client.receive_json().await), "first");
    assert_eq!(text(&client.receive_json().await), "second");
    client
        .send_json(&call(json!(1), "garbage", json!({ "lines": 2 })))
        .await;
    for _ in 0..2 {
        let line = client.receive(DEADLINE).await.expect("a line");
        assert!(serde_json::from_slice::<Value>(&line).is_err());
    }
    assert_eq!(client.receive_json().await["id"], 1);
    client
        .send_json(&call(json!(1), "flood", json!({ "bytes": 1_000_000 })))
        .await;
    let line = client.receive(DEADLINE).await.expect("a line");
    assert_eq!(line.len(), 1_000_000);
    assert_eq!(text(&client.receive_json().await), "flooded");
}

#[tokio::test]
async fn forked_processes_die_with_the_guard_unless_they_left_the_group() {
    let alive = |pid: &str| std::path::Path::new(&format!("/proc/{pid}/cmdline")).exists();
    let mut client = started(&[]).await;
    let stays = client.ask(call(json!(1), "fork", json!({}))).await;
    let leaves = client
        .ask(call(json!(2), "fork", json!({ "setsid": true })))
        .await;
    let (stays, leaves) = (text(&stays).to_owned(), text(&leaves).to_owned());
    assert!(alive(&stays) && alive(&leaves));
    drop(client);
    wait_for("the end of the group", DEADLINE, async || {
        // A zombie counts as dead: in a container there may be no process to reap it.
        !alive(&stays) || state(&stays) == Some('Z')
    })
    .await;
    assert!(alive(&leaves));
    let pid = leaves.parse().expect("a number");
    let pid = rustix::process::Pid::from_raw(pid).expect("not zero");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("it is ours");
}

fn state(pid: &str) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}
