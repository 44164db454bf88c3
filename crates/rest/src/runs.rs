//! Routes of agent runs.

use api::{Run, Runs, WholeRun};
use axum::{
    Extension, Json,
    extract::{Path, State},
};
use store::{Page as Part, RunFilter, RunRow};

use super::{
    AppState, Problem,
    access::{Who, Within},
    input::{Asked, Page},
};

pub(super) fn to_api(row: RunRow, caller_name: Option<String>) -> Run {
    Run {
        id: row.id,
        project: row.project_id,
        conversation: row.conversation_id,
        caller: row.caller,
        caller_name,
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

pub(super) async fn list(
    State(rest): State<AppState>,
    Extension(who): Who,
    Within(project): Within,
    page: Page,
    Asked(asked): Asked<RunFilter>,
) -> Result<Json<Runs>, Problem> {
    let filter = RunFilter { project, ..asked };
    if let Some(status) = &filter.status
        && !api::RUN_STATUSES.contains(&status.as_str())
    {
        let known = api::RUN_STATUSES.join(", ");
        let why = format!("unknown run status `{status}`; must be one of {known}");
        return Err(Problem::new(400, why));
    }
    let rows = rest.agents.store().run_list(&filter, page.asked()).await?;
    Ok(Json(Runs {
        next: page.next(&rows, |row| row.id.clone()),
        runs: rest.named_runs(&who, rows).await?,
    }))
}

pub(super) async fn show(
    State(rest): State<AppState>,
    Extension(who): Who,
    Within(project): Within,
    Path(id): Path<String>,
) -> Result<Json<WholeRun>, Problem> {
    let (store, project) = (rest.agents.store(), project.as_ref());
    let run = store.run_get(project, &id).await?;
    let rows = store.calls_of_run(project, &id, &Part::default()).await?;
    let mut runs = rest.named_runs(&who, vec![run]).await?;
    Ok(Json(WholeRun {
        run: runs.remove(0),
        calls: rest.named_calls(&who, rows).await?,
    }))
}
