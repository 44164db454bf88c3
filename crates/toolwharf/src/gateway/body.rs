//! Response bodies: a text, or the events of one request.

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
use mcp::{outbox::Outbox, sse};
use tokio::time::{Instant, Sleep};
use tokio_util::task::AbortOnDropHandle;

/// How long a stream is silent at most: proxies in between cut what looks dead, and a dead client is noticed.
pub(crate) const KEEP_ALIVE: Duration = Duration::from_secs(25);

/// The request's future: its answer.
pub(crate) type Answering = Pin<Box<dyn Future<Output = Answer> + Send>>;

/// A response body.
pub(crate) enum Body {
    Text(Option<Bytes>),
    /// Pieces that go out as they are, the next one last.
    Pieces(Vec<Bytes>),
    Events(Box<Events>),
    Other(axum::body::Body),
}

impl Body {
    /// The response to one request.
    pub(crate) fn answer(answer: Answer) -> Self {
        let [first, shared, last] = answer.pieces();
        if shared.is_empty() {
            Self::text(first)
        } else {
            Self::Pieces(vec![last, shared, first])
        }
    }

    pub(crate) fn text(text: impl Into<Bytes>) -> Self {
        let text = text.into();
        Self::Text(Some(text).filter(|text| !text.is_empty()))
    }
}

/// The event stream of one request: what belongs to it, then its answer. Dropping it cancels the request.
pub(crate) struct Events {
    first: Option<Bytes>,
    outbox: Arc<Outbox>,
    answering: Option<AbortOnDropHandle<Answer>>,
    answer: Option<Bytes>,
    silence: Pin<Box<Sleep>>,
}

impl Events {
    /// `first` came before anything else of `outbox`; `answer` is there if the request is done.
    pub(crate) fn new(
        first: Option<Bytes>,
        outbox: Arc<Outbox>,
        answering: Option<AbortOnDropHandle<Answer>>,
        answer: Option<Bytes>,
    ) -> Self {
        Self {
            first,
            outbox,
            answering,
            answer,
            silence: Box::pin(tokio::time::sleep(KEEP_ALIVE)),
        }
    }

    fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(sse::encode(Some("message"), None, &first)));
        }
        if let Some(answering) = &mut self.answering
            && let Poll::Ready(answer) = Pin::new(answering).poll(cx)
        {
            self.answering = None;
            // No answer of a task that was ended with the product: the stream ends without one, too.
            self.answer = answer
                .ok()
                .filter(|answer| !answer.silent)
                .map(Answer::into_text);
        }
        if let Poll::Ready(Some(message)) = self.outbox.poll_next(cx) {
            return Poll::Ready(Some(sse::encode(Some("message"), None, &message)));
        }
        if self.answering.is_none() {
            // All that came before the answer is out.
            return Poll::Ready(
                self.answer
                    .take()
                    .map(|answer| sse::encode(Some("message"), None, &answer)),
            );
        }
        if self.silence.as_mut().poll(cx).is_ready() {
            self.silence.as_mut().reset(Instant::now() + KEEP_ALIVE);
            let _ = self.silence.as_mut().poll(cx);
            return Poll::Ready(Some(Bytes::from_static(b": \n\n")));
        }
        Poll::Pending
    }
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
            // A body of our own routes: what fails in it can only end it.
            Self::Other(body) => Pin::new(body)
                .poll_frame(cx)
                .map(|frame| frame.and_then(Result::ok).map(Ok)),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Text(text) => text.is_none(),
            Self::Pieces(pieces) => pieces.is_empty(),
            Self::Events(_) => false,
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
            Self::Events(_) => SizeHint::default(),
            Self::Other(body) => body.size_hint(),
        }
    }
}
