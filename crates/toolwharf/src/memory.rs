//! Returns memory to the kernel after a peak.
//!
//! The allocator keeps freed memory for the thread that used it, and returns pages to the kernel only when that thread
//! allocates again. An idle gateway does not allocate and would stay as large as at its peak. So this task compares the
//! size of the process with its minimum every few seconds. If it is larger, each worker returns its spare memory.

#![expect(unsafe_code, reason = "the allocator has no safe interface for it")]

use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use tokio::{runtime::Handle, task::JoinSet};

/// Interval between checks.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// Checks to skip after no memory could be returned.
const SKIPPED_CHECKS: u32 = 2;
/// Maximum time in milliseconds that a worker waits for the others, so that each of them runs once.
const MEET_TIMEOUT_MS: usize = 5;

// SAFETY: mimalloc's own declaration (mimalloc.h). Any thread may call it at any time.
unsafe extern "C" {
    /// Frees the spare memory of the calling thread. `force`: returns it to the kernel immediately.
    safe fn mi_collect(force: bool);
}

/// Runs the checks in a loop.
pub(crate) async fn give_back() {
    let (mut least, mut rest) = (usize::MAX, 0);
    let mut tick = tokio::time::interval(CHECK_INTERVAL);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        if rest > 0 {
            rest -= 1;
            continue;
        }
        let Some(before) = private_pages() else {
            break;
        };
        let mut after = before;
        // Less than an eighth above the minimum is not a peak.
        if before - before / 8 > least {
            collect().await;
            after = private_pages().unwrap_or(before);
            if after > before - before / 64 {
                rest = SKIPPED_CHECKS;
            }
        }
        least = least.min(after);
    }
    // `/proc` is not available.
    std::future::pending().await
}

/// Returns this thread's spare memory, and large blocks freed by any thread.
pub(crate) fn give_back_here() {
    mi_collect(true);
}

/// Makes every worker thread return its spare memory.
async fn collect() {
    let workers = Handle::current().metrics().num_workers();
    let met = Arc::new(AtomicUsize::new(0));
    let mut turns = JoinSet::new();
    for _ in 0..workers {
        let met = met.clone();
        turns.spawn(async move {
            met.fetch_add(1, Ordering::Relaxed);
            // Without this wait, one worker could run all of these tasks. A worker that is busy for longer is left to
            // the next check.
            for _ in 0..MEET_TIMEOUT_MS {
                if met.load(Ordering::Relaxed) == workers {
                    break;
                }
                thread::sleep(Duration::from_millis(1));
            }
            mi_collect(true);
        });
    }
    while turns.join_next().await.is_some() {}
}

/// Resident pages that are private to this process.
fn private_pages() -> Option<usize> {
    let text = fs::read_to_string("/proc/self/statm").ok()?;
    let mut fields = text.split(' ').skip(1).map(str::parse);
    let (resident, shared): (usize, usize) = (fields.next()?.ok()?, fields.next()?.ok()?);
    Some(resident.saturating_sub(shared))
}
