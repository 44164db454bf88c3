//! `subscriptions/listen` of modern clients: a request that is answered when the gateway stops (2026-07-28
//! basic/patterns/subscriptions).
//!
//! Once the request is acknowledged, its connection is taken out of hyper ([`super::idle`]). If the client disconnects,
//! the request is cancelled.

use crate::idle::Listening;
use std::sync::Arc;

use bytes::Bytes;
use mcp::{Frame, outbox::Outbox};
use tokio_util::task::AbortOnDropHandle;

use super::{
    body::Unread,
    idle::{Source, Takeover},
    shares::Share,
};

/// Maximum size of a request head, and of one read.
pub(super) const HEAD_BYTES: usize = 64 << 10;

/// Builds the [`Takeover`] of the connection of an acknowledged `subscriptions/listen` request.
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
/// that buffer until the stream ends. A text longer than one read already has its own memory, which is charged to the
/// memory budget.
pub(super) fn detached(frame: Frame) -> Frame {
    if frame.text().len() > HEAD_BYTES {
        return frame;
    }
    let copy = Bytes::copy_from_slice(frame.text());
    Frame::parse(copy, usize::MAX).unwrap_or(frame)
}
