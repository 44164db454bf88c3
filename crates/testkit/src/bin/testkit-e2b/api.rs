//! The REST API.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, SystemTime},
};

use axum::{
    Json, Router,
    body::Bytes,
    extract::{FromRequestParts, Path, Query, State},
    http::{HeaderMap, StatusCode, header::HeaderName, request::Parts},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use chrono::{DateTime, SecondsFormat, Utc};
use percent_encoding::percent_decode_str;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::sandbox::{MAX_LIFETIME_SECONDS, Sandbox, World};

/// The cores, memory and disk of a sandbox, the same for every template.
const CORES: u32 = 2;
const MEMORY_MB: u64 = 512;
const DISK_MB: u64 = 512;
const NEXT_TOKEN_HEADER: HeaderName = HeaderName::from_static("x-next-token");

type Shared = State<Arc<World>>;

/// An error in E2B's format.
pub(crate) struct Wrong(pub(crate) StatusCode, pub(crate) String);

impl IntoResponse for Wrong {
    fn into_response(self) -> Response {
        let body = json!({ "code": self.0.as_u16(), "message": self.1 });
        (self.0, Json(body)).into_response()
    }
}

#[derive(Deserialize)]
struct New {
    #[serde(rename = "templateID")]
    template: String,
    #[serde(default = "fifteen")]
    timeout: u64,
    #[serde(default)]
    secure: bool,
    allow_internet_access: Option<bool>,
    #[serde(default)]
    metadata: BTreeMap<String, String>,
    #[serde(default, rename = "envVars")]
    env: BTreeMap<String, String>,
}

fn fifteen() -> u64 {
    15
}

#[derive(Deserialize)]
struct Timeout {
    timeout: u64,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Filter {
    #[serde(default)]
    metadata: String,
    #[serde(default)]
    state: String,
    limit: Option<usize>,
    #[serde(default)]
    next_token: String,
}

pub(crate) fn routes() -> Router<Arc<World>> {
    Router::new()
        .route("/sandboxes", post(make))
        .route("/v2/sandboxes", get(list).post(make_secure))
        .route("/sandboxes/{id}", get(detail).delete(kill))
        .route("/sandboxes/{id}/timeout", post(timeout))
        .route("/stand-in/cut/{id}", post(cut))
        .route("/stand-in/forget/{id}", post(forget))
}

/// The state, for a request with the right key.
struct Authorised(Arc<World>);

impl FromRequestParts<Arc<World>> for Authorised {
    type Rejection = Wrong;

    async fn from_request_parts(parts: &mut Parts, world: &Arc<World>) -> Result<Self, Wrong> {
        let wrong = |why: &str| Err(Wrong(StatusCode::UNAUTHORIZED, why.to_owned()));
        match parts.headers.get("x-api-key") {
            None => wrong("Invalid authorization header: authorization header is missing"),
            Some(key) if key == world.options.key.as_str() => Ok(Self(Arc::clone(world))),
            // Repeats the key, as a careless provider might.
            Some(key) => wrong(&format!(
                "Cannot get the team for the given API key: {}",
                String::from_utf8_lossy(key.as_bytes())
            )),
        }
    }
}

fn parsed<T: for<'a> Deserialize<'a>>(body: &[u8]) -> Result<T, Wrong> {
    serde_json::from_slice(body).map_err(|error| {
        let why = format!("Error when parsing request: {error}");
        Wrong(StatusCode::BAD_REQUEST, why)
    })
}

fn missing(id: &str) -> Wrong {
    let why = format!("sandbox \"{id}\" doesn't exist or you don't have access to it");
    Wrong(StatusCode::NOT_FOUND, why)
}

fn checked(timeout: u64) -> Result<Duration, Wrong> {
    match timeout <= MAX_LIFETIME_SECONDS {
        true => Ok(Duration::from_secs(timeout)),
        false => {
            let why = format!(
                "Timeout cannot be greater than {} hours",
                MAX_LIFETIME_SECONDS / 3600
            );
            Err(Wrong(StatusCode::BAD_REQUEST, why))
        }
    }
}

/// Returns twenty random letters and digits.
fn random() -> String {
    // The kernel's UUID generator is the source of randomness.
    let uuid = std::fs::read_to_string("/proc/sys/kernel/random/uuid").unwrap_or_default();
    let digits = uuid.chars().filter(char::is_ascii_alphanumeric);
    digits.take(20).collect()
}

async fn make(Authorised(world): Authorised, body: Bytes) -> Made {
    made(&world, parsed(&body)?)
}

/// Version 2 of the request, which E2B's newer clients use: every sandbox has a token.
async fn make_secure(Authorised(world): Authorised, body: Bytes) -> Made {
    let secure = true;
    let new: New = parsed(&body)?;
    made(&world, New { secure, ..new })
}

type Made = Result<(StatusCode, Json<Value>), Wrong>;

fn made(world: &Arc<World>, new: New) -> Made {
    let life = checked(new.timeout)?;
    if !world.options.template.contains(&new.template) {
        let why = format!("template '{}' not found", new.template);
        return Err(Wrong(StatusCode::NOT_FOUND, why));
    }
    let token = if new.secure { random() } else { String::new() };
    let mut sandbox = Sandbox::new(format!("i{}", random()), token, new.template, life);
    sandbox.metadata = new.metadata;
    sandbox.env = new.env;
    sandbox.internet = new.allow_internet_access.unwrap_or(true);
    let sandbox = world.add(sandbox);
    let mut told = json!({
        "templateID": sandbox.template,
        "sandboxID": sandbox.id,
        "clientID": "6532622b",
        "envdVersion": world.options.envd,
        "domain": null,
    });
    if !sandbox.token.is_empty() {
        told["envdAccessToken"] = sandbox.token.clone().into();
    }
    Ok((StatusCode::CREATED, Json(told)))
}

/// The description of a sandbox in lists.
fn listed(world: &World, sandbox: &Sandbox) -> Value {
    let left = sandbox
        .end
        .borrow()
        .saturating_duration_since(Instant::now());
    json!({
        "templateID": sandbox.template,
        "sandboxID": sandbox.id,
        "clientID": "6532622b",
        "startedAt": time(sandbox.started),
        "endAt": time(SystemTime::now() + left),
        "cpuCount": CORES,
        "memoryMB": MEMORY_MB,
        "diskSizeMB": DISK_MB,
        "metadata": sandbox.metadata,
        "state": "running",
        "envdVersion": world.options.envd,
    })
}

/// Formats a time as RFC 3339, in whole seconds.
fn time(at: SystemTime) -> String {
    DateTime::<Utc>::from(at).to_rfc3339_opts(SecondsFormat::Secs, true)
}

/// Decodes percent-encoding, and `+` as a space. Invalid sequences stay as they are.
fn decoded(text: &str) -> String {
    let text = text.replace('+', " ");
    percent_decode_str(&text).decode_utf8_lossy().into_owned()
}

async fn list(
    Authorised(world): Authorised,
    Query(filter): Query<Filter>,
) -> Result<impl IntoResponse, Wrong> {
    let mut labels = Vec::new();
    // E2B's own clients encode the names and values, and then the whole filter again.
    for pair in decoded(&filter.metadata)
        .split('&')
        .filter(|pair| !pair.is_empty())
    {
        let Some(pair) = pair.split_once('=') else {
            let why = format!("Error when parsing metadata: `{pair}` has no value");
            return Err(Wrong(StatusCode::BAD_REQUEST, why));
        };
        labels.push((decoded(pair.0), decoded(pair.1)));
    }
    let running =
        filter.state.is_empty() || filter.state.split(',').any(|state| state == "running");
    let fits = |sandbox: &&Arc<Sandbox>| {
        let has = |(name, value): &(String, String)| sandbox.metadata.get(name) == Some(value);
        running && sandbox.id > filter.next_token && labels.iter().all(has)
    };
    let page = filter.limit.unwrap_or(100).clamp(1, world.options.page);
    let all = world.all();
    let found: Vec<_> = all.iter().filter(fits).collect();
    let told: Vec<Value> = found
        .iter()
        .take(page)
        .map(|sandbox| listed(&world, sandbox))
        .collect();
    let mut headers = HeaderMap::new();
    if found.len() > page
        && let Some(last) = found.get(page - 1)
        && let Ok(token) = last.id.parse()
    {
        headers.insert(NEXT_TOKEN_HEADER, token);
    }
    Ok((headers, Json(told)))
}

async fn detail(
    Authorised(world): Authorised,
    Path(id): Path<String>,
) -> Result<Json<Value>, Wrong> {
    let sandbox = world.get(&id).ok_or_else(|| missing(&id))?;
    let mut told = listed(&world, &sandbox);
    told["allowInternetAccess"] = sandbox.internet.into();
    Ok(Json(told))
}

async fn kill(Authorised(world): Authorised, Path(id): Path<String>) -> Result<StatusCode, Wrong> {
    forget(State(world), Path(id)).await
}

async fn timeout(
    Authorised(world): Authorised,
    Path(id): Path<String>,
    body: Bytes,
) -> Result<StatusCode, Wrong> {
    let Timeout { timeout } = parsed(&body)?;
    let life = checked(timeout)?;
    let sandbox = world.get(&id).ok_or_else(|| missing(&id))?;
    sandbox.end.send_replace(Instant::now() + life);
    Ok(StatusCode::NO_CONTENT)
}

/// Not part of E2B's API.
async fn cut(State(world): Shared, Path(id): Path<String>) -> Result<StatusCode, Wrong> {
    let sandbox = world.get(&id).ok_or_else(|| missing(&id))?;
    sandbox.cut();
    Ok(StatusCode::NO_CONTENT)
}

/// Not part of E2B's API.
async fn forget(State(world): Shared, Path(id): Path<String>) -> Result<StatusCode, Wrong> {
    match world.remove(&id) {
        true => Ok(StatusCode::NO_CONTENT),
        false => Err(missing(&id)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_is_decoded() {
        for (text, expected) in [("b%20c+d", "b c d"), ("100%", "100%"), ("%zz%3D", "%zz=")] {
            assert_eq!(decoded(text), expected);
        }
    }
}
