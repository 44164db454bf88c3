//! Routes of projects. A project contains servers, secrets and keys.

use api::{Project, ProjectConfig, Projects};
use axum::{
    Json,
    body::Bytes,
    extract::{State, rejection::BytesRejection},
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
};
use model::{NamingPolicy, Settings, StartPolicy, ToolMode, ToolRef};
use serde::Serialize;
use serde_json::{Value, json};
use store::{NewProject, ProjectRow};

use super::{
    AppState, Problem, Rest,
    access::Project as Named,
    answer::found,
    input::{self, Conditions, Page, etag},
};

/// Keys of the policies in a project's settings.
const NAMING: &str = "naming";
const START: &str = "start";
const TOOLS: &str = "tools";
/// The key of the tools that lists contain in search mode.
const LISTED_TOOLS: &str = "listed_tools";
const MAX_RESULT_TOKENS: &str = "max_result_tokens";
const COMPACT_RESULTS: &str = "compact_results";
const MAX_LISTED_TOOLS: usize = 1000;

fn to_api(row: ProjectRow) -> Project {
    let word = |key: &str| row.settings.get(key).and_then(Value::as_str);
    let listed = row.settings.get(LISTED_TOOLS).and_then(Value::as_array);
    let listed = listed.into_iter().flatten().filter_map(Value::as_str);
    let tokens = row.settings.get(MAX_RESULT_TOKENS).and_then(Value::as_u64);
    let compact = row.settings.get(COMPACT_RESULTS);
    Project {
        max_result_tokens: tokens.and_then(|tokens| usize::try_from(tokens).ok()),
        compact_results: compact.and_then(Value::as_bool),
        tools: word(TOOLS).and_then(|word| word.parse().ok()),
        listed_tools: listed.map(str::to_owned).collect(),
        naming: word(NAMING).and_then(|word| word.parse().ok()),
        start: word(START).and_then(|word| word.parse().ok()),
        id: row.id.to_string(),
        name: row.name,
        description: row.description,
        enabled: row.enabled,
        created_at: row.created_at,
        updated_at: row.updated_at,
    }
}

fn tag_of(project: &Project) -> String {
    etag(&json!([
        project.name,
        project.description,
        project.enabled,
        project.naming,
        project.start,
        project.tools,
        project.listed_tools,
        project.max_result_tokens,
        project.compact_results
    ]))
}

pub(super) async fn list(
    State(rest): State<AppState>,
    page: Page,
) -> Result<Json<Projects>, Problem> {
    let rows = rest.projects.store().project_list(page.asked()).await?;
    Ok(Json(Projects {
        next: page.next(&rows, |row| row.id.to_string()),
        projects: rows.into_iter().map(to_api).collect(),
    }))
}

pub(super) async fn show(
    State(rest): State<AppState>,
    Named(id): Named,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let project = to_api(rest.projects.store().project_get(&id).await?);
    Ok(tagged(&headers, tag_of(&project), &project))
}

pub(super) async fn save(
    State(rest): State<AppState>,
    Named(id): Named,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, Problem> {
    let config: ProjectConfig = input::object(body)?;
    if let Some(name) = &config.name {
        input::name("/name", name)?;
    }
    input::description("/description", &config.description)?;
    if config.start == Some(StartPolicy::Lazy) {
        return Err(Problem::field(
            400,
            "/start",
            "must be `sequential` or `parallel`",
        ));
    }
    if config.listed_tools.len() > MAX_LISTED_TOOLS {
        let what = format!("must have at most {MAX_LISTED_TOOLS} items");
        return Err(Problem::field(400, "/listed_tools", what));
    }
    for (at, tool) in config.listed_tools.iter().enumerate() {
        ToolRef::parse(tool).map_err(|error| {
            Problem::field(400, &format!("/listed_tools/{at}"), error.to_string())
        })?;
    }
    if let Some(tokens) = config.max_result_tokens
        && !Settings::is_result_bound(tokens)
    {
        let what = format!("must be {}", Settings::RESULT_BOUNDS);
        return Err(Problem::field(400, "/max_result_tokens", what));
    }
    let store = rest.projects.store();
    let _one_at_a_time = rest.turn().await?;
    let before = found(store.project_get(&id).await)?;
    let mut settings = before
        .as_ref()
        .map_or_else(|| json!({}), |row| row.settings.clone());
    let tag = before.map(|row| tag_of(&to_api(row)));
    Conditions::of(&headers).permit(tag.as_deref())?;
    if let Some(settings) = settings.as_object_mut() {
        let words = [
            (NAMING, config.naming.map(NamingPolicy::as_str)),
            (START, config.start.map(StartPolicy::as_str)),
            (TOOLS, config.tools.map(ToolMode::as_str)),
        ];
        for (key, word) in words {
            match word {
                Some(word) => settings.insert(key.to_owned(), word.into()),
                None => settings.remove(key),
            };
        }
        let values = [
            (MAX_RESULT_TOKENS, config.max_result_tokens.map(Value::from)),
            (COMPACT_RESULTS, config.compact_results.map(Value::from)),
        ];
        for (key, value) in values {
            match value {
                Some(value) => settings.insert(key.to_owned(), value),
                None => settings.remove(key),
            };
        }
        match config.listed_tools.is_empty() {
            true => settings.remove(LISTED_TOOLS),
            false => settings.insert(LISTED_TOOLS.to_owned(), json!(config.listed_tools)),
        };
    }
    let project = NewProject {
        name: config.name.unwrap_or_else(|| id.to_string()),
        description: config.description,
        enabled: config.enabled.unwrap_or(true),
        settings,
        id,
    };
    let put = store.project_put(&project).await?;
    rest.projects.reload(&project.id).await?;
    // The project may have been enabled or disabled, together with its servers.
    rest.hosting.reload().await?;
    let project = to_api(put.row);
    Ok(saved(put.created, tag_of(&project), &project))
}

pub(super) async fn remove(
    State(rest): State<AppState>,
    Named(id): Named,
    headers: HeaderMap,
) -> Result<StatusCode, Problem> {
    let store = rest.projects.store();
    let _one_at_a_time = rest.turn().await?;
    let tag = tag_of(&to_api(store.project_get(&id).await?));
    Conditions::of(&headers).permit(Some(&tag))?;
    store.project_delete(&id).await?;
    rest.projects.reload(&id).await?;
    rest.hosting.reload().await?;
    rest.keys_changed().await;
    Ok(StatusCode::NO_CONTENT)
}

impl Rest {
    /// Reloads the keys after a change. If this fails, the periodic reload picks the change up later.
    pub(super) async fn keys_changed(&self) {
        if let Err(error) = self.keys.refresh(self.projects.store()).await {
            tracing::warn!("cannot reload the keys; a key change takes effect later: {error}");
        }
    }
}

/// Returns a configuration with its tag, or 304 if the caller has it already.
pub(super) fn tagged(headers: &HeaderMap, tag: String, body: &impl Serialize) -> Response {
    if Conditions::of(headers).is_known(&tag) {
        return (StatusCode::NOT_MODIFIED, [(header::ETAG, tag)]).into_response();
    }
    ([(header::ETAG, tag)], Json(body)).into_response()
}

/// Returns the response to a `PUT` of a configuration: 201 or 200, with the new tag.
pub(super) fn saved(created: bool, tag: String, body: &impl Serialize) -> Response {
    let status = if created {
        StatusCode::CREATED
    } else {
        StatusCode::OK
    };
    (status, [(header::ETAG, tag)], Json(body)).into_response()
}
