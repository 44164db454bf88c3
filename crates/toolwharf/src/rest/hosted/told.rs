//! What is told of a hosted server: how it was registered, and how it is.

use std::{sync::atomic::Ordering, time::Duration};

use engine::{Housing, Load, lifecycle::Phase, server::Server};
use model::{Network, Program, Reach};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use store::{Time, WorkspaceRow};
use tokio::time::Instant;
use utoipa::ToSchema;

use crate::rest::schemas;

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct HostedServers {
    pub(crate) servers: Vec<HostedServer>,
}

/// A hosted server, and how it is.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub(crate) struct HostedServer {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) project: Option<String>,
    pub(crate) container_type: String,
    /// `starting`, `running`, `unresponsive`, `backoff`, `blocked`, `restarting`, `stopping`, `stopped`, `failed` or
    /// `unknown`.
    pub(crate) status: String,
    /// Why it is not running.
    pub(crate) reason: Option<String>,
    pub(crate) image: Option<String>,
    /// The command without its arguments.
    pub(crate) command: Option<String>,
    pub(crate) stdio_bridge: bool,
    pub(crate) restart_policy: String,
    /// What isolates it: of the instance that runs, or ran last.
    pub(crate) provider: Option<String>,
    /// Why it is this provider.
    pub(crate) provider_reason: Option<String>,
    pub(crate) enforced: Vec<Enforced>,
    pub(crate) uptime_seconds: Option<u64>,
    pub(crate) restart_count: u64,
    pub(crate) last_crash: Option<Crash>,
    /// Until it is tried again, while it is in backoff.
    pub(crate) next_attempt_ms: Option<u64>,
    /// Health warnings since the product started.
    pub(crate) warnings: u64,
    pub(crate) usage: Option<Usage>,
    pub(crate) resource_limits: Limits,
    pub(crate) ports: Vec<Port>,
    pub(crate) volumes: Vec<String>,
    /// Only the names: values may be secrets.
    pub(crate) environment: Vec<String>,
    /// `none`, `open`, or the hosts that it reaches.
    #[schema(schema_with = schemas::any)]
    pub(crate) network: Value,
    pub(crate) max_concurrency: u32,
    pub(crate) call_timeout_ms: u64,
    pub(crate) in_flight: usize,
    pub(crate) waiting: usize,
    pub(crate) calls: u64,
    pub(crate) errors: u64,
    /// Of all calls, those that ended in an error; 0 to 1.
    pub(crate) error_rate: f64,
    pub(crate) tools: usize,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub(crate) created_at: Option<Time>,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub(crate) updated_at: Option<Time>,
}

/// Whether one promise holds for the instance.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Enforced {
    pub(crate) what: String,
    pub(crate) holds: bool,
    pub(crate) how: String,
}

impl Enforced {
    /// What holds for an instance, and what does not.
    pub(in crate::rest) fn all(housing: &Housing) -> Vec<Self> {
        let told = |one: &runtime::Enforced| Self {
            what: one.what.to_owned(),
            holds: one.holds,
            how: one.how.clone(),
        };
        housing.enforced.iter().map(told).collect()
    }
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Crash {
    #[schema(value_type = String, format = DateTime)]
    pub(crate) at: Time,
    pub(crate) cause: String,
    pub(crate) exit_code: Option<i32>,
    pub(crate) signal: Option<i32>,
    pub(crate) out_of_memory: bool,
    /// It was killed for asking for more processes than its limit, again and again.
    pub(crate) fork_bomb: bool,
    /// The last lines of its stderr.
    pub(crate) stderr: String,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Usage {
    /// Cores, since it was last asked for.
    pub(crate) cpu: Option<f64>,
    pub(crate) cpu_seconds: f64,
    /// Bytes.
    pub(crate) memory: u64,
    /// Bytes.
    pub(crate) memory_peak: u64,
    pub(crate) pids: u32,
}

#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
pub(crate) struct Limits {
    /// Cores.
    pub(crate) cpu: f64,
    /// Bytes.
    pub(crate) memory: u64,
    /// Bytes.
    pub(crate) disk: u64,
    pub(crate) pids: u32,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Port {
    pub(crate) port: u16,
    /// Where it is reached on this host.
    pub(crate) address: Option<String>,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Events {
    pub(crate) events: Vec<Happened>,
    /// Give it as `after` for the next page; none on the last.
    pub(crate) next: Option<String>,
}

/// Something that happened to a hosted server.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Happened {
    pub(crate) id: String,
    pub(crate) kind: String,
    #[schema(value_type = Object)]
    pub(crate) detail: Value,
    #[schema(value_type = String, format = DateTime)]
    pub(crate) at: Time,
}

impl HostedServer {
    pub(super) fn of(row: &WorkspaceRow, server: Option<&Server>, load: Option<Load>) -> Self {
        let mut told = Self {
            id: row.id.clone(),
            name: row.name.to_string(),
            project: row.project_id.as_ref().map(ToString::to_string),
            container_type: "mcp_server".to_owned(),
            status: "unusable".to_owned(),
            created_at: Some(row.created_at),
            updated_at: Some(row.updated_at),
            ..Self::default()
        };
        let Some(server) = server else {
            return told;
        };
        told.configured(server);
        told.now(server);
        told.usage = load.map(|load| Usage {
            cpu: load.cores,
            cpu_seconds: load.usage.cpu.as_secs_f64(),
            memory: load.usage.memory,
            memory_peak: load.usage.memory_peak,
            pids: load.usage.pids,
        });
        told
    }

    /// What it was registered as.
    fn configured(&mut self, server: &Server) {
        let spec = &server.spec;
        let (Some(launch), Some(sandbox)) = (spec.launch(), spec.sandbox()) else {
            return;
        };
        let target = Some(spec.target());
        match &launch.program {
            Program::Image { .. } => self.image = target,
            Program::Command { .. } => self.command = target,
        }
        self.stdio_bridge = launch.reach == Reach::Streams;
        self.restart_policy = spec.restart.unwrap_or_default().to_string();
        let limits = &sandbox.limits;
        self.resource_limits = Limits {
            cpu: f64::from(limits.cpu_millis) / 1000.0,
            memory: limits.memory,
            disk: limits.disk,
            pids: limits.pids,
        };
        self.volumes.clone_from(&sandbox.volumes);
        self.environment = launch.env.keys().cloned().collect();
        self.network = match &sandbox.network {
            Network::None => "none".into(),
            Network::Open => "open".into(),
            Network::Allow(hosts) => json!({ "allow": hosts }),
        };
        self.max_concurrency = spec.max_concurrency_or_default();
        self.call_timeout_ms = ms(spec.call_timeout);
        let unreached = |port: &u16| Port {
            port: *port,
            address: None,
        };
        self.ports = sandbox.ports.iter().map(unreached).collect();
    }

    /// How it is.
    fn now(&mut self, server: &Server) {
        let status = server.status();
        status.phase.word().clone_into(&mut self.status);
        if !server.spec.enabled {
            "disabled".clone_into(&mut self.status);
        }
        let crash = status.last_crash.as_ref();
        let up = matches!(status.phase, Phase::Running { .. } | Phase::Starting { .. });
        self.reason = match (&server.spec.unusable, &status.phase) {
            (Some(why), _) => Some(why.clone()),
            (None, Phase::Unresponsive) => Some("it does not answer heartbeats".to_owned()),
            (None, Phase::Stopped) => None,
            _ if up => None,
            _ => status.reason.as_ref().map(ToString::to_string),
        };
        self.uptime_seconds = status
            .ready_at
            .map(|at| at.elapsed().unwrap_or_default().as_secs());
        self.restart_count = status.restarts;
        self.warnings = status.warnings;
        self.next_attempt_ms = status
            .next_attempt
            .map(|at| ms(at.saturating_duration_since(Instant::now())));
        self.last_crash = crash.map(|crash| Crash {
            at: crash.at.into(),
            cause: crash.cause.clone(),
            exit_code: crash.exit.and_then(|exit| exit.code),
            signal: crash.exit.and_then(|exit| exit.signal),
            out_of_memory: crash.exit.is_some_and(|exit| exit.out_of_memory),
            fork_bomb: crash.exit.is_some_and(|exit| exit.fork_bomb),
            stderr: crash.stderr.clone(),
        });
        if let Some(housing) = &status.housing {
            self.provider = Some(housing.provider.to_string());
            self.provider_reason = Some(housing.why.to_string());
            self.enforced = Enforced::all(housing);
            for port in &mut self.ports {
                let reached = housing.ports.iter().find(|(known, _)| *known == port.port);
                port.address = reached.filter(|_| up).map(|(_, at)| at.to_string());
            }
        }
        (self.in_flight, self.waiting) = server.load();
        self.calls = server.stats.calls.load(Ordering::Relaxed);
        self.errors = server.stats.errors.load(Ordering::Relaxed);
        if self.calls > 0 {
            self.error_rate = self.errors as f64 / self.calls as f64;
        }
        self.tools = server
            .catalog()
            .list(engine::catalog::ListKind::Tools)
            .len();
    }
}

fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
