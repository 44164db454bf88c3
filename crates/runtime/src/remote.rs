//! The counterpart of a [`Handle`] for an instance that other code runs.
//!
//! Deliberately absent: a deadline. If a killed instance does not end, its runtime does not respond, and the handle
//! keeps waiting.

use std::sync::Arc;

use tokio::sync::watch;

use crate::{
    handle::{Exit, Handle, ProcessState},
    ladder::{Ladder, Step},
};

/// Receives stop requests for an instance and reports its exit. If dropped, the exit is unknown.
pub struct Remote {
    shared: Arc<ProcessState>,
    ladder: Ladder,
    exit: watch::Sender<Option<Exit>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// `SIGTERM`: exit within the grace period.
    Terminate,
    /// `SIGKILL`.
    Kill,
}

impl Remote {
    /// Returns a running instance and the handle for its owner.
    #[must_use]
    pub fn new(label: impl Into<String>) -> (Handle, Self) {
        let (exit, exited) = watch::channel(None);
        let shared = Arc::new(ProcessState::new(None, label.into(), None, exited));
        let remote = Self {
            ladder: Ladder::new(shared.requests()),
            shared: shared.clone(),
            exit,
        };
        (Handle::new(shared), remote)
    }

    /// Waits for the next request that is due. Each kind is returned at most once.
    ///
    /// # Cancel safety
    /// No request is lost.
    pub async fn requested(&mut self) -> Request {
        loop {
            match self.ladder.next().await {
                Step::Terminate => return Request::Terminate,
                Step::Kill => return Request::Kill,
                Step::GiveUp => {}
            }
        }
    }

    /// Adds a line to the stderr of the instance.
    pub fn log(&self, line: &str) {
        self.shared.log.push(line.into());
    }

    /// Reports its exit.
    pub fn ended(self, exit: Exit) {
        self.shared.log.close();
        self.exit.send_replace(Some(exit));
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        self.shared.log.close();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn hears_what_is_asked_and_says_how_it_ended() {
        let (handle, mut remote) = Remote::new("one");
        remote.log("hello");
        assert_eq!((handle.pid(), handle.exit_status()), (None, None));
        let grace = Duration::from_secs(3);
        let ending = async {
            assert_eq!(remote.requested().await, Request::Terminate);
            let asked = tokio::time::Instant::now();
            assert_eq!(remote.requested().await, Request::Kill);
            assert_eq!(asked.elapsed(), grace);
            // There is no further request, however long the test waits.
            let more = tokio::time::timeout(10 * grace, remote.requested()).await;
            assert!(more.is_err(), "{more:?}");
            remote.ended(Exit {
                signal: Some(9),
                ..Exit::default()
            });
        };
        let (exit, ()) = tokio::join!(handle.stop(grace), ending);
        assert_eq!(exit.signal, Some(9));
        assert_eq!(handle.stderr_tail(), "hello\n");
    }

    #[tokio::test(start_paused = true)]
    async fn its_end_is_unknown_when_nobody_runs_it_any_more() {
        let (handle, remote) = Remote::new("one");
        drop(remote);
        assert_eq!(handle.exited().await, Exit::default());
        let (handle, mut remote) = Remote::new("other");
        drop(handle);
        assert_eq!(remote.requested().await, Request::Kill);
    }
}
