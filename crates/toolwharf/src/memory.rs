//! Gives memory back after a peak.
//!
//! The allocator keeps what was freed for the thread that had it, and gives pages back to the kernel in passing, when
//! that thread allocates again. A gateway that has nothing to do any more does not, and would stay as large as it ever
//! was. So it is looked at every few seconds whether there is more than there was at the least, and each worker is asked
//! to give back what it has to spare.

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

/// How often memory is looked at.
const LOOK: Duration = Duration::from_secs(5);
/// How many times it is not looked at after nothing could be given back.
const REST: u32 = 2;
/// How long a worker waits for the others, so that each of them takes one turn.
const MEET_MS: usize = 5;

// SAFETY: mimalloc's own declaration (mimalloc.h). It may be called by any thread at any time.
unsafe extern "C" {
    /// Frees what the calling thread has to spare; `force`: gives it back to the kernel at once.
    safe fn mi_collect(force: bool);
}

/// Does so for ever.
pub(crate) async fn give_back() {
    let (mut least, mut rest) = (usize::MAX, 0);
    let mut tick = tokio::time::interval(LOOK);
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
        // An eighth more than ever is no peak.
        if before - before / 8 > least {
            collect().await;
            after = private_pages().unwrap_or(before);
            if after > before - before / 64 {
                rest = REST;
            }
        }
        least = least.min(after);
    }
    // There is no such file here.
    std::future::pending().await
}

/// Gives back what this thread has to spare, and what was freed in large pieces by whichever thread.
pub(crate) fn give_back_here() {
    mi_collect(true);
}

/// Has every worker collect.
async fn collect() {
    let workers = Handle::current().metrics().num_workers();
    let met = Arc::new(AtomicUsize::new(0));
    let mut turns = JoinSet::new();
    for _ in 0..workers {
        let met = met.clone();
        turns.spawn(async move {
            met.fetch_add(1, Ordering::Relaxed);
            // Without this one worker could take all turns. One that is busy is not waited for: there is a next time.
            for _ in 0..MEET_MS {
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

/// Pages that are this process's own and in memory.
fn private_pages() -> Option<usize> {
    let text = fs::read_to_string("/proc/self/statm").ok()?;
    let mut fields = text.split(' ').skip(1).map(str::parse);
    let (resident, shared): (usize, usize) = (fields.next()?.ok()?, fields.next()?.ok()?);
    Some(resident.saturating_sub(shared))
}
