//! How often something happened that would otherwise fill the log.
//!
//! What others can cause as often as they like (a host that is refused, a call to a server that is down) is logged once per
//! second and cause, with a count. The count of the last second comes with the next line of that cause.

use std::{
    collections::HashMap,
    fmt,
    hash::{DefaultHasher, Hash, Hasher as _},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::Instant;

/// The least time between two lines about one cause.
const PERIOD: Duration = Duration::from_secs(1);
/// Causes that are told apart at a time; all further ones count as one.
const MAX_CAUSES: usize = 16;

/// Counts what happens again and again.
#[derive(Debug, Default)]
pub struct Repeats {
    /// By the hash of the cause; `None` is all that are one too many.
    causes: Mutex<HashMap<Option<u64>, Cause>>,
}

#[derive(Debug)]
struct Cause {
    told: Instant,
    untold: u64,
}

/// How often it happened since the last line about it, this time included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Times(pub u64);

/// What follows the line: nothing if it happened once.
impl fmt::Display for Times {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 | 1 => Ok(()),
            times => write!(f, " ({times} times since the last such line)"),
        }
    }
}

impl Repeats {
    /// Counts one more; `Some` if it is worth a line.
    pub fn count(&self, cause: &(impl Hash + ?Sized)) -> Option<Times> {
        let mut hasher = DefaultHasher::new();
        cause.hash(&mut hasher);
        let mut key = Some(hasher.finish());
        let now = Instant::now();
        let mut causes = self.causes.lock();
        if !causes.contains_key(&key) && causes.len() >= MAX_CAUSES {
            let mut forgotten = 0;
            causes.retain(|key, cause| {
                let stays = key.is_none() || now - cause.told < PERIOD;
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
            Some(cause) if now - cause.told < PERIOD => {
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
        tokio::time::advance(PERIOD).await;
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
        tokio::time::advance(PERIOD).await;
        // Those of the second before are forgotten, save the count of what had no line.
        assert_eq!(lines(1000), 15 + 984);
        assert!(repeats.causes.lock().len() <= MAX_CAUSES + 1);
    }
}
