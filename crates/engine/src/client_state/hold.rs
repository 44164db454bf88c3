//! Calls and runs of code that wait for a modern client's input.
//!
//! A legacy server sends requests to the client during a call. A modern client gets them in a result and answers with a
//! retry. Meanwhile the call is held here under a random handle, which travels as `requestState` (2026-07-28
//! basic/patterns/mrtr). A handle works once, for the same principal and the same request, and expires. If several
//! gateways form one installation, it names the gateway that holds the call.
//!
//! A run of code is held in the same way, with the calls that it makes.

use std::{collections::HashMap, sync::Arc, time::Duration};

use mcp::{RpcError, client::Call};
use model::Limits;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::{
    client_state::code_run::{self, CodeRun},
    server::{
        Server,
        callers::ServerId,
        connection::Connection,
        place::{HOLD_PREFIX, Place},
        questions::Asks,
        queue::Permit,
    },
};

/// One call on hold.
pub(crate) struct Held {
    pub(crate) call: Call,
    pub(crate) connection: Arc<Connection>,
    pub(crate) server: Arc<Server>,
    pub(crate) permit: Permit,
    /// The server requests that are still open.
    pub(crate) asks: Asks,
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

pub(crate) type HeldCalls = Holds<Origin, Held>;
pub(crate) type HeldRuns = Holds<code_run::Origin, CodeRun>;

/// All calls, or all runs, that are on hold. `O` identifies the request that may continue it.
pub(crate) struct Holds<O, T> {
    place: Place,
    table: Mutex<HashMap<String, Entry<O, T>>>,
}

struct Entry<O, T> {
    expires: Instant,
    origin: O,
    held: T,
}

/// Returns whether this gateway issued the `requestState`.
pub(crate) fn is_ours(state: &str) -> bool {
    state.starts_with(HOLD_PREFIX)
}

impl<O: Eq, T> Holds<O, T> {
    pub(crate) fn new(place: Place) -> Self {
        Self {
            place,
            table: Mutex::default(),
        }
    }

    /// Puts something on hold. Returns its `requestState`.
    ///
    /// # Errors
    /// Too many are held. `held` is dropped, which cancels it.
    pub(crate) fn put(&self, origin: O, held: T, limits: &Limits) -> Result<String, RpcError> {
        let mut table = self.table.lock();
        let most = limits.max_held_calls;
        if table.len() >= most {
            // `held` is dropped after the lock is released.
            drop(table);
            return Err(RpcError::internal(format!(
                "{most} calls already wait for input from their clients: try again later, or raise `max_held_calls`"
            )));
        }
        let state = self.place.handle(HOLD_PREFIX);
        let entry = Entry {
            expires: Instant::now() + limits.held_call_ttl,
            origin,
            held,
        };
        table.insert(state.clone(), entry);
        Ok(state)
    }

    /// Takes something off hold.
    ///
    /// # Errors
    /// The state does not belong to this origin.
    pub(crate) fn take(&self, state: &str, origin: &O) -> Result<T, RpcError> {
        let mut table = self.table.lock();
        let is_valid =
            |entry: &Entry<O, T>| entry.expires >= Instant::now() && entry.origin == *origin;
        let taken = match table.get(state).is_some_and(is_valid) {
            true => table.remove(state),
            false => None,
        };
        let unknown = || {
            RpcError::invalid_params(
                "Invalid params: `requestState` is unknown, used up, expired or belongs to another request; call again without it",
            )
        };
        taken.map(|entry| entry.held).ok_or_else(unknown)
    }

    /// Sets the time after which something on hold expires.
    pub(crate) fn extend(&self, state: &str, ttl: Duration) {
        if let Some(entry) = self.table.lock().get_mut(state) {
            entry.expires = Instant::now() + ttl;
        }
    }

    /// Drops something on hold, which cancels it.
    pub(crate) fn cancel(&self, state: &str) {
        let cancelled = self.table.lock().remove(state);
        drop(cancelled);
    }

    /// Removes what has waited too long.
    fn expired(&self) -> Vec<T> {
        let now = Instant::now();
        let mut table = self.table.lock();
        let expired = table.extract_if(|_, entry| entry.expires < now);
        expired.map(|(_, entry)| entry.held).collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.table.lock().len()
    }
}

impl HeldCalls {
    /// Drops calls that have waited too long, which cancels them at their servers.
    pub(crate) fn sweep(&self) {
        for held in self.expired() {
            tracing::info!(server = %held.server.name(), "cancelled a call: the client's input did not arrive within `held_call_ttl`");
        }
    }
}

impl HeldRuns {
    /// Drops runs that have waited too long, which cancels them and their calls.
    pub(crate) fn sweep(&self) {
        for _held in self.expired() {
            tracing::info!(
                "cancelled a run of code: the client's input did not arrive within `held_call_ttl`"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_handle_works_once_for_its_origin_and_expires() {
        let limits = Limits {
            max_held_calls: 2,
            ..Limits::default()
        };
        let ttl = limits.held_call_ttl;
        let holds: Holds<&str, &str> = Holds::new(Place::default());
        let first = holds.put("a", "first", &limits).expect("room");
        let second = holds.put("b", "second", &limits).expect("room");
        let full = holds.put("a", "third", &limits).expect_err("no room");
        assert!(full.message.contains("max_held_calls"), "{}", full.message);
        assert!(is_ours(&first) && first != second);
        for (state, origin) in [(&*first, "b"), ("twh1.", "a"), ("", "a")] {
            assert!(holds.take(state, &origin).is_err(), "{state} {origin}");
        }
        assert_eq!(holds.take(&first, &"a").ok(), Some("first"));
        let used = holds.take(&first, &"a").expect_err("it is used up");
        assert!(used.message.contains("used up"), "{}", used.message);

        advance(ttl / 2).await;
        let third = holds.put("a", "third", &limits).expect("room");
        holds.extend(&third, 2 * ttl);
        advance(ttl).await;
        assert!(holds.take(&second, &"b").is_err());
        assert_eq!(holds.expired(), ["second"]);
        assert_eq!(holds.take(&third, &"a").ok(), Some("third"));
        let last = holds.put("a", "last", &limits).expect("room");
        holds.cancel(&last);
        assert!(holds.take(&last, &"a").is_err());
        assert_eq!(holds.len(), 0);
    }
}
