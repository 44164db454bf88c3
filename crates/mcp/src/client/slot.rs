//! The event queue of a call in flight: bounded, one waiter. The response is never lost.

use std::{
    collections::VecDeque,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use super::{CallError, Event};
use crate::Frame;
use parking_lot::{Mutex, MutexGuard};

/// Maximum events queued for a slow caller. Beyond it the oldest notification is dropped (usually progress, which the
/// next one supersedes).
const MAX_WAITING_EVENTS: usize = 256;

#[derive(Default)]
pub(super) struct Slot {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Event>,
    end: Option<Result<Frame, CallError>>,
    /// True if the receiver has stopped waiting.
    closed: bool,
    waker: Option<Waker>,
}

impl Slot {
    pub(super) fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Adds an event that comes before the call's end. Returns it if the call is over or the queue is full of server
    /// requests.
    #[must_use]
    pub(super) fn push(&self, event: Event) -> Option<Event> {
        let mut state = self.state.lock();
        if state.end.is_some() || state.closed {
            return Some(event);
        }
        if state.waiting.len() >= MAX_WAITING_EVENTS {
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

    /// Refuses further events. Queued ones can still be taken.
    pub(super) fn close(&self) {
        self.state.lock().closed = true;
    }

    /// Ends the call. Later ends are ignored.
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

    /// Takes a queued event, if any.
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
