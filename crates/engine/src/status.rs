//! How a server is, for operators; the same for all of them.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::SystemTime,
};

use runtime::{Exit, Usage};
use tokio::time::Instant;

use crate::{
    launch::{Housing, Refused},
    lifecycle::Phase,
    server::{Server, State},
};

/// How a server is.
#[derive(Clone, Debug)]
pub struct Status {
    pub phase: Phase,
    /// Why it is not up, if it was or was to be.
    pub reason: Option<Arc<str>>,
    pub since: SystemTime,
    /// When the instance that runs became ready.
    pub ready_at: Option<SystemTime>,
    pub next_attempt: Option<Instant>,
    /// How often it was started by itself since it was last started by hand or by the product.
    pub restarts: u64,
    /// Starts in a row that came to nothing.
    pub failures: u32,
    pub last_crash: Option<Crash>,
    /// Of the instance that runs, or ran last.
    pub housing: Option<Arc<Housing>>,
    pub warnings: u64,
    /// What of its registration the last attempt to start it found impossible.
    pub refused: Option<Refused>,
}

/// The last end that should not have been.
#[derive(Clone, Debug)]
pub struct Crash {
    pub at: SystemTime,
    pub cause: String,
    pub exit: Option<Exit>,
    /// The last lines of its stderr, without secrets.
    pub stderr: String,
}

/// What an instance uses now.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    pub usage: Usage,
    /// Cores, since it was last asked for; `None` the first time.
    pub cores: Option<f64>,
}

/// What is known of a server besides its connection.
pub(crate) struct Known {
    status: Mutex<Status>,
    measured: Mutex<Option<(Instant, Usage)>>,
}

impl Default for Known {
    fn default() -> Self {
        Self {
            status: Mutex::new(Status {
                phase: Phase::Idle,
                reason: None,
                since: SystemTime::now(),
                ready_at: None,
                next_attempt: None,
                restarts: 0,
                failures: 0,
                last_crash: None,
                housing: None,
                warnings: 0,
                refused: None,
            }),
            measured: Mutex::default(),
        }
    }
}

impl Known {
    pub(crate) fn status(&self) -> MutexGuard<'_, Status> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Server {
    /// How it is.
    #[must_use]
    pub fn status(&self) -> Status {
        self.known.status().clone()
    }

    /// What its instance uses, if it runs and somebody counts.
    pub async fn usage(&self) -> Option<Load> {
        let State::Ready(connection) = self.state() else {
            return None;
        };
        let usage = connection.handle.as_ref()?.usage().await?;
        let now = Instant::now();
        let measured = self.known.measured.lock();
        let mut measured = measured.unwrap_or_else(PoisonError::into_inner);
        let cores = measured.replace((now, usage)).and_then(|(at, before)| {
            let time = now.duration_since(at).as_secs_f64();
            let used = usage.cpu.checked_sub(before.cpu)?.as_secs_f64();
            (time > 0.05).then(|| used / time)
        });
        Some(Load { usage, cores })
    }
}
