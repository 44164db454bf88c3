//! Routes of secrets, of projects and of the configuration file. Their values are write-only.

use api::{MasterKey, Secret, SecretValue, Secrets};
use axum::{
    Json,
    body::Bytes,
    extract::{Path, State, rejection::BytesRejection},
    http::StatusCode,
};
use serde::Deserialize;
use store::SecretRow;

use backend::{config_secrets, startup};

use super::{
    AppState, Problem, Rest,
    access::Project,
    input::{self, Page},
};

/// The name in a path.
#[derive(Deserialize)]
pub(super) struct Named {
    pub(super) name: String,
}

pub(super) fn to_api(row: SecretRow) -> Secret {
    Secret {
        name: row.name,
        version: row.version,
        created_at: row.created_at,
        updated_at: row.updated_at,
        overridden: false,
        notices: Vec::new(),
    }
}

/// A secret of the configuration file.
fn of_file(row: SecretRow) -> Secret {
    let overridden = startup::env(&row.name).is_some_and(|value| !value.is_empty());
    Secret {
        overridden,
        ..to_api(row)
    }
}

pub(super) async fn list(
    State(rest): State<AppState>,
    Project(project): Project,
    page: Page,
) -> Result<Json<Secrets>, Problem> {
    let rows = rest
        .projects
        .store()
        .secret_list(&project, page.asked())
        .await?;
    Ok(Json(Secrets {
        next: page.next(&rows, |row| row.name.clone()),
        secrets: rows.into_iter().map(to_api).collect(),
    }))
}

pub(super) async fn save(
    State(rest): State<AppState>,
    Project(project): Project,
    Path(Named { name }): Path<Named>,
    body: Result<Bytes, BytesRejection>,
) -> Result<(StatusCode, Json<Secret>), Problem> {
    let SecretValue { value } = input::object(body).map_err(without_values)?;
    let row = rest.projects.secret_set(&project, &name, &value).await?;
    rest.hosting.reload().await?;
    let status = match row.version {
        1 => StatusCode::CREATED,
        _ => StatusCode::OK,
    };
    Ok((status, Json(to_api(row))))
}

pub(super) async fn list_of_file(
    State(rest): State<AppState>,
    page: Page,
) -> Result<Json<Secrets>, Problem> {
    let store = rest.projects.store();
    let rows = store.config_secret_list(page.asked()).await?;
    Ok(Json(Secrets {
        next: page.next(&rows, |row| row.name.clone()),
        secrets: rows.into_iter().map(of_file).collect(),
    }))
}

pub(super) async fn save_of_file(
    State(rest): State<AppState>,
    Path(Named { name }): Path<Named>,
    body: Result<Bytes, BytesRejection>,
) -> Result<(StatusCode, Json<Secret>), Problem> {
    let SecretValue { value } = input::object(body).map_err(without_values)?;
    let row = rest.projects.config_secret_set(&name, &value).await?;
    let mut secret = of_file(row);
    if secret.overridden {
        secret.notices.push(config_secrets::overridden(&name));
    }
    secret.notices.extend(rest.refresh_secrets().await?);
    let status = match secret.version {
        1 => StatusCode::CREATED,
        _ => StatusCode::OK,
    };
    Ok((status, Json(secret)))
}

pub(super) async fn remove_of_file(
    State(rest): State<AppState>,
    Path(Named { name }): Path<Named>,
) -> Result<StatusCode, Problem> {
    rest.projects.store().config_secret_delete(&name).await?;
    rest.refresh_secrets().await?;
    Ok(StatusCode::NO_CONTENT)
}

impl Rest {
    /// Applies changed secrets of the configuration file. Returns why the configuration is not in force now.
    pub(super) async fn refresh_secrets(&self) -> Result<Option<String>, Problem> {
        let applied = self.live.refresh_secrets().await?;
        Ok(applied.err().map(|errors| {
            format!(
                "the secret was stored, but the gateway keeps the old configuration until these errors are fixed:\n{errors}"
            )
        }))
    }
}

/// Removes parts of the body from an error. They may contain the secret.
fn without_values(mut problem: Problem) -> Problem {
    if problem.status == 400 {
        problem.detail = r#"the body must be {"value": "…"}"#.to_owned();
        problem.errors.clear();
    }
    problem
}

pub(super) async fn remove(
    State(rest): State<AppState>,
    Project(project): Project,
    Path(Named { name }): Path<Named>,
) -> Result<StatusCode, Problem> {
    rest.projects.secret_delete(&project, &name).await?;
    rest.hosting.reload().await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn rotate(State(rest): State<AppState>) -> Result<Json<MasterKey>, Problem> {
    match rest.projects.master_rotate().await {
        Ok(key_id) => Ok(Json(MasterKey { key_id })),
        Err(error) => Err(match error.downcast::<store::Error>() {
            Ok(error) => error.into(),
            // The error message already says what to do.
            Err(error) => Problem::new(409, format!("{error:#}")),
        }),
    }
}
