//! The turns of a chat, and how they end.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::json;
use testkit::{
    DEADLINE,
    llm::{Llm, asks, expecting, says, turns},
};

use super::support::{NATIVE, calls, error, recorded};
use crate::common::{
    Setup,
    chat::{begin, chat, of, recipes, rest, say, text, told, until, with_agent},
    checks, gone, scripted,
    steps::replied,
    with,
};

/// If the gateway stops during a call, the chat and the server end, too.
#[tokio::test]
async fn a11_the_gateway_stops_in_mid_chat_and_leaves_no_process() {
    let call = asks(&[
        ("t1", "pid", json!({})),
        ("t2", "slow", json!({ "ms": 600_000 })),
    ]);
    let llm = Llm::start(&turns(&[call])).await;
    let entry = with(scripted("alpha", &[]), json!({ "maxConcurrency": 2 }));
    let setup = Setup::new().server("alpha", entry);
    let mut gateway = with_agent(setup, &llm, "", "").await;
    let (mut streaming, events) = until(&gateway, "Go", "tool_result").await;
    let run = of(&events, "started")[0]["run"].as_str().unwrap();
    let result = events.last().unwrap();
    assert_eq!(result["id"], "t1", "{result}");
    let pid: u32 = result["preview"].as_str().unwrap().parse().unwrap();
    gateway.process.signal(Signal::TERM);
    let events = rest(&mut streaming).await;
    assert_eq!(error(&events).0, "stopped", "{events:?}");
    let status = gateway.process.wait(Duration::from_secs(20)).await;
    assert!(status.success(), "{status}: {}", gateway.process.stderr());
    gone(&[pid], false, Duration::from_secs(1)).await;
    // The records of the run and of the interrupted call are closed.
    let gateway = gateway.restarted().await;
    let run = told(&gateway, &format!("/runs/{run}")).await;
    assert_eq!(run["status"], "interrupted", "{run}");
    let calls = run["calls"].as_array().unwrap().iter();
    let calls = calls.map(|call| ["tool", "status"].map(|key| call[key].as_str().unwrap()));
    let mut calls: Vec<_> = calls.collect();
    calls.sort_unstable();
    assert_eq!(calls, [["pid", "ok"], ["slow", "cancelled"]], "{run}");
}

/// The calls of one model response are made, their results are returned in order, and this repeats until the model ends
/// its turn. The model's text is streamed.
#[tokio::test]
async fn a13_a_turn_goes_on_until_the_model_ends_it_and_streams() {
    let two = asks(&[
        ("t1", "echo", json!({ "n": 1 })),
        ("t2", "echo", json!({ "n": 2 })),
    ]);
    let results = json!({ "tool_results": [{ "id": "t1", "contains": "1" }, { "id": "t2", "contains": "2" }] });
    let more = expecting(asks(&[("t3", "echo", json!({ "n": 3 }))]), results);
    let last = json!({ "tool_results": [{ "id": "t3", "contains": "3" }] });
    // The model pauses before the end: text that arrives earlier was forwarded before the response was complete.
    let answer =
        json!({ "reply": { "blocks": [{ "text": "It is six.", "deltas": 3 }], "pause_ms": 300 } });
    let llm = Llm::start(&turns(&[two, more, expecting(answer, last)])).await;
    let setup = Setup::new().scripted("alpha", &[]);
    let gateway = with_agent(setup, &llm, "", "").await;
    let message = json!({ "message": "Sum up" });
    let mut streaming = begin(&gateway, "POST", "/chat", &message).await;
    let mut kinds = Vec::new();
    let mut complete = None;
    while let Some(event) = streaming.next_event(DEADLINE).await {
        let kind = event.event.unwrap();
        if kind == "text_delta" && complete.is_none() {
            let requests = llm.requests().await;
            complete = Some(requests[2]["outcome"] == "complete");
        }
        kinds.push(kind);
    }
    let count = |kind: &str| kinds.iter().filter(|one| *one == kind).count();
    let counts = ["tool_call", "tool_result", "done"].map(count);
    assert_eq!(counts, [3, 3, 1], "{kinds:?}");
    assert!(count("text_delta") > 1, "{kinds:?}");
    assert_eq!(complete, Some(false), "the answer was held back");
}

/// A model that requests tools endlessly is stopped with a clear message. The conversation can be continued.
#[tokio::test]
async fn a13_a_runaway_loop_ends_at_the_turn_limit() {
    let forever = json!({
        "turns": [{ "reply": { "blocks": [{ "tool_use": "echo", "input": { "again": true } }] } }],
        "repeat_last": true,
    });
    let llm = Llm::start(&forever).await;
    let setup = Setup::new();
    let file = setup.folder().join("alpha");
    let setup = setup.server("alpha", recorded("alpha", &file));
    let gateway = with_agent(setup, &llm, "", "max_turns = 3\n").await;
    let events = say(&gateway, "Go").await;
    let (kind, why) = error(&events);
    assert_eq!(kind, "turn_limit");
    checks::contains(why, &["3 consecutive turns", "`max_turns`"]);
    assert_eq!(llm.requests().await.len(), 3);
    // The last call was not made.
    assert_eq!(calls(&file), ["echo", "echo"]);
    llm.script(&turns(&[says("Sorry.")])).await;
    let on = json!({ "conversation": events[0]["id"], "message": "Stop it" });
    replied(chat(&gateway, "/chat", &on).await, "Sorry.");
}

/// If the model's stream breaks, the turn ends with an error. Completed calls are kept, the partial response is not,
/// and nothing is done twice.
#[tokio::test]
async fn a13_a_model_that_stops_in_mid_stream_ends_the_turn_and_the_conversation_goes_on() {
    let cut = json!({
        "reply": { "blocks": [{ "text": "As I was saying", "deltas": 3 }], "after": { "events": 4, "then": "cut" } },
    });
    let llm = Llm::start(&turns(&[asks(&[("t1", "echo", json!({ "n": 1 }))]), cut])).await;
    let setup = Setup::new();
    let file = setup.folder().join("alpha");
    let setup = setup.server("alpha", recorded("alpha", &file));
    let gateway = with_agent(setup, &llm, "", "").await;
    let events = say(&gateway, "Go").await;
    assert_eq!(error(&events).0, "model", "{events:?}");
    assert!(text(&events).starts_with("As"), "{events:?}");
    let expect = json!({
        "last_text": "Again",
        "body": { "/messages/2/content/0/tool_use_id": "t1", "/messages/2/content/1/text": "Again" },
        "absent": ["/messages/3"],
    });
    llm.script(&turns(&[expecting(says("Here."), expect)]))
        .await;
    let on = json!({ "conversation": events[0]["id"], "message": "Again" });
    replied(chat(&gateway, "/chat", &on).await, "Here.");
    assert_eq!(calls(&file), ["echo"]);
}

/// If arguments are invalid, the error becomes the call's result, for native tools and for servers' tools. Arguments
/// that are not an object are never sent to a server.
#[tokio::test]
async fn a13_arguments_that_do_not_match_are_told_to_the_model() {
    let wrong = json!({ "reply": { "blocks": [
        { "tool_use": "display_recipe", "id": "t1", "input": { "title": "", "steps": [] } },
        { "tool_use": "create_recipe", "id": "t2", "input": { "title": 7 } },
        { "tool_use": "create_recipe", "id": "t3", "input_raw": "{\"title\": \"So" },
    ] } });
    let told = json!({ "tool_results": [
        { "id": "t1", "contains": "ingredients", "is_error": true },
        { "id": "t2", "is_error": true },
        { "id": "t3", "is_error": true },
    ] });
    let llm = Llm::start(&turns(&[wrong, expecting(says("I see."), told)])).await;
    let setup = Setup::new();
    let file = setup.folder().join("recipes.db");
    let setup = setup.server("recipes", recipes(&file));
    let gateway = with_agent(setup, &llm, "", NATIVE).await;
    let events = replied(say(&gateway, "Go").await, "I see.");
    assert_eq!(of(&events, "native").len(), 0);
    let mut peer = gateway.legacy().await;
    let listed = peer.tool("list_recipes", json!({})).await;
    assert_eq!(listed.result()["structuredContent"]["recipes"], json!([]));
}
