//! A fork-bomb guard: kills a server that keeps hitting its process limit.
//!
//! The kernel enforces the process limit. But a fork bomb that has reached it keeps forking, failing and exiting. This
//! is kernel work that delays other servers, regardless of the bomb's processor limit. So the guard kills it, as the
//! kernel kills a process that uses too much memory, and the supervisor's restart policy applies.
//!
//! The guard polls, because only version 2 of control groups can report refused processes by itself.

use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::task::AbortOnDropHandle;

use super::cgroup::Group;
use super::own_task;

const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// Number of refused processes between two polls above which a group is suspect. A program that handles the error
/// retries less often.
const SUSPECT_REFUSALS: u64 = 25;
/// Suspect polls in a row before a group is killed. Many processes that hit the limit at the same moment, but only
/// once, are not a fork bomb.
const SUSPECT_POLLS: u32 = 3;

/// Polls groups until they are gone.
#[derive(Default)]
pub(super) struct Watch(Mutex<State>);

#[derive(Default)]
struct State {
    watched: Vec<Watched>,
    /// Runs while there is any group to poll.
    task: Option<AbortOnDropHandle<()>>,
}

struct Watched {
    group: Weak<Group>,
    /// Processes refused as of the last poll.
    refused: u64,
    /// Number of suspect polls in a row.
    looks: u32,
}

impl Watch {
    /// # Panics
    /// Outside an async runtime.
    pub(super) fn add(self: &Arc<Self>, group: &Arc<Group>) {
        let Some(refused) = group.refused() else {
            return;
        };
        let group = Arc::downgrade(group);
        let mut state = self.0.lock();
        state.watched.push(Watched {
            group,
            refused,
            looks: 0,
        });
        if state.watched.len() == 1 {
            state.task = Some(own_task(run(Arc::downgrade(self))));
        }
    }

    /// Returns the groups that are fork bombs, or `None` if no group is left to poll.
    fn look(&self) -> Option<Vec<Arc<Group>>> {
        let mut bombs = Vec::new();
        let watched = &mut self.0.lock().watched;
        watched.retain_mut(|one| {
            let Some(group) = one.group.upgrade() else {
                return false;
            };
            let refused = group.refused().unwrap_or(one.refused);
            one.looks = match refused.saturating_sub(one.refused) {
                SUSPECT_REFUSALS.. => one.looks + 1,
                _ => 0,
            };
            one.refused = refused;
            if one.looks >= SUSPECT_POLLS {
                bombs.push(group);
            }
            true
        });
        (!watched.is_empty()).then_some(bombs)
    }
}

async fn run(watch: Weak<Watch>) {
    let mut looks = interval(POLL_INTERVAL);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        looks.tick().await;
        let Some(bombs) = watch.upgrade().and_then(|watch| watch.look()) else {
            return;
        };
        if !bombs.is_empty() {
            let end = move || bombs.iter().for_each(|group| group.end_bomb());
            // The exit of the server reports the fork bomb, so the result is not needed.
            let _ = tokio::task::spawn_blocking(end).await;
        }
    }
}
