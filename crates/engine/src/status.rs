//! How a server is, for operators; the same for all of them.

use std::{sync::Arc, time::SystemTime};

use parking_lot::{Mutex, MutexGuard};
use runtime::{Exit, Usage};
use tokio::time::Instant;

use crate::{
    connection::Placement,
    launch::Refused,
    lifecycle::{Last, Phase},
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
    pub placement: Option<Arc<Placement>>,
    pub warnings: u64,
    /// What of its registration the last attempt to start it found impossible.
    pub refused: Option<Refused>,
    /// Whether it is not up because somebody has to sign in first.
    pub needs_login: bool,
    /// Whether another gateway runs it, or this one may not for now.
    pub elsewhere: bool,
    /// Until when callers wait for another gateway to run it.
    pub(crate) moves_until: Option<Instant>,
}

impl Status {
    /// The word for it: that of its phase, `needs_login` or `elsewhere`.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self.phase {
            Phase::Blocked { .. } if self.needs_login => "needs_login",
            Phase::Blocked { .. } | Phase::Running { .. } if self.elsewhere => "elsewhere",
            phase => phase.word(),
        }
    }
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

/// How an earlier run of the product left a server.
#[derive(Clone, Debug)]
pub struct Left {
    pub last: Last,
    /// The last one that was written down.
    pub crash: Option<Crash>,
}

/// How a server begins.
#[derive(Clone, Debug)]
pub(crate) enum Begin {
    /// It takes the place of one that ran, or was to run.
    New,
    /// The product started, and finds it so.
    Left(Last),
    /// It takes the place of one that was not to run.
    Resting,
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
    pub(crate) measured: Mutex<Option<(Instant, Usage)>>,
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
                placement: None,
                warnings: 0,
                refused: None,
                needs_login: false,
                elsewhere: false,
                moves_until: None,
            }),
            measured: Mutex::default(),
        }
    }
}

impl Known {
    pub(crate) fn status(&self) -> MutexGuard<'_, Status> {
        self.status.lock()
    }
}
