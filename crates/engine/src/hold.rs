//! Calls to legacy servers that wait for a modern client's input.
//!
//! A legacy server asks in mid-call; a modern client is asked by a result and answers with a retry. In between
//! the call is held here, under a random handle that travels as `requestState` (2026-07-28
//! basic/patterns/mrtr). A handle works once, for the same principal and the same request; it expires. Where several
//! gateways are one installation it says which of them has the call.

use std::{collections::HashMap, sync::Arc, time::Duration};

use mcp::client::Call;
use model::ServerKey;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::{
    connection::Connection,
    place::{HOLD, Place},
    questions::Asks,
    queue::Permit,
    server::Server,
};

/// One call on hold.
pub(crate) struct Held {
    pub(crate) call: Call,
    pub(crate) connection: Arc<Connection>,
    pub(crate) server: Arc<Server>,
    pub(crate) permit: Permit,
    /// What the server still waits for.
    pub(crate) asks: Asks,
    pub(crate) origin: Origin,
}

/// Whose call it is, and which.
#[derive(PartialEq, Eq)]
pub(crate) struct Origin {
    pub(crate) principal: Arc<str>,
    pub(crate) server: ServerKey,
    pub(crate) method: String,
    /// The tool, prompt or URI, as the server knows it.
    pub(crate) target: String,
}

/// All calls on hold.
pub(crate) struct Holds {
    place: Place,
    table: Mutex<HashMap<String, (Instant, Held)>>,
}

impl Holds {
    pub(crate) fn new(place: Place) -> Self {
        Self {
            place,
            table: Mutex::default(),
        }
    }

    /// Whether a `requestState` is one of ours.
    pub(crate) fn is_ours(state: &str) -> bool {
        state.starts_with(HOLD)
    }

    /// Puts a call on hold; gives its `requestState`, or the call back if too many are held.
    pub(crate) fn put(&self, held: Held, limit: usize, ttl: Duration) -> Result<String, Box<Held>> {
        let mut table = self.table.lock();
        if table.len() >= limit {
            return Err(Box::new(held));
        }
        let state = self.place.handle(HOLD);
        table.insert(state.clone(), (Instant::now() + ttl, held));
        Ok(state)
    }

    /// Takes a call off hold, if the state is one of its origin's.
    pub(crate) fn take(&self, state: &str, origin: &Origin) -> Option<Held> {
        let mut table = self.table.lock();
        let (expires, held) = table.get(state)?;
        if *expires < Instant::now() || held.origin != *origin {
            return None;
        }
        table.remove(state).map(|(_, held)| held)
    }

    /// Ends what has waited too long: dropping the call cancels it at its server.
    pub(crate) fn sweep(&self) {
        let now = Instant::now();
        let expired: Vec<_> = {
            let mut table = self.table.lock();
            let keys: Vec<String> = table
                .iter()
                .filter(|(_, (expires, _))| *expires < now)
                .map(|(key, _)| key.clone())
                .collect();
            keys.iter().filter_map(|key| table.remove(key)).collect()
        };
        for (_, held) in expired {
            tracing::info!(server = %held.server.name(), "a call that waited for its client's input was given up");
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.table.lock().len()
    }
}
