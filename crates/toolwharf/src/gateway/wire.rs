//! What the parts of one connection share: the loop that owns the socket, the service that answers, and the bodies in
//! both directions. All of them run in the connection's task, one inside the other, so flags are enough.

use std::{
    convert::Infallible,
    error::Error,
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use model::Limits;

use super::{
    Body,
    idle::Takeover,
    patience::{Phase, Progress},
    room::{Held, Room},
};

/// One connection.
#[derive(Default)]
pub(crate) struct Wire {
    /// Bytes read so far.
    read: AtomicU64,
    /// Bytes read when the last request was answered.
    answered: AtomicU64,
    /// Requests begun.
    begun: AtomicU64,
    /// A request is being answered.
    busy: AtomicBool,
    /// Its body is waited for.
    awaited: AtomicBool,
    left: AtomicBool,
    takeover: Mutex<Option<Takeover>>,
}

impl Wire {
    /// Bytes came in.
    pub(super) fn received(&self, count: usize) {
        self.read.fetch_add(count as u64, Ordering::Relaxed);
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

    /// Has a stream take the connection over. Does not return: the request's future is dropped with hyper's
    /// connection.
    pub(crate) async fn leave(&self, takeover: Takeover) -> Infallible {
        *self.takeover.lock().unwrap_or_else(PoisonError::into_inner) = Some(takeover);
        self.left.store(true, Ordering::Release);
        std::future::pending().await
    }

    pub(super) fn take(&self) -> Option<Takeover> {
        if !self.left.load(Ordering::Acquire) {
            return None;
        }
        self.takeover
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }
}

/// A request is being answered, from its head to the last byte of the answer.
pub(super) struct AtWork(Arc<Wire>);

impl AtWork {
    pub(super) fn begin(wire: Arc<Wire>) -> Self {
        wire.begun.fetch_add(1, Ordering::Relaxed);
        wire.busy.store(true, Ordering::Relaxed);
        Self(wire)
    }
}

impl Drop for AtWork {
    fn drop(&mut self) {
        let read = self.0.read.load(Ordering::Relaxed);
        self.0.answered.store(read, Ordering::Relaxed);
        self.0.busy.store(false, Ordering::Relaxed);
    }
}

/// The body of a request.
pub(crate) struct Upload {
    body: Incoming,
    wire: Arc<Wire>,
    room: Arc<Room>,
    limit: usize,
    longest: usize,
    /// From the first piece on, unless that is all, as it mostly is.
    held: Option<Held>,
}

impl Upload {
    pub(super) fn new(body: Incoming, wire: Arc<Wire>, room: Arc<Room>, limits: &Limits) -> Self {
        Self {
            body,
            wire,
            room,
            limit: limits.max_bodies_bytes,
            longest: limits.max_body_bytes,
            held: None,
        }
    }

    /// The text that was read from it, counted until nobody refers to it.
    pub(crate) fn counted(mut self, text: Bytes) -> Bytes {
        match self.held.take() {
            Some(held) => held.with(text),
            None => text,
        }
    }
}

impl http_body::Body for Upload {
    type Data = Bytes;
    type Error = Box<dyn Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = &mut *self;
        let polled = Pin::new(&mut this.body).poll_frame(cx);
        this.wire
            .awaited
            .store(polled.is_pending(), Ordering::Relaxed);
        let Some(frame) = ready!(polled) else {
            return Poll::Ready(None);
        };
        let frame = frame?;
        if let Some(data) = frame.data_ref() {
            if this.held.is_none() && this.body.is_end_stream() {
                return Poll::Ready(Some(Ok(frame)));
            }
            let held = this
                .held
                .get_or_insert_with(|| Held::new(this.room.clone()));
            held.grow(data.len(), this.limit, this.longest)?;
        }
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        self.wire.awaited.store(false, Ordering::Relaxed);
    }
}

/// The body of an answer; its connection is at work until it is sent.
pub(crate) struct Download {
    body: Body,
    _at_work: AtWork,
}

impl Download {
    pub(super) fn new(body: Body, at_work: AtWork) -> Self {
        Self {
            body,
            _at_work: at_work,
        }
    }
}

impl http_body::Body for Download {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
