//! Ends a server that keeps on asking for more processes than it may have.
//!
//! The limit of processes holds by itself. But a fork bomb that has reached it goes on forking, failing and ending, which
//! is all work of the kernel's: whatever it is allowed of a processor, its neighbours wait behind it. So it is ended, as
//! the kernel ends what asks for too much memory, and the supervisor's ladder does the rest.
//!
//! It is looked for from time to time: kernels tell of a refused process by themselves in version 2 of control groups
//! only.

use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::task::AbortOnDropHandle;

use super::cgroup::Group;
use super::own_task;

const LOOK: Duration = Duration::from_millis(250);
/// So many processes refused between two looks are no accident: who takes an error for an answer asks once.
const REFUSED: u64 = 25;
/// So many times in a row. Many that meet the limit at the same moment are no bomb, if they leave it at that.
const LOOKS: u32 = 3;

/// Looks at groups until they are gone.
#[derive(Default)]
pub(super) struct Watch(Mutex<State>);

#[derive(Default)]
struct State {
    watched: Vec<Watched>,
    /// Looks as long as there is anybody to look at.
    task: Option<AbortOnDropHandle<()>>,
}

struct Watched {
    group: Weak<Group>,
    /// How many it had been refused at the last look.
    refused: u64,
    /// For how many looks in a row there were too many.
    looks: u32,
}

impl Watch {
    /// # Panics
    ///
    /// Outside of a runtime.
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

    /// Those that are bombs; `None` if there is nobody left.
    fn look(&self) -> Option<Vec<Arc<Group>>> {
        let mut bombs = Vec::new();
        let watched = &mut self.0.lock().watched;
        watched.retain_mut(|one| {
            let Some(group) = one.group.upgrade() else {
                return false;
            };
            let refused = group.refused().unwrap_or(one.refused);
            one.looks = match refused.saturating_sub(one.refused) {
                REFUSED.. => one.looks + 1,
                _ => 0,
            };
            one.refused = refused;
            if one.looks >= LOOKS {
                bombs.push(group);
            }
            true
        });
        (!watched.is_empty()).then_some(bombs)
    }
}

async fn run(watch: Weak<Watch>) {
    let mut looks = interval(LOOK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        looks.tick().await;
        let Some(bombs) = watch.upgrade().and_then(|watch| watch.look()) else {
            return;
        };
        if !bombs.is_empty() {
            let end = move || bombs.iter().for_each(|group| group.end_bomb());
            // What it ends is told by the end of the server.
            let _ = tokio::task::spawn_blocking(end).await;
        }
    }
}
