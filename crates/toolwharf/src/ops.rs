//! What orchestrators and monitoring ask: `/healthz`, `/readyz`, `/metrics`.

use std::{
    fmt::Write,
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use anyhow::Context;
use axum::{Router, http::StatusCode, routing::get};
use engine::{
    Fleet, Gateway,
    catalog::ListKind,
    server::{Server, State, Status},
    supervisor::Phase,
};
use serde::{Deserialize, Serialize};

use crate::{config::Sources, gateway::Front};

/// The file in the data directory that says where a running gateway is.
const STATE_FILE: &str = "serve.json";

/// Whether the start is over.
#[derive(Clone, Default)]
pub(crate) struct Ready(Arc<AtomicBool>);

impl Ready {
    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Routes that need no token: they say nothing that is secret.
pub(crate) fn router(front: Arc<Front>, gateway: Gateway, ready: Ready) -> Router {
    Router::new()
        .route("/healthz", get(async || "ok\n"))
        .route(
            "/readyz",
            get(async move || {
                if ready.0.load(Ordering::Relaxed) {
                    (StatusCode::OK, "ready\n")
                } else {
                    (StatusCode::SERVICE_UNAVAILABLE, "starting\n")
                }
            }),
        )
        .route("/metrics", get(async move || metrics(&front, &gateway)))
}

/// Prometheus' text format.
fn metrics(front: &Front, gateway: &Gateway) -> String {
    let fleet = gateway.fleet();
    let mut out = String::new();
    let mut family = |name: &str, kind: &str, help: &str, value: &dyn Fn(&Server) -> u64| {
        let _ = writeln!(
            out,
            "# HELP toolwharf_{name} {help}\n# TYPE toolwharf_{name} {kind}"
        );
        for server in fleet.all() {
            let _ = writeln!(
                out,
                "toolwharf_{name}{{{}}} {}",
                labels(server),
                value(server)
            );
        }
    };
    let count = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
    family(
        "server_up",
        "gauge",
        "Whether the server is connected.",
        &|server| u64::from(matches!(server.state(), State::Ready(_))),
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
        "Requests sent to the server.",
        &|server| count(&server.stats.calls),
    );
    family(
        "call_errors_total",
        "counter",
        "Requests that ended in a JSON-RPC error.",
        &|server| count(&server.stats.errors),
    );
    family(
        "calls_refused_total",
        "counter",
        "Requests that were turned away because the server was busy or away.",
        &|server| count(&server.stats.refused),
    );
    family(
        "calls_in_flight",
        "gauge",
        "Requests at the server right now.",
        &|server| server.load().0 as u64,
    );
    family(
        "calls_waiting",
        "gauge",
        "Requests that wait for the server.",
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
        ("listeners", "Clients that are told of changes.", listeners),
        (
            "unread_bytes",
            "Bytes that wait for clients to read them.",
            front.backlog().bytes(),
        ),
    ] {
        let _ = writeln!(
            out,
            "# HELP toolwharf_{name} {help}\n# TYPE toolwharf_{name} gauge\ntoolwharf_{name} {value}"
        );
    }
    out
}

fn labels(server: &Server) -> String {
    let name = server.name().as_str();
    let name = name.replace('\\', "\\\\").replace('"', "\\\"");
    let project = server.key().owner.as_ref();
    let project = project.map_or_else(String::new, |id| format!("project=\"{id}\","));
    format!("{project}server=\"{name}\"")
}

/// What is told of hosted servers besides.
fn hosted_metrics(fleet: &Fleet, out: &mut String) {
    type Value = fn(&Status) -> u64;
    let families: [(&str, &str, &str, Value); 3] = [
        (
            "hosted_restarts",
            "gauge",
            "How often it was started by itself since it was last started by hand or by the product.",
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
            "Whether it runs and does not answer heartbeats.",
            |status| u64::from(matches!(status.phase, Phase::Unresponsive)),
        ),
    ];
    for (name, kind, help, value) in families {
        let _ = writeln!(
            out,
            "# HELP toolwharf_{name} {help}\n# TYPE toolwharf_{name} {kind}"
        );
        for server in &fleet.hosted {
            if let Some(status) = server.hosted_status() {
                let _ = writeln!(
                    out,
                    "toolwharf_{name}{{{}}} {}",
                    labels(server),
                    value(&status)
                );
            }
        }
    }
    let _ = writeln!(
        out,
        "# HELP toolwharf_hosted_state Which state it is in.\n# TYPE toolwharf_hosted_state gauge"
    );
    for server in &fleet.hosted {
        if let Some(status) = server.hosted_status() {
            let state = status.phase.word();
            let _ = writeln!(
                out,
                "toolwharf_hosted_state{{{},state=\"{state}\"}} 1",
                labels(server)
            );
        }
    }
}

/// Removed when the gateway ends.
pub(crate) struct Announced(PathBuf);

impl Drop for Announced {
    fn drop(&mut self) {
        // Another gateway may have started on this data directory since.
        if read(&self.0).is_some_and(|there| there.pid == std::process::id()) {
            let _ = fs::remove_file(&self.0);
        }
    }
}

/// Where a running gateway is, and what it was started with.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Whereabouts {
    pub(crate) url: String,
    pub(crate) pid: u32,
    /// Its configuration files, absolute.
    #[serde(default)]
    pub(crate) config: Vec<PathBuf>,
}

/// Says in the data directory where the gateway is, for the command line.
pub(crate) fn announce(dir: &Path, url: &str, sources: &Sources) -> anyhow::Result<Announced> {
    let path = dir.join(STATE_FILE);
    let whereabouts = Whereabouts {
        url: url.to_owned(),
        pid: std::process::id(),
        config: absolute(sources),
    };
    let text = serde_json::to_string(&whereabouts)? + "\n";
    fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(Announced(path))
}

/// The gateway that runs on this data directory, if one does.
///
/// A file that a killed gateway left behind does not count: its port may be somebody else's by now, who is
/// not to be sent the token.
pub(crate) fn whereabouts(dir: &Path) -> Option<Whereabouts> {
    let path = dir.join(STATE_FILE);
    let found = read(&path)?;
    let uid = |path: &Path| Some(fs::metadata(path).ok()?.uid());
    let process = PathBuf::from(format!("/proc/{}", found.pid));
    // Without /proc the answer on the port has to do.
    let alive = !Path::new("/proc/self").exists() || uid(&process) == uid(&path);
    alive.then_some(found)
}

fn read(path: &Path) -> Option<Whereabouts> {
    serde_json::from_str(&fs::read_to_string(path).ok()?).ok()
}

pub(crate) fn absolute(sources: &Sources) -> Vec<PathBuf> {
    sources
        .files()
        .map(|file| std::path::absolute(file).unwrap_or_else(|_| file.to_owned()))
        .collect()
}
