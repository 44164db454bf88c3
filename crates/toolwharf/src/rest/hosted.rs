//! Hosted servers: registering them, how they are, what they are told to do, and calls to them (H01 to H20).
//!
//! Names of members are as in a registration, with underscores. Invariant: no answer holds the value of a variable
//! or an argument.

use std::{
    num::NonZeroU32,
    sync::{Arc, atomic::Ordering},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use axum::{
    Extension, Json,
    body::Bytes,
    extract::{Path, Query, State, rejection::BytesRejection, rejection::QueryRejection},
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
};
use engine::{
    Answer, Caller, Scope,
    server::{Load, Order, Server},
    supervisor::Phase,
};
use futures_util::{StreamExt as _, stream};
use mcp::{
    Era, Frame,
    json::{Object, quote},
    outbox::{Bounds, Outbox},
};
use model::{Network, ServerName};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json, value::RawValue};
use store::{Time, WorkspaceRow};
use tokio::time::Instant;
use utoipa::ToSchema;

use super::answer::McpError;
use super::{
    Problem, Rest, Shared,
    access::Who,
    input::{self, Conditions, etag},
    owned::unfit,
    schemas,
};
use crate::{
    gateway::prefers_stream,
    hosting::{Entry, Error},
};

/// How long registering waits until the server is up or has failed to come up.
const PATIENCE: Duration = Duration::from_secs(30);
/// Servers whose use of resources is looked at at a time.
const LOOKS: usize = 32;
/// How long a runtime may take to say what an instance uses.
const COUNTING: Duration = Duration::from_secs(2);
/// Longest time of one call.
const LONGEST_MS: u64 = 3_600_000;
/// Messages of a call that wait for a slow reader.
const BOUNDS: Bounds = Bounds {
    messages: 256,
    bytes: 8 << 20,
};

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

/// One JSON-RPC request.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CallRequest {
    pub(crate) method: String,
    #[schema(value_type = Option<Object>)]
    pub(crate) params: Option<Box<RawValue>>,
    /// How long the server may take; as it is configured without it.
    pub(crate) timeout_ms: Option<u64>,
}

/// What the server answered.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct CallResult {
    #[schema(schema_with = schemas::any)]
    pub(crate) result: Value,
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
    async fn callable(&self, id: &str) -> Result<Arc<Server>, Problem> {
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

/// One request to the server by its own names (H04 to H07).
pub(super) async fn call(
    State(rest): State<Shared>,
    Extension(who): Who,
    Path(id): Path<String>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, Problem> {
    let body = input::whole(body)?;
    let depth = rest.gateway.settings().limits.max_depth;
    mcp::json::validate(&body, depth).map_err(|fault| {
        Problem::new(
            400,
            format!("the body is not the JSON wanted here: {fault}"),
        )
    })?;
    let asked: CallRequest = input::typed(&mut serde_json::Deserializer::from_slice(&body))?;
    let server = rest.callable(&id).await?;
    let timeout = match asked.timeout_ms {
        None => None,
        Some(ms @ 1..=LONGEST_MS) => Some(Duration::from_millis(ms)),
        Some(_) => {
            let must = format!("is a whole number from 1 to {LONGEST_MS}");
            return Err(Problem::field(400, "/timeout_ms", must));
        }
    };
    let streams = prefers_stream(&headers);
    let frame = request(&asked, streams, depth)?;
    let outbox = Outbox::new(BOUNDS);
    let caller = Caller {
        era: Era::Legacy,
        scope: Scope {
            project: None,
            server: Some(server.name().clone()),
        },
        session: None,
        outbox: outbox.clone(),
        principal: who.id.clone(),
        may_use: true,
        modern_capabilities: None,
        headers: None,
        timeout,
        run: None,
    };
    let gateway = rest.gateway.clone();
    let name = server.name().clone();
    let answering = async move { gateway.call(&caller, &server, &frame).await };
    if streams {
        return Ok(streamed(name, outbox, answering));
    }
    let answer = answering.await;
    match outcome(&name, answer) {
        Ok(result) => {
            let mut text = b"{\"result\":".to_vec();
            text.extend_from_slice(&result);
            text.push(b'}');
            Ok(([(header::CONTENT_TYPE, "application/json")], text).into_response())
        }
        Err(problem) => Ok(problem.into_response()),
    }
}

/// The JSON-RPC request; with a progress token where somebody listens for progress.
fn request(asked: &CallRequest, streams: bool, depth: usize) -> Result<Frame, Problem> {
    if asked.method.is_empty() || asked.method.starts_with("notifications/") {
        return Err(Problem::field(400, "/method", "is the name of a request"));
    }
    let params = asked.params.as_ref().map_or("{}", |params| params.get());
    if !params.starts_with('{') {
        return Err(Problem::field(400, "/params", "is an object"));
    }
    let mut params = params.to_owned();
    let object = Object::of(params.as_bytes());
    let has_meta = object.is_some_and(|object| object.raw("_meta").is_some());
    if streams && !has_meta {
        let comma = if params[1..].trim_start().starts_with('}') {
            ""
        } else {
            ","
        };
        params.insert_str(1, &format!("\"_meta\":{{\"progressToken\":1}}{comma}"));
    }
    let method = quote(&asked.method);
    let text = format!("{{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":{method},\"params\":{params}}}");
    Frame::parse(text.into(), depth + 1)
        .map_err(|error| Problem::new(400, format!("the request is not acceptable: {error}")))
}

/// The result's text, or what went wrong as HTTP has it (H05).
fn outcome(name: &ServerName, answer: Answer) -> Result<Vec<u8>, Problem> {
    let status = answer.status;
    let text = answer.into_text();
    let object = Object::of(&text);
    if let Some(result) = object.as_ref().and_then(|object| object.raw("result")) {
        return Ok(result.to_vec());
    }
    let error =
        object.and_then(|object| serde_json::from_slice::<McpError>(object.raw("error")?).ok());
    let error = error.unwrap_or_else(|| McpError {
        code: mcp::error::INTERNAL_ERROR,
        message: format!("server `{name}` gave no answer that can be read"),
        data: None,
    });
    let own = error
        .data
        .as_ref()
        .filter(|data| data["server"] == name.as_str());
    let reason = own.and_then(|data| data["reason"].as_str());
    let status = match (status, reason, error.code) {
        (Some(status), _, _) => status.as_u16(),
        (None, Some("timeout"), _) => 504,
        (None, Some("server_busy" | "server_unavailable" | "server_not_ready"), _) => 503,
        (None, _, -32700 | -32600 | -32602) => 400,
        (None, _, -32601 | -32002) => 404,
        _ => 502,
    };
    let mut problem = Problem::new(status, error.message.clone());
    if status == 503 {
        let wait = own.and_then(|data| data["retryAfterMs"].as_u64());
        let seconds = wait.map_or(1, |ms| ms.div_ceil(1000));
        problem.retry_after = NonZeroU32::new(u32::try_from(seconds).unwrap_or(u32::MAX).max(1));
    }
    problem.mcp = Some(Box::new(error));
    Err(problem)
}

/// What happens in the course of a call, and at last its end, as events.
fn streamed(
    name: ServerName,
    outbox: Arc<Outbox>,
    answering: impl Future<Output = Answer> + Send + 'static,
) -> Response {
    enum Stage<F> {
        Going(ServerName, Arc<Outbox>, F),
        Over,
    }
    let stage = Stage::Going(name, outbox, Box::pin(answering));
    let events = stream::unfold(stage, async |stage| {
        let Stage::Going(name, outbox, mut answering) = stage else {
            return None;
        };
        let answer = tokio::select! {
            biased;
            message = outbox.next() => match message {
                Some(message) => {
                    let event = event("message", &message);
                    return Some((event, Stage::Going(name, outbox, answering)));
                }
                None => answering.as_mut().await,
            },
            answer = answering.as_mut() => answer,
        };
        let mut text = Vec::new();
        while let Some((_, message)) = outbox.take() {
            text.extend_from_slice(&event("message", &message).unwrap_or_default());
        }
        let last = match outcome(&name, answer) {
            Ok(result) => event("result", &result),
            Err(problem) => event("error", json!(problem).to_string().as_bytes()),
        };
        text.extend_from_slice(&last.unwrap_or_default());
        Some((Ok(text.into()), Stage::Over))
    });
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-store"),
    ];
    (headers, axum::body::Body::from_stream(events)).into_response()
}

fn event(kind: &str, data: &[u8]) -> Result<Bytes, std::convert::Infallible> {
    let mut text = format!("event: {kind}\ndata: ").into_bytes();
    // A result may hold line ends between its tokens, where they mean nothing.
    text.extend(data.iter().map(|byte| match byte {
        b'\n' | b'\r' => b' ',
        byte => *byte,
    }));
    text.extend_from_slice(b"\n\n");
    Ok(text.into())
}
