//! Dropping a chat's stream ends its work, after any event.

use std::sync::atomic::Ordering;

use agent::{
    ChatEvent, Conversation,
    ledger::{CallStatus, RunStatus},
};
use futures_util::StreamExt as _;
use serde_json::json;
use testkit::llm::{asks, expecting, says, turns};

use super::support::{hanging, recipes, results};
use crate::shared::{set, until, within};

#[tokio::test]
async fn dropping_the_stream_cancels_the_tools_and_keeps_what_was_complete() {
    let mut set = hanging().await;
    {
        let mut stream = set.agent.chat(&mut set.conversation, "go");
        let quick = async {
            while let Some(event) = stream.next().await {
                if matches!(&event, ChatEvent::ToolResult { id, .. } if id == "t2") {
                    return;
                }
            }
            panic!("the chat ended");
        };
        within("the result of the quick tool", quick).await;
    }
    assert_eq!(set.servers.cancelled.load(Ordering::SeqCst), 1);
    let end = set.book.end().await;
    assert_eq!((end.status, end.turns), (RunStatus::Cancelled, 1));
    until("the record of the native call", async || {
        set.book.calls().first().is_some_and(|(_, end)| {
            end.as_ref()
                .is_some_and(|end| end.status == CallStatus::Cancelled)
        })
    })
    .await;
    // The conversation continues with results for all three calls. The model's API would refuse anything else.
    let mut expect = results(&[
        ("t1", "cancelled", true),
        ("t2", r#"{"n":1}"#, false),
        ("t3", "cancelled", true),
    ]);
    expect["last_text"] = json!("what was that?");
    let turn = expecting(says("I was interrupted."), expect);
    set.turn(turn).await;
    assert_eq!(set.told("what was that?").await, "I was interrupted.");
}

#[tokio::test]
async fn dropping_the_stream_at_any_event_leaves_a_conversation_that_goes_on() {
    let script = turns(&[
        json!({ "reply": { "blocks": [
            { "thinking": "hm", "signature": "c2ln" },
            { "text": "Let me look", "deltas": 3 },
            { "tool_use": "fetch", "id": "t1", "input": { "n": 1 } },
            { "tool_use": "display_recipe", "id": "t2", "input": { "name": "Soup" } },
            { "tool_use": "bake", "id": "t3" },
        ] } }),
        asks(&[("t4", "get_recipe", json!({}))]),
        says("All done"),
    ]);
    let mut set = set(&script, recipes()).await;
    let whole = set.say("go").await.len();
    assert!(whole > 15, "{whole} events");
    for kept in 0..=whole {
        set.llm.script(&script).await;
        set.conversation = Conversation::new();
        let mut stream = set.agent.chat(&mut set.conversation, "go");
        for _ in 0..kept {
            within("an event", stream.next()).await.expect("an event");
        }
        drop(stream);
        let stored = serde_json::to_string(&set.conversation).expect("JSON");
        set.conversation = serde_json::from_str(&stored).expect("what was stored");
        // The scripted model refuses invalid requests.
        let expect = json!({ "last_text": "and then?" });
        set.turn(expecting(says("Nothing"), expect)).await;
        assert_eq!(
            set.told("and then?").await,
            "Nothing",
            "after {kept} events: {stored}"
        );
    }
    until("the end of all runs", async || {
        set.book.runs().iter().all(|(_, end)| end.is_some())
    })
    .await;
    until("the end of all native calls", async || {
        set.book.calls().iter().all(|(_, end)| end.is_some())
    })
    .await;
}

#[tokio::test]
async fn dropping_the_stream_ends_the_request_to_the_model() {
    let stalls = json!({ "reply": { "blocks": [{ "text": "one two three", "deltas": 3 }], "after": { "events": 3, "then": "stall" } } });
    let mut set = set(&turns(&[stalls]), recipes()).await;
    {
        let mut stream = set.agent.chat(&mut set.conversation, "go");
        let first =
            async { while !matches!(stream.next().await, Some(ChatEvent::TextDelta { .. })) {} };
        within("the first piece", first).await;
    }
    until("the model notices", async || {
        set.llm.requests().await[0]["outcome"] == "dropped"
    })
    .await;
    assert_eq!(set.book.end().await.status, RunStatus::Cancelled);
    // The conversation keeps the user's message, but not the incomplete answer.
    assert_eq!(
        set.messages(),
        json!([{ "role": "user", "content": [{ "type": "text", "text": "go" }] }])
    );
    let expect = json!({ "last_text": "go\nstill there?" });
    set.turn(expecting(says("yes"), expect)).await;
    assert_eq!(set.told("still there?").await, "yes");
}

#[tokio::test]
async fn dropping_the_stream_ends_a_request_that_was_not_answered_yet() {
    let mut set = set(&turns(&[json!({ "fail": { "stall": true } })]), recipes()).await;
    let llm = &set.llm;
    {
        let mut stream = set.agent.chat(&mut set.conversation, "go");
        let asked = async {
            loop {
                tokio::select! {
                    event = stream.next() => assert!(event.is_some(), "the chat ended"),
                    requests = llm.requests() => if !requests.is_empty() { break },
                }
            }
        };
        within("the request", asked).await;
    }
    until("the model notices", async || {
        llm.requests().await[0]["outcome"] == "dropped"
    })
    .await;
}
