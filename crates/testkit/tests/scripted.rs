//! The tools of the scripted server do what they promise.

use std::time::Duration;

use serde_json::{Value, json};
use testkit::{
    DEADLINE, Peer, Process, RawClient, StdioClient,
    peer::{MODERN, all_capabilities},
    wait_for,
};

const SILENCE_TIMEOUT: Duration = Duration::from_millis(300);

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
async fn echo_returns_every_byte() {
    let mut client = started(&[]).await;
    let arguments = r#"{ "b" : 1.0e2,"a":12345678901234567890123, "é":"\u00e9\/"}"#;
    let request = format!(
        r#"{{"jsonrpc":"2.0","id":"x","method":"tools/call","params":{{"name":"echo","arguments":{arguments}}}}}"#
    );
    client.send(request).await;
    let line = client.receive(DEADLINE).await.expect("an answer");
    let line = String::from_utf8(line).expect("UTF-8");
    assert!(
        line.contains(&format!(r#""structuredContent":{arguments}"#)),
        "{line}"
    );
    let answer: Value = serde_json::from_str(&line).expect("JSON");
    assert_eq!(text(&answer), arguments);
}

#[tokio::test]
async fn lists_come_in_pages() {
    let mut client = started(&["--tools", "5", "--no-builtin", "--page-size", "2"]).await;
    let mut names = Vec::new();
    let mut params = json!({});
    loop {
        let answer = client
            .ask(json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": params }))
            .await;
        let result = &answer["result"];
        for tool in result["tools"].as_array().expect("tools") {
            names.push(tool["name"].as_str().expect("a name").to_owned());
        }
        match result.get("nextCursor") {
            Some(cursor) => params = json!({ "cursor": cursor }),
            None => break,
        }
    }
    assert_eq!(names, ["tool_0", "tool_1", "tool_2", "tool_3", "tool_4"]);
    let answer = client
        .ask(json!({ "jsonrpc": "2.0", "id": 2, "method": "prompts/list" }))
        .await;
    assert_eq!(answer["error"]["code"], -32601);
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
    // The id of another request.
    for (kind, id) in [
        ("plus", json!(11)),
        ("minus", json!(9)),
        ("string", json!("10")),
    ] {
        client
            .send_json(&call(json!(10), "forge", json!({ "kind": kind })))
            .await;
        assert_eq!(client.receive_json().await["id"], id);
    }
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
    client.send_json(&call(json!(1), "deep", json!({}))).await;
    let line = client.receive(DEADLINE).await.expect("a line");
    assert!(
        line.windows(10_000)
            .any(|part| part.iter().all(|&b| b == b'['))
    );
    client
        .send_json(&call(json!(1), "dupkeys", json!({})))
        .await;
    let line = client.receive(DEADLINE).await.expect("a line");
    let line = String::from_utf8_lossy(&line).into_owned();
    assert_eq!(line.matches(r#""result""#).count(), 2, "{line}");
    // Half a response, then nothing.
    client.send_json(&call(json!(2), "pid", json!({}))).await;
    assert_eq!(client.receive_json().await["id"], 2);
    client
        .send_json(&call(json!(1), "unterminated", json!({})))
        .await;
    assert_eq!(client.receive(SILENCE_TIMEOUT).await, None);
}

#[tokio::test]
async fn cancelled_calls_are_not_answered() {
    let mut client = started(&[]).await;
    client
        .send_json(&call(json!(1), "slow", json!({ "ms": 600_000 })))
        .await;
    client
        .send_json(&json!({
            "jsonrpc": "2.0",
            "method": "notifications/cancelled",
            "params": { "requestId": 1 },
        }))
        .await;
    // `ask` would skip a response to the cancelled call. The count proves that the call ended.
    let mut id = 1;
    wait_for("the cancellation", DEADLINE, async || {
        id += 1;
        let count = client
            .ask(call(json!(id), "cancelled_count", json!({})))
            .await;
        text(&count) == "1"
    })
    .await;
}

#[tokio::test]
async fn requests_to_the_client_are_answered() {
    let mut client = started(&[]).await;
    let arguments = json!({ "method": "roots/list", "params": { "x": 1 } });
    client
        .send_json(&call(json!(1), "server_request", arguments))
        .await;
    let request = client.receive_json().await;
    assert_eq!(request["method"], "roots/list");
    assert_eq!(request["params"], json!({ "x": 1 }));
    client
        .send_json(&json!({
            "jsonrpc": "2.0",
            "id": request["id"],
            "result": { "roots": [] },
        }))
        .await;
    let answer = client.receive_json().await;
    assert_eq!(
        answer["result"]["structuredContent"]["result"],
        json!({ "roots": [] })
    );
}

#[tokio::test]
async fn eras_do_not_know_each_other() {
    let discover = json!({ "jsonrpc": "2.0", "id": 1, "method": "server/discover" });
    let mut legacy = StdioClient::bin("testkit-scripted", [""; 0]);
    assert_eq!(legacy.ask(discover.clone()).await["error"]["code"], -32601);
    let mut modern = StdioClient::bin("testkit-scripted", ["--era", "modern"]);
    assert_eq!(modern.ask(initialize()).await["error"]["code"], -32601);
    let answer = modern.ask(discover.clone()).await;
    assert_eq!(answer["result"]["supportedVersions"], json!(["2026-07-28"]));
    let mut fragile = StdioClient::bin("testkit-scripted", ["--exit-on-discover"]);
    fragile.send_json(&discover).await;
    assert_eq!(fragile.process().wait(DEADLINE).await.code(), Some(4));
}

#[tokio::test]
async fn processes_end_as_told() {
    let mut client = started(&[]).await;
    client.send_json(&call(json!(1), "crash", json!({}))).await;
    assert_eq!(client.process().wait(DEADLINE).await.code(), Some(3));

    let mut client = started(&["--ignore-sigterm"]).await;
    client.signal(rustix::process::Signal::TERM);
    let answer = client.ask(call(json!(1), "pid", json!({}))).await;
    assert_eq!(text(&answer), client.process().pid().to_string());
    assert!(client.finish(DEADLINE).await.success());
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

#[tokio::test]
async fn http_sessions_expire() {
    let mut server = Process::bin(
        "testkit-scripted",
        ["--http", "127.0.0.1:0", "--expire-sessions-after", "1"],
    );
    let client = RawClient::new(&server.url().await);
    let answer = client.post(initialize().to_string()).await;
    let session = answer
        .header("mcp-session-id")
        .expect("a session")
        .to_owned();
    let client = client.with("mcp-session-id", &session);
    let echo = call(json!(1), "echo", json!({ "a": 1 })).to_string();
    let answer = client.post(echo.clone()).await;
    assert_eq!(answer.header("content-type"), Some("application/json"));
    assert_eq!(text(&answer.response()), r#"{"a":1}"#);
    assert_eq!(client.post(echo).await.status, 404);
}

#[tokio::test]
async fn http_streams_what_is_more_than_an_answer() {
    let mut server = Process::bin(
        "testkit-scripted",
        ["--http", "127.0.0.1:0", "--era", "modern"],
    );
    let client = RawClient::new(&server.url().await);
    let arguments = json!({ "method": "notifications/x", "params": {} });
    let answer = client
        .post(call(json!(1), "notify", arguments).to_string())
        .await;
    let messages = answer.messages();
    assert_eq!(messages.len(), 2, "{messages:?}");
    assert_eq!(messages[0]["method"], "notifications/x");
    assert_eq!(text(&messages[1]), "notified");
}

#[tokio::test]
async fn sse_streams_answers_until_it_is_cut() {
    let mut server = Process::bin("testkit-scripted", ["--sse-http", "127.0.0.1:0"]);
    let client = RawClient::new(&server.url().await);
    let mut stream = client.get(&[]).await;
    let endpoint = stream.next_event(DEADLINE).await.expect("an event");
    assert_eq!(endpoint.event.as_deref(), Some("endpoint"));
    let messages = client.at(&endpoint.data);
    assert_eq!(messages.post(initialize().to_string()).await.status, 202);
    let answer = stream.next_json(DEADLINE).await.expect("an answer");
    assert_eq!(answer["id"], 0);
    let cut = call(json!(1), "drop_stream", json!({}));
    assert_eq!(messages.post(cut.to_string()).await.status, 202);
    stream.closed(DEADLINE).await;
}

/// Exercises a normal conversation between a client and this server.
async fn converse(mut peer: Peer) {
    let outcome = peer.tool("echo", json!({ "a": [1, 2] })).await;
    assert_eq!(
        outcome.result()["structuredContent"],
        json!({ "a": [1, 2] })
    );
    let params = json!({
        "name": "progress",
        "arguments": { "count": 3 },
        "_meta": { "progressToken": "p" },
    });
    let outcome = peer.request("tools/call", params).await;
    assert_eq!(outcome.notifications.len(), 3, "{outcome:?}");
    assert_eq!(outcome.notifications[2]["params"]["progress"], 3);
    if peer.is_modern() {
        let arguments = json!({ "state": "s" });
        let outcome = peer.tool("input", arguments).await;
        let said = &outcome.result()["structuredContent"];
        assert_eq!(said["requestState"], "s");
        assert_eq!(said["inputResponses"]["name"]["action"], "accept");
    } else {
        let arguments = json!({ "method": "roots/list" });
        let outcome = peer.tool("server_request", arguments).await;
        assert_eq!(outcome.asked, ["roots/list"]);
    }
    let id = peer
        .begin(
            "tools/call",
            json!({ "name": "slow", "arguments": { "ms": 600_000 } }),
        )
        .await;
    let calls = async |peer: &mut Peer, name: &str| {
        let outcome = peer.tool(name, json!({})).await;
        outcome.text().to_owned()
    };
    wait_for("the call to begin", DEADLINE, async || {
        calls(&mut peer, "running").await == "1"
    })
    .await;
    peer.cancel(id).await;
    wait_for("the cancellation", DEADLINE, async || {
        calls(&mut peer, "cancelled_count").await == "1"
    })
    .await;
    peer.subscribe(&["scripted://0"]).await;
    let arguments = json!({ "count": 2, "description": "Changed" });
    peer.tool("set_tools", arguments).await;
    let changed = "notifications/tools/list_changed";
    assert!(peer.notification(changed, DEADLINE).await.is_some());
    let listed = peer.request("tools/list", json!({})).await;
    assert!(listed.response.to_string().contains("Changed (scripted 1)"));
}

#[tokio::test]
async fn every_form_holds_a_conversation() {
    const RESOURCES: [&str; 2] = ["--resources", "1"];
    for (era, version) in [("legacy", "2025-11-25"), ("modern", MODERN)] {
        let arguments = [&["--era", era], &RESOURCES[..]].concat();
        let client = StdioClient::bin("testkit-scripted", &arguments);
        converse(Peer::stdio(client, version, all_capabilities()).await).await;
        let arguments = [&arguments[..], &["--http", "127.0.0.1:0"]].concat();
        let mut server = Process::bin("testkit-scripted", &arguments);
        let client = RawClient::new(&server.url().await);
        converse(Peer::http(client, version, all_capabilities()).await).await;
    }
    let arguments = [&RESOURCES[..], &["--sse-http", "127.0.0.1:0"]].concat();
    let mut server = Process::bin("testkit-scripted", &arguments);
    let client = RawClient::new(&server.url().await);
    converse(Peer::sse(client, all_capabilities()).await).await;
}
