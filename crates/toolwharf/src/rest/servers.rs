//! Servers: how they are, and changing which there are.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::{Arc, atomic::Ordering},
    time::UNIX_EPOCH,
};

use axum::{
    Json,
    body::Bytes,
    extract::{Path as UrlPath, State, rejection::BytesRejection},
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
};
use engine::{
    Fleet,
    catalog::ListKind,
    server::{Server, State as Place},
};
use model::{Origin, ServerName};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::{
    Problem, Rest, Shared,
    answer::shown,
    hosted::Enforced,
    input::{entry, json, object},
};
use crate::{
    config::{ConfigError, Sources},
    itself::Itself,
    registry::{self, Edited},
};

/// Longest reason that is told, in characters: it may quote a server.
const REASON_CHARS: usize = 500;

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Servers {
    pub(crate) servers: Vec<Row>,
}

/// A server and how it is.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Row {
    pub(crate) name: String,
    /// `stdio`, `http` or `sse`.
    pub(crate) transport: String,
    /// The provider of its sandbox, of the instance that runs or ran last; before the first start, the one that it asks for,
    /// or `any`. `null`: nothing confines it.
    pub(crate) sandbox: Option<String>,
    /// The command without arguments, the URL without secrets, or the image.
    pub(crate) target: String,
    pub(crate) enabled: bool,
    /// `running`, `starting`, `idle`, `backoff` (tried again by itself), `unavailable` (left alone after failures), `blocked` (waiting alone does not help), `unresponsive`, `restarting`, `stopping`, `stopped`, `failed`, `unknown`, `disabled`; `not running` where no gateway does.
    pub(crate) state: String,
    /// Why it is not up.
    pub(crate) reason: Option<String>,
    /// Until the next attempt, if one is due.
    pub(crate) retry_ms: Option<u64>,
    /// `legacy` or `modern`, once it is known.
    pub(crate) era: Option<String>,
    pub(crate) protocol_version: Option<String>,
    /// Tools that it offers, disabled ones included.
    pub(crate) tools: usize,
    /// Those of them that are kept back: their definitions changed, or cannot be remembered.
    pub(crate) kept_back: usize,
    pub(crate) in_flight: usize,
    pub(crate) waiting: usize,
    pub(crate) calls: u64,
    pub(crate) errors: u64,
    pub(crate) starts: u64,
    pub(crate) pid: Option<u32>,
    /// Seconds since 1970.
    pub(crate) started_at: Option<u64>,
    pub(crate) uptime_ms: Option<u64>,
}

/// All that is told of one server.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Detail {
    #[serde(flatten)]
    pub(crate) row: Row,
    /// Why its sandbox is that provider's.
    pub(crate) sandbox_reason: Option<String>,
    /// What of its sandbox holds, and what does not.
    pub(crate) enforced: Vec<Enforced>,
    pub(crate) disabled_tools: Vec<String>,
    pub(crate) sharing: String,
    pub(crate) max_concurrency: u32,
    /// Whether only calls of one client session are in flight at a time: it asks clients things in mid-call.
    pub(crate) one_session_at_a_time: bool,
    pub(crate) call_timeout_ms: u64,
    pub(crate) start_timeout_ms: u64,
    /// Empty: all.
    pub(crate) projects: Vec<String>,
    /// Only the names: values may be secrets.
    pub(crate) env: Vec<String>,
    /// Only the names: values may be secrets.
    pub(crate) headers: Vec<String>,
    /// How many there are: they may hold secrets.
    pub(crate) arguments: usize,
}

impl Row {
    /// A server that no gateway runs.
    pub(crate) fn configured(spec: &model::ServerSpec) -> Self {
        Self {
            name: spec.name.to_string(),
            transport: spec.origin.transport().to_owned(),
            sandbox: spec.sandbox().map(asked_for),
            target: spec.target(),
            enabled: spec.enabled,
            state: if spec.enabled {
                "not running"
            } else {
                "disabled"
            }
            .to_owned(),
            ..Self::default()
        }
    }

    pub(super) fn of(server: &Server, fleet: &Fleet) -> Self {
        let mut row = Self::configured(&server.spec);
        let status = server.status();
        if server.spec.enabled {
            status.phase.word().clone_into(&mut row.state);
        }
        let reason = status.reason.as_deref().or(server.spec.unusable.as_deref());
        row.reason = reason.map(|reason| reason.chars().take(REASON_CHARS).collect());
        if let Some(housing) = &status.housing {
            row.sandbox = Some(housing.provider.to_string());
        }
        let wait = status.next_attempt.map(|at| {
            let now = tokio::time::Instant::now();
            at.saturating_duration_since(now)
        });
        row.retry_ms = wait.and_then(|wait| u64::try_from(wait.as_millis()).ok());
        if let Place::Ready(connection) = server.state()
            && let Some(handle) = &connection.handle
        {
            row.pid = handle.pid();
            let since = handle.started_at().duration_since(UNIX_EPOCH);
            row.started_at = since.ok().map(|since| since.as_secs());
            row.uptime_ms = u64::try_from(handle.uptime().as_millis()).ok();
        }
        let catalog = server.catalog();
        if let Some(info) = &catalog.info {
            let era = match info.era {
                mcp::Era::Legacy => "legacy",
                mcp::Era::Modern => "modern",
            };
            row.era = Some(era.to_owned());
            row.protocol_version = Some(info.version.to_string());
        }
        row.tools = catalog.list(ListKind::Tools).len();
        row.kept_back = fleet.kept_back(server).len();
        (row.in_flight, row.waiting) = server.load();
        row.calls = server.stats.calls.load(Ordering::Relaxed);
        row.errors = server.stats.errors.load(Ordering::Relaxed);
        row.starts = server.stats.starts.load(Ordering::Relaxed);
        row
    }
}

impl Detail {
    pub(super) fn of(server: &Server, fleet: &Fleet) -> Self {
        let status = server.status();
        let housing = status.housing.as_deref();
        Self {
            row: Row::of(server, fleet),
            sandbox_reason: housing.map(|housing| housing.why.to_string()),
            enforced: housing.map_or_else(Vec::new, Enforced::all),
            disabled_tools: disabled(server).into_iter().collect(),
            one_session_at_a_time: server.takes_turns(),
            ..Self::configured(&server.spec)
        }
    }

    /// A server that no gateway runs.
    pub(crate) fn configured(spec: &model::ServerSpec) -> Self {
        let ms = |time: std::time::Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let (env, headers, arguments) = match &spec.origin {
            Origin::Remote(remote) => (Vec::new(), remote.headers.keys().cloned().collect(), 0),
            Origin::Launch(launch) => (
                launch.env.keys().cloned().collect(),
                Vec::new(),
                launch.program.args().len(),
            ),
        };
        Self {
            row: Row::configured(spec),
            sandbox_reason: None,
            enforced: Vec::new(),
            disabled_tools: spec
                .disabled_tools
                .iter()
                .map(ToString::to_string)
                .collect(),
            sharing: spec.sharing.to_string(),
            max_concurrency: spec.max_concurrency_or_default(),
            one_session_at_a_time: false,
            call_timeout_ms: ms(spec.call_timeout),
            start_timeout_ms: ms(spec.start_timeout),
            projects: spec.projects.iter().map(ToString::to_string).collect(),
            env,
            headers,
            arguments,
        }
    }
}

/// The provider that a sandbox is asked of.
fn asked_for(sandbox: &model::Sandbox) -> String {
    let named = sandbox.provider.map(|provider| provider.to_string());
    named.unwrap_or_else(|| "any".to_owned())
}

/// What saving a server did.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Saved {
    #[schema(value_type = String)]
    pub(crate) file: PathBuf,
    #[serde(default)]
    pub(crate) created: bool,
    #[serde(default)]
    pub(crate) warnings: Vec<String>,
    /// As it is now; none if it was removed, or the files are not usable for another reason.
    pub(crate) server: Option<Row>,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Imported {
    #[schema(value_type = String)]
    pub(crate) file: PathBuf,
    pub(crate) added: Vec<String>,
    /// There already, and the same.
    pub(crate) unchanged: Vec<String>,
    /// There already, and different: left as they are.
    pub(crate) clashes: Vec<String>,
    pub(crate) refused: Vec<Unusable>,
    /// Not for here: Toolwharf itself, say.
    #[serde(default)]
    pub(crate) skipped: Vec<Unusable>,
    /// Those that were added switched off, and what they lack.
    #[serde(default)]
    pub(crate) off: Vec<Unusable>,
    /// What of those that were added is not taken over, or means something else here.
    #[serde(default)]
    pub(crate) notes: Vec<Unusable>,
    #[serde(default)]
    pub(crate) warnings: Vec<String>,
}

/// What there is to say about a server of an import.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Unusable {
    pub(crate) name: String,
    pub(crate) why: String,
}

impl From<(PathBuf, crate::config::ImportReport)> for Imported {
    fn from((file, report): (PathBuf, crate::config::ImportReport)) -> Self {
        let words = |names: Vec<ServerName>| names.iter().map(ToString::to_string).collect();
        let unusable = |all: Vec<(String, String)>| {
            let all = all.into_iter();
            all.map(|(name, why)| Unusable { name, why }).collect()
        };
        Self {
            file: whole(file),
            added: words(report.added),
            unchanged: words(report.unchanged),
            clashes: words(report.clashes),
            refused: unusable(report.refused),
            skipped: unusable(report.skipped),
            off: unusable(report.off),
            notes: unusable(report.notes),
            warnings: Vec::new(),
        }
    }
}

/// The body of an import.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Import {
    /// Where the text is from, for messages.
    #[serde(default)]
    #[schema(value_type = String)]
    pub(crate) from: PathBuf,
    pub(crate) text: String,
}

impl Rest {
    /// The server of that name.
    pub(super) fn server(&self, name: &str) -> Result<Arc<Server>, Problem> {
        let servers = self.gateway.servers();
        let found = servers.iter().find(|server| server.name().as_str() == name);
        found
            .cloned()
            .ok_or_else(|| Problem::new(404, format!("there is no server `{}`", shown(name))))
    }

    /// Changes the files and takes the change in; says what else is wrong with them.
    pub(super) async fn edit<T: Send + 'static>(
        &self,
        change: impl FnOnce(&Sources, &Itself) -> Result<T, registry::Error> + Send + 'static,
    ) -> Result<(T, Vec<String>), Problem> {
        let (done, taken_in) = self.live.change(change).await?;
        Ok((done, taken_in.err().iter().map(not_in_force).collect()))
    }

    fn saved(&self, name: &ServerName, edited: Edited, mut more: Vec<String>) -> Saved {
        more.splice(0..0, edited.warnings);
        Saved {
            file: whole(edited.file),
            created: edited.created,
            warnings: more,
            server: self
                .server(name.as_str())
                .ok()
                .map(|server| Row::of(&server, &self.gateway.fleet())),
        }
    }
}

/// Whoever asks may stand in another directory.
pub(super) fn whole(file: PathBuf) -> PathBuf {
    std::path::absolute(&file).unwrap_or(file)
}

fn not_in_force(errors: &ConfigError) -> String {
    format!(
        "the file is changed, but the gateway goes on with the old configuration until this is put right:\n{errors}"
    )
}

pub(super) fn server_name(name: &str) -> Result<ServerName, Problem> {
    ServerName::parse(name).map_err(|error| Problem::new(422, error.to_string()))
}

pub(super) async fn list(State(rest): State<Shared>) -> Json<Servers> {
    let fleet = rest.gateway.fleet();
    let servers = fleet.of_file().map(|server| Row::of(server, &fleet));
    Json(Servers {
        servers: servers.collect(),
    })
}

pub(super) async fn show(
    State(rest): State<Shared>,
    UrlPath(name): UrlPath<String>,
) -> Result<Json<Detail>, Problem> {
    Ok(Json(Detail::of(
        &*rest.server(&name)?,
        &rest.gateway.fleet(),
    )))
}

pub(super) async fn save(
    State(rest): State<Shared>,
    UrlPath(name): UrlPath<String>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, Problem> {
    let name = server_name(&name)?;
    let entry = match json(body)? {
        Value::Object(members) => {
            let mut entry = entry(members)
                .map_err(|wrong| Problem::field(422, &wrong.pointer, wrong.detail))?;
            entry.remove("name");
            entry.into()
        }
        other => other,
    };
    // RFC 9110 section 13.1.2: `*` is "only if there is none".
    let replace = headers
        .get(header::IF_NONE_MATCH)
        .is_none_or(|tag| tag != "*");
    let wanted = name.clone();
    let (edited, more) = rest
        .edit(move |sources, myself| registry::put(sources, myself, &wanted, &entry, replace))
        .await?;
    let status = if edited.created {
        StatusCode::CREATED
    } else {
        StatusCode::OK
    };
    Ok((status, Json(rest.saved(&name, edited, more))).into_response())
}

pub(super) async fn import(
    State(rest): State<Shared>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<Imported>, Problem> {
    let Import { from, text } = object(body)?;
    let change = move |sources: &Sources, myself: &Itself| {
        registry::import(sources, myself, label(&from), &text)
    };
    let (report, warnings) = rest.edit(change).await?;
    Ok(Json(Imported {
        warnings,
        ..report.into()
    }))
}

fn label(from: &Path) -> &Path {
    if from.as_os_str().is_empty() {
        Path::new("the text")
    } else {
        from
    }
}

pub(super) async fn remove(
    State(rest): State<Shared>,
    UrlPath(name): UrlPath<String>,
) -> Result<Json<Saved>, Problem> {
    let name = server_name(&name)?;
    let wanted = name.clone();
    let change = move |sources: &Sources, _: &Itself| registry::remove(sources, &wanted);
    let (file, warnings) = rest.edit(change).await?;
    Ok(Json(Saved {
        file: whole(file),
        created: false,
        warnings,
        server: None,
    }))
}

pub(super) async fn enable(
    rest: State<Shared>,
    name: UrlPath<String>,
) -> Result<Json<Saved>, Problem> {
    switch(rest, name, true).await
}

pub(super) async fn disable(
    rest: State<Shared>,
    name: UrlPath<String>,
) -> Result<Json<Saved>, Problem> {
    switch(rest, name, false).await
}

async fn switch(
    State(rest): State<Shared>,
    UrlPath(name): UrlPath<String>,
    enabled: bool,
) -> Result<Json<Saved>, Problem> {
    let name = server_name(&name)?;
    let wanted = name.clone();
    let change = move |sources: &Sources, myself: &Itself| {
        registry::set_enabled(sources, myself, &wanted, enabled)
    };
    let (file, more) = rest.edit(change).await?;
    let edited = Edited {
        file,
        created: false,
        warnings: Vec::new(),
    };
    Ok(Json(rest.saved(&name, edited, more)))
}

/// The tools of a server that are switched off.
pub(super) fn disabled(server: &Server) -> BTreeSet<String> {
    let disabled = server.disabled_tools();
    disabled.iter().map(ToString::to_string).collect()
}
