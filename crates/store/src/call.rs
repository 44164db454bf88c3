//! The audit: one row for each call of a tool, opened before the call and closed with its outcome.
//!
//! Invariants: a row that was closed by its outcome never changes again, and writing the same
//! thing twice is the same as once, so that a batch whose fate is unknown can be written again.
//! What happened is never refused for what it holds: a NUL is written as U+FFFD and a name is cut
//! at [`MAX_KEY`] bytes, for one odd call must not fail the batch that it shares with others.

use std::borrow::Cow;

use model::ProjectId;
use serde::{Deserialize, Serialize};
use sqlx::FromRow;

use crate::{
    MAX_KEY, Page, Store, Time,
    error::{Error, Result},
    id::{floor, micros, now},
    sql::{Filter, Key, Text, execute, page, row, rows},
};

/// The columns of a [`CallRow`].
macro_rules! columns {
    () => {
        "id, run_id, project_id, caller, server, tool, arguments_digest, status, error, result_digest, started_at,
         finished_at, duration_us"
    };
}

/// What became of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallStatus {
    /// Not finished yet.
    Open,
    Ok,
    /// The tool answered that it failed (`isError`).
    ToolError,
    /// The server answered with an error, or could not be reached.
    Error,
    Timeout,
    Cancelled,
    /// It was open when the program died: it may or may not have happened.
    Unknown,
}

/// A call, without the bodies.
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

/// A call with its bodies, where they were kept.
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
    /// The call that was made again.
    pub replay_of: Option<String>,
}

/// How far a call got, and when: microseconds since it began. What is `None` was not reached, or is not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromRow, Serialize)]
pub struct CallSteps {
    /// Its turn came, and its intent was durable.
    pub turn_us: Option<i64>,
    /// Its server had the request.
    pub sent_us: Option<i64>,
    /// The server's answer was there.
    pub answered_us: Option<i64>,
    /// What the server asked its client meanwhile.
    pub questions: Option<i64>,
}

/// Something to be written.
#[derive(Clone, Debug, PartialEq)]
pub enum CallWrite {
    Intent(NewCall),
    Outcome(CallEnd),
}

/// A call that is about to be made.
#[derive(Clone, Debug, PartialEq)]
pub struct NewCall {
    /// Made by [`crate::new_id`] now: lists and retention tell the time of a call by its id.
    pub id: String,
    pub run_id: Option<String>,
    pub project: Option<ProjectId>,
    pub caller: String,
    pub server: String,
    pub tool: String,
    pub arguments_digest: String,
    pub arguments: Option<String>,
    pub started_at: Time,
    /// The call that is made again.
    pub replay_of: Option<String>,
}

/// A call that has ended.
#[derive(Clone, Debug, PartialEq)]
pub struct CallEnd {
    pub id: String,
    pub status: CallStatus,
    pub error: Option<String>,
    pub result_digest: Option<String>,
    pub result: Option<String>,
    pub finished_at: Time,
    pub duration_us: i64,
    pub steps: CallSteps,
}

/// Which calls; what is `None` does not matter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallFilter {
    pub project: Option<ProjectId>,
    pub server: Option<String>,
    pub tool: Option<String>,
    pub status: Option<CallStatus>,
    pub caller: Option<String>,
    /// Of this run of an agent.
    pub run: Option<String>,
    /// Begun at this time or later, to the millisecond.
    pub since: Option<Time>,
    /// Begun before this time, to the millisecond.
    pub until: Option<Time>,
}

/// How many calls of a kind there are.
#[derive(Clone, Debug, PartialEq, Eq, FromRow)]
pub struct CallCount {
    pub project_id: Option<String>,
    pub server: String,
    #[sqlx(try_from = "String")]
    pub status: CallStatus,
    /// Decimal digits of the duration in microseconds; 0 for a call that has none.
    pub digits: i32,
    /// The first two of them.
    pub first_two: String,
    pub count: i64,
}

impl Store {
    /// How many calls were begun from one time to before another, by project, server, status and duration: of this tool
    /// and this caller, if they are named. It reads each of them, so a range should not hold millions.
    pub async fn calls_count(
        &self,
        tool: Option<&str>,
        caller: Option<&str>,
        since: Time,
        until: Time,
    ) -> Result<Vec<CallCount>> {
        rows!(
            self.pool.read().await?,
            CallCount,
            "SELECT project_id, server, status, COALESCE(LENGTH(CAST(duration_us AS TEXT)), 0) AS digits,
                    COALESCE(SUBSTR(CAST(duration_us AS TEXT), 1, 2), '') AS first_two, COUNT(*) AS count
             FROM kb.agent_run_tool_calls
             WHERE id >= $1 AND id < $2 AND ($3 = '' OR tool = $3) AND ($4 = '' OR caller = $4)
             GROUP BY project_id, server, status, digits, first_two",
            Key(&floor(since)),
            Key(&floor(until)),
            Key(tool.unwrap_or_default()),
            Key(caller.unwrap_or_default()),
        )
    }

    /// The id of the oldest call that is recorded.
    pub async fn calls_oldest(&self) -> Result<Option<String>> {
        let row: Option<(String,)> = row!(
            self.pool.read().await?,
            (String,),
            "SELECT id FROM kb.agent_run_tool_calls ORDER BY id LIMIT 1",
        )?;
        Ok(row.map(|(id,)| id))
    }

    /// Calls, newest first. `page.after` is an id.
    pub async fn calls_list(&self, filter: &CallFilter, page: &Page) -> Result<Vec<CallRow>> {
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
            concat!("SELECT ", columns!(), " FROM kb.agent_run_tool_calls"),
            conditions,
            "id DESC",
            page
        )
    }

    /// The calls of a run, in the order that they were begun: of this project, or of any if none is named. `page.after`
    /// is an id.
    pub async fn calls_of_run(
        &self,
        project: Option<&ProjectId>,
        run: &str,
        page: &Page,
    ) -> Result<Vec<CallRow>> {
        let conditions = Filter::default()
            .and("project_id =", project.map(ProjectId::as_str))
            .and("run_id =", Some(run))
            .and("id >", page.after.as_deref());
        page!(
            self.pool.read().await?,
            CallRow,
            concat!("SELECT ", columns!(), " FROM kb.agent_run_tool_calls"),
            conditions,
            "id",
            page
        )
    }

    /// A call with its bodies: of this project, or any call if none is named.
    ///
    /// # Errors
    /// [`Error::NotFound`] if there is no such call.
    pub async fn call_get(&self, project: Option<&ProjectId>, id: &str) -> Result<CallDetail> {
        let row = row!(
            self.pool.read().await?,
            CallDetail,
            concat!(
                "SELECT ",
                columns!(),
                ", arguments, result, turn_us, sent_us, answered_us, questions, replay_of
                 FROM kb.agent_run_tool_calls WHERE id = $1 AND ($2 = '' OR project_id = $2)"
            ),
            Key(id),
            crate::project::scope(project),
        )?;
        row.ok_or_else(|| Error::not_found("call", id))
    }

    /// The ids of the calls that were made again from this one, newest first, a hundred at most.
    pub async fn call_replays(&self, project: Option<&ProjectId>, id: &str) -> Result<Vec<String>> {
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

    /// Closes all calls that were begun before this time and are still open, as
    /// [`CallStatus::Unknown`] with this reason; how many. An outcome that still comes goes before it.
    pub async fn calls_close_open(&self, before: Time, reason: &str) -> Result<u64> {
        execute!(
            self.pool.write().await?,
            "UPDATE kb.agent_run_tool_calls SET status = 'unknown', error = $2, finished_at = $3
             WHERE status = 'open' AND started_at < $1",
            micros(before),
            Text(reason),
            now(),
        )
    }

    /// Forgets some of the calls before this time, the oldest first; how many. Call it until it
    /// returns 0: each time is short, so that nobody waits long for the database.
    pub async fn calls_prune(&self, before: Time) -> Result<u64> {
        execute!(
            self.pool.write().await?,
            "DELETE FROM kb.agent_run_tool_calls WHERE id IN
                 (SELECT id FROM kb.agent_run_tool_calls WHERE id < $1 ORDER BY id LIMIT 1000)",
            Key(&floor(before)),
        )
    }
}

/// What can be stored of a text. (`QueryBuilder` panics on what cannot.)
pub(crate) fn clean(text: &str) -> Cow<'_, str> {
    if text.contains('\0') {
        text.replace('\0', "\u{fffd}").into()
    } else {
        text.into()
    }
}

/// What can be stored of a name.
pub(crate) fn name(text: &str) -> Cow<'_, str> {
    match clean(text) {
        Cow::Borrowed(text) => text[..text.floor_char_boundary(MAX_KEY)].into(),
        Cow::Owned(text) => text[..text.floor_char_boundary(MAX_KEY)].to_owned().into(),
    }
}

impl CallStatus {
    /// The word of the column and of the API.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Ok => "ok",
            Self::ToolError => "tool_error",
            Self::Error => "error",
            Self::Timeout => "timeout",
            Self::Cancelled => "cancelled",
            Self::Unknown => "unknown",
        }
    }
}

impl TryFrom<String> for CallStatus {
    type Error = String;

    fn try_from(word: String) -> Result<Self, String> {
        let all = [
            Self::Open,
            Self::Ok,
            Self::ToolError,
            Self::Error,
            Self::Timeout,
            Self::Cancelled,
            Self::Unknown,
        ];
        let found = all.into_iter().find(|status| status.as_str() == word);
        found.ok_or_else(|| format!("{word:?} is no status of a call"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_stored_is_changed() {
        assert_eq!(clean("a\0b"), "a\u{fffd}b");
        assert_eq!(name(&"ü".repeat(1000)), "ü".repeat(512));
        assert_eq!(name(&format!("\0{}", "x".repeat(2000))).len(), MAX_KEY);
    }
}
