//! Routes of API keys. A key itself appears only in the response that creates it.
//!
//! Invariant: a caller learns nothing about keys that open only projects of others, nor about the other projects of a
//! key. A name that such a key has is free for the caller.

use std::collections::BTreeSet;

use api::{Key, Keys, MadeKey, Time};
use axum::{
    Extension, Json,
    body::Bytes,
    extract::{Path, State, rejection::BytesRejection},
    http::StatusCode,
};
use model::{ProjectId, ToolMode};
use serde::{Deserialize, Serialize};
use store::{KeyRow, NewKey, Role};
use utoipa::ToSchema;

use super::{
    AppState, Problem,
    access::{Who, Within, permit},
    input::{self, Page},
};
use auth::Principal;

/// Maximum number of projects of a key.
const MAX_PROJECTS: usize = 100;

/// A key to create. With projects, the key is valid for these projects and needs a role. Without one, it is valid for
/// all projects, and is an administrator's key if `role` is missing.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct WantedKey {
    /// No other key has this name, unless it is revoked.
    #[schema(schema_with = api::name)]
    pub(crate) name: String,
    #[schema(schema_with = api::project_role)]
    #[serde(default)]
    pub(crate) role: Option<Role>,
    /// The projects of the key. By default, the project in `?project=`, or the caller's own project.
    #[serde(default)]
    pub(crate) projects: Vec<String>,
    #[schema(value_type = Option<String>, format = DateTime)]
    #[serde(default)]
    pub(crate) expires_at: Option<Time>,
    /// The tools in the lists of clients with this key. The default is the setting of the project or of the gateway.
    #[schema(schema_with = api::tool_mode)]
    #[serde(default)]
    pub(crate) tools: Option<ToolMode>,
}

/// Returns a key with those of its projects that the caller can see.
pub(super) fn to_api(row: KeyRow, who: &Principal) -> Key {
    let projects = row.projects().filter(|id| {
        let id = ProjectId::parse(id).ok();
        id.is_some_and(|id| who.reaches(Some(&id)))
    });
    let projects: Vec<String> = projects.map(str::to_owned).collect();
    Key {
        id: row.id,
        project: projects.first().cloned(),
        projects,
        name: row.name,
        role: row.role.as_str().to_owned(),
        hint: row.hint,
        created_at: row.created_at,
        last_used_at: row.last_used_at,
        expires_at: row.expires_at,
        revoked_at: row.revoked_at,
        tools: row.tools.and_then(|word| word.parse().ok()),
    }
}

pub(super) async fn list(
    State(rest): State<AppState>,
    Extension(who): Who,
    Within(project): Within,
    page: Page,
) -> Result<Json<Keys>, Problem> {
    let store = rest.projects.store();
    let rows = store.key_list(project.as_ref(), page.asked()).await?;
    Ok(Json(Keys {
        next: page.next(&rows, |row| row.id.clone()),
        keys: rows.into_iter().map(|row| to_api(row, &who)).collect(),
    }))
}

pub(super) async fn make(
    State(rest): State<AppState>,
    Extension(who): Who,
    Within(project): Within,
    body: Result<Bytes, BytesRejection>,
) -> Result<(StatusCode, Json<MadeKey>), Problem> {
    let wanted: WantedKey = input::object(body)?;
    input::name("/name", &wanted.name)?;
    let mut projects = BTreeSet::new();
    for (at, id) in wanted.projects.iter().enumerate() {
        let known = rest.project(&who, id).await;
        let known = known.map_err(|problem| match problem.status {
            404 => Problem::field(404, &format!("/projects/{at}"), problem.detail.clone()),
            _ => problem,
        })?;
        permit(&who, auth::Role::Manage, Some(&known))?;
        projects.insert(known);
    }
    if projects.is_empty() {
        projects.extend(project);
    }
    if projects.len() > MAX_PROJECTS {
        let must = format!("must be at most {MAX_PROJECTS} projects");
        return Err(Problem::field(400, "/projects", must));
    }
    let projects: Vec<ProjectId> = projects.into_iter().collect();
    let wrong_role = |why| Problem::field(400, "/role", why);
    let role = match (projects.is_empty(), wanted.role) {
        (true, role) => role.unwrap_or(Role::Admin),
        (false, None | Some(Role::Admin)) => {
            return Err(wrong_role("must be `read`, `call` or `manage`"));
        }
        (false, Some(role)) => role,
    };
    if role == Role::Admin {
        permit(&who, auth::Role::Admin, None)?;
    }
    if wanted.expires_at.is_some_and(|end| end <= store::now()) {
        return Err(Problem::field(400, "/expires_at", "must be in the future"));
    }
    let token = auth::new_token();
    let visible = who.projects_with(auth::Role::Manage);
    let key = NewKey {
        projects: &projects,
        name: wanted.name.trim(),
        visible: visible.as_deref(),
        role,
        hash: &auth::hash(&token),
        hint: auth::hint(&token),
        expires_at: wanted.expires_at,
        tools: wanted.tools,
    };
    let row = rest.projects.store().key_put(key).await?;
    rest.keys_changed().await;
    let key = to_api(row, &who);
    Ok((StatusCode::CREATED, Json(MadeKey { key, token })))
}

pub(super) async fn revoke(
    State(rest): State<AppState>,
    Extension(who): Who,
    Within(project): Within,
    Path(id): Path<String>,
) -> Result<StatusCode, Problem> {
    let store = rest.projects.store();
    let key = store.key_get(&id).await?;
    if key.is_some_and(|key| key.role == Role::Admin) {
        permit(&who, auth::Role::Admin, None)?;
    }
    store.key_revoke(project.as_ref(), &id).await?;
    rest.keys_changed().await;
    Ok(StatusCode::NO_CONTENT)
}
