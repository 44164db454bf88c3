//! The owner's handle of an instance, the same for all runtimes.

use futures_util::future::BoxFuture;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::watch;
use tokio::time::Instant;

use crate::stderr::{Lines, Log, Tail};

/// A longer grace period is cut to this.
const MAX_GRACE: Duration = Duration::from_secs(24 * 3600);

pub(crate) const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;
/// Exit codes of programs that report the signal of their child, such as bubblewrap and shells.
pub(crate) const KILLED_EXIT_CODE: i32 = 128 + SIGKILL;
const STOPPED_EXIT_CODE: i32 = 128 + SIGTERM;

/// How an instance ended. Both `code` and `signal` are `None` if unknown: the instance was killed and did not die, or
/// the async runtime ended first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exit {
    pub code: Option<i32>,
    pub signal: Option<i32>,
    /// True if the instance was killed for exceeding its memory limit, or exited because it could not have more memory.
    pub out_of_memory: bool,
    /// True if the instance was killed because it kept hitting its process limit.
    pub fork_bomb: bool,
}

impl Exit {
    /// Returns whether the instance exited by itself with code 0.
    #[must_use]
    pub fn success(self) -> bool {
        self.code == Some(0)
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.code, self.signal) {
            (Some(code), _) => write!(f, "exit code {code}")?,
            (None, Some(signal)) => write!(f, "signal {signal}")?,
            (None, None) => f.write_str("unknown end")?,
        }
        if self.out_of_memory {
            f.write_str(" (out of memory)")?;
        }
        if self.fork_bomb {
            f.write_str(" (fork bomb: it kept creating more processes than its limit)")?;
        }
        Ok(())
    }
}

/// Owns an instance. Dropping the last clone kills the instance immediately, with everything that it started.
#[derive(Clone)]
pub struct Handle(Arc<Owner>);

struct Owner(Arc<ProcessState>);

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.request(Stop::Now);
    }
}

/// State shared by the handle and the reaper task.
pub struct ProcessState {
    pub(crate) pid: Option<u32>,
    pub label: String,
    pub(crate) started_at: SystemTime,
    pub log: Log,
    meter: Option<Box<dyn Meter>>,
    stop: watch::Sender<Stop>,
    exit: watch::Receiver<Option<Exit>>,
}

/// The most urgent stop request so far. It never becomes less urgent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    No,
    /// `SIGTERM` now, and `SIGKILL` at this time.
    By(Instant),
    Now,
}

impl Stop {
    pub(crate) fn within(grace: Duration) -> Self {
        Self::By(Instant::now() + grace.min(MAX_GRACE))
    }

    fn more_urgent_than(self, other: Self) -> bool {
        match (self, other) {
            (Self::No, _) | (_, Self::Now) => false,
            (Self::Now, _) | (Self::By(_), Self::No) => true,
            (Self::By(mine), Self::By(other)) => mine < other,
        }
    }
}

impl ProcessState {
    pub fn new(
        pid: Option<u32>,
        label: String,
        meter: Option<Box<dyn Meter>>,
        exit: watch::Receiver<Option<Exit>>,
    ) -> Self {
        Self {
            pid,
            meter,
            label,
            started_at: SystemTime::now(),
            log: Log::new(),
            stop: watch::Sender::new(Stop::No),
            exit,
        }
    }

    pub(crate) fn request(&self, stop: Stop) {
        self.stop.send_if_modified(|current| {
            let more = stop.more_urgent_than(*current);
            if more {
                *current = stop;
            }
            more
        });
    }

    pub fn requests(&self) -> watch::Receiver<Stop> {
        self.stop.subscribe()
    }

    /// Adds to `exit` what the instance wrote about it. Call this once its log is complete.
    pub fn explained(&self, exit: Exit) -> Exit {
        let is_crash = match (exit.code, exit.signal) {
            // The instance was stopped or killed, whatever it wrote before.
            (Some(code), _) => ![0, STOPPED_EXIT_CODE, KILLED_EXIT_CODE].contains(&code),
            (None, Some(signal)) => ![SIGTERM, SIGKILL].contains(&signal),
            (None, None) => false,
        };
        let out_of_memory = exit.out_of_memory || is_crash && self.log.says_out_of_memory();
        Exit {
            out_of_memory,
            ..exit
        }
    }

    pub(crate) fn exited(&self) -> impl Future<Output = Exit> + Send + 'static {
        let mut exit = self.exit.clone();
        async move {
            match exit.wait_for(Option::is_some).await {
                Ok(exit) => exit.unwrap_or_default(),
                Err(_) => Exit::default(),
            }
        }
    }
}

impl Handle {
    pub fn new(shared: Arc<ProcessState>) -> Self {
        Self(Arc::new(Owner(shared)))
    }

    fn shared(&self) -> &ProcessState {
        &self.0.0
    }

    /// The leader's process id, which is also the id of the process group and session. `None` if it is not a process of
    /// this host.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.shared().pid
    }

    #[must_use]
    pub fn label(&self) -> &str {
        &self.shared().label
    }

    #[must_use]
    pub fn started_at(&self) -> SystemTime {
        self.shared().started_at
    }

    /// Resource usage of the instance. `None` if unknown, or after its exit.
    pub async fn usage(&self) -> Option<Usage> {
        self.shared().meter.as_ref()?.read().await
    }

    /// The end of the instance's stderr: complete lines, at most 64 KiB and 2048 lines. Lines longer than 8 KiB are
    /// cut. No line is added after [`Handle::exited`] has completed.
    #[must_use]
    pub fn stderr_tail(&self) -> String {
        self.stderr().text()
    }

    /// Like [`Handle::stderr_tail`], with the times of the lines.
    #[must_use]
    pub fn stderr(&self) -> Tail {
        self.shared().log.tail()
    }

    /// When its last output on stderr arrived.
    #[must_use]
    pub fn last_output(&self) -> Option<Instant> {
        self.shared().log.last_output()
    }

    /// Returns a function that adds lines to the instance's stderr. The function does not keep the instance alive.
    pub fn note(&self) -> impl Fn(&str) + Send + Sync + 'static {
        let shared = Arc::clone(&self.0.0);
        move |line| shared.log.note(line)
    }

    /// Returns the tail, and a reader that continues directly after it. A reader that is too slow misses lines.
    #[must_use]
    pub fn follow_stderr(&self) -> (Tail, Lines) {
        self.shared().log.follow()
    }

    /// Waits until the instance has ended and everything that it started is gone. The future does not keep the instance
    /// alive.
    pub fn exited(&self) -> impl Future<Output = Exit> + Send + 'static {
        self.shared().exited()
    }

    /// How the instance ended. `None` while it runs.
    #[must_use]
    pub fn exit_status(&self) -> Option<Exit> {
        *self.shared().exit.borrow()
    }

    /// Stops the instance: `SIGTERM` to its process group, `SIGKILL` to what is left after `grace`, then reaps. Drop
    /// [`Instance::stdin`] first: an MCP server should exit when its input closes, and most then need no signal.
    ///
    /// Can be called repeatedly and concurrently. The shortest deadline applies, and all calls return the same result.
    /// Processes that the leader leaves in its group also get the rest of the grace period. Takes at most `grace` plus
    /// about 5 seconds. Exceptions: 20 seconds more for a server in a swarm whose node does not respond, and up to the
    /// sandbox's lease while E2B does not respond.
    ///
    /// # Cancel safety
    ///
    /// The stop continues if the future is dropped.
    pub async fn stop(&self, grace: Duration) -> Exit {
        let exited = self.exited();
        self.shared().request(Stop::within(grace));
        exited.await
    }

    /// Sends `SIGKILL` to all processes of the instance. [`Handle::exited`] completes when they are dead.
    pub fn kill_now(&self) {
        self.shared().request(Stop::Now);
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle")
            .field("label", &self.label())
            .field("pid", &self.pid())
            .field("exit", &self.exit_status())
            .finish_non_exhaustive()
    }
}

/// Past and current resource usage of an instance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Processor time over all processors since its start.
    pub cpu: Duration,
    /// In bytes.
    pub memory: u64,
    /// The highest usage so far, in bytes.
    pub memory_peak: u64,
    pub pids: u32,
}

/// Measures the resource usage of an instance.
pub trait Meter: Send + Sync {
    fn read(&self) -> BoxFuture<'_, Option<Usage>>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crash_is_explained_by_what_the_instance_wrote() {
        let (_exit, exited) = watch::channel(None);
        let state = ProcessState::new(None, "x".to_owned(), None, exited);
        let end = |code, signal| Exit {
            code,
            signal,
            ..Exit::default()
        };
        assert!(!state.explained(end(Some(134), None)).out_of_memory);
        state.log.note(
            "FATAL ERROR: Reached heap limit Allocation failed - JavaScript heap out of memory",
        );
        assert!(state.explained(end(Some(134), None)).out_of_memory);
        assert!(state.explained(end(None, Some(6))).out_of_memory);
        for other in [
            end(Some(0), None),
            end(Some(137), None),
            end(Some(143), None),
            end(None, Some(9)),
            end(None, Some(15)),
            Exit::default(),
        ] {
            assert_eq!(state.explained(other), other);
        }
    }

    #[test]
    fn requests_only_get_more_urgent() {
        let soon = Stop::within(Duration::from_secs(1));
        let late = Stop::within(Duration::MAX);
        let order = [Stop::No, late, soon, Stop::Now];
        for (left, &urgent) in order.iter().enumerate() {
            for (right, &other) in order.iter().enumerate() {
                assert_eq!(urgent.more_urgent_than(other), left > right);
            }
        }
    }
}
