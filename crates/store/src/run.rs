//! Agent runs.

use model::ProjectId;
use serde::{Deserialize, Serialize};
use sqlx::FromRow;

use crate::{
    Page, Store, Time,
    error::{Error, Result},
    id::{floor, micros, new_id, now},
    sql::{Filter, Key, Text, execute, page, row, table},
};

table!(
    $, "kb.agent_runs",
    "id, project_id, agent, model, status, turns, input_tokens, output_tokens, cost_micros, error, started_at,
     finished_at, conversation_id, caller"
);

#[derive(Clone, Debug, PartialEq, FromRow, Serialize)]
pub struct RunRow {
    pub id: String,
    pub project_id: Option<String>,
    pub agent: String,
    pub model: String,
    pub status: String,
    pub turns: i32,
    pub input_tokens: i64,
    pub output_tokens: i64,
    pub cost_micros: i64,
    pub error: Option<String>,
    pub started_at: Time,
    pub finished_at: Option<Time>,
    /// The run's conversation, which may have been deleted.
    pub conversation_id: Option<String>,
    /// The caller that began the run. `None` if an earlier version recorded it.
    pub caller: Option<String>,
}

/// A run whose record is to be opened.
#[derive(Clone, Copy, Debug)]
pub struct NewRun<'a> {
    pub project: Option<&'a ProjectId>,
    pub agent: &'a str,
    pub model: &'a str,
    pub conversation: Option<&'a str>,
    pub caller: Option<&'a str>,
}

/// Selects runs. `None`: any value.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct RunFilter {
    /// The project whose runs are selected. It comes from the permission check, and is never read from request
    /// parameters.
    #[serde(skip)]
    pub project: Option<ProjectId>,
    pub status: Option<String>,
    pub conversation: Option<String>,
}

/// The result of a run and its usage.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunEnd {
    pub status: String,
    pub turns: i32,
    pub input_tokens: i64,
    pub output_tokens: i64,
    /// The cost in millionths of the currency of the configured prices.
    pub cost_micros: i64,
    pub error: Option<String>,
}

impl Store {
    /// Opens a run record with the status `running`.
    pub async fn run_put(&self, run: NewRun<'_>) -> Result<RunRow> {
        let row = row!(
            self.pool.write().await?,
            RunRow,
            query!(returning "INSERT INTO kb.agent_runs (id, project_id, agent, model, status, turns, input_tokens,
                     output_tokens, cost_micros, started_at, conversation_id, process, caller)
                 VALUES ($1, $2, $3, $4, 'running', 0, 0, 0, 0, $5, $6, $7, $8)"),
            Key(&new_id()),
            run.project.map(|project| Key(project.as_str())),
            Text(run.agent),
            Text(run.model),
            now(),
            run.conversation.map(Key),
            Key(&self.process),
            run.caller.map(Key),
        )?;
        row.ok_or_else(|| Error::not_found("run of", run.agent))
    }

    /// Closes a run record.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the project has no such run.
    pub async fn run_finish(
        &self,
        project: Option<&ProjectId>,
        id: &str,
        end: &RunEnd,
    ) -> Result<RunRow> {
        let row = row!(
            self.pool.write().await?,
            RunRow,
            query!(returning "UPDATE kb.agent_runs SET status = $3, turns = $4, input_tokens = $5, output_tokens = $6,
                     cost_micros = $7, error = $8, finished_at = $9
                 WHERE id = $1 AND COALESCE(project_id, '') = $2"),
            Key(id),
            crate::project::scope(project),
            Text(&end.status),
            end.turns,
            end.input_tokens,
            end.output_tokens,
            end.cost_micros,
            end.error.as_deref().map(Text),
            now(),
        )?;
        row.ok_or_else(|| Error::not_found("run", id))
    }

    /// Runs, newest first. `page.after` is an id.
    pub async fn run_list(&self, filter: &RunFilter, page: &Page) -> Result<Vec<RunRow>> {
        page!(
            self.pool.read().await?,
            RunRow,
            query!(select ""),
            Filter::newest_first(filter.project.as_ref(), page)
                .and("status =", filter.status.as_deref())
                .and("conversation_id =", filter.conversation.as_deref()),
            "id DESC",
            page
        )
    }

    /// Returns the address of the other replica that has the newest running run of a conversation. `None` if no other
    /// replica has one.
    pub async fn run_place(
        &self,
        project: Option<&ProjectId>,
        conversation: &str,
    ) -> Result<Option<String>> {
        if !self.has_replicas() {
            return Ok(None);
        }
        let row = row!(
            self.pool.read().await?,
            (Option<String>,),
            "SELECT replica.address FROM kb.agent_runs AS run
             JOIN kb.toolwharf_replicas AS replica ON replica.process = run.process
             WHERE run.status = 'running' AND run.conversation_id = $1 AND COALESCE(run.project_id, '') = $2
                 AND run.process <> $3
             ORDER BY run.id DESC LIMIT 1",
            Key(conversation),
            crate::project::scope(project),
            Key(&self.process),
        )?;
        Ok(row.and_then(|(address,)| address))
    }

    /// Closes all open runs that began before this time as `interrupted` with this reason, and returns their number.
    pub async fn run_interrupt_open(&self, before: Time, reason: &str) -> Result<u64> {
        execute!(
            self.pool.write().await?,
            "UPDATE kb.agent_runs SET status = 'interrupted', error = $2, finished_at = $3
             WHERE status = 'running' AND started_at < $1",
            micros(before),
            Text(reason),
            now(),
        )
    }

    /// Deletes up to 1000 of the oldest runs before this time that have no recorded calls, and returns their number.
    /// Call it until it returns 0.
    pub async fn run_prune(&self, before: Time) -> Result<u64> {
        self.calls_settle().await;
        execute!(
            self.pool.write().await?,
            "DELETE FROM kb.agent_runs WHERE id IN
                 (SELECT r.id FROM kb.agent_runs AS r WHERE r.id < $1 AND r.status <> 'running' AND NOT EXISTS
                      (SELECT 1 FROM kb.agent_run_tool_calls AS c WHERE c.run_id = r.id)
                  ORDER BY r.id LIMIT 1000)",
            Key(&floor(before)),
        )
    }

    /// A run. `project` restricts the lookup to one project.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the run does not exist.
    pub async fn run_get(&self, project: Option<&ProjectId>, id: &str) -> Result<RunRow> {
        let row = row!(
            self.pool.read().await?,
            RunRow,
            query!(select "WHERE id = $1 AND ($2 = '' OR project_id = $2)"),
            Key(id),
            crate::project::scope(project),
        )?;
        row.ok_or_else(|| Error::not_found("run", id))
    }
}
