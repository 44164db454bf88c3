//! Waiting with a deadline: the replacement for sleep-then-assert.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

/// How long the helpers of this crate wait for one thing before they panic. Generous, since CI
/// machines stall; it is only ever spent by a test that fails.
pub const DEADLINE: Duration = Duration::from_secs(30);

/// Longer than what is at once takes on a machine that has other things to do, and half of the shortest time that the
/// product waits for a server (the 10 s of a first start).
const AT_ONCE: Duration = Duration::from_secs(5);

/// Asserts that what began at `start` was not made to wait. Where an order of events can show it, let that show it.
///
/// # Panics
/// If it was, with a message that names `what`.
#[track_caller]
pub fn at_once(what: &str, start: Instant) {
    let took = start.elapsed();
    assert!(took < AT_ONCE, "{what} was made to wait: {took:?}");
}

/// Polls `check` until it says `true`.
///
/// # Panics
/// After `timeout`, with a message that names `what`.
pub async fn wait_for(what: &str, timeout: Duration, mut check: impl AsyncFnMut() -> bool) {
    wait_for_some(what, timeout, async || check().await.then_some(())).await;
}

/// Polls `check` until it gives a value, and returns that value.
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
        // The check itself may hang (a server that does not answer), so it is under the deadline.
        let left = timeout.saturating_sub(start.elapsed());
        if let Ok(Some(value)) = tokio::time::timeout(left, check()).await {
            return value;
        }
        assert!(
            start.elapsed() < timeout,
            "waited {timeout:?} in vain for: {what}"
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
        Err(_) => panic!("waited {limit:?} in vain for: {what}"),
    }
}
