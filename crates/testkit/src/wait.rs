//! Waiting with a deadline, instead of sleep-then-assert.

use std::{panic::Location, time::Duration};

use tokio::time::{Instant, sleep, timeout};

/// The helpers of this crate panic after waiting this long. Generous, since CI machines stall; only a failing test
/// waits that long.
pub const DEADLINE: Duration = Duration::from_secs(30);

/// Upper limit for something that must not wait, on a busy machine. Half of the shortest time that the gateway waits
/// for a server (10 s at a first start).
const MAX_IMMEDIATE: Duration = Duration::from_secs(5);

/// Asserts that something that began at `start` did not have to wait. Prefer asserting an order of events where
/// possible.
///
/// # Panics
/// If it took too long, with a message that names `what`.
#[track_caller]
pub fn at_once(what: &str, start: Instant) {
    let took = start.elapsed();
    assert!(
        took < MAX_IMMEDIATE,
        "{what} took {took:?} but must not wait"
    );
}

/// Polls `check` until it returns `true`.
///
/// # Panics
/// After `timeout`, with a message that names `what`.
pub async fn wait_for(what: &str, timeout: Duration, mut check: impl AsyncFnMut() -> bool) {
    wait_for_some(what, timeout, async || check().await.then_some(())).await;
}

/// Polls `check` until it returns a value, and returns that value.
///
/// # Panics
/// After `timeout`, with a message that names `what`.
pub async fn wait_for_some<T>(
    what: &str,
    timeout: Duration,
    mut check: impl AsyncFnMut() -> Option<T>,
) -> T {
    let start = Instant::now();
    let mut pause = Duration::from_millis(1);
    loop {
        // The check itself may hang (a server that does not respond), so the deadline covers it, too.
        let left = timeout.saturating_sub(start.elapsed());
        if let Ok(Some(value)) = tokio::time::timeout(left, check()).await {
            return value;
        }
        assert!(
            start.elapsed() < timeout,
            "timed out after {timeout:?} waiting for: {what}"
        );
        sleep(pause).await;
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}

/// Awaits `future` for at most `limit`.
///
/// # Panics
/// After `limit`, with a message that names `what`.
pub async fn within<F: Future>(what: &str, limit: Duration, future: F) -> F::Output {
    match timeout(limit, future).await {
        Ok(value) => value,
        Err(_) => panic!("timed out after {limit:?} waiting for: {what}"),
    }
}

/// Awaits `future` for at most `limit`. For the many waits of a test that need no name of their own.
///
/// # Panics
/// After `limit`, with a message that names the caller's line.
#[track_caller]
pub fn in_time<F: Future>(limit: Duration, future: F) -> impl Future<Output = F::Output> {
    let caller = Location::caller();
    async move {
        let done = timeout(limit, future).await;
        done.unwrap_or_else(|_| panic!("not done after {limit:?}: {caller}"))
    }
}
