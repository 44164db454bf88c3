//! Questions from servers during a call (2026-07-28 "Multi Round-Trip Requests"), and the user's answers.
//!
//! A question is open from the event that reports it ([`crate::ChatEvent::Questions`]) until it is answered or its call
//! ends.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::{sync::oneshot, time::timeout};

use crate::raw::Raw;

/// The open questions of a turn. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Questions(Arc<Mutex<HashMap<String, oneshot::Sender<Raw>>>>);

/// The open questions of one call. Closed when this is dropped.
pub(crate) struct Open<'a> {
    questions: &'a Questions,
    call: &'a str,
    answers: oneshot::Receiver<Raw>,
}

/// A result that asks for input.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Asked {
    /// The requests, under keys chosen by the server. If there are none, the call is unfinished but needs no input.
    #[serde(default)]
    pub(crate) input_requests: Option<Raw>,
    /// The server's state, to be sent back unchanged.
    #[serde(default)]
    pub(crate) request_state: Option<Raw>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Kind {
    result_type: Option<String>,
}

impl Asked {
    /// Returns the questions in a result. `None` for a final result.
    pub(crate) fn of(result: &Raw) -> Option<Self> {
        let kind: Kind = result.read().ok()?;
        let asks = kind.result_type.as_deref() == Some("input_required");
        asks.then(|| result.read().ok()).flatten()
    }
}

impl Questions {
    /// Answers the open questions of a call. `answers` is an object with the keys of the questions. Returns `false` if
    /// the call has no open questions.
    #[must_use]
    pub fn answer(&self, call: &str, answers: Raw) -> bool {
        let waiting = self.0.lock().remove(call);
        waiting.is_some_and(|waiting| waiting.send(answers).is_ok())
    }

    pub(crate) fn open<'a>(&'a self, call: &'a str) -> Open<'a> {
        let (give, answers) = oneshot::channel();
        self.0.lock().insert(call.to_owned(), give);
        Open {
            questions: self,
            call,
            answers,
        }
    }
}

impl Open<'_> {
    /// Waits for the user's answers. After a timeout, every question is answered as cancelled.
    pub(crate) async fn answers(&mut self, requests: &Raw, wait: Duration) -> Raw {
        match timeout(wait, &mut self.answers).await {
            Ok(Ok(answers)) => answers,
            Ok(Err(_)) | Err(_) => cancelled(requests),
        }
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.questions.0.lock().remove(self.call);
    }
}

/// The answers that cancel all questions.
pub(crate) fn cancelled(requests: &Raw) -> Raw {
    let asked: Map<String, Value> = requests.read().unwrap_or_default();
    let answers = asked
        .into_iter()
        .map(|(key, _)| (key, json!({ "action": "cancel" })));
    Raw::of(&answers.collect::<Map<_, _>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(value: &Value) -> Raw {
        Raw::of(value)
    }

    #[test]
    fn only_results_that_say_so_ask() {
        let asks = json!({ "resultType": "input_required", "inputRequests": { "a": {} }, "requestState": "s" });
        let asked = Asked::of(&raw(&asks)).expect("a question");
        assert_eq!(asked.input_requests.expect("requests").get(), r#"{"a":{}}"#);
        assert_eq!(asked.request_state.expect("a state").get(), r#""s""#);
        let waits = json!({ "resultType": "input_required" });
        assert!(
            Asked::of(&raw(&waits))
                .expect("not done")
                .input_requests
                .is_none()
        );
        for ends in [
            json!({ "content": [] }),
            json!({ "resultType": "complete", "inputRequests": {} }),
            json!({ "resultType": 7 }),
        ] {
            assert!(Asked::of(&raw(&ends)).is_none(), "{ends}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn each_question_is_answered_once_and_at_last_cancelled() {
        let questions = Questions::default();
        let requests = raw(&json!({ "a": {}, "b": {} }));
        assert!(!questions.answer("t1", Raw::empty_object()));
        let mut open = questions.open("t1");
        let given = raw(&json!({ "a": { "action": "decline" } }));
        assert!(questions.answer("t1", given.clone()));
        assert!(!questions.answer("t1", given.clone()));
        let wait = Duration::from_secs(600);
        assert_eq!(open.answers(&requests, wait).await, given);
        drop(open);
        let mut open = questions.open("t1");
        let answers = open.answers(&requests, wait).await;
        assert_eq!(
            answers.get(),
            r#"{"a":{"action":"cancel"},"b":{"action":"cancel"}}"#
        );
        drop(open);
        assert!(!questions.answer("t1", given));
    }
}
