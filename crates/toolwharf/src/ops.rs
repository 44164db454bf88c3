//! Endpoints for orchestrators and monitoring: `/healthz`, `/readyz`, `/metrics`.

use std::{
    fmt::{Display, Write},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use axum::{Router, http::StatusCode, routing::get};
use catalog::ListKind;
use engine::{
    Fleet, Gateway, Status,
    server::{Server, State},
};
use lifecycle::Phase;

use auth::Keys;
use backend::{backup::schedule::Latest, replica::Replica};
use gateway::HttpGateway;
use store::Backups;

/// Set once the gateway has started.
#[derive(Clone, Default)]
pub(crate) struct Ready(Arc<AtomicBool>);

impl Ready {
    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Routes without authentication. Their responses contain no secrets.
pub(crate) fn router(
    front: Arc<HttpGateway>,
    gateway: Gateway,
    (ready, keys): (Ready, Arc<Keys>),
    replica: Option<Arc<Replica>>,
    backups: Arc<Latest>,
) -> Router {
    Router::new()
        .route("/healthz", get(async || "ok\n"))
        .route(
            "/readyz",
            get(async move || readiness(ready.is_set(), keys.are_stale())),
        )
        .route(
            "/metrics",
            get(async move || {
                let mut out = metrics(&front, &gateway, replica.as_deref()).await;
                if let Some(last) = backups.get() {
                    backup_metrics(&last, &mut out);
                }
                if let Some(tls) = front.tls() {
                    let help = "1 if the changed certificate cannot be used.";
                    let failing = u8::from(tls.failure().is_some());
                    let family = ("certificate_failing", "gauge", help);
                    write(&mut out, family, [(String::new(), failing)]);
                }
                out
            }),
        )
}

/// The readiness status. The gateway is not ready while its copy of the keys is stale, since it then refuses requests
/// with keys.
const fn readiness(is_started: bool, has_stale_keys: bool) -> (StatusCode, &'static str) {
    match (is_started, has_stale_keys) {
        (false, _) => (StatusCode::SERVICE_UNAVAILABLE, "starting\n"),
        (true, true) => (
            StatusCode::SERVICE_UNAVAILABLE,
            "the database is unreachable: keys cannot be checked\n",
        ),
        (true, false) => (StatusCode::OK, "ready\n"),
    }
}

/// The metrics in Prometheus' text format.
async fn metrics(front: &HttpGateway, gateway: &Gateway, replica: Option<&Replica>) -> String {
    let mut out = fleet_metrics(front, gateway);
    if let Some(replica) = replica {
        replica_metrics(replica, &mut out).await;
    }
    out
}

fn fleet_metrics(front: &HttpGateway, gateway: &Gateway) -> String {
    let fleet = gateway.fleet();
    let mut out = String::new();
    let mut family = |name: &str, kind: &str, help: &str, value: &dyn Fn(&Server) -> u64| {
        let values = fleet
            .all()
            .map(|server| (labels(server, ""), value(server)));
        write(&mut out, (name, kind, help), values);
    };
    let count = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
    family(
        "server_up",
        "gauge",
        "1 if the server is connected.",
        &|server| u64::from(matches!(server.state(), State::Ready(_))),
    );
    family(
        "server_needs_login",
        "gauge",
        "1 if the server needs a sign-in.",
        &|server| u64::from(server.status().needs_login),
    );
    family(
        "server_starts_total",
        "counter",
        "Attempts to start or reach the server.",
        &|server| count(&server.stats.starts),
    );
    family(
        "calls_total",
        "counter",
        "Tool calls, without refused ones.",
        &|server| count(&server.stats.calls),
    );
    family(
        "call_errors_total",
        "counter",
        "Tool calls that failed, including those whose tool reported an error.",
        &|server| count(&server.stats.errors),
    );
    family(
        "requests_total",
        "counter",
        "Requests other than tool calls, such as reading a resource.",
        &|server| count(&server.stats.requests),
    );
    family(
        "calls_refused_total",
        "counter",
        "Requests that were refused because the server was busy or unavailable.",
        &|server| count(&server.stats.refused),
    );
    family(
        "calls_in_flight",
        "gauge",
        "Requests that the server is working on.",
        &|server| server.load().0 as u64,
    );
    family(
        "calls_waiting",
        "gauge",
        "Requests in the server's queue.",
        &|server| server.load().1 as u64,
    );
    family(
        "tools",
        "gauge",
        "Tools that the server offers.",
        &|server| server.catalog().list(ListKind::Tools).len() as u64,
    );
    hosted_metrics(&fleet, &mut out);
    let (held, listeners) = gateway.gauges();
    for (name, help, value) in [
        (
            "sessions",
            "Legacy client sessions that are open.",
            front.session_count(),
        ),
        (
            "held_calls",
            "Calls that wait for their client's input.",
            held,
        ),
        (
            "listeners",
            "Clients that are notified of changes.",
            listeners,
        ),
        (
            "unread_bytes",
            "Bytes that wait for clients to read them.",
            front.backlog().bytes(),
        ),
    ] {
        write(&mut out, (name, "gauge", help), [(String::new(), value)]);
    }
    let saved = gateway.saved_tokens().since_start;
    let help = "Tokens that lists in search mode saved, compared with lists of all tools.";
    let family = ("list_tokens_saved_total", "counter", help);
    write(&mut out, family, [(String::new(), saved)]);
    out
}

/// Metrics of a gateway that shares its database with others.
async fn replica_metrics(replica: &Replica, out: &mut String) {
    let (replicas, leases) = replica.counts().await;
    for (name, kind, help, value) in [
        (
            "replicas",
            "gauge",
            "Gateways that share the database.",
            replicas,
        ),
        (
            "leases",
            "gauge",
            "Leases that this replica holds.",
            Some(leases),
        ),
        (
            "replica_losses_total",
            "counter",
            "Number of times this replica lost its membership.",
            Some(replica.losses()),
        ),
    ] {
        if let Some(value) = value {
            write(out, (name, kind, help), [(String::new(), value)]);
        }
    }
}

/// Metrics of scheduled backups, of all gateways on the database.
fn backup_metrics(last: &Backups, out: &mut String) {
    let made = last.succeeded.as_ref().map(|row| row.at.timestamp());
    let failing = i64::from(last.failing().is_some());
    for (name, help, value) in [
        (
            "backup_failing",
            "1 if the last scheduled backup failed.",
            Some(failing),
        ),
        (
            "backup_last_success_timestamp_seconds",
            "When the last scheduled backup succeeded, in seconds since 1970.",
            made,
        ),
    ] {
        if let Some(value) = value {
            write(out, (name, "gauge", help), [(String::new(), value)]);
        }
    }
}

/// Writes a metric with its labels and values.
fn write<V: Display>(
    out: &mut String,
    (name, kind, help): (&str, &str, &str),
    values: impl IntoIterator<Item = (String, V)>,
) {
    let _ = writeln!(
        out,
        "# HELP toolwharf_{name} {help}\n# TYPE toolwharf_{name} {kind}"
    );
    for (labels, value) in values {
        let _ = writeln!(out, "toolwharf_{name}{labels} {value}");
    }
}

/// The labels of a server's metric, with `more` as the last ones.
fn labels(server: &Server, more: &str) -> String {
    let name = server.name().as_str();
    let name = name.replace('\\', "\\\\").replace('"', "\\\"");
    let project = server.key().owner.as_ref();
    let project = project.map_or_else(String::new, |id| format!("project=\"{id}\","));
    format!("{{{project}server=\"{name}\"{more}}}")
}

/// Additional metrics of hosted servers.
fn hosted_metrics(fleet: &Fleet, out: &mut String) {
    type Value = fn(&Status) -> u64;
    let families: [(&str, &str, &str, Value); 3] = [
        (
            "hosted_restarts",
            "gauge",
            "Automatic restarts since the last start by hand or with the gateway.",
            |status| status.restarts,
        ),
        (
            "hosted_warnings_total",
            "counter",
            "Health warnings.",
            |status| status.warnings,
        ),
        (
            "hosted_unresponsive",
            "gauge",
            "1 if the server runs and does not answer heartbeats.",
            |status| u64::from(matches!(status.phase, Phase::Unresponsive)),
        ),
    ];
    for (name, kind, help, value) in families {
        let servers = fleet.registered();
        let values = servers.map(|server| (labels(server, ""), value(&server.status())));
        write(out, (name, kind, help), values);
    }
    let states = fleet.registered().map(|server| {
        let state = server.status().word();
        (labels(server, &format!(",state=\"{state}\"")), 1)
    });
    let help = "1 for the current state of the server.";
    write(out, ("hosted_state", "gauge", help), states);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gateway_is_ready_when_it_has_started_and_can_check_keys() {
        for (is_started, has_stale_keys, status, word) in [
            (false, false, 503, "starting"),
            (false, true, 503, "starting"),
            (true, true, 503, "database"),
            (true, false, 200, "ready"),
        ] {
            let (actual, text) = readiness(is_started, has_stale_keys);
            assert_eq!(actual.as_u16(), status);
            assert!(text.contains(word), "{text}");
        }
    }
}
