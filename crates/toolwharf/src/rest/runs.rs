//! Runs: what each turn of an agent took and how it ended, with its calls.

use api::{Run, Runs, WholeRun};
use axum::{
    Json,
    extract::{Path, Query, State, rejection::QueryRejection},
};
use model::ProjectId;
use serde::Deserialize;
use store::{Page as Part, RunFilter, RunRow};

use super::{
    AppState, Problem,
    access::Project,
    input::{self, Page},
};

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

pub(super) fn told(row: RunRow) -> Run {
    Run {
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

pub(super) async fn list_all(
    State(rest): State<AppState>,
    page: Page,
    query: Result<Query<Asked>, QueryRejection>,
) -> Result<Json<Runs>, Problem> {
    let mut asked = input::query(query)?;
    let project = asked.project.take();
    listed(&rest, project, asked, &page).await
}

pub(super) async fn list(
    State(rest): State<AppState>,
    Project(project): Project,
    page: Page,
    query: Result<Query<Asked>, QueryRejection>,
) -> Result<Json<Runs>, Problem> {
    listed(&rest, Some(project), input::query(query)?, &page).await
}

async fn listed(
    rest: &AppState,
    project: Option<ProjectId>,
    asked: Asked,
    page: &Page,
) -> Result<Json<Runs>, Problem> {
    if let Some(status) = &asked.status
        && !api::RUN_STATUSES.contains(&status.as_str())
    {
        let known = api::RUN_STATUSES.join(", ");
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
        runs: rows.into_iter().map(told).collect(),
    }))
}

pub(super) async fn show_any(
    State(rest): State<AppState>,
    Path(Named { run }): Path<Named>,
) -> Result<Json<WholeRun>, Problem> {
    shown(&rest, None, &run).await
}

pub(super) async fn show(
    State(rest): State<AppState>,
    Project(project): Project,
    Path(Named { run }): Path<Named>,
) -> Result<Json<WholeRun>, Problem> {
    shown(&rest, Some(&project), &run).await
}

async fn shown(
    rest: &AppState,
    project: Option<&ProjectId>,
    id: &str,
) -> Result<Json<WholeRun>, Problem> {
    let store = rest.agents.store();
    let run = store.run_get(project, id).await?;
    let rows = store.calls_of_run(project, id, &Part::default()).await?;
    Ok(Json(WholeRun {
        run: told(run),
        calls: rows.into_iter().map(super::calls::told).collect(),
    }))
}
