//! Tasks: their owners, and their use from the other era (G15).

#![expect(clippy::unwrap_used, reason = "test helpers may panic")]

mod common;

use std::time::Duration;

use common::{
    Gateway, LEGACY, Setup,
    real::{EVERYTHING, npm},
    rpc,
    steps::{accepted, conformant_stdio},
    with,
};
use serde_json::{Value, json};
use testkit::{
    DEADLINE, Outcome, Peer, RawClient,
    peer::{MODERN, all_capabilities},
    wait_for, wait_for_some,
};

const RESEARCH: &str = "simulate-research-query";
const EXTENSION: &str = "io.modelcontextprotocol/tasks";

/// One server with tasks of 2025-11-25, and one with tasks of 2026-07-28.
async fn gateway() -> Gateway {
    Setup::new()
        .server("old", in_p(npm(EVERYTHING, &[])))
        .server("new", in_p(conformant_stdio("modern")))
        .connected()
        .await
}

/// An entry that is visible to project `p`.
fn in_p(entry: Value) -> Value {
    with(entry, json!({ "projects": ["p"] }))
}

fn with_tasks() -> Value {
    let mut capabilities = all_capabilities();
    capabilities["extensions"] = json!({ EXTENSION: {} });
    capabilities
}

async fn legacy(client: RawClient) -> Peer {
    Peer::http(client, LEGACY, all_capabilities()).await
}

async fn modern(client: RawClient) -> Peer {
    Peer::http(client, MODERN, with_tasks()).await
}

/// Calls a tool as a task, from a legacy client.
async fn start(peer: &mut Peer, name: &str, arguments: Value) -> Value {
    let params = json!({ "name": name, "arguments": arguments, "task": { "ttl": 60_000 } });
    let outcome = peer.request("tools/call", params).await;
    let task = outcome.result()["task"].clone();
    assert!(task["taskId"].is_string(), "{outcome:?}");
    task
}

async fn about(peer: &mut Peer, method: &str, id: &Value) -> Outcome {
    peer.request(method, json!({ "taskId": id })).await
}

async fn code(peer: &mut Peer, method: &str, id: &Value) -> Value {
    let outcome = about(peer, method, id).await;
    outcome.response["error"]["code"].clone()
}

async fn listed(peer: &mut Peer) -> Vec<Value> {
    let outcome = peer.request("tasks/list", json!({})).await;
    let tasks = outcome.result()["tasks"].as_array().unwrap();
    tasks.iter().map(|task| task["taskId"].clone()).collect()
}

#[tokio::test]
async fn tasks_are_the_keys_that_made_them() {
    let gateway = gateway().await;
    accepted(&gateway, "PUT", "/projects/p", json!({})).await;
    let mut clients = Vec::new();
    for name in ["a", "b"] {
        let body = json!({ "name": name, "role": "call" });
        let made = accepted(&gateway, "POST", "/keys?project=p", body).await;
        let bearer = format!("Bearer {}", made["token"].as_str().unwrap());
        clients.push(gateway.at("/mcp/p").with("authorization", &bearer));
    }
    let mut owner = legacy(clients[0].clone()).await;
    let mut other = legacy(clients[1].clone()).await;
    let mut modern_other = modern(clients[1].clone()).await;
    let task = start(&mut owner, RESEARCH, json!({ "topic": "owners" })).await;
    let id = &task["taskId"];
    for method in ["tasks/get", "tasks/result", "tasks/cancel"] {
        assert_eq!(code(&mut other, method, id).await, -32602, "{method}");
    }
    for method in ["tasks/get", "tasks/cancel"] {
        let code = code(&mut modern_other, method, id).await;
        assert_eq!(code, -32602, "{method}");
    }
    assert_eq!(listed(&mut other).await, Vec::<Value>::new());
    // Another session with the same key can use the task, even in the other era.
    let mut again = legacy(clients[0].clone()).await;
    assert_eq!(listed(&mut again).await, std::slice::from_ref(id));
    let mut modern_again = modern(clients[0].clone()).await;
    let found = about(&mut modern_again, "tasks/get", id).await;
    assert_eq!(found.result()["taskId"], *id);
    let result = about(&mut again, "tasks/result", id).await;
    assert!(result.text().contains("owners"), "{result:?}");
}

#[tokio::test]
async fn tasks_without_a_key_are_the_sessions() {
    let gateway = gateway().await;
    for path in ["/mcp", "/mcp/-/old"] {
        let mut owner = legacy(gateway.at(path)).await;
        let mut other = legacy(gateway.at(path)).await;
        let mut modern_other = modern(gateway.at(path)).await;
        let task = start(&mut owner, RESEARCH, json!({ "topic": "sessions" })).await;
        let id = &task["taskId"];
        for method in ["tasks/get", "tasks/result", "tasks/cancel"] {
            let code = code(&mut other, method, id).await;
            assert_eq!(code, -32602, "{path} {method}");
        }
        assert_eq!(code(&mut modern_other, "tasks/get", id).await, -32602);
        assert_eq!(listed(&mut other).await, Vec::<Value>::new());
        assert_eq!(listed(&mut owner).await, std::slice::from_ref(id));
        let cancelled = about(&mut owner, "tasks/cancel", id).await;
        assert_eq!(cancelled.result()["status"], "cancelled");
    }
}

#[tokio::test]
async fn a_modern_client_without_a_key_has_an_unguessable_id() {
    let gateway = gateway().await;
    for path in ["/mcp", "/mcp/-/new"] {
        let mut peer = modern(gateway.at(path)).await;
        let outcome = peer.tool("slow_compute", json!({ "seconds": 600 })).await;
        let id = outcome.result()["taskId"].clone();
        assert_eq!(outcome.result()["resultType"], "task", "{outcome:?}");
        // The server's own task ids are sequential.
        let text = id.as_str().unwrap();
        assert!(text.len() >= 27, "{text} can be guessed");
        for guessed in 0..5 {
            let guessed = json!(format!("task-{guessed}"));
            assert_eq!(code(&mut peer, "tasks/get", &guessed).await, -32602);
        }
        let found = about(&mut peer, "tasks/get", &id).await;
        assert_eq!(found.result()["taskId"], id);
        assert_eq!(found.result()["status"], "working");
        let cancelled = about(&mut peer, "tasks/cancel", &id).await;
        assert_eq!(cancelled.result()["resultType"], "complete");
        let found = about(&mut peer, "tasks/get", &id).await;
        assert_eq!(found.result()["status"], "cancelled");
    }
}

/// A server's task status notification is sent to the task's owner only.
#[tokio::test]
async fn a_tasks_status_is_told_to_nobody_else() {
    let gateway = Setup::new().scripted("one", &[]).connected().await;
    let mut calls = gateway.legacy().await;
    let mut listens = gateway.legacy().await;
    for (method, params) in [
        ("notifications/tasks/status", json!({ "taskId": "x" })),
        ("notifications/tasks", json!({ "taskId": "x" })),
        ("notifications/other", json!({})),
    ] {
        let arguments = json!({ "method": method, "params": params, "aside": true });
        calls.tool("notify", arguments).await;
    }
    let other = listens.notification("notifications/other", DEADLINE).await;
    assert!(other.is_some(), "not sent to all sessions");
    for method in ["notifications/tasks/status", "notifications/tasks"] {
        let told = listens.notification(method, Duration::ZERO).await;
        assert_eq!(told, None);
    }
}

#[tokio::test]
async fn g15_a_legacy_client_drives_a_modern_servers_task() {
    let gateway = gateway().await;
    for path in ["/mcp", "/mcp/-/new"] {
        let mut peer = legacy(gateway.at(path)).await;
        let params = rpc::hello(LEGACY)["params"].clone();
        let mut second = legacy(gateway.at(path)).await;
        let said = second.request("initialize", params).await;
        let offered = &said.result()["capabilities"]["tasks"];
        assert!(offered["requests"]["tools"]["call"].is_object(), "{said:?}");
        let tools = peer.request("tools/list", json!({})).await;
        let mut tools = tools.result()["tools"].as_array().unwrap().iter();
        let tool = tools.find(|tool| tool["name"] == "slow_compute").unwrap();
        assert_eq!(tool["execution"]["taskSupport"], "optional");

        let arguments = json!({ "seconds": 1, "label": "x" });
        let task = start(&mut peer, "slow_compute", arguments).await;
        assert_eq!(task["status"], "working");
        assert!(task["ttl"].is_null() || task["ttl"].is_u64(), "{task}");
        assert!(task.get("ttlMs").is_none() && task["createdAt"].is_string());
        let id = &task["taskId"];
        let result = about(&mut peer, "tasks/result", id).await;
        assert_eq!(result.text(), "computed x");
        let related = &result.result()["_meta"]["io.modelcontextprotocol/related-task"];
        assert_eq!(related["taskId"], *id);
        assert!(result.result().get("resultType").is_none(), "{result:?}");
        let found = about(&mut peer, "tasks/get", id).await;
        assert_eq!(found.result()["status"], "completed");
        assert!(found.result().get("result").is_none(), "{found:?}");

        // This task asks for input.
        let task = start(&mut peer, "multi_input", json!({})).await;
        let id = &task["taskId"];
        let found = about(&mut peer, "tasks/get", id).await;
        assert_eq!(found.result()["status"], "input_required");
        let result = about(&mut peer, "tasks/result", id).await;
        assert_eq!(result.text(), "multi_input is done");
        assert_eq!(result.asked, ["elicitation/create"; 2]);

        // This task is already completed when it is created.
        let task = start(&mut peer, "greet", json!({ "name": "you" })).await;
        assert_eq!(task["status"], "completed");
        let id = &task["taskId"];
        let result = about(&mut peer, "tasks/result", id).await;
        assert_eq!(result.text(), "Hello, you!");
        assert_eq!(code(&mut peer, "tasks/cancel", id).await, -32602);
        assert!(listed(&mut peer).await.contains(id));

        // One task ends with a tool failure, another with a JSON-RPC error.
        let task = start(&mut peer, "failing_job", json!({})).await;
        let result = about(&mut peer, "tasks/result", &task["taskId"]).await;
        assert_eq!(result.result()["isError"], true);
        let task = start(&mut peer, "protocol_error_job", json!({})).await;
        let result = about(&mut peer, "tasks/result", &task["taskId"]).await;
        assert_eq!(result.response["error"]["message"], "The job broke");

        let task = start(&mut peer, "slow_compute", json!({ "seconds": 600 })).await;
        let id = &task["taskId"];
        let cancelled = about(&mut peer, "tasks/cancel", id).await;
        assert_eq!(cancelled.result()["status"], "cancelled");
        assert_eq!(listed(&mut peer).await.len(), 6);
        assert_eq!(code(&mut peer, "tasks/update", id).await, -32601);
    }
}

#[tokio::test]
async fn g15_a_modern_client_drives_a_legacy_servers_task() {
    let gateway = gateway().await;
    for path in ["/mcp", "/mcp/-/old"] {
        let mut without = Peer::http(gateway.at(path), MODERN, all_capabilities()).await;
        let refused = without.tool(RESEARCH, json!({ "topic": "x" })).await;
        assert_eq!(refused.response["error"]["code"], -32021, "{refused:?}");
        let needed = &refused.response["error"]["data"]["requiredCapabilities"];
        assert!(needed["extensions"][EXTENSION].is_object(), "{refused:?}");

        let mut peer = modern(gateway.at(path)).await;
        let said = peer.request("server/discover", json!({})).await;
        let offered = &said.result()["capabilities"]["extensions"][EXTENSION];
        assert!(offered.is_object(), "{said:?}");
        for ambiguous in [false, true] {
            let arguments = json!({ "topic": "bridges", "ambiguous": ambiguous });
            let outcome = peer.tool(RESEARCH, arguments).await;
            let task = outcome.result();
            assert_eq!(task["resultType"], "task", "{outcome:?}");
            assert!(task["ttlMs"].is_u64(), "{task}");
            assert!(task.get("ttl").is_none(), "{task}");
            let id = &task["taskId"];
            if ambiguous {
                let asked = wait_for_some("its question", DEADLINE, async || {
                    let found = about(&mut peer, "tasks/get", id).await;
                    let asked = found.result()["inputRequests"].as_object().cloned();
                    asked.filter(|asked| !asked.is_empty())
                })
                .await;
                let (key, question) = asked.iter().next().unwrap();
                assert_eq!(question["method"], "elicitation/create");
                let content = json!({ "interpretation": "historical" });
                let answer = json!({ "action": "accept", "content": content });
                let params = json!({ "taskId": id, "inputResponses": { key: answer } });
                let told = peer.request("tasks/update", params).await;
                assert_eq!(told.result()["resultType"], "complete");
            }
            wait_for("the end of the task", DEADLINE, async || {
                let found = about(&mut peer, "tasks/get", id).await;
                assert_eq!(found.result()["resultType"], "complete");
                let is_over = found.result()["status"] == "completed";
                if is_over {
                    let text = found.result()["result"]["content"][0]["text"].to_string();
                    assert!(text.contains("bridges"), "{text}");
                    assert_eq!(text.contains("historical"), ambiguous, "{text}");
                    let whole = found.result().to_string();
                    assert!(!whole.contains("related-task"), "{whole}");
                }
                is_over
            })
            .await;
        }
        let outcome = peer.tool(RESEARCH, json!({ "topic": "x" })).await;
        let id = outcome.result()["taskId"].clone();
        let cancelled = about(&mut peer, "tasks/cancel", &id).await;
        let server = json!({ "io.modelcontextprotocol/serverInfo": cancelled.result()["_meta"]["io.modelcontextprotocol/serverInfo"] });
        let expect = json!({ "resultType": "complete", "_meta": server });
        assert_eq!(cancelled.result(), &expect);
        let found = about(&mut peer, "tasks/get", &id).await;
        assert_eq!(found.result()["status"], "cancelled");
        for method in ["tasks/list", "tasks/result"] {
            assert_eq!(code(&mut peer, method, &id).await, -32601, "{method}");
        }
    }
}
