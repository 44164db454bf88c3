//! Telling clients that lists changed: those that did, and once for a burst.
//!
//! Whoever changes something notes how the lists of a scope were; a moment later they are compared with how they are.
//! Invariant: a client that has a list which is not the current one has been told so, or will be within little more than a second; save
//! at the very start, where nobody has a list yet and servers come one after the other: then when they are all there.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::{catalog::ListKind, scope::Scope, view::View};

/// A burst is over when nothing came for so long.
const QUIET: Duration = Duration::from_millis(100);
/// A longer one is told in parts.
const LONGEST_BURST: Duration = Duration::from_secs(1);
/// How often the servers of a scope are checked for having come up.
const LOOK: Duration = Duration::from_millis(250);

/// The list changes that clients have not heard of yet.
#[derive(Default)]
pub(crate) struct Announcer {
    scopes: Mutex<HashMap<Scope, Noted>>,
    noted: Notify,
}

/// How a scope was.
struct Noted {
    /// The last snapshot that a client may know; `None`: nobody can tell.
    before: Option<Arc<View>>,
    /// The lists that may have changed since.
    kinds: [bool; 4],
    /// Whether it was too early to tell.
    deferred: bool,
}

impl Announcer {
    /// Notes that these lists of a scope may change; `before` is its snapshot up to now.
    pub(crate) fn note(&self, scope: &Scope, before: Option<Arc<View>>, kinds: &[ListKind]) {
        self.merge(scope, Noted::new(before, kinds));
        self.noted.notify_one();
    }

    fn merge(&self, scope: &Scope, new: Noted) {
        match self.scopes.lock().entry(scope.clone()) {
            Entry::Vacant(none) => {
                none.insert(new);
            }
            Entry::Occupied(mut known) => {
                let known = known.get_mut();
                known.deferred |= new.deferred;
                for (kind, new) in known.kinds.iter_mut().zip(new.kinds) {
                    *kind |= new;
                }
                // What a client has counts, not what was in between.
                let unknown = known.before.as_ref().is_some_and(|view| !view.is_known());
                if unknown && new.before.as_ref().is_some_and(|view| view.is_known()) {
                    known.before = new.before;
                }
            }
        }
    }
}

impl Noted {
    fn new(before: Option<Arc<View>>, kinds: &[ListKind]) -> Self {
        let mut noted = Self {
            before,
            kinds: [false; 4],
            deferred: false,
        };
        for kind in kinds {
            noted.kinds[*kind as usize] = true;
        }
        noted
    }

    /// The lists that are not what they were; `None`: it is too early to tell.
    fn changed(&self, now: Option<&View>) -> Option<Vec<ListKind>> {
        let mut changed = Vec::new();
        for kind in ListKind::ALL {
            let differs = match (&self.before, now) {
                (None, _) => true,
                (Some(before), None) => before.len(kind) > 0,
                (Some(before), Some(now)) => {
                    if now.is_starting() && !before.is_known() {
                        return None;
                    }
                    // Lists wait for the start, too: whoever has one has this one.
                    let is_had = self.deferred && now.knows(kind) && !before.knows(kind);
                    !is_had && !before.has_same(now, kind)
                }
            };
            if differs && self.kinds[kind as usize] {
                changed.push(kind);
            } else if let (Some(before), Some(now)) = (&self.before, now) {
                now.inherit(before, kind);
            }
        }
        Some(changed)
    }
}

impl Announcer {
    /// Tells of changes until the product stops: `view` gives the snapshot that a scope has now, `tell` tells who listens there.
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
            while begin.elapsed() < LONGEST_BURST {
                if tokio::time::timeout(QUIET, self.noted.notified())
                    .await
                    .is_err()
                {
                    break;
                }
            }
            while !self.announce(&view, &tell) {
                let waited = over.run_until_cancelled(tokio::time::sleep(LOOK)).await;
                if waited.is_none() {
                    return;
                }
            }
        }
    }

    /// Tells what is noted; `false` if it is too early for some of it.
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
