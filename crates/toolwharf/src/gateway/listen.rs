//! `subscriptions/listen` of modern clients: a request that is answered when the gateway stops (2026-07-28
//! basic/patterns/subscriptions).
//!
//! Once it is acknowledged, its connection is taken out of hyper ([`super::idle`]). If the client disconnects, the
//! request is cancelled.

use std::{future::poll_fn, sync::Arc};

use bytes::Bytes;
use mcp::{Frame, outbox::Outbox, sse};
use tokio_util::task::AbortOnDropHandle;

use super::{
    body::{Unread, poll_request},
    idle::{Source, Takeover},
    listener::HEAD_BYTES,
    shares::Share,
};

/// The stream of one request. Dropping it cancels the request.
pub(crate) struct Listening {
    outbox: Arc<Outbox>,
    /// `None` once it is answered.
    answering: Option<AbortOnDropHandle<Unread>>,
    answer: Option<Unread>,
}

impl Listening {
    /// The next event, encoded. The last one is the response.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub(super) async fn next(&mut self) -> Option<Bytes> {
        let Self {
            outbox,
            answering,
            answer,
        } = self;
        let message = poll_fn(|cx| poll_request(outbox, answering, answer, cx)).await?;
        Some(sse::encode(Some("message"), None, &message))
    }
}

/// Moves an acknowledged request to a takeover of its connection.
pub(super) fn takeover(
    outbox: Arc<Outbox>,
    answering: AbortOnDropHandle<Unread>,
    share: Share,
) -> Takeover {
    let listening = Listening {
        outbox,
        answering: Some(answering),
        answer: None,
    };
    Takeover {
        stream: Source::Listen(listening),
        opening: None,
        share,
        ends_session: false,
        headers: Vec::new(),
    }
}

/// Copies the text of the request, unless it is long. The original is a slice of hyper's read buffer and would keep
/// that buffer until the stream ends. A text longer than one read already has its own memory, which is accounted
/// for.
pub(super) fn detached(frame: Frame) -> Frame {
    if frame.text().len() > HEAD_BYTES {
        return frame;
    }
    let copy = Bytes::copy_from_slice(frame.text());
    Frame::parse(copy, usize::MAX).unwrap_or(frame)
}
