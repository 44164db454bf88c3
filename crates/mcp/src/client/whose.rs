//! Assigns messages without a call id to calls.
//!
//! A server request or log message does not name the call that it belongs to. It is assigned only if all calls in
//! flight have the same caller: then the client is right, even if the call is not known.

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
static NEXT_ID: AtomicU64 = AtomicU64::new(0);
/// The bit set in ids made from an identity, so that they never equal a unique id.
const IDENTITY_BIT: u64 = 1 << 63;

/// The party that a call is made for: a session, or a client known by other means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CallerId(u64);

impl CallerId {
    /// An id that equals no other.
    #[must_use]
    pub fn unique() -> Self {
        Self(NEXT_ID.fetch_add(1, Ordering::Relaxed))
    }

    /// The id for an identity. Equal identities give equal ids.
    #[must_use]
    pub fn of(identity: impl Hash) -> Self {
        Self(HASHER.hash_one(identity) | IDENTITY_BIT)
    }
}

/// The calls that a message could belong to.
pub(super) enum Whose {
    /// No call is in flight.
    Nobodys,
    /// The newest call of the only caller.
    One(Arc<Slot>),
    /// Calls of several callers are in flight.
    Unclear,
}

/// Assigns a message to one of these calls (id, caller, slot). Calls without a caller are the gateway's own, which no
/// client could answer for.
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

/// The newest call of each caller. A log message that could belong to any of them goes to all of them, but not to other
/// clients.
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

/// The response to a server request that does not fit into the queue.
pub(super) fn too_many(question: &Frame) -> Frame {
    let why = "too many messages from the server are already waiting";
    Frame::error(question.id(), &RpcError::internal(why))
}
