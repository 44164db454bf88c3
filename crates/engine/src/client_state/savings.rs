//! The tokens that short lists of tools saved: those of the whole list minus those of the list that a client got,
//! counted for each `tools/list`.
//!
//! Deliberately absent: other replicas, and earlier runs of this gateway.

use parking_lot::Mutex;
use tokio::time::Instant;

const SECONDS_PER_HOUR: u64 = 3_600;
const HOURS_PER_DAY: u64 = 24;

/// The tokens saved by one gateway.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SavedTokens {
    pub since_start: u64,
    /// Of this hour and the 23 hours before it, counted from the start of the gateway.
    pub last_day: u64,
}

#[derive(Debug)]
pub(crate) struct Savings {
    began: Instant,
    counts: Mutex<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    since_start: u64,
    /// Hours with the tokens saved in them. An hour takes the place of the same hour of the day before.
    hours: [(u64, u64); HOURS_PER_DAY as usize],
}

impl Default for Savings {
    fn default() -> Self {
        Self {
            began: Instant::now(),
            counts: Mutex::default(),
        }
    }
}

impl Savings {
    pub(crate) fn add(&self, tokens: u64) {
        let hour = self.hour();
        self.counts.lock().add(hour, tokens);
    }

    pub(crate) fn total(&self) -> SavedTokens {
        let hour = self.hour();
        self.counts.lock().total(hour)
    }

    fn hour(&self) -> u64 {
        self.began.elapsed().as_secs() / SECONDS_PER_HOUR
    }
}

impl Counts {
    fn add(&mut self, hour: u64, tokens: u64) {
        self.since_start = self.since_start.saturating_add(tokens);
        let place = usize::try_from(hour % HOURS_PER_DAY).unwrap_or_default();
        let counted = &mut self.hours[place];
        if counted.0 != hour {
            *counted = (hour, 0);
        }
        counted.1 = counted.1.saturating_add(tokens);
    }

    fn total(&self, now: u64) -> SavedTokens {
        let hours = self.hours.iter();
        let of_day = hours.filter(|(hour, _)| hour + HOURS_PER_DAY > now);
        SavedTokens {
            since_start: self.since_start,
            last_day: of_day.map(|(_, tokens)| tokens).sum(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_day_has_24_hours() {
        let mut counts = Counts::default();
        for (hour, tokens) in [(0, 1), (0, 2), (1, 10), (23, 100)] {
            counts.add(hour, tokens);
        }
        for (now, last_day) in [
            (23, 113),
            (24, 110),
            (25, 100),
            (46, 100),
            (47, 0),
            (500, 0),
        ] {
            assert_eq!(counts.total(now).last_day, last_day, "{now}");
        }
        // The same hour of another day.
        counts.add(24, 1_000);
        assert_eq!(counts.total(25).last_day, 1_100);
        counts.add(49, 10_000);
        assert_eq!(counts.total(49).last_day, 10_000);
        assert_eq!(counts.total(49).since_start, 11_113);
    }
}
