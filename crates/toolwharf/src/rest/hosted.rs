//! Hosted servers: registering them, how they are, and what they are told to do (H01 to H20).
//!
//! Names of members are as in a registration, with underscores. Invariant: no answer holds the value of a variable
//! or an argument.

use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use axum::{
    Json,
    body::Bytes,
    extract::{Path, Query, State, rejection::BytesRejection, rejection::QueryRejection},
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
};
use engine::{
    server::{Load, Order, Server},
    supervisor::Phase,
};
use futures_util::{StreamExt as _, stream};
use model::{Network, ServerName};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use store::{Time, WorkspaceRow};
use tokio::time::Instant;
use utoipa::ToSchema;

use super::{
    Problem, Rest, Shared,
    input::{self, Conditions, etag},
    owned::unfit,
    schemas,
};
use crate::hosting::{Entry, Error};

/// How long registering waits until the server is up or has failed to come up.
const PATIENCE: Duration = Duration::from_secs(30);
/// Servers whose use of resources is looked at at a time.
const LOOKS: usize = 32;
/// How long a runtime may take to say what an instance uses.
const COUNTING: Duration = Duration::from_secs(2);

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
    /// `starting`, `running`, `unresponsive`, `backoff`, `restarting`, `stopping`, `stopped`, `failed` or `unknown`.
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

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Crash {
    /// Seconds since 1970.
    pub(crate) at: u64,
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

/// What is asked for when one is deleted.
#[derive(Debug, Deserialize)]
pub(super) struct Deleting {
    #[serde(default)]
    volumes: bool,
}

/// What is asked for when one is registered.
#[derive(Debug, Deserialize)]
pub(super) struct Registering {
    #[serde(default = "yes")]
    wait: bool,
}

fn yes() -> bool {
    true
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        match error {
            Error::Unfit(wrong) => unfit("the server cannot be hosted so", wrong),
            Error::Taken(_) => Self::field(409, "/name", error.to_string()),
            Error::NoProject(_) => Self::field(422, "/project", error.to_string()),
            Error::Store(error) => error.into(),
            Error::Volumes(_) => Self::new(502, error.to_string()),
        }
    }
}

impl HostedServer {
    fn of(row: &WorkspaceRow, server: Option<&Server>, load: Option<Load>) -> Self {
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
        let Some(hosting) = spec.hosting() else {
            return;
        };
        let target = Some(spec.target());
        match &hosting.source {
            model::Source::Image { .. } => self.image = target,
            model::Source::Command { .. } => self.command = target,
        }
        self.stdio_bridge = hosting.bridge;
        self.restart_policy = hosting.restart.to_string();
        let limits = &hosting.limits;
        self.resource_limits = Limits {
            cpu: f64::from(limits.cpu_millis) / 1000.0,
            memory: limits.memory,
            disk: limits.disk,
            pids: limits.pids,
        };
        self.volumes.clone_from(&hosting.volumes);
        self.environment = hosting.env.keys().cloned().collect();
        self.network = match &hosting.network {
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
        self.ports = hosting.ports.iter().map(unreached).collect();
    }

    /// How it is.
    fn now(&mut self, server: &Server) {
        let Some(status) = server.hosted_status() else {
            return;
        };
        status.phase.word().clone_into(&mut self.status);
        if !server.spec.enabled {
            "disabled".clone_into(&mut self.status);
        }
        let crash = status.last_crash.as_ref();
        let up = matches!(status.phase, Phase::Running { .. } | Phase::Starting);
        self.reason = match (&server.spec.unusable, &status.phase) {
            (Some(why), _) => Some(why.clone()),
            (None, Phase::Unresponsive) => Some("it does not answer heartbeats".to_owned()),
            (None, Phase::Stopped) => None,
            _ if up => None,
            _ => crash.map(|crash| crash.cause.clone()),
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
            at: seconds(crash.at),
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
            self.enforced = housing
                .enforced
                .iter()
                .map(|one| Enforced {
                    what: one.what.to_owned(),
                    holds: one.holds,
                    how: one.how.clone(),
                })
                .collect();
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

fn seconds(at: SystemTime) -> u64 {
    at.duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

impl Rest {
    /// The row of an id, or of the one server that is called so.
    pub(super) async fn workspace(&self, id: &str) -> Result<WorkspaceRow, Problem> {
        let missing = || {
            let shown: String = id.chars().take(100).collect();
            Problem::new(404, format!("there is no hosted server `{shown}`"))
        };
        match self.hosting.store().workspace_get(None, id).await {
            Ok(row) => return Ok(row),
            Err(store::Error::NotFound { .. } | store::Error::Invalid { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        let Ok(name) = ServerName::parse(id) else {
            return Err(missing());
        };
        let mut named = self.hosting.rows().await?;
        named.retain(|row| row.name == name);
        match named.len() {
            0 => Err(missing()),
            1 => Ok(named.remove(0)),
            _ => {
                let ids: Vec<String> = named.into_iter().map(|row| row.id).collect();
                let ids = ids.join(", ");
                Err(Problem::new(
                    409,
                    format!(
                        "several projects have a hosted server `{name}`: say which by its id: {ids}"
                    ),
                ))
            }
        }
    }

    /// One that is hosted, and not switched off.
    async fn enabled(&self, id: &str) -> Result<(WorkspaceRow, Arc<Server>), Problem> {
        let row = self.workspace(id).await?;
        match self.hosting.server(&row.id) {
            Some(server) if server.spec.enabled => Ok((row, server)),
            Some(_) => {
                let way_out = "register it with `\"enabled\": true`";
                let why = format!("server `{}` is not enabled: {way_out}", row.name);
                Err(Problem::new(409, why))
            }
            None => Err(Problem::new(
                409,
                format!(
                    "server `{}` cannot be hosted as it is registered; see the log",
                    row.name
                ),
            )),
        }
    }

    /// The same for a call, which must not wait for the database: what the gateway hosts is what the rows say.
    pub(super) async fn callable(&self, id: &str) -> Result<Arc<Server>, Problem> {
        match self.hosting.server(id).or_else(|| self.hosting.only(id)) {
            Some(server) if server.spec.enabled => Ok(server),
            // Why not, the rows know.
            _ => Ok(self.enabled(id).await?.1),
        }
    }

    async fn told(&self, row: &WorkspaceRow) -> HostedServer {
        let server = self.hosting.server(&row.id);
        let load = match &server {
            Some(server) => tokio::time::timeout(COUNTING, server.hosted_load())
                .await
                .ok()
                .flatten(),
            None => None,
        };
        HostedServer::of(row, server.as_deref(), load)
    }

    /// Waits until a server is up or has failed to come up.
    async fn settled(&self, id: &str) {
        if let Some(server) = self.hosting.server(id).filter(|server| server.spec.enabled) {
            let _ = tokio::time::timeout(PATIENCE, server.up()).await;
        }
    }
}

fn tag(row: &WorkspaceRow) -> String {
    etag(&row.config)
}

pub(super) async fn list(State(rest): State<Shared>) -> Result<Json<HostedServers>, Problem> {
    let rows = rest.hosting.rows().await?;
    // Each is a look at files of the kernel on a thread of its own, or a question to a daemon.
    let told = rows.into_iter().map(|row| {
        let rest = rest.clone();
        async move { rest.told(&row).await }
    });
    let servers = stream::iter(told).buffered(LOOKS).collect().await;
    Ok(Json(HostedServers { servers }))
}

pub(super) async fn register(
    State(rest): State<Shared>,
    query: Result<Query<Registering>, QueryRejection>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, Problem> {
    let Query(asked) = query.map_err(|rejection| Problem::new(400, rejection.body_text()))?;
    let entry = Entry::read(input::json(body)?).map_err(Error::Unfit)?;
    let row = rest.hosting.register(entry).await?;
    if asked.wait {
        rest.settled(&row.id).await;
        let server = rest.hosting.server(&row.id);
        let status = server.and_then(|server| server.hosted_status());
        if let Some(refused) = status.and_then(|status| status.refused) {
            // It never ran: nothing of it is to stay.
            rest.hosting.delete(&row.id, true).await?;
            let why = refused.why.to_string();
            return Err(Problem::field(422, refused.pointer, why));
        }
    }
    let told = rest.told(&row).await;
    let headers = [
        (header::LOCATION, format!("/api/v1/mcp/servers/{}", row.id)),
        (header::ETAG, tag(&row)),
    ];
    Ok((StatusCode::CREATED, headers, Json(told)).into_response())
}

pub(super) async fn show(
    State(rest): State<Shared>,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    let row = rest.workspace(&id).await?;
    let told = rest.told(&row).await;
    // What is told changes all the time; the tag is of the registration.
    let headers = [
        (header::ETAG, tag(&row)),
        (header::CACHE_CONTROL, "no-store".to_owned()),
    ];
    Ok((headers, Json(told)).into_response())
}

pub(super) async fn update(
    State(rest): State<Shared>,
    Path(id): Path<String>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, Problem> {
    let entry = Entry::read(input::json(body)?).map_err(Error::Unfit)?;
    let row = rest.workspace(&id).await?;
    Conditions::of(&headers).permit(Some(&tag(&row)))?;
    let row = rest.hosting.update(&row.id, entry).await?;
    rest.settled(&row.id).await;
    let told = rest.told(&row).await;
    Ok(([(header::ETAG, tag(&row))], Json(told)).into_response())
}

pub(super) async fn remove(
    State(rest): State<Shared>,
    Path(id): Path<String>,
    query: Result<Query<Deleting>, QueryRejection>,
) -> Result<StatusCode, Problem> {
    let Query(asked) = query.map_err(|rejection| Problem::new(400, rejection.body_text()))?;
    let row = rest.workspace(&id).await?;
    rest.hosting.delete(&row.id, asked.volumes).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn start(
    rest: State<Shared>,
    id: Path<String>,
) -> Result<Json<HostedServer>, Problem> {
    order(rest, id, Order::Start).await
}

pub(super) async fn stop(
    rest: State<Shared>,
    id: Path<String>,
) -> Result<Json<HostedServer>, Problem> {
    order(rest, id, Order::Stop).await
}

pub(super) async fn restart(
    rest: State<Shared>,
    id: Path<String>,
) -> Result<Json<HostedServer>, Problem> {
    order(rest, id, Order::Restart).await
}

async fn order(
    State(rest): State<Shared>,
    Path(id): Path<String>,
    order: Order,
) -> Result<Json<HostedServer>, Problem> {
    let (row, server) = rest.enabled(&id).await?;
    let obeyed = tokio::time::timeout(PATIENCE, server.obey(order)).await;
    match obeyed {
        Ok(true) => Ok(Json(rest.told(&row).await)),
        Ok(false) => Err(Problem::new(
            503,
            format!(
                "server `{}` has too many orders to follow already",
                row.name
            ),
        )),
        // It goes on.
        Err(_) => Ok(Json(rest.told(&row).await)),
    }
}

pub(super) async fn events(
    State(rest): State<Shared>,
    Path(id): Path<String>,
    page: input::Page,
) -> Result<Json<Events>, Problem> {
    let row = rest.workspace(&id).await?;
    let rows = rest
        .hosting
        .store()
        .event_list(None, Some(&row.id), page.asked())
        .await?;
    let next = page.next(&rows, |row| row.id.clone());
    let events = rows.into_iter().map(|row| Happened {
        id: row.id,
        kind: row.kind,
        detail: row.detail,
        at: row.at,
    });
    Ok(Json(Events {
        events: events.collect(),
        next,
    }))
}
