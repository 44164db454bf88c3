//! Models that do not end their turn properly: the turn ends with an error, and nothing incomplete is kept.

mod shared;

use agent::{ChatEvent, ErrorKind, ledger::RunStatus};
use serde_json::{Value, json};
use shared::{TestServers, said, set};
use testkit::llm::{asks, expecting, says, turns};

fn hello() -> Value {
    json!([{ "role": "user", "content": [{ "type": "text", "text": "hello" }] }])
}

/// Checks a failing turn: the error, the streamed text, and that the conversation continues from the question.
async fn check(turn: Value, why: &str, streamed: &str) {
    let mut set = set(&turns(&[turn]), TestServers::default().echo("a", "x")).await;
    let events = set.say("hello").await;
    let Some(ChatEvent::Error {
        kind: ErrorKind::Model,
        message,
    }) = events.last()
    else {
        panic!("no error: {events:#?}");
    };
    assert!(message.starts_with(why), "{message}");
    assert_eq!(said(&events), streamed, "{why}");
    assert!(set.servers.called().is_empty(), "half a call: {why}");
    assert_eq!(set.messages(), hello(), "nothing half is kept: {why}");
    let end = set.book.end().await;
    assert_eq!((end.status, end.turns), (RunStatus::Failed, 1), "{why}");
    assert_eq!(end.error.as_ref(), Some(message));
    assert_eq!(end.usage.input, 10, "what it used counts: {why}");

    let expect = json!({ "last_text": "hello\nagain" });
    set.turn(expecting(says("Yes?"), expect)).await;
    assert_eq!(set.told("again").await, "Yes?", "{why}");
}

fn half_a_call(then: &str) -> Value {
    json!({ "reply": {
        "blocks": [{ "text": "Let me" }, { "tool_use": "x", "id": "t1", "input": { "long": "argument" }, "deltas": 5 }],
        "after": { "events": 8, "then": then, "kind": "overloaded_error", "message": "Overloaded" },
    } })
}

#[tokio::test]
async fn a_stream_that_fails_in_the_middle() {
    for (then, why) in [
        (
            "error",
            "the model's provider is overloaded or failing (overloaded_error), in the middle of the answer: Overloaded",
        ),
        (
            "cut",
            "the model's answer was cut off: the connection broke",
        ),
        ("eof", "the model's answer was cut off: the stream ended"),
        (
            "stall",
            "the model sent nothing for 0.7 s, in the middle of its answer",
        ),
    ] {
        check(half_a_call(then), why, "Let me").await;
    }
}

#[tokio::test]
async fn max_tokens_in_the_middle_of_a_call() {
    let why = "the model's answer ended (max_tokens) in the middle of a tool call; the answer is discarded";
    for unfinished in [true, false] {
        let turn = json!({ "reply": {
            "blocks": [{ "text": "Let me" }, { "tool_use": "x", "id": "t1", "input_raw": "{\"a\": ", "unfinished": unfinished }],
            "stop_reason": "max_tokens",
        } });
        check(turn, why, "Let me").await;
    }
}

#[tokio::test]
async fn a_refusal() {
    let turn = json!({ "reply": { "blocks": [{ "text": "I can" }], "stop_reason": "refusal" } });
    check(turn, "the model refused to answer (refusal)", "I can").await;
}

#[tokio::test]
async fn after_a_call_what_was_complete_is_kept() {
    let overloaded = json!({ "reply": {
        "blocks": [{ "text": "So" }],
        "after": { "events": 3, "then": "error", "kind": "overloaded_error", "message": "Overloaded" },
    } });
    let script = turns(&[asks(&[("t1", "x", json!({ "n": 1 }))]), overloaded]);
    let mut set = set(&script, TestServers::default().echo("a", "x")).await;
    assert_eq!(set.trouble("go").await.0, ErrorKind::Model);
    assert_eq!(set.messages().as_array().map(Vec::len), Some(3));
    let expect =
        json!({ "tool_results": [{ "id": "t1", "equals": "{\"n\":1}" }], "last_text": "well?" });
    set.turn(expecting(says("It is 1."), expect)).await;
    assert_eq!(set.told("well?").await, "It is 1.");
    assert_eq!(set.servers.called().len(), 1, "nothing is called twice");
}

#[tokio::test]
async fn max_tokens_in_a_text_is_an_end_that_says_so() {
    let turn = json!({ "reply": { "blocks": [{ "text": "and so on and" }], "stop_reason": "max_tokens" } });
    let mut set = set(&turns(&[turn]), TestServers::default()).await;
    let events = set.say("hello").await;
    let done = ChatEvent::Done {
        stop_reason: "max_tokens".to_owned(),
        run: "0".to_owned(),
    };
    assert_eq!(events.last(), Some(&done));
    assert_eq!(set.messages()[1]["content"][0]["text"], "and so on and");
}

#[tokio::test]
async fn an_answer_of_nothing_is_not_kept() {
    let nothing = json!({ "reply": { "blocks": [] } });
    let thought = json!({ "reply": { "blocks": [{ "thinking": "hm", "signature": "c2ln" }] } });
    let redacted = json!({ "reply": { "blocks": [{ "redacted_thinking": "b3BhcXVl" }] } });
    for turn in [nothing, thought, redacted] {
        let mut set = set(&turns(&[turn]), TestServers::default()).await;
        assert_eq!(set.told("hello").await, "");
        assert_eq!(set.messages(), hello());
    }
}

#[tokio::test]
async fn a_paused_turn_is_taken_up() {
    let search = json!({ "raw": { "type": "server_tool_use", "id": "s1", "name": "web_search", "input": {} } });
    let found =
        json!({ "raw": { "type": "web_search_tool_result", "tool_use_id": "s1", "content": [] } });
    let paused = json!({ "reply": { "blocks": [{ "text": "Searching." }, search], "stop_reason": "pause_turn" } });
    let goes_on = json!({ "reply": { "blocks": [found, { "text": "Found." }] } });
    let expect = json!({
        "body": { "/messages/1/role": "assistant", "/messages/1/content/1/type": "server_tool_use" },
        "absent": ["/messages/2"],
    });
    let mut set = set(
        &turns(&[paused, expecting(goes_on, expect)]),
        TestServers::default(),
    )
    .await;
    assert_eq!(set.told("hello").await, "Searching.Found.");
    let kinds: Vec<_> = set.conversation.messages()[1]
        .content
        .iter()
        .map(|block| {
            let block = serde_json::to_value(block).expect("a block");
            block["type"].as_str().map(str::to_owned)
        })
        .collect();
    let expect = ["text", "server_tool_use", "web_search_tool_result", "text"];
    assert_eq!(kinds, expect.map(|kind| Some(kind.to_owned())));
}

#[tokio::test]
async fn what_the_provider_will_never_take_is_taken_back() {
    let too_long = json!({ "fail": { "status": 400, "kind": "invalid_request_error", "message": "prompt is too long" } });
    let script = turns(&[
        says("Hi."),
        too_long.clone(),
        asks(&[("t1", "x", json!({ "n": 1 }))]),
        too_long,
    ]);
    let mut set = set(&script, TestServers::default().echo("a", "x")).await;
    set.told("hello").await;
    let before = set.messages();
    let (_, message) = set.trouble("a very long question").await;
    let why =
        "the model's provider refused the request (400 invalid_request_error): prompt is too long";
    assert_eq!(message, why);
    assert_eq!(set.messages(), before);
    // The calls stay in the conversation; only their results are removed.
    set.trouble("use the tool").await;
    let left_out = json!({ "tool_results": [{ "id": "t1", "equals": format!("The result was left out: {why}") }] });
    set.turn(expecting(says("I see."), left_out)).await;
    assert_eq!(set.told("well?").await, "I see.");

    // The provider refuses a wrong key whatever the content, so nothing is removed from the conversation.
    let forbidden =
        json!({ "fail": { "status": 403, "kind": "permission_error", "message": "no" } });
    set.llm
        .script(&turns(&[
            forbidden,
            expecting(says("Yes."), json!({ "last_text": "one\ntwo" })),
        ]))
        .await;
    set.trouble("one").await;
    assert_eq!(set.told("two").await, "Yes.");
}
