//! Timers for the deadlines of a server's calls.
//!
//! A registered timer is reused by resetting it. That does not take the runtime's lock, while creating and dropping a
//! timer takes it twice per call. An unused timer may expire, and then wakes its last task needlessly.

use std::{future::poll_fn, pin::Pin};

use parking_lot::Mutex;
use tokio::time::{Instant, Sleep, sleep_until};

type Resting = Vec<Pin<Box<Sleep>>>;

/// Unused timers, at most as many as calls can be in flight.
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

    /// A timer that expires at `deadline`.
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

/// The timer of one call.
pub(crate) struct Timer<'a> {
    /// `None` once it has been dropped.
    sleep: Option<Pin<Box<Sleep>>>,
    home: &'a Timers,
}

impl Timer<'_> {
    pub(crate) fn reset(&mut self, deadline: Instant) {
        if let Some(sleep) = &mut self.sleep {
            sleep.as_mut().reset(deadline);
        }
    }

    /// Waits until it expires.
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
