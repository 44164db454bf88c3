//! Routes of API keys. A key itself appears only in the response that creates it.

use api::{Key, Keys, MadeKey, Time};
use axum::{
    Extension, Json,
    body::Bytes,
    extract::{Path, State, rejection::BytesRejection},
    http::StatusCode,
};
use serde::{Deserialize, Serialize};
use store::{KeyRow, NewKey, Role};
use utoipa::ToSchema;

use super::{
    AppState, Problem,
    access::{Who, Within, permit},
    input::{self, Page},
};

/// A key to create. With a project, the key is valid for that project and needs a role. Without one, it is valid for
/// all projects, and is an administrator's key if `role` is missing.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct WantedKey {
    #[schema(schema_with = api::name)]
    pub(crate) name: String,
    #[schema(schema_with = api::project_role)]
    #[serde(default)]
    pub(crate) role: Option<Role>,
    #[schema(value_type = Option<String>, format = DateTime)]
    #[serde(default)]
    pub(crate) expires_at: Option<Time>,
}

pub(super) fn to_api(row: KeyRow) -> Key {
    Key {
        id: row.id,
        project: row.project_id,
        name: row.name,
        role: row.role.as_str().to_owned(),
        hint: row.hint,
        created_at: row.created_at,
        last_used_at: row.last_used_at,
        expires_at: row.expires_at,
        revoked_at: row.revoked_at,
    }
}

pub(super) async fn list(
    State(rest): State<AppState>,
    Within(project): Within,
    page: Page,
) -> Result<Json<Keys>, Problem> {
    let store = rest.projects.store();
    let rows = store.key_list(project.as_ref(), page.asked()).await?;
    Ok(Json(Keys {
        next: page.next(&rows, |row| row.id.clone()),
        keys: rows.into_iter().map(to_api).collect(),
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
    let wrong_role = |why| Problem::field(400, "/role", why);
    let role = match (&project, wanted.role) {
        (None, role) => role.unwrap_or(Role::Admin),
        (Some(_), None | Some(Role::Admin)) => {
            return Err(wrong_role("must be `read`, `call` or `manage`"));
        }
        (Some(_), Some(role)) => role,
    };
    if role == Role::Admin {
        permit(&who, auth::Role::Admin, None)?;
    }
    if wanted.expires_at.is_some_and(|end| end <= store::now()) {
        return Err(Problem::field(400, "/expires_at", "must be in the future"));
    }
    let token = auth::new_token();
    let key = NewKey {
        project: project.as_ref(),
        name: &wanted.name,
        role,
        hash: &auth::hash(&token),
        hint: auth::hint(&token),
        expires_at: wanted.expires_at,
    };
    let row = rest.projects.store().key_put(key).await?;
    rest.keys_changed().await;
    let key = to_api(row);
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
