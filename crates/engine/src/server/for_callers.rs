//! A server's separate servers for callers with header values: which callers each one serves, and how it is made.

use std::{collections::BTreeSet, sync::Arc};

use catalog::Remembered;
use model::{CallerValues, ServerSpec};

use crate::server::{Server, State, callers::header_words, unavailable::Unavailable};

impl Server {
    /// A server for the callers with these header values. It starts at its first use.
    pub(crate) fn for_values(&self, values: &CallerValues) -> Self {
        let spec = ServerSpec {
            lazy: Some(true),
            ..self.spec.filled_for(values)
        };
        Self::of(
            spec,
            Remembered::default(),
            self.queue.max_waiting(),
            self.is_personal,
            self.progress.clone(),
            Some((self, values.clone())),
        )
    }

    /// The spec to connect with. A caller without header values gets the defaults of the entry.
    pub(crate) fn filled_spec(&self) -> &ServerSpec {
        self.with_defaults.as_deref().unwrap_or(&self.spec)
    }

    /// The server for a caller of this declared server, and whether it may be kept. If there is no room for the caller's
    /// header values, the server is a stand-in that refuses calls with that reason, and may not be kept.
    pub(crate) fn of_caller(self: &Arc<Self>, values: &CallerValues) -> (Arc<Self>, bool) {
        match self.kept_apart_by(values) {
            None => (self.clone(), true),
            Some(values) => match self.callers.get(&values) {
                Some(server) => (server, true),
                None => (self.without_room(&values), false),
            },
        }
    }

    /// Stands in for the server of callers with these header values while there is none.
    fn without_room(&self, values: &CallerValues) -> Arc<Self> {
        let server = self.for_values(values);
        let names: BTreeSet<&str> = values.iter().map(|(name, _)| name).collect();
        let reason = format!(
            "its connections for {} other values of {} are all in use (raise `maxCallerValues` or try again)",
            self.spec.max_caller_values_or_default(),
            header_words(&names)
        );
        server.set_state(State::Down {
            reason: reason.into(),
            retry_at: None,
        });
        server.settle();
        Arc::new(server)
    }

    /// The header values by which the callers of this declared server are kept apart, of a caller with `values`. `None`:
    /// this server itself serves the caller.
    pub(crate) fn kept_apart_by(&self, values: &CallerValues) -> Option<CallerValues> {
        if values.is_empty() || matches!(*self.state.borrow(), State::Stopped) {
            return None;
        }
        let own = self.spec.own_values(values);
        let is_served = !own.is_empty()
            && self.spec.unusable.is_none()
            && self.spec.missing_headers(&own).is_empty();
        is_served.then_some(own)
    }

    /// Returns whether this server serves the callers with these header values.
    pub(crate) fn serves(&self, values: &CallerValues) -> bool {
        match self.is_for_callers() {
            true => self.spec.own_values(values) == self.id.values,
            false => self.kept_apart_by(values).is_none(),
        }
    }

    /// Returns whether this is the server of callers with certain header values. Nothing of it is stored.
    pub(crate) fn is_for_callers(&self) -> bool {
        !self.id.values.is_empty()
    }

    /// This server, and those for callers with header values.
    pub(crate) fn with_callers(self: &Arc<Self>) -> impl Iterator<Item = Arc<Self>> + use<> {
        std::iter::once(self.clone()).chain(self.callers.all())
    }

    /// Why the server is not started for a caller without header values, if it is not.
    pub(crate) fn unmet(&self) -> Option<Arc<str>> {
        self.needs.clone().filter(|_| self.is_idle())
    }

    pub(super) fn down(&self, reason: Arc<str>) -> Unavailable {
        Unavailable::Down {
            server: self.name().clone(),
            reason,
            retry_ms: None,
            needs_login: false,
        }
    }
}
