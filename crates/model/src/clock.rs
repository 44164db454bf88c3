//! The time that all gateways of an installation agree on: the database's, where there are several.
//!
//! Clocks of machines may differ by any time. Each gateway knows how far the database's clock is from its own, and looks again now and then.
//! Deliberately absent: how much time has passed, which monotonic clocks tell.

use std::{
    sync::atomic::{AtomicI64, Ordering},
    time::{Duration, SystemTime},
};

/// Microseconds by which the database's clock is ahead of this machine's.
static AHEAD: AtomicI64 = AtomicI64::new(0);

/// The time of the database; without replicas, this machine's.
#[must_use]
pub fn now() -> SystemTime {
    shifted(SystemTime::now(), ahead())
}

/// Microseconds by which the database's clock is ahead of this machine's.
#[must_use]
pub fn ahead() -> i64 {
    AHEAD.load(Ordering::Relaxed)
}

/// Takes in what the database's clock showed between two times of this machine's. The distance that is known stays if it can be true: a slow
/// answer says little, and two clocks that agree stay the same.
pub fn agree(database: SystemTime, before: SystemTime, after: SystemTime) {
    let (least, most) = (micros(database, after), micros(database, before));
    // Otherwise this machine's clock was set meanwhile.
    if least <= most && !(least..=most).contains(&ahead()) {
        AHEAD.store(least.midpoint(most), Ordering::Relaxed);
    }
}

/// Microseconds from `earlier` to `later`, negative if they are the other way round.
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

    /// One test, for there is one clock.
    #[test]
    fn the_distance_changes_only_as_far_as_it_must() {
        let at = |seconds: u64| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let second = 1_000_000;
        for (database, before, after, expect) in [
            // It may be the same clock.
            (at(1000), at(999), at(1001), 0),
            (at(1300), at(1000), at(1002), 299 * second),
            (at(1300), at(1002), at(1008), 295 * second),
            (at(1300), at(1000), at(1008), 295 * second),
            (at(1300), at(1000), at(1000), 300 * second),
            // This machine's clock was set while the database answered.
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
