//! Runs of code whose calls may ask a modern client for input.
//!
//! A run is a task, so it continues while its client is asked. Its calls ask through an [`Asker`]. A request of the client
//! waits at the [`CodeRun`] until the run ends or has questions. In between, the run is held (`hold`).
//!
//! Invariants:
//! - Dropping the [`CodeRun`] ends the run and its calls.
//! - Each call in flight has at most one question, so the limit on calls is one on questions.
//! - While a question is open, the clock of the run stands still.

use std::{
    collections::HashMap,
    future::poll_fn,
    sync::{Arc, Weak},
    time::Duration,
};

use bytes::Bytes;
use code::Clock;
use mcp::{Frame, json, outbox::Outbox};
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, sleep_until},
};
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use crate::scope::Scope;

/// Time after a question in which further calls may ask, so that the client gets their questions together.
const GATHER: Duration = Duration::from_millis(100);

/// Identifies the caller that started a run, and its view.
#[derive(PartialEq, Eq)]
pub(crate) struct Origin {
    pub(crate) principal: Arc<str>,
    pub(crate) scope: Scope,
}

/// The end of a run, for the model.
pub(crate) struct Ended {
    pub(crate) text: String,
    pub(crate) is_error: bool,
}

/// A request to the client: key, method, and `params` as JSON text.
pub(crate) type InputRequest = (String, String, Bytes);
/// The client's response: key and JSON text.
pub(crate) type InputResponse = (String, Bytes);

/// The input that one call needs.
struct Question {
    /// The keys begin with the number of the call and a dot.
    requests: Vec<InputRequest>,
    state: Option<String>,
    answers: oneshot::Sender<Vec<InputResponse>>,
}

/// The calls of a run, which may need input of the client.
pub(crate) struct Asker {
    clock: Clock,
    questions: mpsc::Sender<Question>,
    /// Cloned for each call in flight.
    calls: Arc<()>,
}

impl Asker {
    /// Counts a call until the returned value is dropped.
    pub(crate) fn enter(&self) -> Arc<()> {
        self.calls.clone()
    }

    /// Asks the client for the input that call number `call` needs. `state` is the `requestState` of that call. Returns
    /// `None` if the client is gone.
    pub(crate) async fn ask(
        &self,
        call: u32,
        requests: Vec<InputRequest>,
        state: Option<String>,
    ) -> Option<Vec<InputResponse>> {
        let _pause = self.clock.pause();
        let (answers, given) = oneshot::channel();
        let requests = requests.into_iter();
        let requests =
            requests.map(|(key, method, params)| (format!("{call}.{key}"), method, params));
        let question = Question {
            requests: requests.collect(),
            state,
            answers,
        };
        self.questions.send(question).await.ok()?;
        given.await.ok()
    }
}

/// A run that has not ended, or whose end is not yet known to its client.
pub(crate) struct CodeRun {
    task: AbortOnDropHandle<Ended>,
    questions: mpsc::Receiver<Question>,
    calls: Weak<()>,
    /// Questions that the client has not answered.
    pending: Vec<Question>,
    /// When the client is asked, if there are questions.
    ask_at: Instant,
    /// Messages of the calls.
    outbox: Arc<Outbox>,
}

impl CodeRun {
    /// Starts a run that makes at most `max_calls` calls at the same time.
    pub(crate) fn start<F>(
        running: &TaskTracker,
        clock: Clock,
        max_calls: u32,
        outbox: Arc<Outbox>,
        run: impl FnOnce(Asker) -> F,
    ) -> Self
    where
        F: Future<Output = Ended> + Send + 'static,
    {
        let (sender, questions) = mpsc::channel(max_calls.max(1) as usize);
        let calls = Arc::new(());
        Self {
            questions,
            calls: Arc::downgrade(&calls),
            pending: Vec::new(),
            ask_at: Instant::now(),
            outbox,
            task: AbortOnDropHandle::new(running.spawn(run(Asker {
                clock,
                questions: sender,
                calls,
            }))),
        }
    }

    /// Waits until the run ends, or until its client has to be asked (`None`). Passes the messages of its calls to `out`.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub(crate) async fn next(&mut self, out: &Outbox) -> Option<Ended> {
        let next = loop {
            self.pending
                .retain(|question| !question.answers.is_closed());
            let calls = self.calls.strong_count().saturating_sub(1);
            if !self.pending.is_empty() && self.pending.len() >= calls {
                break None;
            }
            tokio::select! {
                biased;
                ended = &mut self.task => break Some(ended.unwrap_or_else(|error| Ended {
                    text: format!("The run failed: {error}"),
                    is_error: true,
                })),
                Some(question) = self.questions.recv() => {
                    self.pending.push(question);
                    self.ask_at = Instant::now() + GATHER;
                }
                () = sleep_until(self.ask_at), if !self.pending.is_empty() => break None,
                Some((weight, message)) = poll_fn(|cx| self.outbox.poll_next(cx)) => {
                    out.push(weight, message);
                }
            }
        };
        while let Some((weight, message)) = self.outbox.take() {
            out.push(weight, message);
        }
        next
    }

    /// The requests to the client.
    pub(crate) fn requests(&self) -> Vec<InputRequest> {
        let requests = self.pending.iter().flat_map(|question| &question.requests);
        requests.cloned().collect()
    }

    /// The `requestState` of each call that waits for the client.
    pub(crate) fn states(&self) -> impl Iterator<Item = &str> {
        let states = self
            .pending
            .iter()
            .map(|question| question.state.as_deref());
        states.flatten()
    }

    /// Passes the client's answers to the calls. A call without an answer continues to wait.
    pub(crate) fn answer(&mut self, retry: &Frame) {
        let text = retry.text();
        let responses = retry
            .object()
            .and_then(|params| params.object("inputResponses"));
        let responses = responses.iter().flat_map(|responses| responses.members());
        let responses = responses.filter_map(|member| {
            let key = json::decode(&text[member.key])?.into_owned();
            Some((key, text.slice(member.value)))
        });
        let mut responses: HashMap<String, Bytes> = responses.collect();
        for question in std::mem::take(&mut self.pending) {
            let answers = question.requests.iter().filter_map(|(key, ..)| {
                let (_, own) = key.split_once('.')?;
                Some((own.to_owned(), responses.remove(key)?))
            });
            let answers: Vec<InputResponse> = answers.collect();
            if answers.is_empty() && !question.requests.is_empty() {
                self.pending.push(question);
            } else {
                let _ = question.answers.send(answers);
            }
        }
        self.ask_at = Instant::now() + GATHER;
    }
}

#[cfg(test)]
mod tests {
    use mcp::outbox::{Bounds, Weight};
    use tokio::time::sleep;

    use super::*;

    const BOUNDS: Bounds = Bounds {
        messages: 8,
        bytes: 1 << 10,
    };

    /// A run that makes calls at the same time. Each asks after its delay, or ends then. The run ends with the answers.
    fn start(calls: &'static [(u32, Duration, bool)]) -> (CodeRun, Arc<Outbox>) {
        let (tracker, outbox) = (TaskTracker::new(), Outbox::new(BOUNDS));
        let own = outbox.clone();
        let run = CodeRun::start(&tracker, Clock::default(), 8, outbox, |asker| async move {
            let asker = &asker;
            let calls = calls.iter().map(|(call, delay, asks)| async move {
                let _call = asker.enter();
                sleep(*delay).await;
                if !asks {
                    return String::new();
                }
                let request = ("a.b".to_owned(), "m".to_owned(), Bytes::new());
                let answers = asker.ask(*call, vec![request], None).await;
                let answers = answers.expect("a client").into_iter();
                let answers = answers.map(|(key, text)| format!("{call} {key}={text:?};"));
                answers.collect()
            });
            Ended {
                text: futures_util::future::join_all(calls).await.concat(),
                is_error: false,
            }
        });
        (run, own)
    }

    fn keys(run: &CodeRun) -> Vec<String> {
        run.requests().into_iter().map(|(key, ..)| key).collect()
    }

    fn retry(responses: &str) -> Frame {
        let text = format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"inputResponses":{responses}}}}}"#
        );
        Frame::parse(text.into(), 16).expect("a request")
    }

    #[tokio::test(start_paused = true)]
    async fn questions_are_asked_together_and_answered_one_by_one() {
        const MS: Duration = Duration::from_millis(1);
        static CALLS: [(u32, Duration, bool); 4] = [
            (1, MS, true),
            (2, MS.saturating_mul(50), true),
            (3, MS.saturating_mul(500), true),
            (4, MS.saturating_mul(9000), false),
        ];
        let (mut run, messages) = start(&CALLS);
        let out = Outbox::new(BOUNDS);
        messages.push(Weight::Notification, Bytes::from_static(b"log"));
        assert!(run.next(&out).await.is_none());
        assert_eq!(out.take().map(|(_, text)| text), Some("log".into()));
        assert_eq!(keys(&run), ["1.a.b", "2.a.b"]);
        // Open questions are asked again, with new ones. Unknown keys have no effect.
        sleep(MS * 600).await;
        run.answer(&retry(r#"{"2.a.b":{"n":2},"a.b":{},"3.a.b":{},"x":1}"#));
        assert!(run.next(&out).await.is_none());
        assert_eq!(keys(&run), ["1.a.b", "3.a.b"]);
        run.answer(&retry("{}"));
        assert!(run.next(&out).await.is_none());
        assert_eq!(keys(&run), ["1.a.b", "3.a.b"]);
        run.answer(&retry(r#"{"1.a.b":1,"3.a.b":3}"#));
        let ended = run.next(&out).await.expect("the end");
        assert_eq!(ended.text, r#"1 a.b=b"1";2 a.b=b"{\"n\":2}";3 a.b=b"3";"#);
    }

    #[tokio::test(start_paused = true)]
    async fn a_single_call_asks_at_once_and_ends_with_its_run() {
        static CALLS: [(u32, Duration, bool); 1] = [(1, Duration::ZERO, true)];
        let (mut run, messages) = start(&CALLS);
        let (out, begin) = (Outbox::new(BOUNDS), Instant::now());
        assert!(run.next(&out).await.is_none());
        assert!(begin.elapsed() < GATHER);
        let calls = run.calls.clone();
        assert_eq!((calls.strong_count(), Arc::strong_count(&messages)), (2, 2));
        drop(run);
        sleep(GATHER).await;
        assert_eq!(calls.strong_count(), 0);
    }
}
