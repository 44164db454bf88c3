//! The progress of a backup or a restore.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

/// A step of the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The database is copied.
    Database,
    /// Everything is written to the file.
    Writing,
    /// The file is checked.
    Checking,
    /// The contents are put into place.
    Restoring,
}

const STEPS: [Step; 4] = [
    Step::Database,
    Step::Writing,
    Step::Checking,
    Step::Restoring,
];

/// A step and its bytes so far. Shared between threads.
#[derive(Debug, Default)]
pub struct Progress {
    step: AtomicU8,
    pub(super) bytes: AtomicU64,
    is_cancelled: AtomicBool,
}

impl Progress {
    /// The current step, and the number of bytes that it has processed.
    pub fn get(&self) -> (Step, u64) {
        let step = usize::from(self.step.load(Ordering::Relaxed));
        (STEPS[step], self.bytes.load(Ordering::Relaxed))
    }

    pub(super) fn begin(&self, step: Step) {
        self.bytes.store(0, Ordering::Relaxed);
        self.step.store(step as u8, Ordering::Relaxed);
    }

    pub(super) fn add(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Makes the thread that reads files stop.
    pub(super) fn cancel(&self) {
        self.is_cancelled.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.is_cancelled.load(Ordering::Relaxed)
    }
}
