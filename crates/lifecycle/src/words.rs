//! Names and messages of phases, notes and causes.

use std::{fmt, time::Duration};

use super::{Cause, Note, Phase, Rules};

impl Phase {
    /// The word shown to operators.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Stopped | Self::Over => "stopped",
            Self::Failed => "failed",
            Self::Starting { .. } => "starting",
            Self::Running { .. } => "running",
            Self::Unresponsive => "unresponsive",
            Self::Backoff { .. } => "backoff",
            Self::Unavailable { .. } => "unavailable",
            Self::Blocked { .. } => "blocked",
            Self::Restarting => "restarting",
            Self::Stopping | Self::Ending | Self::Parting => "stopping",
            Self::Unknown { .. } => "unknown",
        }
    }
}

impl Note {
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Crashed { .. } => "crashed",
            Self::Exited => "exited",
            Self::Failed { .. } => "failed",
            Self::Backoff { .. } => "backoff",
            Self::Unavailable { .. } => "unavailable",
            Self::Blocked { .. } => "blocked",
            Self::Recovered { .. } => "recovered",
            Self::Unresponsive { .. } => "unresponsive",
            Self::Responsive => "responsive",
            Self::Stopped => "stopped",
            Self::RuntimeLost => "runtime-lost",
            Self::RuntimeBack { .. } => "runtime-back",
        }
    }

    /// Returns whether an operator should act on it (H10, H15).
    #[must_use]
    pub fn is_warning(&self) -> bool {
        matches!(
            self,
            Self::Failed { .. }
                | Self::Backoff { .. }
                | Self::Unavailable { .. }
                | Self::Blocked { .. }
                | Self::Unresponsive { .. }
                | Self::RuntimeLost
        )
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ready => f.write_str("it is ready"),
            Self::Crashed {
                cause: cause @ Cause::Start(_),
            } => cause.fmt(f),
            Self::Crashed {
                cause: cause @ Cause::Closed(_),
            } => write!(f, "its connection ended: {cause}"),
            Self::Crashed { cause } => write!(f, "it crashed: {cause}"),
            Self::Exited => f.write_str("it ended with exit code 0"),
            Self::Failed { why } => write!(
                f,
                "it failed, and its restart policy `no` does not restart it: {why}"
            ),
            Self::Backoff { rung, wait, ends } => {
                match (*rung, *ends) {
                    (1, 0) => f.write_str("it is not available")?,
                    (1, ends) => write!(
                        f,
                        "it ended more than {ends} times in {} s",
                        Rules::RESTART_WINDOW.as_secs()
                    )?,
                    (2, _) => f.write_str("it failed again after a wait")?,
                    (rung, _) => write!(f, "it failed again after {} waits", rung - 1)?,
                }
                write!(f, "; next attempt in {}", Seconds(*wait))
            }
            Self::Unavailable { failures, wait } => write!(
                f,
                "{failures} attempts in a row failed; no further attempt for {}",
                Seconds(*wait)
            ),
            Self::Blocked {
                why,
                again: Some(_),
            } => write!(f, "it cannot be started as configured: {why}"),
            Self::Blocked { why, again: None } => write!(
                f,
                "it cannot be started as configured, and will not be retried: {why}"
            ),
            Self::Recovered { after } => write!(f, "it has been stable for {} s", after.as_secs()),
            Self::Unresponsive { missed } => {
                write!(f, "it did not answer {missed} heartbeats in a row")
            }
            Self::Responsive => f.write_str("it answers again"),
            Self::Stopped => f.write_str("it was stopped"),
            Self::RuntimeLost => f.write_str("its runtime does not respond"),
            Self::RuntimeBack { alive: true } => {
                f.write_str("its runtime responds again, and the server is still running")
            }
            Self::RuntimeBack { alive: false } => {
                f.write_str("its runtime responds again, and the server is gone")
            }
        }
    }
}

/// A duration in readable form: `5 s`, `0.4 s`.
struct Seconds(Duration);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.subsec_nanos() {
            0 => write!(f, "{} s", self.0.as_secs()),
            _ => write!(f, "{:.1} s", self.0.as_secs_f64()),
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exit(exit) => exit.fmt(f),
            Self::Closed(why) => f.write_str(why),
            Self::Start(reason) => write!(f, "it did not start: {reason}"),
            Self::Lost => f.write_str("it was gone when its runtime responded again"),
        }
    }
}
