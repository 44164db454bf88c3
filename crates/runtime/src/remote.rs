//! The other end of a [`Handle`] for an instance that is run by somebody else, in whatever way.
//!
//! Deliberately absent: a deadline. An instance that does not end when it is killed is that of a runtime that does not
//! answer: its handle waits.

use std::sync::Arc;

use tokio::sync::watch;

use crate::{
    handle::{Exit, Handle, ProcessState},
    ladder::{Ladder, Step},
};

/// Hears what is asked of an instance, and says what becomes of it. Dropped, the instance has come to an unknown end.
pub struct Remote {
    shared: Arc<ProcessState>,
    ladder: Ladder,
    exit: watch::Sender<Option<Exit>>,
}

/// What is asked of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// `SIGTERM`: to end, within the grace.
    Terminate,
    /// `SIGKILL`.
    Kill,
}

impl Remote {
    /// A running instance, and the handle for its owner.
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

    /// The next thing that is asked of it, when its time has come: at most one of each.
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

    /// Adds a line to its stderr.
    pub fn log(&self, line: &str) {
        self.shared.log.push(line.into());
    }

    /// It has ended like this.
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
            // Nothing more is asked, however long it takes.
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
