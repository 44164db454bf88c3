//! Questions from servers during a call, and results that Apps render.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use agent::{ChatEvent, Config, Conversation, Keep, Questions, Raw};
use futures_util::{StreamExt as _, future::BoxFuture};
use serde_json::{Value, json};
use testkit::llm::{asks, says, turns};

use crate::shared::{Set, TestServers, outcome, set, set_with, within};

struct Nowhere;

impl Keep for Nowhere {
    fn conversation(&self) -> &str {
        "c1"
    }

    fn begun<'a>(&'a mut self, _: &'a Conversation) -> BoxFuture<'a, Result<(), String>> {
        Box::pin(async { Ok(()) })
    }

    fn ended(self: Box<Self>, _: Conversation) -> BoxFuture<'static, ()> {
        Box::pin(async {})
    }
}

/// A server with a tool that asks this many times before it finishes.
fn asking(times: usize) -> TestServers {
    let calls = Arc::<AtomicUsize>::default();
    TestServers::default().with("desk", "book", move |_| {
        let at = calls.fetch_add(1, Ordering::SeqCst);
        async move {
            Ok(outcome(&match at < times {
                true => json!({
                    "resultType": "input_required",
                    "inputRequests": { "who": { "method": "elicitation/create", "params": { "message": "Who?" } } },
                    "requestState": format!("s{at}"),
                }),
                false => json!({ "content": [{ "type": "text", "text": "Booked." }] }),
            }))
        }
    })
}

/// Runs a turn while `answer` answers each question. Returns the previews of the results, and each call's answers.
async fn results(set: Set, answer: impl Fn(&Questions, &str, &Raw)) -> (Vec<String>, Vec<Value>) {
    let questions = Questions::default();
    let agent = Arc::new(set.agent);
    let turn = agent.chat_owned(Conversation::new(), "go", Nowhere, Some(questions.clone()));
    let told = turn.filter_map(async |event| {
        match &event {
            ChatEvent::Questions { id, requests } => answer(&questions, id, requests),
            ChatEvent::ToolResult { preview, .. } => return Some(preview.clone()),
            _ => {}
        }
        None
    });
    let told = within("the turn", told.collect()).await;
    let calls = set.servers.calls.lock();
    let answered = calls.iter().map(|call| match &call.answers {
        None => Value::Null,
        Some(answers) => json!([answers.responses, answers.state]),
    });
    (told, answered.collect())
}

#[tokio::test]
async fn a_server_asks_in_the_course_of_a_call_and_is_answered() {
    let script = turns(&[asks(&[("t1", "book", json!({}))]), says("Done.")]);
    let set = set(&script, asking(2)).await;
    let (told, answered) = results(set, |questions, call, requests| {
        assert_eq!(call, "t1");
        assert!(
            requests.get().contains("elicitation/create"),
            "{requests:?}"
        );
        let answer = json!({ "who": { "action": "accept", "content": { "name": "Ada" } } });
        assert!(questions.answer(call, Raw::of(&answer)));
    })
    .await;
    assert_eq!(told, ["Booked."]);
    let answer = json!({ "who": { "action": "accept", "content": { "name": "Ada" } } });
    assert_eq!(
        answered,
        [json!(null), json!([answer, "s0"]), json!([answer, "s1"])]
    );
}

#[tokio::test]
async fn a_question_that_nobody_answers_is_cancelled_in_time() {
    let script = turns(&[asks(&[("t1", "book", json!({}))]), says("Done.")]);
    let soon = |config: &mut Config| config.answer_timeout = Duration::from_millis(50);
    let set = set_with(&script, asking(1), soon, Vec::new()).await;
    let (told, answered) = results(set, |_, _, _| {}).await;
    assert_eq!(told, ["Booked."]);
    let cancelled = json!({ "who": { "action": "cancel" } });
    assert_eq!(answered, [json!(null), json!([cancelled, "s0"])]);
}

#[tokio::test]
async fn a_server_that_asks_without_end_is_not_called_without_end() {
    let script = turns(&[asks(&[("t1", "book", json!({}))]), says("Well.")]);
    let set = set(&script, asking(usize::MAX)).await;
    let (told, answered) = results(set, |questions, call, _| {
        assert!(questions.answer(call, Raw::empty_object()));
    })
    .await;
    assert_eq!(
        told,
        ["The server desk asked for input 16 times without finishing the call."]
    );
    assert_eq!(answered.len(), 16);
}

#[tokio::test]
async fn nobody_is_asked_where_nobody_answers() {
    let script = turns(&[asks(&[("t1", "book", json!({}))]), says("Done.")]);
    let mut set = set(&script, asking(0)).await;
    let agent = &set.agent;
    within("the turn", agent.chat_all(&mut set.conversation, "go")).await;
    let calls = set.servers.calls.lock();
    assert!(
        calls
            .iter()
            .all(|call| !call.can_ask && call.answers.is_none())
    );
    assert_eq!(calls.len(), 1);
}

/// An App gets the whole result, of which the model sees only a part. The whole result is kept, so that the App can be
/// rendered again.
#[tokio::test]
async fn the_result_of_a_tool_with_an_app_is_told_and_kept_whole() {
    let whole = json!({
        "content": [{ "type": "text", "text": "A chart." }],
        "structuredContent": { "points": [1, 2] },
        "_meta": { "colour": "blue" },
    });
    let drawn = whole.clone();
    let servers = TestServers::default()
        .with("art", "draw", move |_| {
            let drawn = outcome(&drawn);
            async { Ok(drawn) }
        })
        .echo("art", "plain");
    let script = turns(&[
        asks(&[("t1", "draw", json!({})), ("t2", "plain", json!({}))]),
        says("There."),
    ]);
    let mut set = set(&script, servers).await;
    let agent = &set.agent;
    let events = within("the turn", agent.chat_all(&mut set.conversation, "go")).await;
    let told = events.iter().filter_map(|event| match event {
        ChatEvent::ToolResult { id, result, .. } => Some((id.as_str(), result.is_some())),
        _ => None,
    });
    let mut told: Vec<_> = told.collect();
    told.sort_unstable();
    assert_eq!(told, [("t1", true), ("t2", false)]);
    let json = serde_json::to_string(&set.conversation).unwrap();
    let back: Conversation = serde_json::from_str(&json).unwrap();
    let kept: Vec<_> = back.app_results().collect();
    assert_eq!(kept.len(), 1);
    assert_eq!(kept[0].call, "t1");
    assert_eq!(kept[0].result.read::<Value>().unwrap(), whole);
}
