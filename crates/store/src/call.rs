//! Audit records: one row for each tool call, with its outcome as soon as it has one. On SQLite, the rows follow the
//! [journal](crate::journal).
//!
//! Invariants: a row with a recorded outcome never changes again. Writes are idempotent, so a batch can be written
//! again when it is unknown whether the first attempt succeeded. No record is rejected because of its content: a NUL is
//! written as U+FFFD and names are truncated to [`MAX_KEY`](crate::MAX_KEY) bytes, because one unusual call must not fail its whole
//! batch.

use model::ProjectId;
use serde::{Deserialize, Serialize};
use sqlx::FromRow;

use crate::{
    CallStatus, CallSteps, Page, Store, Time,
    error::{Error, Result},
    id::{floor, micros, now},
    sql::{Filter, Key, Pool, Text, execute, page, row, rows, table},
};

table!(
    $, "kb.agent_run_tool_calls",
    "id, run_id, project_id, caller, server, tool, arguments_digest, status, error, result_digest, started_at,
     finished_at, duration_us"
);

/// A call without its arguments and result.
#[derive(Clone, Debug, PartialEq, FromRow, Serialize)]
pub struct CallRow {
    pub id: String,
    pub run_id: Option<String>,
    pub project_id: Option<String>,
    pub caller: String,
    pub server: String,
    pub tool: String,
    pub arguments_digest: String,
    #[sqlx(try_from = "String")]
    pub status: CallStatus,
    pub error: Option<String>,
    pub result_digest: Option<String>,
    pub started_at: Time,
    pub finished_at: Option<Time>,
    pub duration_us: Option<i64>,
}

/// A call with its arguments and result, if they were recorded.
#[derive(Clone, Debug, PartialEq, FromRow, Serialize)]
pub struct CallDetail {
    #[sqlx(flatten)]
    #[serde(flatten)]
    pub call: CallRow,
    pub arguments: Option<String>,
    pub result: Option<String>,
    #[sqlx(flatten)]
    #[serde(flatten)]
    pub steps: CallSteps,
    /// The call that this one repeats.
    pub replay_of: Option<String>,
}

/// Selects calls. `None`: any value.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct CallFilter {
    /// The project whose calls are selected. It comes from the permission check, and is never read from request
    /// parameters.
    #[serde(skip)]
    pub project: Option<ProjectId>,
    pub server: Option<String>,
    pub tool: Option<String>,
    pub status: Option<CallStatus>,
    pub caller: Option<String>,
    /// Only calls of this agent run.
    pub run: Option<String>,
    /// Only calls that began at this time or later, to the millisecond.
    pub since: Option<Time>,
    /// Only calls that began before this time, to the millisecond.
    pub until: Option<Time>,
}

/// The number of calls in one group.
#[derive(Clone, Debug, PartialEq, Eq, FromRow)]
pub struct CallCount {
    pub project_id: Option<String>,
    pub server: String,
    /// Empty unless calls are counted by tool.
    pub tool_name: String,
    #[sqlx(try_from = "String")]
    pub status: CallStatus,
    /// The number of decimal digits of the duration in microseconds. 0 if the call has no duration.
    pub digits: i32,
    /// The first two digits of the duration.
    pub first_two: String,
    pub count: i64,
}

impl Store {
    /// Waits until the calls that this process has recorded are in the table. (SQLite)
    pub(crate) async fn calls_settle(&self) {
        if let Pool::Sqlite { journal, .. } = &self.pool {
            journal.settle().await;
        }
    }

    /// Enters the calls that processes had recorded when they died into the table. (SQLite)
    pub(crate) async fn calls_recover(&self) -> Result<()> {
        if let Pool::Sqlite { journal, .. } = &self.pool {
            let unfinished = row!(
                self.pool.read().await?,
                (String,),
                "SELECT file FROM kb.toolwharf_journals WHERE ended = 0 LIMIT 1",
            )?;
            if unfinished.is_some() {
                journal.recover().await?;
            }
        }
        Ok(())
    }

    /// Counts the calls begun in `since..until`, grouped by project, server, status and duration, and with `by_tool` also
    /// by tool. `tool` and `caller` restrict the count. Reads every call in the range, so the range should not contain
    /// millions.
    pub async fn calls_count(
        &self,
        tool: Option<&str>,
        caller: Option<&str>,
        by_tool: bool,
        (since, until): (Time, Time),
    ) -> Result<Vec<CallCount>> {
        self.calls_settle().await;
        rows!(
            self.pool.read().await?,
            CallCount,
            "SELECT project_id, server, CASE WHEN $5 THEN tool ELSE '' END AS tool_name, status,
                    COALESCE(LENGTH(CAST(duration_us AS TEXT)), 0) AS digits,
                    COALESCE(SUBSTR(CAST(duration_us AS TEXT), 1, 2), '') AS first_two, COUNT(*) AS count
             FROM kb.agent_run_tool_calls
             WHERE id >= $1 AND id < $2 AND ($3 = '' OR tool = $3) AND ($4 = '' OR caller = $4)
             GROUP BY project_id, server, tool_name, status, digits, first_two",
            Key(&floor(since)),
            Key(&floor(until)),
            Key(tool.unwrap_or_default()),
            Key(caller.unwrap_or_default()),
            by_tool,
        )
    }

    /// The id of the oldest recorded call.
    pub async fn calls_oldest(&self) -> Result<Option<String>> {
        self.calls_settle().await;
        let row: Option<(String,)> = row!(
            self.pool.read().await?,
            (String,),
            "SELECT id FROM kb.agent_run_tool_calls ORDER BY id LIMIT 1",
        )?;
        Ok(row.map(|(id,)| id))
    }

    /// Calls, newest first. `page.after` is an id.
    pub async fn calls_list(&self, filter: &CallFilter, page: &Page) -> Result<Vec<CallRow>> {
        self.calls_settle().await;
        let (since, until) = (filter.since.map(floor), filter.until.map(floor));
        let conditions = Filter::newest_first(filter.project.as_ref(), page)
            .and("server =", filter.server.as_deref())
            .and("tool =", filter.tool.as_deref())
            .and("caller =", filter.caller.as_deref())
            .and("run_id =", filter.run.as_deref())
            .and("status =", filter.status.map(CallStatus::as_str))
            .and("id >=", since.as_deref())
            .and("id <", until.as_deref());
        page!(
            self.pool.read().await?,
            CallRow,
            query!(select ""),
            conditions,
            "id DESC",
            page
        )
    }

    /// The calls of an agent run, oldest first. `project` restricts them to one project. `page.after` is an id.
    pub async fn calls_of_run(
        &self,
        project: Option<&ProjectId>,
        run: &str,
        page: &Page,
    ) -> Result<Vec<CallRow>> {
        self.calls_settle().await;
        let conditions = Filter::default()
            .and("project_id =", project.map(ProjectId::as_str))
            .and("run_id =", Some(run))
            .and("id >", page.after.as_deref());
        page!(
            self.pool.read().await?,
            CallRow,
            query!(select ""),
            conditions,
            "id",
            page
        )
    }

    /// A call with its arguments and result. `project` restricts the lookup to one project.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the call does not exist.
    pub async fn call_get(&self, project: Option<&ProjectId>, id: &str) -> Result<CallDetail> {
        self.calls_settle().await;
        let row = row!(
            self.pool.read().await?,
            CallDetail,
            query!(select "arguments, result, turn_us, sent_us, answered_us, questions, replay_of",
                "WHERE id = $1 AND ($2 = '' OR project_id = $2)"),
            Key(id),
            crate::project::scope(project),
        )?;
        row.ok_or_else(|| Error::not_found("call", id))
    }

    /// The ids of up to 100 calls that repeated this one, newest first.
    pub async fn call_replays(&self, project: Option<&ProjectId>, id: &str) -> Result<Vec<String>> {
        self.calls_settle().await;
        let replays: Vec<(String,)> = rows!(
            self.pool.read().await?,
            (String,),
            "SELECT id FROM kb.agent_run_tool_calls
             WHERE replay_of = $1 AND ($2 = '' OR project_id = $2) ORDER BY id DESC LIMIT 100",
            Key(id),
            crate::project::scope(project),
        )?;
        Ok(replays.into_iter().map(|(id,)| id).collect())
    }

    /// Closes all open calls that began before this time as [`CallStatus::Unknown`] with this reason, and returns their
    /// number. An outcome that is written later replaces this status.
    pub async fn calls_close_open(&self, before: Time, reason: &str) -> Result<u64> {
        self.calls_recover().await?;
        self.calls_settle().await;
        execute!(
            self.pool.write().await?,
            "UPDATE kb.agent_run_tool_calls SET status = 'unknown', error = $2, finished_at = $3
             WHERE status = 'open' AND started_at < $1",
            micros(before),
            Text(reason),
            now(),
        )
    }

    /// Deletes up to 1000 of the oldest calls before this time, and returns their number. Call it until it returns 0.
    /// Each batch is short, so that other statements do not wait long. The last batch removes the journals of SQLite in
    /// which all calls are older.
    pub async fn calls_prune(&self, before: Time) -> Result<u64> {
        self.calls_settle().await;
        let pruned = execute!(
            self.pool.write().await?,
            "DELETE FROM kb.agent_run_tool_calls WHERE id IN
                 (SELECT id FROM kb.agent_run_tool_calls WHERE id < $1 ORDER BY id LIMIT 1000)",
            Key(&floor(before)),
        )?;
        if let Pool::Sqlite { journal, .. } = &self.pool
            && pruned == 0
        {
            journal.prune(before.into()).await?;
        }
        Ok(pruned)
    }
}
