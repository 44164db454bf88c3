//! Counts the recent ends of a server, and determines how long to wait before each restart.

use std::time::Duration;

use tokio::time::Instant;

use super::Rules;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ladder {
    /// Recent ends, within [`Rules::RESTART_WINDOW`], that were followed by an immediate restart. At most `free.most`.
    ends: Vec<Instant>,
    /// Index of the current wait.
    rung: Option<usize>,
    /// The last wait, including jitter.
    waited: Duration,
    seed: u64,
}

impl Ladder {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            ends: Vec::new(),
            rung: None,
            waited: Duration::ZERO,
            seed,
        }
    }

    pub(super) fn leave(&mut self) {
        self.ends.clear();
        self.rung = None;
    }

    /// Counts an end. Returns the index of the wait before the next start, or `None` for an immediate restart.
    pub(super) fn climb(
        &mut self,
        rules: &Rules,
        now: Instant,
        held: Duration,
        earned: bool,
    ) -> Option<usize> {
        self.ends.retain(|end| now - *end <= Rules::RESTART_WINDOW);
        if let Some(rung) = self.rung {
            let forgiven = rules.free.earned.forgives() && earned && held > self.waited;
            if !forgiven {
                self.rung = Some((rung + 1).min(rules.waits.len() - 1));
                return self.rung;
            }
            self.rung = None;
        }
        if earned && self.ends.len() < rules.free.most {
            self.ends.push(now);
            return None;
        }
        self.rung = Some(0);
        self.rung
    }

    /// The wait at an index of [`Rules::waits`], with jitter.
    pub(super) fn wait(&mut self, rules: &Rules, rung: usize) -> Duration {
        let whole = rules.waits[rung];
        self.waited = match rules.jitter {
            true => whole.mul_f64(0.5 + self.random() / 2.0),
            false => whole,
        };
        self.waited
    }

    /// Recent ends that were followed by an immediate restart.
    pub(super) fn ends(&self) -> usize {
        self.ends.len()
    }

    pub(super) fn rung(&self) -> Option<usize> {
        self.rung
    }

    /// Creates a ladder with this number of ends at this time.
    #[cfg(test)]
    pub(super) fn fallen(ends: usize, at: Instant) -> Self {
        Self {
            ends: vec![at; ends],
            ..Self::new(7)
        }
    }

    /// Creates a ladder that waits at `rung`.
    #[cfg(test)]
    pub(super) fn on(rules: &Rules, rung: usize) -> Self {
        Self {
            rung: Some(rung),
            waited: rules.waits[rung],
            ..Self::new(7)
        }
    }

    pub(super) fn is_rung(&self) -> bool {
        self.rung.is_some()
    }

    /// A number from 0 to 1, from splitmix64. The seed is part of the state, so that the state determines all later
    /// decisions.
    fn random(&mut self) -> f64 {
        self.seed = self.seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.seed;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        // The significand of an `f64` has 53 bits.
        (mixed >> 11) as f64 / (1u64 << 53) as f64
    }
}
