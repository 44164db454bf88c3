//! Stored conversations: what is stored when, and what happens if storing fails.

use std::sync::{Arc, atomic::Ordering};

use agent::{ChatEvent, Config, Conversation, ErrorKind, Keep, ledger::RunStatus};
use futures_util::{StreamExt as _, future::BoxFuture};
use serde_json::json;
use testkit::llm::{asks, expecting, says, turns};

use super::support::recipes;
use crate::shared::{Set, TestServers, set, set_with, text, within};

#[tokio::test]
async fn a_conversation_that_is_full_says_so_and_stays_valid() {
    let settings = |config: &mut Config| config.conversation_bytes = 1000;
    let servers = TestServers::default().with("a", "big", |_| async { Ok(text(&"x".repeat(900))) });
    let script = turns(&[asks(&[("t1", "big", json!({}))])]);
    let mut set = set_with(&script, servers, settings, vec![]).await;
    let (kind, message) = set.trouble(&"y".repeat(100)).await;
    assert_eq!(kind, ErrorKind::Conversation);
    assert!(
        message.contains("the limit is 1000: start a new conversation"),
        "{message}"
    );
    let (kind, _) = set.trouble(&"y".repeat(1000)).await;
    assert_eq!(kind, ErrorKind::Conversation);
    assert_eq!(set.trouble("  ").await.1, "the message is empty");
    let left_out = json!({ "tool_results": [{ "id": "t1", "contains": "left out" }] });
    set.turn(expecting(says("ok"), left_out)).await;
    assert_eq!(set.told("short").await, "ok");
}

/// Passes each stored conversation to the test: first with the user's message, and again at the end of the turn.
struct Give {
    give: tokio::sync::mpsc::Sender<(&'static str, Conversation)>,
    fails: bool,
}

impl Keep for Give {
    fn conversation(&self) -> &'static str {
        "c1"
    }

    fn begun<'a>(
        &'a mut self,
        conversation: &'a Conversation,
    ) -> BoxFuture<'a, Result<(), String>> {
        Box::pin(async {
            if self.fails {
                return Err("the disk is full".to_owned());
            }
            let kept = ("begun", conversation.clone());
            self.give.send(kept).await.expect("the test waits");
            Ok(())
        })
    }

    fn ended(self: Box<Self>, conversation: Conversation) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            let kept = ("ended", conversation);
            self.give.send(kept).await.expect("the test waits");
        })
    }
}

#[tokio::test]
async fn a_chat_that_owns_its_conversation_keeps_the_message_first_and_the_rest_at_the_end_or_after_a_drop()
 {
    let stalls = json!({ "reply": { "blocks": [{ "text": "well" }], "after": { "events": 3, "then": "stall" } } });
    let Set {
        agent, llm, book, ..
    } = set(&turns(&[says("hi"), stalls]), recipes()).await;
    let agent = Arc::new(agent);
    let (give, mut take) = tokio::sync::mpsc::channel(2);
    let keep = || Give {
        give: give.clone(),
        fails: false,
    };
    let mut stream = agent.chat_owned(Conversation::new(), "hello", keep(), None);
    let first = within("an event", stream.next()).await;
    assert!(
        matches!(first, Some(ChatEvent::Started { .. })),
        "{first:?}"
    );
    let (when, conversation) = take
        .try_recv()
        .expect("it was kept before the model is asked");
    assert_eq!((when, conversation.messages().len()), ("begun", 1));
    assert!(llm.requests().await.is_empty());
    assert_eq!(book.runs()[0].0.conversation.as_deref(), Some("c1"));
    while let Some(event) = within("an event", stream.next()).await {
        if matches!(event, ChatEvent::Done { .. }) {
            break;
        }
    }
    let (when, conversation) = take
        .try_recv()
        .expect("it was kept before the end was told");
    assert_eq!((when, conversation.messages().len()), ("ended", 2));
    let mut stream = agent.chat_owned(conversation, "and?", keep(), None);
    while !matches!(
        within("an event", stream.next()).await,
        Some(ChatEvent::TextDelta { .. })
    ) {}
    drop(stream);
    for expect in ["begun", "ended"] {
        let kept = within("the conversation", take.recv()).await;
        let (when, conversation) = kept.expect("it is kept");
        assert_eq!((when, conversation.messages().len()), (expect, 3));
    }
    assert!(take.try_recv().is_err(), "once only");
}

/// The model is not called if its answer would be lost. A turn that did not start is not stored.
#[tokio::test]
async fn a_message_that_cannot_be_kept_and_a_start_that_fails_leave_nothing() {
    let servers = recipes();
    servers.failing_starts.store(1, Ordering::SeqCst);
    let Set {
        agent, llm, book, ..
    } = set(&turns(&[says("hi")]), servers).await;
    let agent = Arc::new(agent);
    let (give, mut take) = tokio::sync::mpsc::channel(2);
    for expect in [
        (ErrorKind::Servers, "the server `alpha` cannot be started"),
        (
            ErrorKind::Conversation,
            "the message cannot be saved: the disk is full",
        ),
    ] {
        let give = give.clone();
        let keep = Give { give, fails: true };
        let stream = agent.chat_owned(Conversation::new(), "hello", keep, None);
        let events: Vec<_> = within("the end", stream.collect()).await;
        let [ChatEvent::Error { kind, message }] = events.as_slice() else {
            panic!("{events:?}");
        };
        assert_eq!((*kind, message.as_str()), expect);
        assert!(take.try_recv().is_err(), "it is kept");
    }
    assert!(llm.requests().await.is_empty());
    let end = book.end().await;
    assert_eq!(end.status, RunStatus::Failed);
}
