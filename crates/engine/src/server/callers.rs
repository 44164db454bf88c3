//! Separate connections of one server for callers with different header values (`"X-Tenant": "${header:X-Tenant}"`).
//!
//! Each combination of values has a [`Server`](super::Server) of its own, derived from the declared one: connection,
//! catalog, pins, queue and state. The declared server serves the callers without a value. The number of combinations is
//! limited. When the limit is reached, the one that has been unused longest makes room. One with a request in progress,
//! or whose callers have a stream open, never does. Deliberately absent: storing anything of them, and starting them
//! ([`crate::life::callers`]).

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use model::{CallerValues, ServerKey, ServerSpec};
use parking_lot::Mutex;
use tokio::time::Instant;

/// Identifies a server, as callers with these header values see it. `values` is empty for the declared server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ServerId {
    pub key: ServerKey,
    pub values: CallerValues,
}

/// The servers of one declared server, by header values.
pub(crate) struct Callers<S> {
    by_values: Mutex<HashMap<CallerValues, Own<S>>>,
}

struct Own<S> {
    server: Arc<S>,
    lease: Lease,
    /// When a request needed it last.
    used_at: Instant,
}

/// Held by each request in progress, so that its server does not make room for another one.
#[derive(Clone, Default)]
pub(crate) struct Lease(Arc<()>);

impl Lease {
    fn is_held(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }
}

/// The outcome of [`Callers::enter`].
pub(crate) struct Entered<S> {
    pub(crate) lease: Lease,
    /// The server, if it is new.
    pub(crate) created: Option<Arc<S>>,
    /// The server that has to make room for it.
    pub(crate) evicted: Option<Arc<S>>,
}

impl<S> Default for Callers<S> {
    fn default() -> Self {
        Self {
            by_values: Mutex::default(),
        }
    }
}

impl<S> Callers<S> {
    /// Takes a lease on the server for these values, which is created if needed. If there are `limit` servers already,
    /// the one that has been unused longest is removed. `None`: all are in use.
    pub(crate) fn enter(
        &self,
        values: &CallerValues,
        limit: usize,
        is_in_use: impl Fn(&CallerValues, &S) -> bool,
        create: impl FnOnce() -> Arc<S>,
    ) -> Option<Entered<S>> {
        let mut all = self.by_values.lock();
        if let Some(own) = all.get_mut(values) {
            own.used_at = Instant::now();
            return Some(Entered {
                lease: own.lease.clone(),
                created: None,
                evicted: None,
            });
        }
        let evicted = match all.len() < limit {
            true => None,
            false => {
                let unused = all.iter().filter(|(values, own)| {
                    !own.lease.is_held() && !is_in_use(values, &own.server)
                });
                let longest = unused.min_by_key(|(_, own)| own.used_at)?.0.clone();
                all.remove(&longest).map(|own| own.server)
            }
        };
        let server = create();
        let lease = Lease::default();
        let own = Own {
            server: server.clone(),
            lease: lease.clone(),
            used_at: Instant::now(),
        };
        all.insert(values.clone(), own);
        Some(Entered {
            lease,
            created: Some(server),
            evicted,
        })
    }

    pub(crate) fn get(&self, values: &CallerValues) -> Option<Arc<S>> {
        let all = self.by_values.lock();
        all.get(values).map(|own| own.server.clone())
    }

    pub(crate) fn all(&self) -> Vec<Arc<S>> {
        let all = self.by_values.lock();
        all.values().map(|own| own.server.clone()).collect()
    }

    /// Removes all servers.
    pub(crate) fn take(&self) -> Vec<Arc<S>> {
        let all = std::mem::take(&mut *self.by_values.lock());
        all.into_values().map(|own| own.server).collect()
    }

    /// Removes the servers that no request has needed for this time and for which `is_failing` returns true.
    pub(crate) fn expire(&self, unused: Duration, is_failing: impl Fn(&S) -> bool) -> Vec<Arc<S>> {
        let mut all = self.by_values.lock();
        let expired = all.extract_if(|_, own| {
            own.used_at.elapsed() >= unused && !own.lease.is_held() && is_failing(&own.server)
        });
        expired.map(|(_, own)| own.server).collect()
    }
}

/// Why a caller without header values cannot be served. `None` if it can.
pub(crate) fn needs(spec: &ServerSpec) -> Option<Arc<str>> {
    let missing = spec.missing_headers(&CallerValues::default());
    let why = || {
        format!(
            "each caller has to send {} over HTTP, because its entry passes that on (`${{header:NAME:-default}}` in the \
             entry sets a default)",
            header_words(&missing)
        )
    };
    (!missing.is_empty()).then(|| why().into())
}

/// The names of headers, for messages.
pub(crate) fn header_words(names: &BTreeSet<&str>) -> String {
    let quoted: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    match quoted.as_slice() {
        [one] => format!("the header {one}"),
        all => format!("the headers {}", all.join(" and ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: usize = 2;

    fn values(tenant: &str) -> CallerValues {
        [("x-tenant".to_owned(), tenant.to_owned())]
            .into_iter()
            .collect()
    }

    /// Takes a lease later than all others were taken. Returns it, and the tenant that had to make room.
    async fn enter(
        all: &Callers<String>,
        tenant: &str,
        in_use: &str,
    ) -> Option<(Lease, Option<String>)> {
        tokio::time::advance(Duration::from_secs(1)).await;
        let create = || Arc::new(tenant.to_owned());
        let entered = all.enter(&values(tenant), LIMIT, |_, one| one == in_use, create)?;
        Some((entered.lease, entered.evicted.map(Arc::unwrap_or_clone)))
    }

    #[tokio::test(start_paused = true)]
    async fn the_values_that_are_unused_longest_make_room() {
        let all = Callers::default();
        for tenant in ["a", "b", "a"] {
            let (_, evicted) = enter(&all, tenant, "").await.unwrap();
            assert_eq!(evicted, None, "{tenant}");
        }
        let (_, evicted) = enter(&all, "c", "").await.unwrap();
        assert_eq!(evicted.as_deref(), Some("b"));
        // A client of `a` has a stream open.
        let (lease, evicted) = enter(&all, "d", "a").await.unwrap();
        assert_eq!(evicted.as_deref(), Some("c"));
        // A request of `d` is in progress.
        assert!(enter(&all, "e", "a").await.is_none());
        drop(lease);
        let (_, evicted) = enter(&all, "e", "a").await.unwrap();
        assert_eq!(evicted.as_deref(), Some("d"));
        assert!(all.get(&values("a")).is_some() && all.get(&values("d")).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn values_that_fail_and_are_unused_expire() {
        let all = Callers::default();
        let (lease, _) = enter(&all, "a", "").await.unwrap();
        let (_, _) = enter(&all, "b", "").await.unwrap();
        let unused = Duration::from_secs(60);
        assert!(all.expire(unused, |_| true).is_empty());
        tokio::time::advance(unused).await;
        assert!(all.expire(unused, |_| false).is_empty());
        let expired = all.expire(unused, |_| true);
        assert_eq!(expired, [Arc::new("b".to_owned())]);
        drop(lease);
        assert_eq!(all.expire(unused, |_| true).len(), 1);
        assert!(all.take().is_empty());
    }
}
