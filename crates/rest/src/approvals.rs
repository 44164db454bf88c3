//! Approval of changed tool definitions, and the history of changes.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use api::{Approvals, Change, Changes};
use axum::{
    Extension, Json,
    body::Bytes,
    extract::{Path, State, rejection::BytesRejection},
    http::StatusCode,
};
use model::{NativeName, ProjectId, ServerKey, ServerName};
use serde_json::Value;
use store::ToolChangeRow;

use super::{
    AppState, Problem, Rest,
    access::{Who, Within},
    input::{self, Page},
};
use auth::Principal;

/// Maximum length of a diff, in characters.
const MAX_DIFF_CHARS: usize = 100_000;
/// Time limit for finding the shortest diff. After that, a longer one is accepted.
const DIFF_TIMEOUT: Duration = Duration::from_millis(200);

pub(super) fn to_api(row: ToolChangeRow, caller_name: Option<String>) -> Change {
    Change {
        diff: difference(&row.old_definition, &row.new_definition),
        id: row.id,
        tool: row.tool,
        cause: row.cause,
        caller: row.caller,
        caller_name,
        at: row.at,
    }
}

/// Returns the diff of two definitions of a tool, with their keys sorted.
pub(super) fn difference(old: &str, new: &str) -> String {
    let pretty = |text: &str| {
        let mut value: Value = serde_json::from_str(text).unwrap_or_else(|_| text.into());
        value.sort_all_objects();
        serde_json::to_string_pretty(&value).unwrap_or_default() + "\n"
    };
    let (old, new) = (pretty(old), pretty(new));
    let diff = similar::TextDiff::configure()
        .timeout(DIFF_TIMEOUT)
        .diff_lines(&old, &new);
    let text = diff
        .unified_diff()
        .header("approved", "offered")
        .to_string();
    text.chars().take(MAX_DIFF_CHARS).collect()
}

pub(super) async fn approve(
    State(rest): State<AppState>,
    Extension(who): Who,
    Within(project): Within,
    Path(id): Path<String>,
    body: Result<Bytes, BytesRejection>,
) -> Result<StatusCode, Problem> {
    let target = match (rest.find(project.as_ref(), &id).await, project) {
        (Ok(target), _) => target,
        (Err(problem), Some(project)) if problem.status == 404 => {
            return Err(rest.lent(&project, &id).await.unwrap_or(problem));
        }
        (Err(problem), _) => return Err(problem),
    };
    let Approvals { tools } = input::object(body)?;
    rest.agree(&who, target.key, tools).await
}

pub(super) async fn changes(
    State(rest): State<AppState>,
    Extension(who): Who,
    Within(project): Within,
    Path(id): Path<String>,
    page: Page,
) -> Result<Json<Changes>, Problem> {
    let (key, missing) = match rest.find(project.as_ref(), &id).await {
        Ok(target) => (target.key, None),
        // A server's approvals remain after it was removed from the configuration.
        Err(problem) if problem.status == 404 => {
            let name = input::server_name(&id)?;
            let owner = project;
            (ServerKey { owner, name }, Some(problem))
        }
        Err(problem) => return Err(problem),
    };
    let store = rest.projects.store();
    let rows = store
        .tool_change_list(key.owner.as_ref(), &key.name, page.asked())
        .await?;
    if let Some(problem) = missing.filter(|_| rows.is_empty() && page.asked().after.is_none()) {
        return Err(problem);
    }
    Ok(Json(Changes {
        next: page.next(&rows, |row| row.id.clone()),
        changes: rest.named_changes(&who, rows).await?,
    }))
}

impl Rest {
    /// Returns why a project cannot approve definitions of a server that it sees but does not own. `None` if it does
    /// not see the server.
    async fn lent(&self, project: &ProjectId, id: &str) -> Option<Problem> {
        let name = ServerName::parse(id).ok()?;
        self.seen(project, &name).await.ok()?;
        let why = format!(
            "server `{name}` belongs to the configuration file: an administrator can approve its tools for all \
             projects with `toolwharf tools approve {name}`"
        );
        Some(Problem::new(409, why))
    }

    /// Approves definitions, given as digests by tool.
    async fn agree(
        &self,
        who: &Principal,
        key: ServerKey,
        tools: BTreeMap<String, String>,
    ) -> Result<StatusCode, Problem> {
        let store = self.projects.store();
        let wanted: Vec<(&str, &str)> = tools
            .iter()
            .map(|(tool, digest)| (tool.as_str(), digest.as_str()))
            .collect();
        store
            .pins_approve(key.owner.as_ref(), &key.name, &wanted, Some(&who.id))
            .await?;
        let agreed: Vec<(NativeName, Arc<str>)> = tools
            .iter()
            .map(|(tool, digest)| (NativeName::new(tool.as_str()), digest.as_str().into()))
            .collect();
        // If the server has been reconfigured since, it has loaded the approvals from the database.
        self.gateway.approve_tools(&key, &agreed);
        Ok(StatusCode::NO_CONTENT)
    }
}
