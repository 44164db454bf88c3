//! The deadlines of a server's calls.
//!
//! A timer that was registered once is only moved on: that takes no lock of the runtime's, which making one and
//! dropping it does twice a call. One that rests may go off meanwhile; it wakes whoever had it last, for nothing.

use std::{future::poll_fn, pin::Pin};

use parking_lot::Mutex;
use tokio::time::{Instant, Sleep, sleep_until};

type Resting = Vec<Pin<Box<Sleep>>>;

/// Timers that rest, at most as many as calls can be in flight.
pub(crate) struct Timers {
    resting: Mutex<Resting>,
    limit: usize,
}

impl Timers {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            resting: Mutex::default(),
            limit,
        }
    }

    /// A timer that goes off at `deadline`.
    pub(crate) fn take(&self, deadline: Instant) -> Timer<'_> {
        let rested = self.resting.lock().pop();
        let sleep = match rested {
            Some(mut sleep) => {
                sleep.as_mut().reset(deadline);
                sleep
            }
            None => Box::pin(sleep_until(deadline)),
        };
        Timer {
            sleep: Some(sleep),
            home: self,
        }
    }
}

/// A timer of one call.
pub(crate) struct Timer<'a> {
    /// `None` once it was dropped.
    sleep: Option<Pin<Box<Sleep>>>,
    home: &'a Timers,
}

impl Timer<'_> {
    pub(crate) fn reset(&mut self, deadline: Instant) {
        if let Some(sleep) = &mut self.sleep {
            sleep.as_mut().reset(deadline);
        }
    }

    /// Waits until it goes off.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub(crate) async fn elapsed(&mut self) {
        poll_fn(|cx| match &mut self.sleep {
            Some(sleep) => sleep.as_mut().poll(cx),
            None => std::task::Poll::Pending,
        })
        .await;
    }
}

impl Drop for Timer<'_> {
    fn drop(&mut self) {
        let mut resting = self.home.resting.lock();
        if resting.len() < self.home.limit {
            resting.extend(self.sleep.take());
        }
    }
}
