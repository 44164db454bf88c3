//! Measures and prints the agent's own overhead. Slow results never fail the test, because machines differ.
//!
//! `cargo nextest run -p agent --test figures --no-capture`; use `--release` for meaningful figures.

mod shared;

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use agent::{
    ChatEvent, Raw,
    llm::{Call, Model, ModelError, ModelEvent, ModelRequest, Reply, Stop, Usage},
    message::Block,
    raw::Fields,
};
use futures_util::{
    StreamExt as _,
    stream::{self, BoxStream},
};
use serde_json::json;
use shared::{TestServers, set_with, text, within};
use testkit::llm::{says, turns};
use tokio::time::Instant;

fn show(what: &str, mut took: Vec<Duration>) {
    took.sort_unstable();
    let at = |part: usize| took[(took.len() - 1) * part / 100];
    println!(
        "{what}: p50 {:?}, p99 {:?}, most {:?} ({} times)",
        at(50),
        at(99),
        at(100),
        took.len()
    );
}

#[tokio::test]
async fn first_tokens_and_tool_calls() {
    // Each piece of text is the time at which the model sent it.
    let stamps = vec![json!({ "text": "{{now_ns}}" }); 200];
    let script = turns(&[json!({ "reply": { "blocks": stamps, "pause_ms": 1 } })]);
    let mut set = set_with(&script, TestServers::default(), |_| {}, vec![]).await;
    let mut took = Vec::new();
    let mut stream = set.agent.chat(&mut set.conversation, "go");
    while let Some(event) = within("an event", stream.next()).await {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        if let ChatEvent::TextDelta { text } = event {
            let sent = Duration::from_nanos(text.parse().expect("a time"));
            took.push(now.expect("a clock").saturating_sub(sent));
        }
    }
    drop(stream);
    assert_eq!(took.len(), 200);
    show("from the model's write to the client's event", took);

    // The agent's overhead: the time from the end of one answer, over the calls, to the next request. It is measured
    // between two events, minus the tool's time, which is nearly zero.
    let calls: Vec<_> = (0..100)
        .map(|n| json!({ "reply": { "blocks": [{ "tool_use": "echo", "id": format!("t{n}"), "input": { "n": n } }] } }))
        .chain([says("done")])
        .collect();
    let servers = TestServers::default().with("a", "echo", |_| async { Ok(text("x")) });
    let settings = |config: &mut agent::Config| config.max_turns = 200;
    let mut set = set_with(&turns(&calls), servers, settings, vec![]).await;
    let (mut per_call, mut per_turn) = (Vec::new(), Vec::new());
    let (mut asked, mut ended): (Option<Instant>, Option<Instant>) = (None, None);
    let mut stream = set.agent.chat(&mut set.conversation, "go");
    while let Some(event) = within("an event", stream.next()).await {
        let now = Instant::now();
        match event {
            // The model's answer is complete.
            ChatEvent::Usage { .. } => {
                if let Some(ended) = ended.take() {
                    per_turn.push(now - ended);
                }
                asked = Some(now);
            }
            ChatEvent::ToolResult { .. } => {
                per_call.extend(asked.take().map(|asked| now - asked));
                ended = Some(now);
            }
            _ => {}
        }
    }
    drop(stream);
    assert_eq!((per_call.len(), per_turn.len()), (100, 100));
    show(
        "a tool call, from the model's last word to the result",
        per_call,
    );
    show(
        "a request to the scripted model, its own time included",
        per_turn,
    );
}

#[tokio::test]
async fn short_requests() {
    let script = json!({ "turns": [says("hi")], "repeat_last": true });
    let set = set_with(&script, TestServers::default(), |_| {}, vec![]).await;
    let mut took = Vec::new();
    for _ in 0..100 {
        let mut conversation = agent::Conversation::new();
        let begun = Instant::now();
        let events = within("a chat", set.agent.chat_all(&mut conversation, "go")).await;
        took.push(begun.elapsed());
        assert!(matches!(events.last(), Some(ChatEvent::Done { .. })));
    }
    show(
        "a whole chat of one short answer, the scripted model's time included",
        took,
    );
}

/// A model in this process that immediately requests a tool a hundred times, so all measured time is the agent's.
struct AtOnce(std::sync::atomic::AtomicUsize);

impl Model for AtOnce {
    fn name(&self) -> &str {
        "at-once"
    }

    fn stream(&self, _: ModelRequest) -> BoxStream<'static, Result<ModelEvent, ModelError>> {
        let turn = self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let (id, name) = (format!("t{turn}"), "echo".to_owned());
        let mut reply = Reply {
            content: vec![Block::text("x")],
            calls: Vec::new(),
            stop: Stop::EndTurn,
            usage: Usage::default(),
        };
        if turn < 100 {
            reply.stop = Stop::ToolUse;
            let input = Raw::parse(r#"{"text":"something to give back"}"#).expect("JSON");
            reply.content.push(Block::ToolUse {
                id: id.clone(),
                name: name.clone(),
                input: input.clone(),
                more: Fields::default(),
            });
            let arguments = Ok(input);
            reply.calls.push(Call {
                id,
                name,
                arguments,
            });
        }
        stream::iter([Ok(ModelEvent::Done(reply))]).boxed()
    }
}

#[tokio::test]
async fn the_loop_alone() {
    let servers = TestServers::default().with("a", "echo", |_| async { Ok(text("x")) });
    let mut config = agent::Config::new("tester");
    config.max_turns = 200;
    let agent = agent::Agent::new(
        config,
        Arc::new(AtOnce(0.into())),
        Arc::new(servers),
        Arc::new(shared::Book::default()),
        vec![],
    )
    .expect("an agent");
    let mut conversation = agent::Conversation::new();
    let begun = Instant::now();
    let events = within("a chat", agent.chat_all(&mut conversation, "go")).await;
    let took = begun.elapsed() / 100;
    assert!(
        matches!(events.last(), Some(ChatEvent::Done { .. })),
        "{events:?}"
    );
    assert_eq!(conversation.messages().len(), 202);
    println!("a turn with a tool call, of the agent alone: {took:?} on average (100 times)");
}
