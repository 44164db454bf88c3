//! Where a call in flight gets its events: bounded, one waiter, the response never lost.

use std::{
    collections::VecDeque,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use super::{CallError, Event};
use crate::Frame;
use parking_lot::{Mutex, MutexGuard};

/// Events that may wait for a slow caller; past it the oldest notification goes (progress is superseded
/// by the next one anyway).
const MAX_WAITING: usize = 256;

#[derive(Default)]
pub(super) struct Slot {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Event>,
    end: Option<Result<Frame, CallError>>,
    /// Nobody waits any more.
    closed: bool,
    waker: Option<Waker>,
}

impl Slot {
    pub(super) fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Adds an event before the end. Gives it back if the call is over or too many questions wait already.
    #[must_use]
    pub(super) fn push(&self, event: Event) -> Option<Event> {
        let mut state = self.state.lock();
        if state.end.is_some() || state.closed {
            return Some(event);
        }
        if state.waiting.len() >= MAX_WAITING {
            match state
                .waiting
                .iter()
                .position(|event| matches!(event, Event::Notification(_)))
            {
                Some(oldest) => drop(state.waiting.remove(oldest)),
                None => return Some(event),
            }
        }
        state.waiting.push_back(event);
        Self::wake(state);
        None
    }

    /// Takes no more: what waits is still there to be taken.
    pub(super) fn close(&self) {
        self.state.lock().closed = true;
    }

    /// Ends the call; the first end counts.
    pub(super) fn end(&self, end: Result<Frame, CallError>) {
        let mut state = self.state.lock();
        if state.end.is_none() {
            state.end = Some(end);
            Self::wake(state);
        }
    }

    fn wake(mut state: MutexGuard<'_, State>) {
        if let Some(waker) = state.waker.take() {
            drop(state);
            waker.wake();
        }
    }

    /// An event that waits, if one does.
    pub(super) fn take(&self) -> Option<Event> {
        self.state.lock().waiting.pop_front()
    }

    pub(super) fn poll(&self, cx: &mut Context<'_>) -> Poll<Result<Event, CallError>> {
        let mut state = self.state.lock();
        if let Some(event) = state.waiting.pop_front() {
            return Poll::Ready(Ok(event));
        }
        match &state.end {
            Some(Ok(frame)) => Poll::Ready(Ok(Event::Response(frame.clone()))),
            Some(Err(error)) => Poll::Ready(Err(error.clone())),
            None => {
                match &mut state.waker {
                    Some(waker) => waker.clone_from(cx.waker()),
                    none => *none = Some(cx.waker().clone()),
                }
                Poll::Pending
            }
        }
    }
}
