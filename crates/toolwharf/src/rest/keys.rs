//! Keys: making, listing, revoking. A key itself is only in the answer that makes it.

use axum::{
    Json,
    body::Bytes,
    extract::{Path, State, rejection::BytesRejection},
    http::StatusCode,
};
use model::ProjectId;
use serde::{Deserialize, Serialize};
use store::{KeyRow, NewKey, Time};
use utoipa::ToSchema;

use super::{
    Problem, Rest, Shared,
    access::Project,
    input::{self, Page},
    schemas,
};
use crate::auth;

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Keys {
    pub(crate) keys: Vec<Key>,
    /// Give it as `after` for the next page; none on the last.
    pub(crate) next: Option<String>,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Key {
    pub(crate) id: String,
    /// None: an administrator's.
    pub(crate) project: Option<String>,
    pub(crate) name: String,
    #[schema(schema_with = schemas::role)]
    pub(crate) role: store::Role,
    /// Its last characters.
    pub(crate) hint: String,
    #[schema(value_type = String, format = DateTime)]
    pub(crate) created_at: Time,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub(crate) last_used_at: Option<Time>,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub(crate) expires_at: Option<Time>,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub(crate) revoked_at: Option<Time>,
}

/// A key that was made just now.
#[derive(Serialize, Deserialize, ToSchema)]
pub(crate) struct MadeKey {
    #[serde(flatten)]
    pub(crate) key: Key,
    /// The key itself. It is told this once.
    pub(crate) token: String,
}

/// A key of a project to be made.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct WantedKey {
    #[schema(schema_with = schemas::name)]
    pub(crate) name: String,
    #[schema(schema_with = schemas::project_role)]
    pub(crate) role: store::Role,
    #[schema(value_type = Option<String>, format = DateTime)]
    #[serde(default)]
    pub(crate) expires_at: Option<Time>,
}

/// An administrator's key to be made.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct WantedAdminKey {
    #[schema(schema_with = schemas::name)]
    pub(crate) name: String,
    #[schema(value_type = Option<String>, format = DateTime)]
    #[serde(default)]
    pub(crate) expires_at: Option<Time>,
}

#[derive(Deserialize)]
pub(super) struct Named {
    key: String,
}

impl From<KeyRow> for Key {
    fn from(row: KeyRow) -> Self {
        Self {
            id: row.id,
            project: row.project_id,
            name: row.name,
            role: row.role,
            hint: row.hint,
            created_at: row.created_at,
            last_used_at: row.last_used_at,
            expires_at: row.expires_at,
            revoked_at: row.revoked_at,
        }
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
            keys: rows.into_iter().map(Key::from).collect(),
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
        let key = row.into();
        Ok((StatusCode::CREATED, Json(MadeKey { key, token })))
    }

    async fn revoke(&self, project: Option<&ProjectId>, id: &str) -> Result<StatusCode, Problem> {
        self.projects.store().key_revoke(project, id).await?;
        self.keys_changed().await;
        Ok(StatusCode::NO_CONTENT)
    }
}

pub(super) async fn list_all(rest: State<Shared>, page: Page) -> Result<Json<Keys>, Problem> {
    rest.keys(None, page).await
}

pub(super) async fn list(
    rest: State<Shared>,
    Project(project): Project,
    page: Page,
) -> Result<Json<Keys>, Problem> {
    rest.keys(Some(&project), page).await
}

pub(super) async fn make_admin(
    rest: State<Shared>,
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
    rest: State<Shared>,
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
    rest: State<Shared>,
    Path(Named { key }): Path<Named>,
) -> Result<StatusCode, Problem> {
    rest.revoke(None, &key).await
}

pub(super) async fn revoke(
    rest: State<Shared>,
    Project(project): Project,
    Path(Named { key }): Path<Named>,
) -> Result<StatusCode, Problem> {
    rest.revoke(Some(&project), &key).await
}
