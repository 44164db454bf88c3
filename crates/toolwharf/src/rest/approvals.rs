//! Agreeing to definitions of tools that changed, and which changes there were.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use axum::{
    Json,
    body::Bytes,
    extract::{Path, State, rejection::BytesRejection},
    http::StatusCode,
};
use model::{NativeName, ProjectId, ServerKey, ServerName};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use store::{Time, ToolChangeRow};
use utoipa::ToSchema;

use super::{
    Problem, Rest, Shared,
    access::Project,
    input::{self, Page},
    tools::Named,
};

/// Longest difference that is told, in characters.
const DIFF_CHARS: usize = 100_000;
/// How long the shortest difference is looked for; then a longer one does.
const DIFF_TIME: Duration = Duration::from_millis(200);

/// What is agreed to.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Approval {
    /// Of the new definition, as it was shown.
    pub(crate) digest: String,
}

/// What is agreed to of a server's tools.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Approvals {
    /// By the server's own names of its tools, the digests of their new definitions, as they were shown. All of them
    /// are agreed to, or none.
    pub(crate) tools: BTreeMap<String, String>,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Changes {
    pub(crate) changes: Vec<Change>,
    /// Give it as `after` for the next page; none on the last.
    pub(crate) next: Option<String>,
}

/// A definition that took the place of another.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Change {
    pub(crate) id: String,
    /// As the server calls it.
    pub(crate) tool: String,
    /// `approved` by somebody, or `configuration`: that of the server was changed.
    pub(crate) cause: String,
    /// From the definition before to the one after.
    pub(crate) diff: String,
    #[schema(value_type = String, format = DateTime)]
    pub(crate) at: Time,
}

impl From<ToolChangeRow> for Change {
    fn from(row: ToolChangeRow) -> Self {
        Self {
            diff: difference(&row.old_definition, &row.new_definition),
            id: row.id,
            tool: row.tool,
            cause: row.cause,
            at: row.at,
        }
    }
}

/// The difference of a tool's two definitions, key by key in one order.
pub(super) fn difference(old: &str, new: &str) -> String {
    let pretty = |text: &str| {
        let mut value: Value = serde_json::from_str(text).unwrap_or_else(|_| text.into());
        value.sort_all_objects();
        serde_json::to_string_pretty(&value).unwrap_or_default() + "\n"
    };
    let (old, new) = (pretty(old), pretty(new));
    let diff = similar::TextDiff::configure()
        .timeout(DIFF_TIME)
        .diff_lines(&old, &new);
    let text = diff.unified_diff().header("agreed", "offered").to_string();
    text.chars().take(DIFF_CHARS).collect()
}

pub(super) async fn approve(
    State(rest): State<Shared>,
    Path(Named { server, tool }): Path<Named>,
    body: Result<Bytes, BytesRejection>,
) -> Result<StatusCode, Problem> {
    let name = input::server_name(&server)?;
    rest.of_no_project(&name)?;
    let Approval { digest } = input::object(body)?;
    rest.agree(None, name, BTreeMap::from([(tool, digest)]))
        .await
}

pub(super) async fn approve_of(
    State(rest): State<Shared>,
    Project(project): Project,
    Path(Named { server, tool }): Path<Named>,
    body: Result<Bytes, BytesRejection>,
) -> Result<StatusCode, Problem> {
    let name = input::server_name(&server)?;
    rest.own(&project, &name).await?;
    let Approval { digest } = input::object(body)?;
    let tools = BTreeMap::from([(tool, digest)]);
    rest.agree(Some(project), name, tools).await
}

/// Where a server is in a path.
#[derive(Deserialize)]
pub(super) struct OfServer {
    name: String,
}

pub(super) async fn approve_all(
    State(rest): State<Shared>,
    Path(OfServer { name }): Path<OfServer>,
    body: Result<Bytes, BytesRejection>,
) -> Result<StatusCode, Problem> {
    let name = input::server_name(&name)?;
    rest.of_no_project(&name)?;
    let Approvals { tools } = input::object(body)?;
    rest.agree(None, name, tools).await
}

pub(super) async fn approve_all_of(
    State(rest): State<Shared>,
    Project(project): Project,
    Path(OfServer { name }): Path<OfServer>,
    body: Result<Bytes, BytesRejection>,
) -> Result<StatusCode, Problem> {
    let name = input::server_name(&name)?;
    rest.own(&project, &name).await?;
    let Approvals { tools } = input::object(body)?;
    rest.agree(Some(project), name, tools).await
}

pub(super) async fn changes(
    State(rest): State<Shared>,
    Path(OfServer { name }): Path<OfServer>,
    page: Page,
) -> Result<Json<Changes>, Problem> {
    let name = input::server_name(&name)?;
    let there = rest.of_no_project(&name).map(drop);
    rest.changes(None, &name, &page, there).await
}

pub(super) async fn changes_of(
    State(rest): State<Shared>,
    Project(project): Project,
    Path(OfServer { name }): Path<OfServer>,
    page: Page,
) -> Result<Json<Changes>, Problem> {
    let name = input::server_name(&name)?;
    let there = rest.seen(&project, &name).await.map(drop);
    rest.changes(Some(&project), &name, &page, there).await
}

impl Rest {
    /// Makes sure that a server is the project's own.
    async fn own(&self, project: &ProjectId, name: &ServerName) -> Result<(), Problem> {
        let seen = self.seen(project, name).await?;
        if seen.spec.owner.is_some() {
            return Ok(());
        }
        let why = format!(
            "server `{name}` is the configuration file's: an administrator agrees for all who see it, with \
             `toolwharf tools approve {name}`"
        );
        Err(Problem::new(409, why))
    }

    /// Agrees to these definitions: tool and digest.
    async fn agree(
        &self,
        owner: Option<ProjectId>,
        name: ServerName,
        tools: BTreeMap<String, String>,
    ) -> Result<StatusCode, Problem> {
        let store = self.projects.store();
        let wanted: Vec<(&str, &str)> = tools
            .iter()
            .map(|(tool, digest)| (tool.as_str(), digest.as_str()))
            .collect();
        store.pins_approve(owner.as_ref(), &name, &wanted).await?;
        let agreed: Vec<(NativeName, Arc<str>)> = tools
            .iter()
            .map(|(tool, digest)| (NativeName::new(tool.as_str()), digest.as_str().into()))
            .collect();
        let key = ServerKey { owner, name };
        // The server may have been configured anew meanwhile: then it knows by itself.
        self.gateway.approve_tools(&key, &agreed);
        Ok(StatusCode::NO_CONTENT)
    }

    /// The changes of a server; `there` says whether it is configured: what it was remains when it is not any more.
    async fn changes(
        &self,
        owner: Option<&ProjectId>,
        name: &ServerName,
        page: &Page,
        there: Result<(), Problem>,
    ) -> Result<Json<Changes>, Problem> {
        let store = self.projects.store();
        let rows = store.tool_change_list(owner, name, page.asked()).await?;
        if rows.is_empty() && page.asked().after.is_none() {
            there?;
        }
        Ok(Json(Changes {
            next: page.next(&rows, |row| row.id.clone()),
            changes: rows.into_iter().map(Change::from).collect(),
        }))
    }
}
