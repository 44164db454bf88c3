//! The status of a server, as operators see it.

use std::{sync::Arc, time::SystemTime};

use parking_lot::{Mutex, MutexGuard};
use runtime::{Exit, Usage};
use tokio::time::Instant;

use crate::server::{connection::Placement, launch::Refused};
use lifecycle::{Last, Phase};

/// Consecutive failed starts, or waits before a restart, after which a server counts as failed.
const MAX_FAILURES: usize = 3;

/// Why a server needs a person: it will not run by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// It cannot be started as configured.
    Blocked,
    /// It failed and is not restarted, or it failed [`MAX_FAILURES`] times in a row.
    Failed,
    /// It needs a sign-in, or a new one because the old one has expired.
    SignIn,
}

/// The status of a server.
#[derive(Clone, Debug)]
pub struct Status {
    pub phase: Phase,
    /// The status in the database of a registered server. Other servers have one too, which is not stored.
    pub saved: &'static str,
    /// Why the server is not up, if it was or should be.
    pub reason: Option<Arc<str>>,
    pub since: SystemTime,
    /// When the running instance became ready.
    pub ready_at: Option<SystemTime>,
    pub next_attempt: Option<Instant>,
    /// Automatic restarts since the server was last started by a person or with the gateway.
    pub restarts: u64,
    /// Consecutive failed starts.
    pub failures: u32,
    pub last_crash: Option<Crash>,
    /// The placement of the running instance, or of the last one.
    pub placement: Option<Arc<Placement>>,
    pub warnings: u64,
    /// Why each list could not be fetched, by [`catalog::ListKind`].
    pub lists: [Option<Arc<str>>; 4],
    /// The part of its registration that made the last start impossible.
    pub refused: Option<Refused>,
    /// True if the server is not up because a user has to sign in first.
    pub needs_login: bool,
    /// Set until the server runs, also during an attempt to start it.
    pub trouble: Option<Trouble>,
    /// True if another gateway runs the server, or this gateway may not run it at the moment.
    pub elsewhere: bool,
    /// Until when callers wait for another gateway to take it over.
    pub(crate) moves_until: Option<Instant>,
}

impl Status {
    /// The status word: `needs_login`, `elsewhere` or the word of its phase.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self.phase {
            Phase::Blocked { .. } if self.needs_login => "needs_login",
            Phase::Blocked { .. } | Phase::Running { .. } if self.elsewhere => "elsewhere",
            phase => phase.word(),
        }
    }

    /// Returns why the server needs a person, after a change of its phase. `waits`: consecutive waits before a restart.
    pub(crate) fn next_trouble(&self, waits: usize) -> Option<Trouble> {
        let fails = usize::try_from(self.failures).is_ok_and(|failures| failures >= MAX_FAILURES)
            || (waits >= MAX_FAILURES && matches!(self.phase, Phase::Backoff { .. }));
        match self.phase {
            Phase::Failed | Phase::Unavailable { .. } => Some(Trouble::Failed),
            Phase::Blocked { .. } if self.elsewhere => None,
            Phase::Blocked { .. } if self.needs_login => Some(Trouble::SignIn),
            Phase::Blocked { .. } => Some(Trouble::Blocked),
            Phase::Running { .. }
            | Phase::Unresponsive
            | Phase::Stopping
            | Phase::Stopped
            | Phase::Ending
            | Phase::Over => None,
            _ if fails => Some(Trouble::Failed),
            // The cause of the trouble may still be there.
            Phase::Starting { .. } | Phase::Restarting | Phase::Unknown { .. } => self.trouble,
            Phase::Idle | Phase::Backoff { .. } | Phase::Parting => None,
        }
    }
}

/// The last unexpected exit.
#[derive(Clone, Debug)]
pub struct Crash {
    pub at: SystemTime,
    pub cause: String,
    pub exit: Option<Exit>,
    /// The last lines of the server's stderr, with secrets removed.
    pub stderr: String,
}

/// The state in which an earlier run of the gateway left a server.
#[derive(Clone, Debug)]
pub struct Left {
    pub last: Last,
    /// The last crash that was recorded.
    pub crash: Option<Crash>,
}

/// How a server begins.
#[derive(Clone, Debug)]
pub(crate) enum Begin {
    /// The declaration replaces a server that ran or was due to run.
    New,
    /// The gateway started and found the server in this state.
    Left(Last),
    /// The declaration replaces a server that was not due to run.
    Resting,
}

/// Current resource usage of an instance.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    pub usage: Usage,
    /// Cores used since the last measurement. `None` for the first one.
    pub cores: Option<f64>,
}

/// The state of a server other than its connection.
pub(crate) struct Known {
    status: Mutex<Status>,
    pub(crate) measured: Mutex<Option<(Instant, Usage)>>,
}

impl Default for Known {
    fn default() -> Self {
        Self {
            status: Mutex::new(Status {
                phase: Phase::Idle,
                saved: lifecycle::REGISTERED,
                reason: None,
                since: SystemTime::now(),
                ready_at: None,
                next_attempt: None,
                restarts: 0,
                failures: 0,
                last_crash: None,
                placement: None,
                warnings: 0,
                lists: Default::default(),
                refused: None,
                needs_login: false,
                trouble: None,
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
