//! How often a server fell lately, and how long it waits for that.

use std::time::Duration;

use tokio::time::Instant;

use super::Rules;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ladder {
    /// Ends within the window that were followed by a start at once; not more than are free.
    ends: Vec<Instant>,
    /// An index of the waits.
    rung: Option<usize>,
    /// The wait of that rung, as it was.
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

    /// What was before counts no more.
    pub(super) fn leave(&mut self) {
        self.ends.clear();
        self.rung = None;
    }

    /// Counts an end; the rung to wait on, `None` if it is not to wait at all.
    pub(super) fn climb(
        &mut self,
        rules: &Rules,
        now: Instant,
        held: Duration,
        earned: bool,
    ) -> Option<usize> {
        self.ends.retain(|end| now - *end <= Rules::WINDOW);
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

    /// How long to wait on a rung.
    pub(super) fn wait(&mut self, rules: &Rules, rung: usize) -> Duration {
        let whole = rules.waits[rung];
        self.waited = match rules.jitter {
            true => whole.mul_f64(0.5 + self.random() / 2.0),
            false => whole,
        };
        self.waited
    }

    /// Ends lately that were followed by a start at once.
    pub(super) fn ends(&self) -> usize {
        self.ends.len()
    }

    #[cfg(test)]
    pub(super) fn rung(&self) -> Option<usize> {
        self.rung
    }

    /// One that fell so often then.
    #[cfg(test)]
    pub(super) fn fallen(ends: usize, at: Instant) -> Self {
        Self {
            ends: vec![at; ends],
            ..Self::new(7)
        }
    }

    /// One that waits.
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

    /// 0 to 1: splitmix64, so that a state says all there is to its future.
    fn random(&mut self) -> f64 {
        self.seed = self.seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.seed;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        // Of the 64 bits, the 53 that a double holds.
        (mixed >> 11) as f64 / (1u64 << 53) as f64
    }
}
