//! Limits for one input: time, memory, and memory that stays allocated.
//!
//! Memory is counted per thread by the allocator, so other tests in the same process do not change the figures. A target
//! therefore does all its work on the thread that called it.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    time::Duration,
};

use tokio::time::Instant;

/// Maximum bytes that one input may need in addition to what was allocated before.
const MAX_PEAK_BYTES: isize = 16 << 20;
/// Maximum bytes that may stay allocated after all inputs of a thread together. Some inputs fill caches that exist once.
const MAX_RETAINED_BYTES: isize = 1 << 20;
/// Maximum time for one input, measured again if the machine may have been busy.
const MAX_TIME: Duration = Duration::from_secs(1);
const ATTEMPTS: usize = 3;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

thread_local! {
    /// Bytes allocated by this thread minus bytes freed by it.
    static LIVE: Cell<isize> = const { Cell::new(0) };
    /// The highest value of `LIVE`.
    static PEAK: Cell<isize> = const { Cell::new(0) };
    static RETAINED: Cell<isize> = const { Cell::new(0) };
}

/// The system's allocator, with the counters above.
struct Counting;

fn count(change: isize) {
    // Fails only while the thread ends.
    let _ = LIVE.try_with(|live| {
        let now = live.get() + change;
        live.set(now);
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(now)));
    });
}

#[expect(
    unsafe_code,
    reason = "an allocator is unsafe by definition; this one only counts"
)]
// SAFETY: all calls are passed on to `System` unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size().cast_signed());
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        count(-layout.size().cast_signed());
        unsafe { System.dealloc(place, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size().cast_signed());
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size.cast_signed() - layout.size().cast_signed());
        unsafe { System.realloc(place, layout, size) }
    }
}

/// Runs `work` within the limits.
///
/// # Panics
/// If it exceeds one.
pub(crate) fn within(work: impl Fn()) {
    let mut time = Duration::MAX;
    for _ in 0..ATTEMPTS {
        let before = LIVE.get();
        PEAK.set(before);
        let start = Instant::now();
        work();
        time = time.min(start.elapsed());
        let peak = PEAK.get() - before;
        assert!(peak <= MAX_PEAK_BYTES, "the input needs {peak} bytes");
        let retained = RETAINED.get() + LIVE.get() - before;
        RETAINED.set(retained);
        assert!(
            retained <= MAX_RETAINED_BYTES,
            "{retained} bytes of this and earlier inputs are still allocated"
        );
        if time <= MAX_TIME {
            return;
        }
    }
    panic!("the input takes {} ms", time.as_millis());
}

#[cfg(test)]
mod tests {
    use std::{hint::black_box, panic::catch_unwind, thread};

    use super::*;

    fn refusal(work: impl Fn() + Send + 'static) -> String {
        let caught = thread::spawn(|| catch_unwind(std::panic::AssertUnwindSafe(|| within(work))));
        let caught = caught.join().expect("caught").expect_err("over a limit");
        caught.downcast_ref::<String>().expect("a text").clone()
    }

    #[test]
    fn each_limit_is_enforced() {
        within(|| drop(black_box(vec![0_u8; 1 << 20])));
        let large = refusal(|| drop(black_box(vec![0_u8; 17 << 20])));
        assert!(large.starts_with("the input needs 178"), "{large}");
        let grown = refusal(|| {
            for _ in 0..20 {
                std::mem::forget(black_box(vec![0_u8; 100 << 10]));
            }
        });
        assert!(grown.contains("still allocated"), "{grown}");
        let slow = refusal(|| {
            let start = Instant::now();
            while start.elapsed() <= MAX_TIME {
                black_box(());
            }
        });
        assert!(slow.starts_with("the input takes 10"), "{slow}");
    }
}
