//! The API representation of a server: its declaration and state.
//!
//! Invariant: the response contains no secret of an entry. Entries are masked ([`backend::entries`]).

use std::{
    collections::BTreeSet,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use api::{Crash, Enforced, Limits, Port, Usage};
use catalog::ListKind;
use config::check_project;
use engine::{
    Fleet, Load, Placement, Status,
    server::{Server, State},
};
use lifecycle::Phase;
use model::{Launch, NativeName, Network, Origin, Program, Reach, Sandbox, ServerSpec, ToolChoice};
use serde_json::json;
use tokio::time::Instant;

use super::{Source, Target};
use crate::Rest;
use auth::{Principal, Role};
use backend::{
    entries::{masked, masked_url},
    projects::{REGISTERED_BY, entry},
};

/// Maximum length of a reason, in characters. It may quote a server's output.
const MAX_REASON_CHARS: usize = 800;

/// Time limit for reading an instance's resource usage.
const USAGE_TIMEOUT: Duration = Duration::from_secs(2);

impl Rest {
    /// Returns the API representation of a server.
    pub(crate) async fn to_api(&self, who: &Principal, target: &Target) -> api::Server {
        let fleet = self.gateway.fleet();
        let live = target.live(&fleet);
        let mut told = match (&live, &target.home) {
            (Some(server), _) => running(server, &fleet),
            (None, Source::Project(row)) => {
                match check_project(&row.project_id, &row.name, &entry(row), &Default::default()) {
                    Ok(mut spec) => {
                        // The secrets of the project are not loaded here.
                        spec.unset.clear();
                        spec.enabled = row.enabled;
                        declared(&spec)
                    }
                    Err(unfit) => unusable(row.transport.as_str(), Some(unfit.problems.join("; "))),
                }
            }
            (None, Source::File | Source::Registered(_)) => unusable("", None),
        };
        told.id = target.id();
        told.name = target.key.name.to_string();
        told.project = target.key.owner.as_ref().map(ToString::to_string);
        match &target.home {
            Source::File => "file".clone_into(&mut told.declared),
            Source::Project(row) => {
                "project".clone_into(&mut told.declared);
                told.enabled = row.enabled;
                told.registered_by = row.config[REGISTERED_BY].as_str().map(str::to_owned);
                let may_change = who.may(Role::Manage, Some(&row.project_id));
                told.config = may_change.then(|| masked(&super::given(row)));
                told.description.clone_from(&row.description);
                told.created_at = Some(row.created_at);
                told.updated_at = Some(row.updated_at);
            }
            Source::Registered(row) => {
                "registered".clone_into(&mut told.declared);
                told.container_type = Some("mcp_server".to_owned());
                let description = row.config["description"].as_str();
                description
                    .unwrap_or_default()
                    .clone_into(&mut told.description);
                told.created_at = Some(row.created_at);
                told.updated_at = Some(row.updated_at);
                let runs_here =
                    |server: &Arc<Server>| server.spec.enabled && !server.is_elsewhere();
                if !live.as_ref().is_some_and(runs_here) {
                    told.state.clone_from(&row.status);
                }
            }
        }
        told.bodies_recorded_until = self.gateway.recording(&target.key);
        if let Some(server) = live {
            let usage = tokio::time::timeout(USAGE_TIMEOUT, server.usage()).await;
            told.usage = usage.ok().flatten().map(used);
        }
        told
    }
}

fn unusable(transport: &str, reason: Option<String>) -> api::Server {
    api::Server {
        transport: transport.to_owned(),
        status: "unusable".to_owned(),
        state: "blocked".to_owned(),
        reason,
        ..api::Server::default()
    }
}

/// Returns the API representation of a configured server while no gateway runs.
pub fn configured(spec: &ServerSpec) -> api::Server {
    let mut told = declared(spec);
    if spec.enabled {
        let status = match &spec.unusable {
            Some(_) => "blocked",
            None => "not running",
        };
        status.clone_into(&mut told.status);
    }
    told.reason.clone_from(&spec.unusable);
    (told.id, told.declared) = (spec.id(), "file".to_owned());
    told
}

/// Returns the declaration of a server that has not been used yet.
fn declared(spec: &ServerSpec) -> api::Server {
    let mut told = api::Server {
        name: spec.name.to_string(),
        enabled: spec.enabled,
        transport: spec.origin.transport().to_owned(),
        target: masked_url(&spec.target()),
        restart_policy: spec.restart.map(|policy| policy.to_string()),
        max_concurrency: spec.max_concurrency_or_default(),
        call_timeout_ms: ms(spec.call_timeout),
        start_timeout_ms: ms(spec.start_timeout),
        sharing: spec.sharing.to_string(),
        projects: spec.projects.iter().map(ToString::to_string).collect(),
        label: spec.label.clone(),
        unset: spec.unset.iter().cloned().collect(),
        status: if spec.enabled { "idle" } else { "disabled" }.to_owned(),
        state: lifecycle::REGISTERED.to_owned(),
        ..api::Server::default()
    };
    chosen(&mut told, &spec.tools);
    match &spec.origin {
        Origin::Remote(remote) => {
            let names = remote.headers.keys().chain(remote.caller_headers.keys());
            told.headers = names.cloned().collect();
        }
        Origin::Launch(launch) => launched(&mut told, spec, launch),
    }
    told
}

fn chosen(told: &mut api::Server, choice: &ToolChoice) {
    let words = |tools: &BTreeSet<NativeName>| tools.iter().map(ToString::to_string).collect();
    told.enabled_tools = choice.enabled.as_ref().map(words);
    told.disabled_tools = words(&choice.disabled);
}

fn launched(told: &mut api::Server, spec: &ServerSpec, launch: &Launch) {
    match &launch.program {
        Program::Image { .. } => told.image = Some(told.target.clone()),
        Program::Command { program, .. } => {
            told.command = Some(masked_url(&spec.redact(program)));
        }
    }
    told.arguments = launch.program.args().len();
    told.environment = launch.env.keys().cloned().collect();
    told.stdio_bridge = launch.reach == Reach::Streams;
    if let Some(sandbox) = launch.sandbox() {
        confined(told, sandbox);
    }
}

fn confined(told: &mut api::Server, sandbox: &Sandbox) {
    let provider = sandbox.provider.map(|provider| provider.to_string());
    told.sandbox = Some(provider.unwrap_or_else(|| "any".to_owned()));
    let limits = &sandbox.limits;
    told.resource_limits = Some(Limits {
        cpu: f64::from(limits.cpu_millis) / 1000.0,
        memory: limits.memory,
        disk: limits.disk,
        pids: limits.pids,
    });
    told.volumes.clone_from(&sandbox.volumes);
    told.network = match &sandbox.network {
        Network::None => "none".into(),
        Network::Open => "open".into(),
        Network::Allow(hosts) => json!({ "allow": hosts }),
    };
    let unreached = |port: &model::Port| Port {
        port: port.inside,
        address: None,
        notice: None,
    };
    told.ports = sandbox.ports.iter().map(unreached).collect();
}

/// Returns the declaration and the state of a server that the gateway runs.
fn running(server: &Server, fleet: &Fleet) -> api::Server {
    let mut told = declared(&server.spec);
    let status = server.status();
    status.saved.clone_into(&mut told.state);
    if server.spec.enabled {
        status.word().clone_into(&mut told.status);
    }
    // A start attempt may take minutes. While it runs, the reason of the previous failure or crash is shown.
    let up = match status.phase {
        Phase::Running { .. } => true,
        Phase::Starting { .. } => status.failures == 0 && status.restarts == 0,
        _ => false,
    };
    let slow = slow_start(&server.spec, &status);
    let before = status.reason.as_deref().filter(|_| !up);
    let slow = slow.map(|slow| match before {
        Some(reason) => format!("{reason}; {slow}"),
        None => slow,
    });
    let reason = match (&server.spec.unusable, &status.phase) {
        (Some(why), _) => Some(why.as_str()),
        (None, Phase::Unresponsive) => Some("the server does not answer heartbeats"),
        (None, Phase::Stopped) => None,
        _ if slow.is_some() => slow.as_deref(),
        _ if up => None,
        _ => status.reason.as_deref(),
    };
    told.reason = reason.map(|reason| reason.chars().take(MAX_REASON_CHARS).collect());
    let wait = |at: Instant| ms(at.saturating_duration_since(Instant::now()));
    told.next_attempt_ms = status.next_attempt.map(wait);
    if let State::Ready(connection) = server.state() {
        told.pid = connection.handle.as_ref().and_then(|handle| handle.pid());
    }
    let since = status.ready_at.map(|at| at.elapsed().unwrap_or_default());
    told.uptime_seconds = since.map(|since| since.as_secs());
    told.restart_count = status.restarts;
    told.warnings = status.warnings;
    told.last_crash = status.last_crash.map(|crash| Crash {
        at: crash.at.into(),
        cause: crash.cause,
        exit_code: crash.exit.and_then(|exit| exit.code),
        signal: crash.exit.and_then(|exit| exit.signal),
        out_of_memory: crash.exit.is_some_and(|exit| exit.out_of_memory),
        fork_bomb: crash.exit.is_some_and(|exit| exit.fork_bomb),
        stderr: crash.stderr,
    });
    if let Some(placement) = &status.placement {
        placed(&mut told, placement, up);
    }
    let catalog = server.catalog();
    if let Some(info) = &catalog.info {
        let era = match info.era {
            mcp::Era::Legacy => "legacy",
            mcp::Era::Modern => "modern",
        };
        told.era = Some(era.to_owned());
        told.protocol_version = Some(info.version.to_string());
    }
    told.tools = catalog.list(ListKind::Tools).len();
    told.kept_back = fleet.awaiting_approval(server);
    told.problems = server.problems();
    told.remarks = server.remarks();
    chosen(&mut told, &server.tool_choice());
    told.one_session_at_a_time = server.takes_turns();
    (told.in_flight, told.waiting) = server.load();
    told.calls = server.stats.calls.load(Ordering::Relaxed);
    told.errors = server.stats.errors.load(Ordering::Relaxed);
    told.requests = server.stats.requests.load(Ordering::Relaxed);
    told.refused = server.stats.refused.load(Ordering::Relaxed);
    told.starts = server.stats.starts.load(Ordering::Relaxed);
    if told.calls > 0 {
        told.error_rate = told.errors as f64 / told.calls as f64;
    }
    told
}

/// Explains a start that has taken longer than its timeout.
fn slow_start(spec: &ServerSpec, status: &Status) -> Option<String> {
    let taken = status.since.elapsed().unwrap_or_default();
    let is_starting = matches!(status.phase, Phase::Starting { .. });
    let is_slow =
        is_starting && matches!(spec.origin, Origin::Launch(_)) && taken > spec.start_timeout;
    is_slow.then(|| {
        format!(
            "it has been starting for {} s: it gets up to {} s while it writes to its stderr (`startTimeoutMs` is {})",
            taken.as_secs(),
            spec.longest_start().as_secs(),
            ms(spec.start_timeout)
        )
    })
}

/// Adds where the instance runs or last ran.
fn placed(told: &mut api::Server, placement: &Placement, up: bool) {
    told.provider = Some(placement.provider.to_string());
    told.sandbox.clone_from(&told.provider);
    told.provider_reason = Some(placement.why.to_string());
    told.enforced = placement.enforced.iter().map(promise).collect();
    if let Some(files) = &placement.files {
        told.files = files.visible.iter().map(visible).collect();
        let missing = files.missing.iter();
        told.files_missing = missing.map(|path| path.display().to_string()).collect();
    }
    for port in &mut told.ports {
        let reached = placement
            .ports
            .iter()
            .find(|(known, _)| *known == port.port);
        port.address = reached.filter(|_| up).map(|(_, at)| at.to_string());
        port.notice = reached.and_then(|(_, at)| runtime::port_notice(*at).map(str::to_owned));
    }
}

pub(crate) fn promise(one: &runtime::Enforced) -> Enforced {
    Enforced {
        what: one.what.to_owned(),
        holds: one.holds,
        how: one.how.clone(),
    }
}

pub(super) fn visible(one: &runtime::Visible) -> api::VisibleFile {
    let text = |path: &std::path::PathBuf| path.display().to_string();
    api::VisibleFile {
        path: text(&one.path),
        access: match one.access {
            runtime::Access::Read => api::FileAccess::Read,
            runtime::Access::Write => api::FileAccess::Write,
        },
        host: one.host.as_ref().map(text),
        hidden: one.hidden.iter().map(text).collect(),
    }
}

fn used(load: Load) -> Usage {
    Usage {
        cpu: load.cores,
        cpu_seconds: load.usage.cpu.as_secs_f64(),
        memory: load.usage.memory,
        memory_peak: load.usage.memory_peak,
        pids: load.usage.pids,
    }
}

fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
