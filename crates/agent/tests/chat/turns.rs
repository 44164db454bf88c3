//! The turns of a run: calls, limits, records, events.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use agent::{
    ChatEvent, Config, ErrorKind, NativeOutcome, NativeTool, Price,
    ledger::{CallStatus, RunStatus},
};
use futures_util::StreamExt as _;
use serde_json::{Value, json};
use testkit::llm::{asks, expecting, says, turns};
use tokio::sync::{Barrier, Notify};

use super::support::{recipes, results};
use crate::shared::{
    TestServers, display_recipe, outcome, pick, said, set, set_with, text, within,
};

#[tokio::test]
async fn a13_calls_of_one_turn_run_at_once_and_their_results_go_back_in_order() {
    // Each of the two calls waits for the other, and the second call ends first.
    let (both, second_ended) = (Arc::new(Barrier::new(2)), Arc::new(Notify::new()));
    let first = {
        let (both, second_ended) = (Arc::clone(&both), Arc::clone(&second_ended));
        move |_| {
            let (both, second_ended) = (Arc::clone(&both), Arc::clone(&second_ended));
            async move {
                both.wait().await;
                second_ended.notified().await;
                Ok(text("first"))
            }
        }
    };
    let second = move |_| {
        let (both, second_ended) = (Arc::clone(&both), Arc::clone(&second_ended));
        async move {
            both.wait().await;
            second_ended.notify_one();
            Ok(text("second"))
        }
    };
    let servers = TestServers::default()
        .with("a", "one", first)
        .with("b", "two", second);
    let script = turns(&[
        asks(&[("t1", "one", json!({})), ("t2", "two", json!({}))]),
        expecting(
            asks(&[("t3", "display_recipe", json!({ "name": "x" }))]),
            results(&[("t1", "first", false), ("t2", "second", false)]),
        ),
        expecting(
            says("All done"),
            results(&[("t3", "The recipe is shown.", false)]),
        ),
    ]);
    let mut set = set(&script, servers).await;
    let events = set.say("go").await;
    assert_eq!(said(&events), "All done");
    let ended: Vec<_> = pick(&events, |event| match event {
        ChatEvent::ToolResult { id, preview, .. } => Some((id.as_str(), preview.as_str())),
        _ => None,
    });
    let expect = [
        ("t2", "second"),
        ("t1", "first"),
        ("t3", "The recipe is shown."),
    ];
    assert_eq!(ended, expect);
}

#[tokio::test]
async fn a13_no_more_calls_are_in_flight_than_the_bound() {
    let flying = Arc::<[AtomicUsize; 2]>::default();
    let tool = {
        let flying = Arc::clone(&flying);
        move |_| {
            let flying = Arc::clone(&flying);
            async move {
                let now = flying[0].fetch_add(1, Ordering::SeqCst) + 1;
                flying[1].fetch_max(now, Ordering::SeqCst);
                for _ in 0..20 {
                    tokio::task::yield_now().await;
                }
                flying[0].fetch_sub(1, Ordering::SeqCst);
                Ok(text("x"))
            }
        }
    };
    let ids: Vec<String> = (0..20).map(|n| format!("t{n}")).collect();
    let calls: Vec<_> = ids.iter().map(|id| (id.as_str(), "x", json!({}))).collect();
    let servers = TestServers::default().with("a", "x", tool);
    let settings = |config: &mut Config| config.parallel_calls = 3;
    let script = turns(&[asks(&calls), says("ok")]);
    let mut set = set_with(&script, servers, settings, vec![]).await;
    assert_eq!(set.told("go").await, "ok");
    assert_eq!(flying[1].load(Ordering::SeqCst), 3);
    assert_eq!(set.servers.called().len(), 20);
}

#[tokio::test]
async fn a13_a_turn_limit_ends_a_runaway_loop_with_a_clear_message() {
    let endless = json!({ "reply": { "blocks": [{ "tool_use": "fetch", "input": {} }] } });
    let script = json!({ "turns": [endless], "repeat_last": true });
    let settings = |config: &mut Config| config.max_turns = 4;
    let mut set = set_with(&script, recipes(), settings, vec![]).await;
    let (kind, message) = set.trouble("go").await;
    assert_eq!(kind, ErrorKind::TurnLimit);
    assert!(
        message.contains("4 consecutive turns") && message.contains("`max_turns`"),
        "{message}"
    );
    assert_eq!(set.llm.requests().await.len(), 4);
    assert_eq!(
        set.servers.called().len(),
        3,
        "the calls of the last turn are not made"
    );
    let end = set.book.end().await;
    assert_eq!((end.status, end.turns), (RunStatus::Failed, 4));
    assert_eq!(end.error, Some(message));

    // The conversation can be continued after the limit.
    let refused = json!({ "body": { "/messages/8/content/0/content/0/text": "Not called: the limit of 4 turns is reached." } });
    set.turn(expecting(says("sorry"), refused)).await;
    assert_eq!(set.told("go on").await, "sorry");
}

#[tokio::test]
async fn a13_what_goes_wrong_with_a_call_is_its_result_and_the_turn_goes_on() {
    let servers = TestServers::default()
        .with("a", "failing", |_| async {
            Ok(outcome(&json!({ "content": [{ "type": "text", "text": "no such page" }], "isError": true })))
        })
        .with("a", "away", |_| async {
            Err(agent::ServersError("the server `a` is unavailable: it exited with code 1".to_owned()))
        })
        .with("a", "garbage", |_| async { Ok(outcome(&json!({ "content": 7 }))) })
        .with("a", "slow", |_| std::future::pending());
    let panics = NativeTool::new("panics", "", json!({ "type": "object" }), |_| async {
        std::panic::resume_unwind(Box::new("a bug"))
    });
    let refuses = NativeTool::new("refuses", "", json!({ "type": "object" }), |_| async {
        Err::<NativeOutcome, _>("the printer is out of paper".to_owned())
    });
    let slow = NativeTool::new("hangs", "", json!({ "type": "object" }), |_| {
        std::future::pending()
    });
    let raw = |id: &str, text: &str| json!({ "tool_use": "failing", "id": id, "input_raw": text, "deltas": 3 });
    let calls = |names: &[(&str, &str)]| -> Vec<Value> {
        let call = |(id, name): &(&str, &str)| json!({ "tool_use": name, "id": id, "input": {} });
        names.iter().map(call).collect()
    };
    let mut blocks = calls(&[
        ("t1", "failing"),
        ("t2", "away"),
        ("t3", "garbage"),
        ("t4", "slow"),
        ("t5", "panics"),
        ("t6", "refuses"),
        ("t7", "hangs"),
    ]);
    blocks.push(raw("t8", r#"{"a": "#));
    blocks.push(raw("t9", "[1, 2]"));
    blocks.push(json!({ "tool_use": "display_recipe", "id": "t10", "input": { "servings": 0 } }));
    let expect = json!({ "tool_results": [
        { "id": "t1", "is_error": true, "equals": "no such page" },
        { "id": "t2", "is_error": true, "equals": "The call failed: the server `a` is unavailable: it exited with code 1" },
        { "id": "t3", "is_error": true, "contains": "The server a sent a result that cannot be read" },
        { "id": "t4", "is_error": true, "equals": "The server a did not answer within 0.2 s." },
        { "id": "t5", "is_error": true, "equals": "The tool failed: it has a bug." },
        { "id": "t6", "is_error": true, "equals": "the printer is out of paper" },
        { "id": "t7", "is_error": true, "equals": "The tool did not answer within 0.2 s." },
        { "id": "t8", "is_error": true, "contains": "The tool was not called: the arguments are not a JSON object: EOF" },
        { "id": "t9", "is_error": true, "contains": "the arguments are not a JSON object: they are a list or a single value" },
        { "id": "t10", "is_error": true, "contains": "/servings: 0 is less than the minimum of 1" },
    ]});
    let script = turns(&[
        json!({ "reply": { "blocks": blocks } }),
        expecting(says("I see."), expect),
    ]);
    let settings =
        |config: &mut Config| config.tool_timeout = std::time::Duration::from_millis(200);
    let native = vec![display_recipe(), panics, refuses, slow];
    let mut set = set_with(&script, servers, settings, native).await;
    assert_eq!(set.told("try all").await, "I see.");
    assert_eq!(
        set.servers.called().len(),
        4,
        "what has no arguments is not called"
    );
    let calls = set.book.calls().into_iter();
    let statuses = calls.map(|(call, end)| (call.tool, end.expect("an end").status));
    let statuses: Vec<_> = statuses.collect();
    let tool_error = CallStatus::ToolError;
    let expect = [
        ("panics", tool_error),
        ("refuses", tool_error),
        ("hangs", CallStatus::Timeout),
        ("display_recipe", tool_error),
    ];
    for (tool, status) in expect {
        assert!(
            statuses.contains(&(tool.to_owned(), status)),
            "{statuses:?}"
        );
    }
}

#[tokio::test]
async fn tokens_and_costs_are_counted_over_the_run() {
    let usage = json!({ "input_tokens": 1000, "output_tokens": 100, "cache_read_input_tokens": 10000, "cache_creation_input_tokens": 1000 });
    let mut ask = asks(&[("t1", "fetch", json!({}))]);
    ask["reply"]["usage"] = usage.clone();
    let mut say = says("ok");
    say["reply"]["usage"] = usage;
    let settings = |config: &mut Config| {
        let price = Price {
            input: 3.0,
            output: 15.0,
            cache_read: 0.3,
            cache_write: 3.75,
        };
        config.prices.insert("claude-test".to_owned(), price);
    };
    let mut set = set_with(&turns(&[ask, say]), recipes(), settings, vec![]).await;
    let events = set.say("go").await;
    let told: Vec<_> = pick(&events, |event| match event {
        ChatEvent::Usage {
            input,
            output,
            cache_read,
            cache_write,
            cost_micros,
        } => Some([*input, *output, *cache_read, *cache_write, *cost_micros]),
        _ => None,
    });
    assert_eq!(
        told,
        [
            [1000, 100, 10000, 1000, 11250],
            [2000, 200, 20000, 2000, 22500]
        ]
    );
    let end = set.book.end().await;
    assert_eq!(
        (end.usage.input_total(), end.usage.output, end.cost_micros),
        (24000, 200, 22500)
    );
}

#[tokio::test]
async fn what_cannot_be_recorded_is_not_done() {
    // The ledger refuses records, first before the run and then before a native call.
    let call = asks(&[("t1", "display_recipe", json!({ "name": "x" }))]);
    let mut set = set(&turns(std::slice::from_ref(&call)), recipes()).await;
    set.book.is_full.store(true, Ordering::SeqCst);
    let (kind, message) = set.trouble("go").await;
    assert_eq!(kind, ErrorKind::Ledger);
    assert_eq!(message, "the run cannot be recorded: the book is full");
    assert!(set.llm.requests().await.is_empty());

    set.book.is_full.store(false, Ordering::SeqCst);
    let expect = json!({ "tool_results": [{ "is_error": true,
        "equals": "The tool was not called, because the call cannot be recorded: the book is full" }] });
    let script = turns(&[call, expecting(says("A pity."), expect)]);
    set.llm.script(&script).await;
    let book = Arc::clone(&set.book);
    let mut stream = set.agent.chat(&mut set.conversation, "go on");
    let mut events = Vec::new();
    while let Some(event) = within("an event", stream.next()).await {
        // The run has been recorded by now.
        book.is_full.store(true, Ordering::SeqCst);
        events.push(event);
    }
    drop(stream);
    assert_eq!(said(&events), "A pity.");
    assert!(book.calls().is_empty());
}

#[tokio::test]
async fn events_as_json() {
    let script = turns(&[
        json!({ "reply": { "blocks": [
            { "thinking": "hm", "signature": "c2ln" }, { "text": "Look:" },
            { "tool_use": "display_recipe", "id": "t1", "input": { "name": "Soup" } },
        ] } }),
        says("Da."),
    ]);
    let mut set = set(&script, recipes()).await;
    let events = set.say("show").await;
    let usage = |n: u64| json!({ "type": "usage", "input": 10 * n, "output": 5 * n, "cache_read": 0, "cache_write": 0, "cost_micros": 0 });
    let expect = json!([
        { "type": "started", "run": "0" },
        { "type": "thinking_delta", "text": "hm" },
        { "type": "text_delta", "text": "Look:" },
        usage(1),
        { "type": "tool_call", "id": "t1", "name": "display_recipe", "server": "native", "arguments": { "name": "Soup" } },
        { "type": "native", "id": "t1", "tool": "display_recipe", "payload": { "shown": "Soup" } },
        { "type": "tool_result", "id": "t1", "is_error": false, "preview": "The recipe is shown.", "bytes": 20 },
        { "type": "text_delta", "text": "D" },
        { "type": "text_delta", "text": "a" },
        { "type": "text_delta", "text": "." },
        usage(2),
        { "type": "done", "stop_reason": "end_turn", "run": "0" },
    ]);
    assert_eq!(serde_json::to_value(&events).expect("JSON"), expect);
}
