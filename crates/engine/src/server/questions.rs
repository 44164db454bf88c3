//! Requests from servers to clients, sent while a call is in flight (elicitation, sampling, roots). Called questions in
//! the code.
//!
//! Invariant: every question gets a response, whatever happens to the call that it belongs to (JSON-RPC 2.0 section 4:
//! a request must be answered). While a question is open, its client's calls to that server do not time out.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use code::Pause;
use futures_util::{StreamExt, future::BoxFuture, stream::FuturesUnordered};
use mcp::{
    Frame, RpcError,
    client::{CallerId, Client},
    json::Splice,
    server::Asked,
};

use parking_lot::Mutex;
use tokio_util::task::TaskTracker;

use crate::server::connection::Connection;

/// The callers that have open questions from one server.
#[derive(Default)]
pub(crate) struct AskedNow {
    callers: Mutex<Vec<CallerId>>,
    count: AtomicUsize,
}

impl AskedNow {
    /// The number of open questions.
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Returns whether this caller has an open question.
    pub(crate) fn includes(&self, caller: CallerId) -> bool {
        self.count() > 0 && self.callers.lock().contains(&caller)
    }
}

/// Counts a question as open until it is dropped.
pub(crate) struct Open {
    asked_now: Arc<AskedNow>,
    caller: CallerId,
    _pause: Option<Pause>,
}

impl Open {
    /// `asked_now` belongs to the server that asks.
    pub(crate) fn new(asked_now: &Arc<AskedNow>, caller: CallerId) -> Self {
        let mut callers = asked_now.callers.lock();
        callers.push(caller);
        asked_now.count.store(callers.len(), Ordering::Relaxed);
        drop(callers);
        Self {
            asked_now: asked_now.clone(),
            caller,
            _pause: None,
        }
    }

    /// Also stops the clock of a run of code until then.
    pub(crate) fn with(mut self, pause: Option<Pause>) -> Self {
        self._pause = pause;
        self
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let mut callers = self.asked_now.callers.lock();
        if let Some(at) = callers.iter().position(|known| *known == self.caller) {
            callers.swap_remove(at);
        }
        let count = &self.asked_now.count;
        count.store(callers.len(), Ordering::Relaxed);
    }
}

/// Open questions of one call. If this is dropped, the remaining responses are awaited in the background, since the
/// call may end before they arrive.
pub(crate) struct Questions {
    running: TaskTracker,
    connection: Arc<Connection>,
    waiting: FuturesUnordered<BoxFuture<'static, Frame>>,
}

impl Questions {
    /// `running` tracks the engine's tasks.
    pub(crate) fn new(running: &TaskTracker, connection: &Arc<Connection>) -> Self {
        Self {
            running: running.clone(),
            connection: connection.clone(),
            waiting: FuturesUnordered::new(),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Waits for the client's answer to `question`, for at most `wait`.
    pub(crate) fn push(
        &self,
        question: Frame,
        asked: Result<Asked, RpcError>,
        wait: Duration,
        open: Open,
    ) {
        self.waiting.push(Box::pin(async move {
            let _open = open;
            settled(&question, asked, wait).await
        }));
    }

    /// The next response, ready to send. `None` if no question is open.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub(crate) async fn next(&mut self) -> Option<Frame> {
        self.waiting.next().await
    }
}

impl Drop for Questions {
    fn drop(&mut self) {
        if self.waiting.is_empty() {
            return;
        }
        let mut waiting = std::mem::take(&mut self.waiting);
        let connection = self.connection.clone();
        self.running.spawn(async move {
            let answering = async {
                while let Some(answer) = waiting.next().await {
                    let _ = connection.client.send(&answer).await;
                }
            };
            tokio::select! {
                () = answering => {}
                _ = connection.client.closed() => {}
            }
        });
    }
}

/// Returns the response to a question: the client's answer or an error.
pub(crate) async fn settled(
    question: &Frame,
    asked: Result<Asked, RpcError>,
    wait: Duration,
) -> Frame {
    let answer = match asked {
        Ok(asked) => answered(asked, wait).await,
        Err(error) => Err(error),
    };
    let answer = answer.and_then(|frame| {
        Frame::parse(frame.rewritten(question.id(), Splice::new()), usize::MAX)
            .map_err(|_| RpcError::internal("unreadable answer"))
    });
    answer.unwrap_or_else(|error| Frame::error(question.id(), &error))
}

/// Waits for the client's answer.
///
/// # Errors
/// The client has disconnected, or did not answer in time.
pub(crate) async fn answered(asked: Asked, wait: Duration) -> Result<Frame, RpcError> {
    match tokio::time::timeout(wait, asked.answer()).await {
        Ok(Some(frame)) => Ok(frame),
        Ok(None) => Err(RpcError::internal("the client has disconnected")),
        Err(_) => Err(RpcError::internal(format!(
            "the client did not answer within {} s",
            wait.as_secs()
        ))),
    }
}

/// A question of a call on hold: the key that the client knows, and the request of the server.
pub(crate) struct Ask {
    pub(crate) key: String,
    pub(crate) request: Frame,
}

/// The questions of a call on hold. On drop, the remaining questions are refused.
pub(crate) struct Asks {
    client: Client,
    open: Vec<Ask>,
    _counted: Open,
}

impl Asks {
    pub(crate) fn new(client: &Client, open: Vec<Ask>, counted: Open) -> Self {
        Self {
            client: client.clone(),
            open,
            _counted: counted,
        }
    }

    pub(crate) fn iter(&self) -> std::slice::Iter<'_, Ask> {
        self.open.iter()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Removes and returns a question for which `is_answered` returns true.
    pub(crate) fn take_if(&mut self, is_answered: impl Fn(&Ask) -> bool) -> Option<Ask> {
        let at = self.open.iter().position(is_answered)?;
        Some(self.open.remove(at))
    }
}

impl Drop for Asks {
    fn drop(&mut self) {
        for ask in &self.open {
            let why = RpcError::internal("the client did not answer");
            self.client
                .send_behind(Frame::error(ask.request.id(), &why));
        }
    }
}
