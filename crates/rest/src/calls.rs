//! Routes of call records.

use api::{Call, CallSteps, Calls, WholeCall};
use axum::{
    Extension, Json,
    extract::{Path, State},
};
use store::{CallDetail, CallFilter, CallRow};

use super::{
    AppState, Problem,
    access::{Who, Within},
    input::{Asked, Page},
};

pub(super) fn to_api(row: CallRow, caller_name: String) -> Call {
    Call {
        id: row.id,
        run: row.run_id,
        project: row.project_id,
        caller: row.caller,
        caller_name,
        server: row.server,
        tool: row.tool,
        status: row.status.as_str().to_owned(),
        error: row.error,
        arguments_digest: row.arguments_digest,
        result_digest: row.result_digest,
        started_at: row.started_at,
        finished_at: row.finished_at,
        duration_us: row.duration_us,
    }
}

fn to_whole(call: Call, detail: CallDetail, replays: Vec<String>) -> WholeCall {
    let steps = detail.steps;
    WholeCall {
        call,
        arguments: detail.arguments,
        result: detail.result,
        steps: CallSteps {
            turn_us: steps.turn_us,
            sent_us: steps.sent_us,
            answered_us: steps.answered_us,
            questions: steps.questions,
        },
        replay_of: detail.replay_of,
        replays,
    }
}

pub(super) async fn list(
    State(rest): State<AppState>,
    Extension(who): Who,
    Within(project): Within,
    page: Page,
    Asked(asked): Asked<CallFilter>,
) -> Result<Json<Calls>, Problem> {
    let caller = rest
        .caller_id(project.as_ref(), asked.caller.clone())
        .await?;
    let filter = CallFilter {
        project,
        caller,
        ..asked
    };
    let store = rest.projects.store();
    let rows = store.calls_list(&filter, page.asked()).await?;
    Ok(Json(Calls {
        next: page.next(&rows, |row| row.id.clone()),
        calls: rest.named_calls(&who, rows).await?,
    }))
}

pub(super) async fn show(
    State(rest): State<AppState>,
    Extension(who): Who,
    Within(project): Within,
    Path(id): Path<String>,
) -> Result<Json<WholeCall>, Problem> {
    let store = rest.projects.store();
    let detail = store.call_get(project.as_ref(), &id).await?;
    let replays = store.call_replays(project.as_ref(), &id).await?;
    let mut calls = rest.named_calls(&who, vec![detail.call.clone()]).await?;
    Ok(Json(to_whole(calls.remove(0), detail, replays)))
}
