//! Tests the built server over its standard streams, like a client, in both eras.

use std::{process::Stdio, time::Duration};

use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
    time::timeout,
};

const DEADLINE: Duration = Duration::from_secs(20);

struct Client {
    child: Child,
    stdin: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
    next_id: u64,
}

impl Client {
    fn start() -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_toolwharf-example-dice"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("the server starts");
        let stdin = child.stdin.take().expect("stdin was piped");
        let lines = BufReader::new(child.stdout.take().expect("stdout was piped")).lines();
        Self {
            child,
            stdin,
            lines,
            next_id: 1,
        }
    }

    async fn send(&mut self, message: Value) {
        self.stdin
            .write_all(format!("{message}\n").as_bytes())
            .await
            .expect("the server reads");
    }

    /// Sends one request and returns the whole response.
    async fn request(&mut self, method: &str, params: Value) -> Value {
        let id = self.next_id;
        self.next_id += 1;
        self.send(json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}))
            .await;
        let line = timeout(DEADLINE, self.lines.next_line())
            .await
            .expect("an answer within the deadline")
            .expect("readable output")
            .expect("an answer before the end of the output");
        let answer: Value = serde_json::from_str(&line).expect("standard output holds only JSON");
        assert_eq!(answer["id"], id, "{answer}");
        answer
    }

    async fn legacy() -> Self {
        let mut client = Self::start();
        let params = json!({
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "test", "version": "1"},
        });
        let answer = client.request("initialize", params).await;
        assert_eq!(
            answer["result"]["protocolVersion"], "2025-11-25",
            "{answer}"
        );
        client
            .send(json!({"jsonrpc": "2.0", "method": "notifications/initialized"}))
            .await;
        client
    }

    async fn call(&mut self, tool: &str, arguments: Value) -> Value {
        self.request("tools/call", json!({"name": tool, "arguments": arguments}))
            .await
    }

    /// Closes standard input and waits for the server to exit.
    async fn stop(mut self) {
        drop(self.stdin);
        let status = timeout(DEADLINE, self.child.wait())
            .await
            .expect("it ends")
            .expect("a status");
        assert!(status.success(), "{status}");
    }
}

#[tokio::test]
async fn tools_are_listed_with_their_schemas() {
    let mut client = Client::legacy().await;
    let answer = client.request("tools/list", json!({})).await;
    let mut tools = answer["result"]["tools"]
        .as_array()
        .expect("a list")
        .clone();
    tools.sort_by_key(|tool| tool["name"].to_string());
    let names: Vec<_> = tools
        .iter()
        .map(|tool| tool["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["flip", "roll"]);
    assert_eq!(tools[1]["inputSchema"]["required"], json!(["dice"]));
    assert_eq!(
        tools[1]["inputSchema"]["properties"]["dice"]["type"],
        "string"
    );
    assert_eq!(
        tools[1]["outputSchema"]["properties"]["rolls"]["type"],
        "array"
    );
    assert!(tools[0]["description"].as_str().unwrap().contains("coin"));
    client.stop().await;
}

#[tokio::test]
async fn a_roll_is_structured_and_adds_up() {
    let mut client = Client::legacy().await;
    let answer = client.call("roll", json!({"dice": "3d6+10"})).await;
    let rolled = &answer["result"]["structuredContent"];
    let rolls: Vec<i64> = rolled["rolls"]
        .as_array()
        .unwrap()
        .iter()
        .map(|die| die.as_i64().unwrap())
        .collect();
    assert_eq!(rolls.len(), 3, "{answer}");
    assert!(rolls.iter().all(|die| (1..=6).contains(die)), "{answer}");
    assert_eq!(rolled["total"], rolls.iter().sum::<i64>() + 10, "{answer}");
    assert_eq!(rolled["dice"], "3d6+10");
    let text = answer["result"]["content"][0]["text"]
        .as_str()
        .expect("text for older clients");
    assert_eq!(&serde_json::from_str::<Value>(text).unwrap(), rolled);
    client.stop().await;
}

#[tokio::test]
async fn a_flip_lands_on_a_side() {
    let mut client = Client::legacy().await;
    let answer = client.call("flip", json!({})).await;
    let side = &answer["result"]["structuredContent"]["side"];
    assert!(side == "heads" || side == "tails", "{answer}");
    client.stop().await;
}

#[tokio::test]
async fn wrong_dice_are_a_tool_error_that_says_what_to_write() {
    let mut client = Client::legacy().await;
    let answer = client.call("roll", json!({"dice": "lots"})).await;
    assert_eq!(answer["result"]["isError"], true, "{answer}");
    assert!(
        answer["result"]["content"][0]["text"]
            .as_str()
            .unwrap()
            .contains("2d6"),
        "{answer}"
    );
    // The connection still works.
    let answer = client.call("roll", json!({"dice": "1d4"})).await;
    assert_ne!(answer["result"]["isError"], true, "{answer}");
    client.stop().await;
}

#[tokio::test]
async fn wrong_arguments_are_refused() {
    let mut client = Client::legacy().await;
    for arguments in [
        json!({}),
        json!({"dice": 6}),
        json!({"dice": "d6", "loaded": true}),
    ] {
        let answer = client.call("roll", arguments.clone()).await;
        let refused = answer["error"].is_object() || answer["result"]["isError"] == true;
        assert!(refused, "{arguments}: {answer}");
    }
    client.stop().await;
}

#[tokio::test]
async fn the_modern_era_needs_no_handshake() {
    let mut client = Client::start();
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let answer = client
        .request("server/discover", json!({"_meta": meta}))
        .await;
    let versions = answer["result"]["supportedVersions"]
        .as_array()
        .expect("versions");
    assert!(versions.contains(&json!("2026-07-28")), "{answer}");
    let params = json!({"name": "roll", "arguments": {"dice": "2d6"}, "_meta": meta});
    let answer = client.request("tools/call", params).await;
    assert_eq!(
        answer["result"]["structuredContent"]["rolls"]
            .as_array()
            .unwrap()
            .len(),
        2
    );
    client.stop().await;
}

#[tokio::test]
async fn a_client_that_says_nothing_is_no_error() {
    Client::start().stop().await;
}
