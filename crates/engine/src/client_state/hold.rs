//! Calls to legacy servers that wait for a modern client's input.
//!
//! A legacy server sends requests to the client during a call. A modern client gets them in a result and answers with a
//! retry. Meanwhile the call is held here under a random handle, which travels as `requestState` (2026-07-28
//! basic/patterns/mrtr). A handle works once, for the same principal and the same request, and expires. If several
//! gateways form one installation, it names the gateway that holds the call.

use std::{collections::HashMap, sync::Arc, time::Duration};

use mcp::client::Call;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::server::{
    Server,
    callers::ServerId,
    connection::Connection,
    place::{HOLD_PREFIX, Place},
    questions::Asks,
    queue::Permit,
};

/// One call on hold.
pub(crate) struct Held {
    pub(crate) call: Call,
    pub(crate) connection: Arc<Connection>,
    pub(crate) server: Arc<Server>,
    pub(crate) permit: Permit,
    /// The server requests that are still open.
    pub(crate) asks: Asks,
    pub(crate) origin: Origin,
}

/// Identifies the caller and the request.
#[derive(PartialEq, Eq)]
pub(crate) struct Origin {
    pub(crate) principal: Arc<str>,
    pub(crate) server: ServerId,
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

    /// Returns whether this gateway issued the `requestState`.
    pub(crate) fn is_ours(state: &str) -> bool {
        state.starts_with(HOLD_PREFIX)
    }

    /// Puts a call on hold. Returns its `requestState`, or the call if too many are held.
    pub(crate) fn put(&self, held: Held, limit: usize, ttl: Duration) -> Result<String, Box<Held>> {
        let mut table = self.table.lock();
        if table.len() >= limit {
            return Err(Box::new(held));
        }
        let state = self.place.handle(HOLD_PREFIX);
        table.insert(state.clone(), (Instant::now() + ttl, held));
        Ok(state)
    }

    /// Takes a call off hold, if the state belongs to this origin.
    pub(crate) fn take(&self, state: &str, origin: &Origin) -> Option<Held> {
        let mut table = self.table.lock();
        let (expires, held) = table.get(state)?;
        if *expires < Instant::now() || held.origin != *origin {
            return None;
        }
        table.remove(state).map(|(_, held)| held)
    }

    /// Drops calls that have waited too long, which cancels them at their servers.
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
            tracing::info!(server = %held.server.name(), "cancelled a call: the client's input did not arrive within `held_call_ttl`");
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.table.lock().len()
    }
}
