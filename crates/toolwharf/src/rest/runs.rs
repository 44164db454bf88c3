//! Runs: what each turn of an agent took and how it ended, with its calls.

use axum::{
    Json,
    extract::{Path, Query, State, rejection::QueryRejection},
};
use model::ProjectId;
use serde::{Deserialize, Serialize};
use store::{Page as Part, RunFilter, RunRow, Time};
use utoipa::ToSchema;

use super::{
    Problem, Shared,
    access::Project,
    calls::Call,
    input::{self, Page},
    schemas,
};

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Runs {
    /// Newest first.
    pub(crate) runs: Vec<Run>,
    /// Give it as `after` for the next page; none on the last.
    pub(crate) next: Option<String>,
}

/// A turn of an agent.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Run {
    pub(crate) id: String,
    pub(crate) project: Option<String>,
    /// The conversation that it is of, which may have been removed.
    pub(crate) conversation: Option<String>,
    pub(crate) agent: String,
    pub(crate) model: String,
    #[schema(schema_with = schemas::run_status)]
    pub(crate) status: String,
    /// Why it did not end as it should.
    pub(crate) error: Option<String>,
    /// Requests to the model.
    pub(crate) turns: i32,
    pub(crate) input_tokens: i64,
    pub(crate) output_tokens: i64,
    /// In millionths of the currency that prices are configured in.
    pub(crate) cost_micros: i64,
    #[schema(value_type = String, format = DateTime)]
    pub(crate) started_at: Time,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub(crate) finished_at: Option<Time>,
}

/// A run with its calls.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct WholeRun {
    #[serde(flatten)]
    pub(crate) run: Run,
    /// The calls of tools, in order: the first 1000. `GET …/calls?run=` lists all.
    pub(crate) calls: Vec<Call>,
}

#[derive(Deserialize)]
pub(super) struct Asked {
    project: Option<ProjectId>,
    status: Option<String>,
    conversation: Option<String>,
}

#[derive(Deserialize)]
pub(super) struct Named {
    run: String,
}

impl From<RunRow> for Run {
    fn from(row: RunRow) -> Self {
        Self {
            id: row.id,
            project: row.project_id,
            conversation: row.conversation_id,
            agent: row.agent,
            model: row.model,
            status: row.status,
            error: row.error,
            turns: row.turns,
            input_tokens: row.input_tokens,
            output_tokens: row.output_tokens,
            cost_micros: row.cost_micros,
            started_at: row.started_at,
            finished_at: row.finished_at,
        }
    }
}

pub(super) async fn list_all(
    State(rest): State<Shared>,
    page: Page,
    query: Result<Query<Asked>, QueryRejection>,
) -> Result<Json<Runs>, Problem> {
    let mut asked = input::query(query)?;
    let project = asked.project.take();
    listed(&rest, project, asked, &page).await
}

pub(super) async fn list(
    State(rest): State<Shared>,
    Project(project): Project,
    page: Page,
    query: Result<Query<Asked>, QueryRejection>,
) -> Result<Json<Runs>, Problem> {
    listed(&rest, Some(project), input::query(query)?, &page).await
}

async fn listed(
    rest: &Shared,
    project: Option<ProjectId>,
    asked: Asked,
    page: &Page,
) -> Result<Json<Runs>, Problem> {
    if let Some(status) = &asked.status
        && !schemas::RUN_STATUSES.contains(&status.as_str())
    {
        let known = schemas::RUN_STATUSES.join(", ");
        let why = format!("`{status}` is no outcome of a run; known are {known}");
        return Err(Problem::new(400, why));
    }
    let filter = RunFilter {
        project,
        status: asked.status,
        conversation: asked.conversation,
    };
    let rows = rest.agents.store().run_list(&filter, page.asked()).await?;
    Ok(Json(Runs {
        next: page.next(&rows, |row| row.id.clone()),
        runs: rows.into_iter().map(Run::from).collect(),
    }))
}

pub(super) async fn show_any(
    State(rest): State<Shared>,
    Path(Named { run }): Path<Named>,
) -> Result<Json<WholeRun>, Problem> {
    shown(&rest, None, &run).await
}

pub(super) async fn show(
    State(rest): State<Shared>,
    Project(project): Project,
    Path(Named { run }): Path<Named>,
) -> Result<Json<WholeRun>, Problem> {
    shown(&rest, Some(&project), &run).await
}

async fn shown(
    rest: &Shared,
    project: Option<&ProjectId>,
    id: &str,
) -> Result<Json<WholeRun>, Problem> {
    let store = rest.agents.store();
    let run = store.run_get(project, id).await?;
    let rows = store.calls_of_run(project, id, &Part::default()).await?;
    Ok(Json(WholeRun {
        run: run.into(),
        calls: rows.into_iter().map(Call::from).collect(),
    }))
}
