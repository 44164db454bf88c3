//! Whose call something belongs to that a server says without naming one.
//!
//! A question (or a log message) carries no id of the call that it came up in. It is given to a call only if all
//! calls in flight are of one caller: then it reaches the right client, whichever of that client's calls it is.

use std::{
    collections::HashMap,
    hash::{BuildHasher, Hash, RandomState},
    sync::{
        Arc, LazyLock,
        atomic::{AtomicU64, Ordering},
    },
};

use super::slot::Slot;
use crate::{Frame, RpcError};

static HASHER: LazyLock<RandomState> = LazyLock::new(RandomState::new);
static NEXT: AtomicU64 = AtomicU64::new(0);
/// Set in callers that were made of an identity, so that they never equal a unique one.
const OF_IDENTITY: u64 = 1 << 63;

/// On whose behalf a call is made: a session, or a client known by other means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CallerId(u64);

impl CallerId {
    /// A caller that equals no other one.
    #[must_use]
    pub fn unique() -> Self {
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// The caller that this identity stands for, the same whenever it is asked for.
    #[must_use]
    pub fn of(identity: impl Hash) -> Self {
        Self(HASHER.hash_one(identity) | OF_IDENTITY)
    }
}

/// The calls that something could belong to.
pub(super) enum Whose {
    /// No call is in flight.
    Nobodys,
    /// The newest call of the only caller.
    One(Arc<Slot>),
    /// Calls of several callers are in flight.
    Unclear,
}

/// Which of these calls (id, caller, slot) something belongs to. Calls without an caller are our own: nobody is asked on
/// their behalf.
pub(super) fn whose<'a>(
    calls: impl Iterator<Item = (u64, Option<CallerId>, &'a Arc<Slot>)>,
) -> Whose {
    let mut newest: Option<(u64, CallerId, &Arc<Slot>)> = None;
    for (id, caller, slot) in calls {
        let Some(caller) = caller else { continue };
        match newest {
            Some((_, other, _)) if other != caller => return Whose::Unclear,
            Some((newer, _, _)) if newer > id => {}
            _ => newest = Some((id, caller, slot)),
        }
    }
    newest.map_or(Whose::Nobodys, |(_, _, slot)| Whose::One(slot.clone()))
}

/// The newest call of each caller: a log message that could be any of theirs goes to all of them, and to nobody else.
pub(super) fn newest_of_each<'a>(
    calls: impl Iterator<Item = (u64, Option<CallerId>, &'a Arc<Slot>)>,
) -> Vec<Arc<Slot>> {
    let mut newest: HashMap<CallerId, (u64, &Arc<Slot>)> = HashMap::new();
    for (id, caller, slot) in calls {
        let Some(caller) = caller else { continue };
        let known = newest.entry(caller).or_insert((id, slot));
        if known.0 < id {
            *known = (id, slot);
        }
    }
    newest.into_values().map(|(_, slot)| slot.clone()).collect()
}

/// The answer to a question that finds no room among those that wait.
pub(super) fn too_many(question: &Frame) -> Frame {
    let why = "too many messages of the server wait already";
    Frame::error(question.id(), &RpcError::internal(why))
}
