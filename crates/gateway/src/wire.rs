//! State shared by the parts of one connection: the loop that owns the socket, the service that answers, and the bodies
//! in both directions. All of them run in the connection's task, one inside the other, so flags suffice.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use mcp::backlog::{Account, Backlog};
use parking_lot::Mutex;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::{
    Body,
    idle::Takeover,
    patience::{Phase, Progress},
};

/// Response pieces of at least this size are charged to the [`Account`]. Smaller pieces are not charged, because a
/// connection holds only one of them at a time.
const MIN_CHARGED_BYTES: usize = 4 << 10;

pub(crate) struct Wire {
    /// The unread data on this connection.
    account: Arc<Account>,
    /// Bytes that are charged and not written yet. Writes of HTTP framing are subtracted too, so this reaches zero a
    /// little early.
    unsent: AtomicUsize,
    read: AtomicU64,
    /// Bytes read when the last request was answered.
    answered: AtomicU64,
    begun: AtomicU64,
    /// A request is being answered.
    busy: AtomicBool,
    /// Since the last request began, hyper may have read bytes of the next one, or still expects bytes of its body.
    ahead: AtomicBool,
    /// hyper may have unsent bytes in its buffer.
    unflushed: AtomicBool,
    /// Set while the handler waits for more of the request's body.
    pub awaited: AtomicBool,
    left: AtomicBool,
    takeover: Mutex<Option<Takeover>>,
}

impl Wire {
    pub(super) fn new(backlog: &Arc<Backlog>) -> Arc<Self> {
        Arc::new(Self {
            account: backlog.account(),
            unsent: AtomicUsize::new(0),
            read: AtomicU64::new(0),
            answered: AtomicU64::new(0),
            begun: AtomicU64::new(0),
            busy: AtomicBool::new(false),
            ahead: AtomicBool::new(false),
            unflushed: AtomicBool::new(false),
            awaited: AtomicBool::new(false),
            left: AtomicBool::new(false),
            takeover: Mutex::new(None),
        })
    }

    /// The connection is between two requests: another process has passed it on.
    pub(super) fn resume(&self) {
        self.begun.store(1, Ordering::Relaxed);
    }

    pub(crate) fn account(&self) -> &Arc<Account> {
        &self.account
    }

    /// Charges a piece of a response that waits to be written.
    fn waits(&self, bytes: usize) {
        if bytes >= MIN_CHARGED_BYTES && self.account.add(bytes) {
            self.unsent.fetch_add(bytes, Ordering::Relaxed);
            self.account.backlog().settle();
        }
    }

    pub(super) fn sent(&self, bytes: usize) {
        let unsent = self.unsent.load(Ordering::Relaxed);
        if unsent > 0 {
            let bytes = bytes.min(unsent);
            self.unsent.store(unsent - bytes, Ordering::Relaxed);
            self.account.sub(bytes);
        }
    }

    pub(super) fn received(&self, count: usize) {
        self.read.fetch_add(count as u64, Ordering::Relaxed);
        let is_busy = self.busy.load(Ordering::Relaxed) && !self.awaited.load(Ordering::Relaxed);
        if count > 0 && is_busy {
            self.ahead.store(true, Ordering::Relaxed);
        }
    }

    /// Records that the handler has dropped the request's body before its end.
    pub(crate) fn left_unread(&self) {
        self.ahead.store(true, Ordering::Relaxed);
    }

    /// Returns true if no request is answered, and only hyper knows where the next one begins.
    pub(super) fn is_ahead(&self) -> bool {
        self.ahead.load(Ordering::Relaxed) && !self.busy.load(Ordering::Relaxed)
    }

    /// Records that hyper writes, or has written everything.
    pub(super) fn flushed(&self, is_flushed: bool) {
        self.unflushed.store(!is_flushed, Ordering::Relaxed);
    }

    /// Returns true if the socket is the whole state of the connection: no request is read or answered, and hyper has no
    /// bytes in its buffers.
    pub(super) fn is_between_requests(&self) -> bool {
        let progress = self.progress();
        let is_idle = progress.phase == Phase::Idle && !self.ahead.load(Ordering::Relaxed);
        (is_idle || progress.is_new()) && !self.unflushed.load(Ordering::Relaxed)
    }

    pub(super) fn progress(&self) -> Progress {
        let read = self.read.load(Ordering::Relaxed);
        let begun = self.begun.load(Ordering::Relaxed);
        let (phase, request) = if self.busy.load(Ordering::Relaxed) {
            if self.awaited.load(Ordering::Relaxed) {
                (Phase::Reading, begun)
            } else {
                (Phase::Busy, begun)
            }
        } else if begun == 0 || read > self.answered.load(Ordering::Relaxed) {
            (Phase::Reading, begun + 1)
        } else {
            (Phase::Idle, begun + 1)
        };
        Progress {
            phase,
            request,
            read,
        }
    }

    /// Hands the connection over to a stream. Does not return: the request's future is dropped together with hyper's
    /// connection.
    pub(crate) async fn leave(&self, takeover: Takeover) -> Infallible {
        *self.takeover.lock() = Some(takeover);
        self.left.store(true, Ordering::Release);
        std::future::pending().await
    }

    pub(super) fn take(&self) -> Option<Takeover> {
        if !self.left.load(Ordering::Acquire) {
            return None;
        }
        self.takeover.lock().take()
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        // The account may live longer, in the outboxes of running calls, so the unsent bytes are subtracted here.
        self.account.sub(*self.unsent.get_mut());
    }
}

/// A request that is being answered, from its head to the last byte of the response.
pub(super) struct AtWork {
    wire: Arc<Wire>,
    _counted: Option<TaskTrackerToken>,
}

impl AtWork {
    /// `counted`: a token that is held until the request is answered.
    pub(super) fn begin(wire: Arc<Wire>, counted: Option<TaskTrackerToken>) -> Self {
        wire.begun.fetch_add(1, Ordering::Relaxed);
        wire.ahead.store(false, Ordering::Relaxed);
        wire.busy.store(true, Ordering::Relaxed);
        Self {
            wire,
            _counted: counted,
        }
    }
}

impl Drop for AtWork {
    fn drop(&mut self) {
        let read = self.wire.read.load(Ordering::Relaxed);
        self.wire.answered.store(read, Ordering::Relaxed);
        self.wire.busy.store(false, Ordering::Relaxed);
    }
}

/// The body of a response. The connection is busy until the body is sent.
pub(crate) struct Download {
    body: Body,
    at_work: AtWork,
}

impl Download {
    pub(super) fn new(body: Body, at_work: AtWork) -> Self {
        Self { body, at_work }
    }
}

impl http_body::Body for Download {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        if let Some(Ok(frame)) = &frame
            && let Some(data) = frame.data_ref()
            && !matches!(self.body, Body::Pieces(_))
        {
            // `Body::Pieces` is not charged: its text is a list that a snapshot keeps in memory anyway.
            self.at_work.wire.waits(data.len());
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
