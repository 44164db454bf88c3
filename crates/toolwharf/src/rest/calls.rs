//! The audit: who called what, and what became of it.

use axum::{
    Json,
    extract::{Path, Query, State, rejection::QueryRejection},
};
use model::ProjectId;
use serde::{Deserialize, Serialize};
use store::{CallDetail, CallFilter, CallRow, CallStatus, Time};
use utoipa::ToSchema;

use super::{
    Problem, Rest, Shared,
    access::Project,
    input::{self, Page},
    schemas,
};

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Calls {
    /// Newest first.
    pub(crate) calls: Vec<Call>,
    /// Give it as `after` for the next page; none on the last.
    pub(crate) next: Option<String>,
}

/// A call of a tool.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Call {
    pub(crate) id: String,
    /// The run of an agent that it belongs to.
    pub(crate) run: Option<String>,
    pub(crate) project: Option<String>,
    pub(crate) caller: String,
    pub(crate) server: String,
    pub(crate) tool: String,
    #[schema(schema_with = schemas::call_status)]
    pub(crate) status: CallStatus,
    pub(crate) error: Option<String>,
    pub(crate) arguments_digest: String,
    pub(crate) result_digest: Option<String>,
    #[schema(value_type = String, format = DateTime)]
    pub(crate) started_at: Time,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub(crate) finished_at: Option<Time>,
    pub(crate) duration_us: Option<i64>,
}

/// A call with its bodies, where the settings have them kept.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct WholeCall {
    #[serde(flatten)]
    pub(crate) call: Call,
    /// JSON text.
    pub(crate) arguments: Option<String>,
    /// JSON text.
    pub(crate) result: Option<String>,
}

#[derive(Deserialize)]
pub(super) struct Asked {
    project: Option<ProjectId>,
    server: Option<String>,
    tool: Option<String>,
    status: Option<CallStatus>,
    caller: Option<String>,
    run: Option<String>,
    since: Option<Time>,
    until: Option<Time>,
}

#[derive(Deserialize)]
pub(super) struct Named {
    call: String,
}

impl From<CallRow> for Call {
    fn from(row: CallRow) -> Self {
        Self {
            id: row.id,
            run: row.run_id,
            project: row.project_id,
            caller: row.caller,
            server: row.server,
            tool: row.tool,
            status: row.status,
            error: row.error,
            arguments_digest: row.arguments_digest,
            result_digest: row.result_digest,
            started_at: row.started_at,
            finished_at: row.finished_at,
            duration_us: row.duration_us,
        }
    }
}

impl From<CallDetail> for WholeCall {
    fn from(detail: CallDetail) -> Self {
        Self {
            call: detail.call.into(),
            arguments: detail.arguments,
            result: detail.result,
        }
    }
}

pub(super) async fn list_all(
    State(rest): State<Shared>,
    page: Page,
    query: Result<Query<Asked>, QueryRejection>,
) -> Result<Json<Calls>, Problem> {
    let mut asked = input::query(query)?;
    let project = asked.project.take();
    rest.calls(asked, project, page).await
}

pub(super) async fn list(
    State(rest): State<Shared>,
    Project(project): Project,
    page: Page,
    query: Result<Query<Asked>, QueryRejection>,
) -> Result<Json<Calls>, Problem> {
    rest.calls(input::query(query)?, Some(project), page).await
}

impl Rest {
    async fn calls(
        &self,
        asked: Asked,
        project: Option<ProjectId>,
        page: Page,
    ) -> Result<Json<Calls>, Problem> {
        let filter = CallFilter {
            project,
            server: asked.server,
            tool: asked.tool,
            status: asked.status,
            caller: asked.caller,
            run: asked.run,
            since: asked.since,
            until: asked.until,
        };
        let rows = self
            .projects
            .store()
            .calls_list(&filter, page.asked())
            .await?;
        Ok(Json(Calls {
            next: page.next(&rows, |row| row.id.clone()),
            calls: rows.into_iter().map(Call::from).collect(),
        }))
    }
}

pub(super) async fn show_any(
    State(rest): State<Shared>,
    Path(Named { call }): Path<Named>,
) -> Result<Json<WholeCall>, Problem> {
    let detail = rest.projects.store().call_get(None, &call).await?;
    Ok(Json(detail.into()))
}

pub(super) async fn show(
    State(rest): State<Shared>,
    Project(project): Project,
    Path(Named { call }): Path<Named>,
) -> Result<Json<WholeCall>, Problem> {
    let detail = rest
        .projects
        .store()
        .call_get(Some(&project), &call)
        .await?;
    Ok(Json(detail.into()))
}
