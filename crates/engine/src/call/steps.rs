//! The steps of a recorded call, with their times.
//!
//! Kept in memory during the call and written with its outcome. Each step costs one reading of the clock; a call that
//! is not recorded has no steps.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use store::CallSteps;
use tokio::time::Instant;

/// The steps of one call.
pub(crate) struct Steps {
    began: Instant,
    turn: Mark,
    sent: Mark,
    answered: Mark,
    questions: AtomicU32,
}

/// Microseconds since the call began, plus one. 0: not reached.
#[derive(Default)]
struct Mark(AtomicU64);

impl Mark {
    fn set(&self, began: Instant) {
        let us = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.0.store(us.saturating_add(1), Ordering::Relaxed);
    }

    fn get(&self) -> Option<i64> {
        let us = self.0.load(Ordering::Relaxed).checked_sub(1)?;
        i64::try_from(us).ok()
    }
}

impl Steps {
    pub(crate) fn new() -> Self {
        Self {
            began: Instant::now(),
            turn: Mark::default(),
            sent: Mark::default(),
            answered: Mark::default(),
            questions: AtomicU32::new(0),
        }
    }

    /// When the request was received.
    pub(crate) fn began(&self) -> Instant {
        self.began
    }

    /// The call left the queue.
    pub(crate) fn turn(&self) {
        self.turn.set(self.began);
    }

    /// The request was sent to the server.
    pub(crate) fn sent(&self) {
        self.sent.set(self.began);
    }

    /// The server responded. The last response counts.
    pub(crate) fn answered(&self) {
        self.answered.set(self.began);
    }

    /// The server sent a request to the client.
    pub(crate) fn asked(&self) {
        self.questions.fetch_add(1, Ordering::Relaxed);
    }

    /// The steps to be recorded.
    pub(crate) fn reached(&self) -> CallSteps {
        CallSteps {
            turn_us: self.turn.get(),
            sent_us: self.sent.get(),
            answered_us: self.answered.get(),
            questions: Some(self.questions.load(Ordering::Relaxed).into()),
        }
    }
}
