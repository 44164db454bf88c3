//! The limit on simultaneous runs, and the queue for them.
//!
//! # Invariants
//!
//! - One owner has at most half of the runs, so others need not wait for its runs to end.
//! - A free run goes to the waiting owner with the fewest runs, and among these to the one that has waited longest.
//! - Only owners that run or wait are remembered.
//!
//! Deliberately absent: a deadline. The caller drops the wait.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

/// Cheap to clone; clones share state.
#[derive(Clone)]
pub(crate) struct Turns(Arc<Shared>);

struct Shared {
    max_per_owner: usize,
    state: Mutex<State>,
}

struct State {
    free: usize,
    /// The number of runs of each owner, without zeros.
    running: HashMap<Arc<str>, usize>,
    /// Those that came first are first.
    waiting: VecDeque<Waiting>,
}

struct Waiting {
    owner: Arc<str>,
    turn: oneshot::Sender<Turn>,
}

/// The permission for one run. Ends when it is dropped.
pub(crate) struct Turn {
    turns: Turns,
    owner: Arc<str>,
}

impl Turns {
    /// `max_runs`: at the same time, of all owners.
    pub(crate) fn new(max_runs: usize) -> Self {
        let max_runs = max_runs.max(1);
        let state = State {
            free: max_runs,
            running: HashMap::new(),
            waiting: VecDeque::new(),
        };
        Self(Arc::new(Shared {
            max_per_owner: max_runs.div_ceil(2),
            state: Mutex::new(state),
        }))
    }

    /// Waits for the permission for a run.
    ///
    /// # Cancel safety
    /// Dropping the future gives up the place in the queue.
    pub(crate) async fn take(&self, owner: &Arc<str>) -> Turn {
        loop {
            let (turn, wait) = oneshot::channel();
            let owner = owner.clone();
            self.0
                .state
                .lock()
                .waiting
                .push_back(Waiting { owner, turn });
            self.give();
            // A sender is dropped only after it has sent.
            if let Ok(turn) = wait.await {
                return turn;
            }
        }
    }

    /// Gives free runs to those that wait.
    fn give(&self) {
        loop {
            // The lock is released before the turn is sent: if its receiver is gone, the turn is dropped, which locks again.
            let next = self.0.state.lock().next(self.0.max_per_owner);
            let Some(Waiting { owner, turn }) = next else {
                return;
            };
            let turns = self.clone();
            let _ = turn.send(Turn { turns, owner });
        }
    }
}

impl State {
    /// Removes the next that may run from the queue, and counts its run.
    fn next(&mut self, max_per_owner: usize) -> Option<Waiting> {
        self.waiting.retain(|waiting| !waiting.turn.is_closed());
        if self.free == 0 {
            return None;
        }
        let runs = |owner: &Arc<str>| self.running.get(owner).copied().unwrap_or(0);
        let waiting = self.waiting.iter().enumerate();
        let waiting = waiting.map(|(at, waiting)| (runs(&waiting.owner), at));
        let (runs, at) = waiting.min()?;
        if runs >= max_per_owner {
            return None;
        }
        let next = self.waiting.remove(at)?;
        self.free -= 1;
        *self.running.entry(next.owner.clone()).or_default() += 1;
        Some(next)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut state = self.turns.0.state.lock();
        state.free += 1;
        if let Some(runs) = state.running.get_mut(&self.owner) {
            *runs -= 1;
            if *runs == 0 {
                state.running.remove(&self.owner);
            }
        }
        drop(state);
        self.turns.give();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use futures_util::future::BoxFuture;

    use super::*;

    fn begin<'t>(turns: &'t Turns, owner: &'t Arc<str>) -> (Option<Turn>, BoxFuture<'t, Turn>) {
        let mut wait = turns.take(owner).boxed();
        ((&mut wait).now_or_never(), wait)
    }

    #[test]
    fn one_owner_has_at_most_half_of_the_runs() {
        let turns = Turns::new(4);
        let [a, b]: [Arc<str>; 2] = ["a".into(), "b".into()];
        let of_a: Vec<_> = (0..4).map(|_| begin(&turns, &a)).collect();
        let runs = of_a.iter().filter(|(turn, _)| turn.is_some()).count();
        assert_eq!(runs, 2);
        // Those of `a` that wait are no obstacle.
        assert!(begin(&turns, &b).0.is_some());
    }

    #[test]
    fn a_free_run_goes_to_the_owner_with_the_fewest() {
        let turns = Turns::new(4);
        let [a, b, c, d]: [Arc<str>; 4] = ["a".into(), "b".into(), "c".into(), "d".into()];
        let mut running: Vec<Turn> = Vec::new();
        for owner in [&a, &a, &b, &c] {
            running.extend(begin(&turns, owner).0);
        }
        assert_eq!(running.len(), 4);
        let (none, mut second_of_c) = begin(&turns, &c);
        assert!(none.is_none());
        let (_, mut second_of_b) = begin(&turns, &b);
        let (_, mut of_d) = begin(&turns, &d);
        drop(running.remove(0));
        assert!((&mut second_of_c).now_or_never().is_none());
        let first = (&mut of_d).now_or_never().expect("`d` has no run");
        // Those that are equal take turns in the order in which they came.
        drop(running.remove(0));
        assert!((&mut second_of_b).now_or_never().is_none());
        assert!((&mut second_of_c).now_or_never().is_some());
        assert!((&mut second_of_b).now_or_never().is_some());
        drop(first);
    }

    #[test]
    fn a_run_that_is_given_up_is_free_again() {
        let turns = Turns::new(1);
        let [a, b]: [Arc<str>; 2] = ["a".into(), "b".into()];
        let (running, _) = begin(&turns, &a);
        let (_, given_up) = begin(&turns, &b);
        let (_, mut waits) = begin(&turns, &a);
        drop(given_up);
        drop(running);
        let next = (&mut waits).now_or_never().expect("a free run");
        // A turn that was given but not received is passed on.
        let (_, not_received) = begin(&turns, &b);
        let (_, mut last) = begin(&turns, &a);
        drop(next);
        drop(not_received);
        assert!((&mut last).now_or_never().is_some());
        assert!(turns.0.state.lock().waiting.is_empty());
    }
}
