//! `subscriptions/listen` of modern clients: a request whose answer comes when the product stops
//! (2026-07-28 basic/patterns/subscriptions).
//!
//! Once it is acknowledged its connection is taken out of hyper ([`super::idle`]). A client that goes has cancelled it.

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
    /// The next event, ready to send; the answer is the last one.
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

/// Has the stream of a request that is acknowledged take its connection over.
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

/// The request with a text of its own. As it came, the text is a part of what hyper has read, and would keep all of that
/// for as long as the stream lasts. A text that is longer than one read has memory of its own, which is counted.
pub(super) fn detached(frame: Frame) -> Frame {
    if frame.text().len() > HEAD_BYTES {
        return frame;
    }
    let copy = Bytes::copy_from_slice(frame.text());
    Frame::parse(copy, usize::MAX).unwrap_or(frame)
}
