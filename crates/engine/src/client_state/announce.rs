//! Notifies clients of changed lists, once per burst of changes, and only if a list changed. Exception: clients that see
//! a single server get its own notifications even if the list is the same.
//!
//! A task that changes something notes the previous lists of the scope. A moment later, they are compared with the
//! current ones. Invariant: a client with an outdated list has been notified, or will be within little more than a
//! second. Exception: during the first start, when no client has a list yet and servers come up one after the other,
//! clients are notified once all servers are up.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::Arc,
    time::Duration,
};

use catalog::ListKind;
use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::{scope::Scope, views::view::View};

/// A burst ends after this time without a change.
const QUIET_PERIOD: Duration = Duration::from_millis(100);
/// A longer burst is announced in parts.
const MAX_BURST: Duration = Duration::from_secs(1);
/// Interval between checks whether the servers of a scope have come up.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// List changes that clients have not been notified of.
#[derive(Default)]
pub(crate) struct Announcer {
    scopes: Mutex<HashMap<Scope, Noted>>,
    noted: Notify,
}

/// The previous state of a scope.
struct Noted {
    /// For each list, the last snapshot whose list a client may have, or the first one if no client has any. `None`:
    /// unknown.
    before: [Option<Arc<View>>; 4],
    /// Lists that may have changed since.
    kinds: [bool; 4],
    /// Lists that are announced even if they are the same.
    reported: [bool; 4],
    /// True if an announcement was postponed because servers were still starting.
    deferred: bool,
}

impl Announcer {
    /// Notes that these lists of a scope may change. `before` is the snapshot before the change.
    pub(crate) fn note(&self, scope: &Scope, before: Option<Arc<View>>, kinds: &[ListKind]) {
        self.merge(scope, Noted::new(before, kinds));
        self.noted.notify_one();
    }

    /// Notes that the only server of a scope has reported these lists as changed.
    pub(crate) fn note_reported(&self, scope: &Scope, kinds: &[ListKind]) {
        let noted = Noted::new(None, kinds);
        let reported = noted.kinds;
        self.merge(scope, Noted { reported, ..noted });
        self.noted.notify_one();
    }

    fn merge(&self, scope: &Scope, new: Noted) {
        match self.scopes.lock().entry(scope.clone()) {
            Entry::Vacant(none) => {
                none.insert(new);
            }
            Entry::Occupied(mut known) => {
                known.get_mut().merge(new);
            }
        }
    }
}

impl Noted {
    fn new(before: Option<Arc<View>>, kinds: &[ListKind]) -> Self {
        let mut noted = Self {
            before: [(); 4].map(|()| before.clone()),
            kinds: [false; 4],
            reported: [false; 4],
            deferred: false,
        };
        for kind in kinds {
            noted.kinds[*kind as usize] = true;
        }
        noted
    }

    fn merge(&mut self, new: Self) {
        self.deferred |= new.deferred;
        for (kind, other) in ListKind::ALL.into_iter().zip(new.before) {
            let at = kind as usize;
            self.kinds[at] |= new.kinds[at];
            self.reported[at] |= new.reported[at];
            let (Some(before), Some(other)) = (&self.before[at], other) else {
                continue;
            };
            if !other.knows(kind) {
                continue;
            }
            if before.knows(kind) {
                // Clients have different lists, so some have an outdated one, even if the list is that of `before` again.
                self.reported[at] |= !before.has_same(&other, kind);
            } else {
                // Compare with what clients have, not with intermediate states.
                self.before[at] = Some(other);
            }
        }
    }

    /// The lists that have changed. `None`: unknown, because servers are still starting.
    fn changed(&self, now: Option<&View>) -> Option<Vec<ListKind>> {
        let mut before = self.before.iter().flatten();
        let is_first = self.before[0].is_some() && !before.any(|before| before.is_known());
        if is_first && now.is_some_and(View::is_starting) {
            return None;
        }
        let mut changed = Vec::new();
        for (kind, before) in ListKind::ALL.into_iter().zip(&self.before) {
            let differs = match (before, now) {
                (None, _) => true,
                (Some(before), None) => before.len(kind) > 0,
                (Some(before), Some(now)) => {
                    // List requests also wait for the start, so a client that has this list has the current version.
                    let has_current = self.deferred && now.knows(kind) && !before.knows(kind);
                    !has_current && !before.has_same(now, kind)
                }
            };
            let at = kind as usize;
            if self.reported[at] || differs && self.kinds[at] {
                changed.push(kind);
            } else if let (Some(before), Some(now)) = (before, now) {
                now.inherit(before, kind);
            }
        }
        Some(changed)
    }
}

impl Announcer {
    /// Announces changes until the gateway stops. `view` returns the current snapshot of a scope, `tell` notifies its
    /// listeners.
    pub(crate) async fn run(
        &self,
        over: CancellationToken,
        view: impl Fn(&Scope) -> Option<Arc<View>>,
        tell: impl Fn(&Scope, &[ListKind]),
    ) {
        while over
            .run_until_cancelled(self.noted.notified())
            .await
            .is_some()
        {
            let begin = Instant::now();
            while begin.elapsed() < MAX_BURST {
                if tokio::time::timeout(QUIET_PERIOD, self.noted.notified())
                    .await
                    .is_err()
                {
                    break;
                }
            }
            while !self.announce(&view, &tell) {
                let waited = over
                    .run_until_cancelled(tokio::time::sleep(POLL_INTERVAL))
                    .await;
                if waited.is_none() {
                    return;
                }
            }
        }
    }

    /// Announces the noted changes. Returns `false` if some have to wait because servers are still starting.
    fn announce(
        &self,
        view: impl Fn(&Scope) -> Option<Arc<View>>,
        tell: impl Fn(&Scope, &[ListKind]),
    ) -> bool {
        let noted = std::mem::take(&mut *self.scopes.lock());
        let mut all = true;
        for (scope, mut noted) in noted {
            let now = view(&scope);
            match noted.changed(now.as_deref()) {
                Some(kinds) if kinds.is_empty() => {}
                Some(kinds) => tell(&scope, &kinds),
                None => {
                    all = false;
                    noted.deferred = true;
                    self.merge(&scope, noted);
                }
            }
        }
        all
    }
}

#[cfg(test)]
mod tests;
