//! Questions of servers to the clients of their calls.
//!
//! Invariant: a question gets an answer, whatever becomes of the call that it came up in (JSON-RPC 2.0 section 4: a
//! request has to be replied to). While its client thinks it over, no call of that client at that server is late.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::{StreamExt, future::BoxFuture, stream::FuturesUnordered};
use mcp::{
    Frame, RpcError,
    client::{CallerId, Client},
    json::Splice,
    server::Asked,
};

use parking_lot::Mutex;
use tokio_util::task::TaskTracker;

use crate::connection::Connection;

/// The callers that are being asked something by one server.
#[derive(Default)]
pub(crate) struct AskedNow {
    callers: Mutex<Vec<CallerId>>,
    count: AtomicUsize,
}

impl AskedNow {
    /// How many questions are open.
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Whether this caller is being asked something.
    pub(crate) fn includes(&self, caller: CallerId) -> bool {
        self.count() > 0 && self.callers.lock().contains(&caller)
    }
}

/// Counts a question as open until it is dropped.
pub(crate) struct Open {
    asked_now: Arc<AskedNow>,
    caller: CallerId,
}

impl Open {
    /// `asked_now` is that of the server that asks.
    pub(crate) fn new(asked_now: &Arc<AskedNow>, caller: CallerId) -> Self {
        let mut callers = asked_now.callers.lock();
        callers.push(caller);
        asked_now.count.store(callers.len(), Ordering::Relaxed);
        drop(callers);
        Self {
            asked_now: asked_now.clone(),
            caller,
        }
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

/// Questions of one call that its client has been asked. When it is dropped, those without an answer are waited for in
/// the background: the call may be over before they are.
pub(crate) struct Questions {
    running: TaskTracker,
    connection: Arc<Connection>,
    waiting: FuturesUnordered<BoxFuture<'static, Frame>>,
}

impl Questions {
    /// `running` are the tasks that the engine owns.
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

    /// Waits for the client's answer to `question`, at most `wait`.
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

    /// The next answer, ready to be sent; `None` if nothing is asked.
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

/// Returns the response to a server's question: the client's answer, or an error that says why there is none.
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

/// The client's answer to something that it was asked.
///
/// # Errors
/// The client is gone, or did not answer in time.
pub(crate) async fn answered(asked: Asked, wait: Duration) -> Result<Frame, RpcError> {
    match tokio::time::timeout(wait, asked.answer()).await {
        Ok(Some(frame)) => Ok(frame),
        Ok(None) => Err(RpcError::internal("the client is gone")),
        Err(_) => Err(RpcError::internal(format!(
            "the client did not answer within {} s",
            wait.as_secs()
        ))),
    }
}

/// A question of a call on hold: the key that the client knows, the id that the server knows.
pub(crate) struct Ask {
    pub(crate) key: String,
    pub(crate) request: Frame,
}

/// What a server asked in a call on hold. Those that are left when it is dropped are refused.
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

    /// Takes out one whose answer is here, if there is one.
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
