//! The history of tool definitions: when and why a definition was replaced, with the old and the new text.

use model::{ProjectId, ServerName};
use serde::Serialize;
use sqlx::FromRow;

use crate::{
    Page, Store, Time,
    error::Result,
    id::{new_id, now},
    project::scope,
    sql::{Filter, Key, Text, Tx, execute, page},
};

/// Maximum number of changes kept for one server. The oldest are deleted first.
const MAX_CHANGES: i64 = 1_000;

/// Why a definition was replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// A user approved the new definition.
    Approved,
    /// The configuration of the tool's server changed.
    Configuration,
}

impl Cause {
    fn as_str(self) -> &'static str {
        match self {
            Self::Approved => "approved",
            Self::Configuration => "configuration",
        }
    }
}

/// A recorded change: the replaced definition and the new one.
#[derive(Clone, Debug, PartialEq, FromRow, Serialize)]
pub struct ToolChangeRow {
    pub id: String,
    /// `None`: the server comes from the configuration file.
    pub project_id: Option<String>,
    #[sqlx(try_from = "String")]
    pub server: ServerName,
    pub tool: String,
    /// `approved`, or `configuration` if the server's configuration changed.
    pub cause: String,
    pub old_definition: String,
    pub new_definition: String,
    pub at: Time,
    /// The caller that approved the new definition. `None` if the configuration changed instead, or if an earlier version
    /// recorded the change.
    pub caller: Option<String>,
}

impl Store {
    /// The changes of a server's tools, newest first. `page.after` is an id.
    pub async fn tool_change_list(
        &self,
        project: Option<&ProjectId>,
        server: &ServerName,
        page: &Page,
    ) -> Result<Vec<ToolChangeRow>> {
        page!(
            self.pool.read().await?,
            ToolChangeRow,
            "SELECT id, NULLIF(project_id, '') AS project_id, server, tool, cause, old_definition,
                 new_definition, at, caller
             FROM kb.tool_changes",
            Filter::default()
                .and("project_id =", Some(scope(project).0))
                .and("server =", Some(server.as_str()))
                .and("id <", page.after.as_deref()),
            "id DESC",
            page
        )
    }
}

/// Records that `definition` is about to replace the pinned definition, if they differ.
pub(crate) async fn note(
    tx: &mut Tx,
    project: Key<'_>,
    server: &ServerName,
    tool: &str,
    (cause, caller): (Cause, Option<&str>),
    (digest, definition): (&str, &str),
) -> Result<()> {
    execute!(
        tx,
        "INSERT INTO kb.tool_changes
             (id, project_id, server, tool, cause, old_definition, new_definition, at, caller)
         SELECT $5, project_id, server, tool, $6, definition, $7, $8, $9 FROM kb.tool_pins
         WHERE project_id = $1 AND server = $2 AND tool = $3 AND digest <> $4",
        project,
        Key(server.as_str()),
        Key(tool),
        Key(digest),
        Key(&new_id()),
        cause.as_str(),
        Text(definition),
        now(),
        caller.map(Key),
    )?;
    Ok(())
}

/// Deletes the oldest changes of a server if it has more than [`MAX_CHANGES`].
pub(crate) async fn trim(tx: &mut Tx, project: Key<'_>, server: &ServerName) -> Result<()> {
    execute!(
        tx,
        "DELETE FROM kb.tool_changes WHERE project_id = $1 AND server = $2 AND id NOT IN
             (SELECT id FROM kb.tool_changes WHERE project_id = $1 AND server = $2
              ORDER BY id DESC LIMIT $3)",
        project,
        Key(server.as_str()),
        MAX_CHANGES,
    )?;
    Ok(())
}
