//! Keys: making, listing, revoking. A key itself is only in the answer that makes it.

use api::{Key, Keys, MadeKey, Time};
use axum::{
    Json,
    body::Bytes,
    extract::{Path, State, rejection::BytesRejection},
    http::StatusCode,
};
use model::ProjectId;
use serde::{Deserialize, Serialize};
use store::{KeyRow, NewKey};
use utoipa::ToSchema;

use super::{
    AppState, Problem, Rest,
    access::Project,
    input::{self, Page},
};
use crate::auth;

/// A key of a project to be made.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct WantedKey {
    #[schema(schema_with = api::name)]
    pub(crate) name: String,
    #[schema(schema_with = api::project_role)]
    pub(crate) role: store::Role,
    #[schema(value_type = Option<String>, format = DateTime)]
    #[serde(default)]
    pub(crate) expires_at: Option<Time>,
}

/// An administrator's key to be made.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct WantedAdminKey {
    #[schema(schema_with = api::name)]
    pub(crate) name: String,
    #[schema(value_type = Option<String>, format = DateTime)]
    #[serde(default)]
    pub(crate) expires_at: Option<Time>,
}

#[derive(Deserialize)]
pub(super) struct Named {
    key: String,
}

pub(super) fn told(row: KeyRow) -> Key {
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

impl Rest {
    async fn keys(&self, project: Option<&ProjectId>, page: Page) -> Result<Json<Keys>, Problem> {
        let rows = self
            .projects
            .store()
            .key_list(project, page.asked())
            .await?;
        Ok(Json(Keys {
            next: page.next(&rows, |row| row.id.clone()),
            keys: rows.into_iter().map(told).collect(),
        }))
    }

    async fn make(
        &self,
        project: Option<&ProjectId>,
        wanted: WantedKey,
    ) -> Result<(StatusCode, Json<MadeKey>), Problem> {
        input::name("/name", &wanted.name)?;
        if wanted.expires_at.is_some_and(|end| end <= store::now()) {
            return Err(Problem::field(400, "/expires_at", "is in the past"));
        }
        let token = auth::new_token();
        let key = NewKey {
            project,
            name: &wanted.name,
            role: wanted.role,
            hash: &auth::hash(&token),
            hint: auth::hint(&token),
            expires_at: wanted.expires_at,
        };
        let row = self.projects.store().key_put(key).await?;
        self.keys_changed().await;
        let key = told(row);
        Ok((StatusCode::CREATED, Json(MadeKey { key, token })))
    }

    async fn revoke(&self, project: Option<&ProjectId>, id: &str) -> Result<StatusCode, Problem> {
        self.projects.store().key_revoke(project, id).await?;
        self.keys_changed().await;
        Ok(StatusCode::NO_CONTENT)
    }
}

pub(super) async fn list_all(rest: State<AppState>, page: Page) -> Result<Json<Keys>, Problem> {
    rest.keys(None, page).await
}

pub(super) async fn list(
    rest: State<AppState>,
    Project(project): Project,
    page: Page,
) -> Result<Json<Keys>, Problem> {
    rest.keys(Some(&project), page).await
}

pub(super) async fn make_admin(
    rest: State<AppState>,
    body: Result<Bytes, BytesRejection>,
) -> Result<(StatusCode, Json<MadeKey>), Problem> {
    let WantedAdminKey { name, expires_at } = input::object(body)?;
    let wanted = WantedKey {
        name,
        role: store::Role::Admin,
        expires_at,
    };
    rest.make(None, wanted).await
}

pub(super) async fn make(
    rest: State<AppState>,
    Project(project): Project,
    body: Result<Bytes, BytesRejection>,
) -> Result<(StatusCode, Json<MadeKey>), Problem> {
    let wanted: WantedKey = input::object(body)?;
    if wanted.role == store::Role::Admin {
        let why = "is `read`, `call` or `manage`; an administrator's key is of no project";
        return Err(Problem::field(400, "/role", why));
    }
    rest.make(Some(&project), wanted).await
}

pub(super) async fn revoke_any(
    rest: State<AppState>,
    Path(Named { key }): Path<Named>,
) -> Result<StatusCode, Problem> {
    rest.revoke(None, &key).await
}

pub(super) async fn revoke(
    rest: State<AppState>,
    Project(project): Project,
    Path(Named { key }): Path<Named>,
) -> Result<StatusCode, Problem> {
    rest.revoke(Some(&project), &key).await
}
