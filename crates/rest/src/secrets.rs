//! Routes of project secrets. Their values are write-only.

use api::{MasterKey, Secret, SecretValue, Secrets};
use axum::{
    Json,
    body::Bytes,
    extract::{Path, State, rejection::BytesRejection},
    http::StatusCode,
};
use serde::Deserialize;
use store::SecretRow;

use super::{
    AppState, Problem,
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
