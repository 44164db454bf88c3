//! A request body: counts its bytes against the memory budget, and records on the connection whether the handler waits
//! for more of it.

use std::{
    error::Error,
    pin::Pin,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;

use super::HttpGateway;
use crate::{room::Held, wire::Wire};

/// The body of a request.
pub struct Upload {
    body: Incoming,
    wire: Arc<Wire>,
    /// Creates the memory reservation, which most bodies do not need.
    front: Arc<HttpGateway>,
    /// The memory reservation, from the first piece on. Usually `None`, because the first piece is the whole body.
    held: Option<Held>,
    /// The end was read.
    is_complete: bool,
}

impl Upload {
    pub(super) fn new(body: Incoming, wire: Arc<Wire>, front: Arc<HttpGateway>) -> Self {
        Self {
            body,
            wire,
            front,
            held: None,
            is_complete: false,
        }
    }

    /// Returns the text read from the body. It counts against the memory budget until it is dropped.
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
            this.is_complete = true;
            return Poll::Ready(None);
        };
        let frame = frame?;
        if let Some(data) = frame.data_ref() {
            if this.held.is_none() && this.body.is_end_stream() {
                return Poll::Ready(Some(Ok(frame)));
            }
            let held = this.held.get_or_insert_with(|| this.front.hold());
            held.grow(data.len())?;
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
        if !self.is_complete && !http_body::Body::is_end_stream(&self.body) {
            self.wire.left_unread();
        }
    }
}
