//! Starts and ends the servers for callers with header values ([`crate::server::callers`]).

use std::{collections::BTreeSet, sync::Arc};

use http::HeaderMap;
use model::{CallerValues, MAX_HEADER_VALUE_BYTES};

use crate::{
    scope::Scope,
    server::{Server, State, callers::Lease},
    shared::Shared,
};

/// Why a request cannot be accepted, because of one of its headers.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidValue {
    #[error("header `{0}` occurs more than once: send it once")]
    Repeated(String),
    #[error("header `{0}` is longer than {MAX_HEADER_VALUE_BYTES} bytes: send a shorter value")]
    Long(String),
    #[error("header `{0}` contains other characters than visible ASCII and spaces")]
    Characters(String),
}

/// The values of these headers in a request.
///
/// # Errors
/// A value that cannot be passed on.
pub(crate) fn values(
    names: &BTreeSet<String>,
    headers: &HeaderMap,
) -> Result<CallerValues, InvalidValue> {
    let mut values = Vec::new();
    for name in names {
        let mut all = headers.get_all(name.as_str()).iter();
        let Some(value) = all.next() else {
            continue;
        };
        if all.next().is_some() {
            return Err(InvalidValue::Repeated(name.clone()));
        }
        if value.len() > MAX_HEADER_VALUE_BYTES {
            return Err(InvalidValue::Long(name.clone()));
        }
        let is_allowed = |byte: &u8| matches!(byte, b' '..=b'~');
        if !value.as_bytes().iter().all(is_allowed) {
            return Err(InvalidValue::Characters(name.clone()));
        }
        let value = String::from_utf8_lossy(value.as_bytes());
        values.push((name.clone(), value.trim().to_owned()));
    }
    Ok(values.into_iter().collect())
}

/// Ensures that each server of the scope has a server for its header values, as far as there is room. The leases keep
/// them while a request is in progress.
pub(crate) fn enter(shared: &Arc<Shared>, scope: &Scope) -> Vec<Lease> {
    if scope.values.is_empty() {
        return Vec::new();
    }
    let seen = shared.fleet().seen(scope).unwrap_or_default();
    let leases = seen
        .iter()
        .filter_map(|server| enter_one(shared, server, scope));
    leases.collect()
}

/// Like [`enter`], for one declared server.
pub(crate) fn enter_one(
    shared: &Arc<Shared>,
    declared: &Arc<Server>,
    scope: &Scope,
) -> Option<Lease> {
    let values = declared.kept_apart_by(&scope.values)?;
    let limit = declared.spec.max_caller_values_or_default();
    let is_in_use = |values: &CallerValues, server: &Server| {
        server.load() != (0, 0)
            || shared.hub.has_open_stream(|listener| {
                declared.spec.own_values(&listener.scope.values) == *values
            })
    };
    let create = || Arc::new(declared.for_values(&values));
    let entered = declared.callers.enter(&values, limit, is_in_use, create)?;
    if let Some(evicted) = entered.evicted {
        tracing::info!(server = %declared.key(), "the connection for header values that were unused longest makes room (`maxCallerValues` is {limit})");
        part_with(shared, &evicted);
    }
    if let Some(created) = entered.created {
        // Views may still contain an earlier server for these values.
        shared.forget_views_of(created.id());
        shared.spawn(created.drive(shared.clone()));
    }
    Some(entered.lease)
}

/// Ends the servers that cannot be reached with their callers' values, once no caller has needed them for a while.
pub(crate) fn sweep(shared: &Arc<Shared>) {
    let fleet = shared.fleet();
    if fleet.passed_on().is_empty() {
        return;
    }
    let idle = shared.limits().server_idle;
    let is_failing =
        |server: &Server| matches!(server.state(), State::Starting | State::Down { .. });
    for declared in fleet.all() {
        for expired in declared.callers.expire(idle, is_failing) {
            part_with(shared, &expired);
        }
    }
}

fn part_with(shared: &Shared, server: &Server) {
    server.stop();
    shared.forget_views_of(server.id());
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn values_of_a_request() {
        let names = BTreeSet::from(["x-tenant".to_owned(), "x-user".to_owned()]);
        let check = |sent: &[(&'static str, &[u8])], expect: Result<&[(&str, &str)], &str>| {
            let mut headers = HeaderMap::new();
            for (name, value) in sent {
                headers.append(*name, HeaderValue::from_bytes(value).expect("a value"));
            }
            let found = values(&names, &headers).map_err(|error| error.to_string());
            let found = found
                .as_ref()
                .map(|values| values.iter().collect::<Vec<_>>());
            match (found, expect) {
                (Ok(found), Ok(expect)) => assert_eq!(found, expect),
                (Err(found), Err(expect)) => assert!(found.contains(expect), "{found}"),
                (found, expect) => panic!("{found:?}, not {expect:?}"),
            }
        };
        check(&[], Ok(&[]));
        check(&[("x-other", b"a"), ("x-tenant", b"")], Ok(&[]));
        check(&[("x-tenant", b" a b ")], Ok(&[("x-tenant", "a b")]));
        check(
            &[("x-user", b"u"), ("x-tenant", b"t")],
            Ok(&[("x-tenant", "t"), ("x-user", "u")]),
        );
        check(
            &[("x-tenant", b"a"), ("x-tenant", b"a")],
            Err("`x-tenant` occurs more than once"),
        );
        check(&[("x-tenant", b"\xc3\xa9")], Err("`x-tenant` contains"));
        check(&[("x-tenant", b"a\tb")], Err("`x-tenant` contains"));
        let long = vec![b'a'; MAX_HEADER_VALUE_BYTES + 1];
        check(&[("x-tenant", &long)], Err("longer than 8192 bytes"));
        let longest = String::from_utf8_lossy(&long[1..]);
        check(
            &[("x-tenant", &long[1..])],
            Ok(&[("x-tenant", longest.as_ref())]),
        );
    }
}
