//! Response bodies: a complete text, or the events of one request.

use std::{
    convert::Infallible,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use engine::Answer;
use http_body::{Frame, SizeHint};
use mcp::{backlog::Charge, outbox::Outbox, server::Reader, sse};
use tokio::time::{Instant, Sleep};
use tokio_util::{sync::WaitForCancellationFutureOwned, task::AbortOnDropHandle};

use super::shares::Share;

/// Maximum silence on a stream. Keep-alives stop proxies from closing the connection and reveal dead clients.
pub const KEEP_ALIVE: Duration = Duration::from_secs(25);

/// The future that computes the response to a request.
pub type Answering = Pin<Box<dyn Future<Output = Answer> + Send>>;

pub enum Body {
    Text(Option<Bytes>),
    /// Pieces sent as they are, in reverse order (the next one is last).
    Pieces(Vec<Bytes>),
    Events(Box<Events>),
    Other(axum::body::Body),
    /// Like `Other`, but ends when its share is revoked.
    Shared(Box<(axum::body::Body, Until)>),
}

impl Body {
    pub(crate) fn answer(answer: Answer) -> Self {
        let [first, shared, last] = answer.pieces();
        if shared.is_empty() {
            Self::text(first)
        } else {
            Self::Pieces(vec![last, shared, first])
        }
    }

    /// A stream from the gateway's other routes, which ends when its share is revoked.
    pub(crate) fn shared(body: axum::body::Body, share: Share) -> Self {
        Self::Shared(Box::new((body, Until::new(share))))
    }

    pub fn text(text: impl Into<Bytes>) -> Self {
        let text = text.into();
        Self::Text(Some(text).filter(|text| !text.is_empty()))
    }
}

/// Ends an open stream when its share is revoked.
pub struct Until {
    over: Pin<Box<WaitForCancellationFutureOwned>>,
    _share: Share,
}

impl Until {
    fn new(share: Share) -> Self {
        Self {
            over: Box::pin(share.over().clone().cancelled_owned()),
            _share: share,
        }
    }

    fn is_over(&mut self, cx: &mut Context<'_>) -> bool {
        self.over.as_mut().poll(cx).is_ready()
    }
}

/// The event stream of one request: its messages, then its response.
pub struct Events {
    source: Source,
    until: Option<Until>,
    silence: Pin<Box<Sleep>>,
}

enum Source {
    /// The stream of a legacy session. The session decides whether the request continues after a disconnect.
    Session(Reader),
    /// The stream of one request. Dropping it cancels the request (2026-07-28 basic/transports/streamable-http
    /// "Cancellation").
    Request {
        outbox: Arc<Outbox>,
        answering: Option<AbortOnDropHandle<Unread>>,
        answer: Option<Unread>,
    },
}

/// The response that ends a stream, if any, with its memory charge until it is read.
pub(crate) type Unread = (Option<Bytes>, Option<Charge>);

impl Events {
    pub(crate) fn of_session(reader: Reader) -> Self {
        Self::new(Source::Session(reader))
    }

    /// `answer` is set if the response is already known, otherwise `answering` computes it.
    pub(crate) fn of_request(
        outbox: Arc<Outbox>,
        answering: Option<AbortOnDropHandle<Unread>>,
        answer: Option<Unread>,
    ) -> Self {
        Self::new(Source::Request {
            outbox,
            answering,
            answer,
        })
    }

    fn new(source: Source) -> Self {
        Self {
            source,
            until: None,
            silence: Box::pin(tokio::time::sleep(KEEP_ALIVE)),
        }
    }

    /// Ends the stream when its share is revoked.
    pub(crate) fn until(mut self, share: Share) -> Self {
        self.until = Some(Until::new(share));
        self
    }

    fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if self.until.as_mut().is_some_and(|until| until.is_over(cx)) {
            return Poll::Ready(None);
        }
        let event = match &mut self.source {
            Source::Session(reader) => reader.poll_event(cx),
            Source::Request {
                outbox,
                answering,
                answer,
            } => poll_request(outbox, answering, answer, cx)
                .map(|text| text.map(|text| sse::encode(Some("message"), None, &text))),
        };
        if event.is_pending() && self.silence.as_mut().poll(cx).is_ready() {
            self.silence.as_mut().reset(Instant::now() + KEEP_ALIVE);
            let _ = self.silence.as_mut().poll(cx);
            return Poll::Ready(Some(Bytes::from_static(b": \n\n")));
        }
        event
    }
}

/// The next event of a request: all messages that precede the response, then the response.
pub(super) fn poll_request(
    outbox: &Outbox,
    answering: &mut Option<AbortOnDropHandle<Unread>>,
    answer: &mut Option<Unread>,
    cx: &mut Context<'_>,
) -> Poll<Option<Bytes>> {
    if let Some(task) = answering
        && let Poll::Ready(done) = Pin::new(task).poll(cx)
    {
        *answering = None;
        // A task aborted at shutdown has no response: the stream ends without one.
        *answer = done.ok();
    }
    if let Poll::Ready(Some((_, message))) = outbox.poll_next(cx) {
        return Poll::Ready(Some(message));
    }
    if answering.is_none() {
        return Poll::Ready(answer.take().and_then(|(text, _)| text));
    }
    Poll::Pending
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match &mut *self {
            Self::Text(text) => Poll::Ready(text.take().map(|text| Ok(Frame::data(text)))),
            Self::Pieces(pieces) => Poll::Ready(pieces.pop().map(|piece| Ok(Frame::data(piece)))),
            Self::Events(events) => events
                .poll_event(cx)
                .map(|event| event.map(|event| Ok(Frame::data(event)))),
            // A body from the gateway's other routes. An error can only end it.
            Self::Other(body) => Pin::new(body)
                .poll_frame(cx)
                .map(|frame| frame.and_then(Result::ok).map(Ok)),
            Self::Shared(shared) => {
                let (body, until) = &mut **shared;
                if until.is_over(cx) {
                    return Poll::Ready(None);
                }
                let frame = Pin::new(body).poll_frame(cx);
                frame.map(|frame| frame.and_then(Result::ok).map(Ok))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Text(text) => text.is_none(),
            Self::Pieces(pieces) => pieces.is_empty(),
            Self::Events(_) | Self::Shared(_) => false,
            Self::Other(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Text(text) => {
                SizeHint::with_exact(text.as_ref().map_or(0, |text| text.len() as u64))
            }
            Self::Pieces(pieces) => {
                SizeHint::with_exact(pieces.iter().map(|piece| piece.len() as u64).sum())
            }
            Self::Events(_) | Self::Shared(_) => SizeHint::default(),
            Self::Other(body) => body.size_hint(),
        }
    }
}
