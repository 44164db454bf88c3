//! Limits repeated log lines.
//!
//! Events that others can cause without limit (a refused host, a call to a server that is down) are logged at most
//! once per second for each cause, with a count. The count appears in the next line about that cause.

use std::{
    collections::HashMap,
    fmt,
    hash::{DefaultHasher, Hash, Hasher as _},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::Instant;

/// Minimum interval between two lines about one cause.
const LOG_INTERVAL: Duration = Duration::from_secs(1);
/// Limit for causes that are counted separately. All others are counted together.
const MAX_CAUSES: usize = 16;

#[derive(Debug, Default)]
pub struct Repeats {
    /// The counts by the hash of the cause. The key `None` is for all causes beyond the limit.
    causes: Mutex<HashMap<Option<u64>, Cause>>,
}

#[derive(Debug)]
struct Cause {
    told: Instant,
    untold: u64,
}

/// Number of occurrences since the last line about it, including this one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Times(pub u64);

/// The suffix of the line. Empty if it happened once.
impl fmt::Display for Times {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 | 1 => Ok(()),
            times => write!(f, " ({times} times since the last such line)"),
        }
    }
}

impl Repeats {
    /// Counts an occurrence. `Some` if it should be logged.
    pub fn count(&self, cause: &(impl Hash + ?Sized)) -> Option<Times> {
        let mut hasher = DefaultHasher::new();
        cause.hash(&mut hasher);
        let mut key = Some(hasher.finish());
        let now = Instant::now();
        let mut causes = self.causes.lock();
        if !causes.contains_key(&key) && causes.len() >= MAX_CAUSES {
            let mut forgotten = 0;
            causes.retain(|key, cause| {
                let stays = key.is_none() || now - cause.told < LOG_INTERVAL;
                forgotten += if stays { 0 } else { cause.untold };
                stays
            });
            if causes.len() >= MAX_CAUSES {
                key = None;
            }
            if forgotten > 0 {
                let others = causes.entry(None).or_insert(Cause {
                    told: now,
                    untold: 0,
                });
                others.untold += forgotten;
            }
        }
        match causes.get_mut(&key) {
            Some(cause) if now - cause.told < LOG_INTERVAL => {
                cause.untold += 1;
                None
            }
            Some(cause) => {
                cause.told = now;
                Some(Times(std::mem::take(&mut cause.untold) + 1))
            }
            None => {
                let cause = Cause {
                    told: now,
                    untold: 0,
                };
                causes.insert(key, cause);
                Some(Times(1))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_line_per_second_and_cause() {
        let repeats = Repeats::default();
        assert_eq!(repeats.count("a"), Some(Times(1)));
        for _ in 0..1000 {
            assert_eq!(repeats.count("a"), None);
        }
        assert_eq!(repeats.count("b"), Some(Times(1)));
        tokio::time::advance(LOG_INTERVAL).await;
        assert_eq!(repeats.count("a"), Some(Times(1001)));
        assert_eq!(repeats.count("a"), None);
        assert_eq!(
            Times(1001).to_string(),
            " (1001 times since the last such line)"
        );
        assert_eq!(Times(1).to_string(), "");
    }

    #[tokio::test(start_paused = true)]
    async fn many_causes_are_one() {
        let repeats = Repeats::default();
        let lines = |from: u32| {
            let told = (from..from + 1000).filter_map(|n| repeats.count(&n));
            told.map(|Times(times)| times).sum::<u64>()
        };
        assert_eq!(lines(0), 17);
        tokio::time::advance(LOG_INTERVAL).await;
        // The causes of the previous second are forgotten, except the count of those that were not logged.
        assert_eq!(lines(1000), 15 + 984);
        assert!(repeats.causes.lock().len() <= MAX_CAUSES + 1);
    }
}
