//! The time shared by all gateways of an installation. With replicas, it is the database's time.
//!
//! The clocks of machines may differ by any amount. Each gateway knows the offset of the database clock from its own
//! clock, and measures it again from time to time. Deliberately absent: elapsed time, which monotonic clocks measure.

use std::{
    sync::atomic::{AtomicI64, Ordering},
    time::{Duration, SystemTime},
};

/// Microseconds by which the database clock is ahead of this machine's clock.
static AHEAD: AtomicI64 = AtomicI64::new(0);

/// The database's time. Without replicas, this machine's time.
#[must_use]
pub fn now() -> SystemTime {
    shifted(SystemTime::now(), ahead())
}

/// Microseconds by which the database clock is ahead of this machine's clock.
#[must_use]
pub fn ahead() -> i64 {
    AHEAD.load(Ordering::Relaxed)
}

/// Updates the offset from a database time that was read between two times of this machine. If the known offset is
/// consistent with the reading, it stays: a slow response is imprecise, and synchronous clocks should stay equal.
pub fn agree(database: SystemTime, before: SystemTime, after: SystemTime) {
    let (least, most) = (micros(database, after), micros(database, before));
    // If `least` is greater than `most`, this machine's clock was set during the reading.
    if least <= most && !(least..=most).contains(&ahead()) {
        AHEAD.store(least.midpoint(most), Ordering::Relaxed);
    }
}

/// Microseconds from `earlier` to `later`. Negative if they are in the opposite order.
fn micros(later: SystemTime, earlier: SystemTime) -> i64 {
    let whole = |time: Duration| i64::try_from(time.as_micros()).unwrap_or(i64::MAX);
    match later.duration_since(earlier) {
        Ok(time) => whole(time),
        Err(error) => -whole(error.duration()),
    }
}

fn shifted(time: SystemTime, micros: i64) -> SystemTime {
    let by = Duration::from_micros(micros.unsigned_abs());
    let shifted = match micros < 0 {
        true => time.checked_sub(by),
        false => time.checked_add(by),
    };
    shifted.unwrap_or(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A single test, because the clock is global.
    #[test]
    fn the_distance_changes_only_as_far_as_it_must() {
        let at = |seconds: u64| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let second = 1_000_000;
        for (database, before, after, expect) in [
            // The two clocks may agree.
            (at(1000), at(999), at(1001), 0),
            (at(1300), at(1000), at(1002), 299 * second),
            (at(1300), at(1002), at(1008), 295 * second),
            (at(1300), at(1000), at(1008), 295 * second),
            (at(1300), at(1000), at(1000), 300 * second),
            // This machine's clock was changed during the reading.
            (at(1300), at(2000), at(1000), 300 * second),
            (at(700), at(1000), at(1002), -301 * second),
            (at(1000), at(1000), at(1000), 0),
        ] {
            agree(database, before, after);
            assert_eq!(ahead(), expect);
        }
        let now = SystemTime::now();
        assert_eq!(shifted(shifted(now, -5), 5), now);
    }
}
