//! The audit: one row for each call of a tool, opened before the call and closed with its outcome.
//!
//! Invariants: a row that was closed by its outcome never changes again, and writing the same
//! thing twice is the same as once, so that a batch whose fate is unknown can be written again.
//! What happened is never refused for what it holds: a NUL is written as U+FFFD and a name is cut
//! at [`MAX_KEY`] bytes, for one odd call must not fail the batch that it shares with others.

use std::borrow::Cow;

use model::ProjectId;
use serde::{Deserialize, Serialize};
use sqlx::{FromRow, QueryBuilder};

use crate::{
    MAX_KEY, Page, Store, Time,
    error::{Error, Result},
    id::{floor, micros, now},
    sql::{Filter, Key, On, Text, execute, on, page, row},
};

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
}

/// Which calls; what is `None` does not matter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallFilter {
    pub project: Option<ProjectId>,
    pub server: Option<String>,
    pub tool: Option<String>,
    pub status: Option<CallStatus>,
    pub caller: Option<String>,
    /// Begun at this time or later, to the millisecond.
    pub since: Option<Time>,
    /// Begun before this time, to the millisecond.
    pub until: Option<Time>,
}

/// The most rows of one statement.
const CHUNK: usize = 64;

impl Store {
    /// Writes a batch: all of it or nothing, durable on return. Intents go before outcomes, in
    /// whichever order they stand. An outcome without an intent changes nothing.
    ///
    /// # Errors
    /// [`Error::Unavailable`]: the batch can be written again.
    pub async fn calls_write(&self, writes: &[CallWrite]) -> Result<()> {
        let mut intents = Vec::with_capacity(writes.len());
        let mut outcomes = Vec::new();
        for write in writes {
            match write {
                CallWrite::Intent(call) => intents.push(call),
                CallWrite::Outcome(end) => outcomes.push(end),
            }
        }
        fill(&mut intents);
        fill(&mut outcomes);
        if intents.len().max(outcomes.len()) <= CHUNK && intents.is_empty() != outcomes.is_empty() {
            // A statement is a transaction by itself, and takes a third of the ways to the database.
            let mut conn = self.pool.write().await?;
            return if outcomes.is_empty() {
                insert(conn.on(), &intents).await
            } else {
                close(conn.on(), &outcomes).await
            };
        }
        let mut tx = self.pool.begin().await?;
        for chunk in intents.chunks(CHUNK) {
            insert(tx.on(), chunk).await?;
        }
        for chunk in outcomes.chunks(CHUNK) {
            close(tx.on(), chunk).await?;
        }
        tx.commit().await
    }

    /// Calls, newest first. `page.after` is an id.
    pub async fn calls_list(&self, filter: &CallFilter, page: &Page) -> Result<Vec<CallRow>> {
        let mut conn = self.pool.read().await?;
        let (since, until) = (filter.since.map(floor), filter.until.map(floor));
        let conditions = Filter::default()
            .and(
                "project_id =",
                filter.project.as_ref().map(ProjectId::as_str),
            )
            .and("server =", filter.server.as_deref())
            .and("tool =", filter.tool.as_deref())
            .and("caller =", filter.caller.as_deref())
            .and("status =", filter.status.map(CallStatus::as_str))
            .and("id >=", since.as_deref())
            .and("id <", until.as_deref())
            .and("id <", page.after.as_deref());
        page!(
            conn,
            CallRow,
            "SELECT id, run_id, project_id, caller, server, tool, arguments_digest, status, error,
                 result_digest, started_at, finished_at, duration_us
             FROM kb.agent_run_tool_calls",
            conditions,
            "id DESC",
            page
        )
    }

    /// A call with its bodies: of this project, or any call if none is named.
    ///
    /// # Errors
    /// [`Error::NotFound`] if there is no such call.
    pub async fn call_get(&self, project: Option<&ProjectId>, id: &str) -> Result<CallDetail> {
        let mut conn = self.pool.read().await?;
        let row = row!(
            conn,
            CallDetail,
            "SELECT id, run_id, project_id, caller, server, tool, arguments_digest, status, error,
                 result_digest, started_at, finished_at, duration_us, arguments, result
             FROM kb.agent_run_tool_calls WHERE id = $1 AND ($2 = '' OR project_id = $2)",
            Key(id),
            crate::project::scope(project),
        )?;
        row.ok_or_else(|| Error::not_found("call", id))
    }

    /// Closes all calls that were begun before this time and are still open, as
    /// [`CallStatus::Unknown`] with this reason; how many. An outcome that still comes goes before it.
    pub async fn calls_close_open(&self, before: Time, reason: &str) -> Result<u64> {
        let mut conn = self.pool.write().await?;
        execute!(
            conn,
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
        let mut conn = self.pool.write().await?;
        execute!(
            conn,
            "DELETE FROM kb.agent_run_tool_calls WHERE id IN
                 (SELECT id FROM kb.agent_run_tool_calls WHERE id < $1 ORDER BY id LIMIT 1000)",
            Key(&floor(before)),
        )
    }
}

async fn insert(mut on: On<'_>, calls: &[&NewCall]) -> Result<()> {
    on!(on, |conn: Db| async {
        let mut query = QueryBuilder::<Db>::new(
            "INSERT INTO kb.agent_run_tool_calls (id, run_id, project_id, caller, server, tool,
                 arguments_digest, arguments, started_at, status) ",
        );
        query.push_values(calls, |mut row, call| {
            row.push_bind(name(&call.id))
                .push_bind(call.run_id.as_deref().map(name))
                .push_bind(call.project.as_ref().map(|project| name(project.as_str())))
                .push_bind(name(&call.caller))
                .push_bind(name(&call.server))
                .push_bind(name(&call.tool))
                .push_bind(name(&call.arguments_digest))
                .push_bind(call.arguments.as_deref().map(clean))
                .push_bind(micros(call.started_at))
                .push_bind(CallStatus::Open.as_str());
        });
        query.push(" ON CONFLICT (id) DO NOTHING");
        query.build().execute(conn).await.map(|_| ())
    })
}

async fn close(mut on: On<'_>, ends: &[&CallEnd]) -> Result<()> {
    on!(on, |conn: Db| async {
        let mut query = QueryBuilder::<Db>::new(
            "WITH v (id, status, error, result_digest, result, finished_at, duration_us) AS (",
        );
        query.push_values(ends, |mut row, end| {
            row.push_bind(name(&end.id))
                .push_bind(end.status.as_str())
                .push_bind(end.error.as_deref().map(clean))
                .push_bind(end.result_digest.as_deref().map(name))
                .push_bind(end.result.as_deref().map(clean))
                .push_bind(micros(end.finished_at))
                .push_bind(end.duration_us);
        });
        query.push(
            ") UPDATE kb.agent_run_tool_calls AS c SET
                 status = v.status, error = v.error, result_digest = v.result_digest,
                 result = v.result, finished_at = v.finished_at, duration_us = v.duration_us
               FROM v WHERE c.id = v.id AND c.status IN ('open', 'unknown')",
        );
        query.build().execute(conn).await.map(|_| ())
    })
}

/// Repeats the last row until there is a power of two of them, or a multiple of [`CHUNK`]. There are few texts then to
/// be prepared and remembered, and one statement for all that was few rows; a row that stands twice is written once.
fn fill<T: Copy>(rows: &mut Vec<T>) {
    if let Some(last) = rows.last().copied() {
        let chunks = rows.len().next_multiple_of(CHUNK);
        rows.resize(rows.len().next_power_of_two().min(chunks), last);
    }
}

/// What can be stored of a text. (`QueryBuilder` panics on what cannot.)
fn clean(text: &str) -> Cow<'_, str> {
    if text.contains('\0') {
        text.replace('\0', "\u{fffd}").into()
    } else {
        text.into()
    }
}

/// What can be stored of a name.
fn name(text: &str) -> Cow<'_, str> {
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
    fn rows_are_filled_up() {
        for (length, expect) in [
            (0, 0),
            (1, 1),
            (5, 8),
            (64, 64),
            (65, 128),
            (129, 192),
            (256, 256),
        ] {
            let mut rows: Vec<usize> = (0..length).collect();
            fill(&mut rows);
            assert_eq!(rows.len(), expect, "{length}");
            assert!(rows.iter().skip(length).all(|row| row + 1 == length));
        }
    }

    #[test]
    fn what_cannot_be_stored_is_changed() {
        assert_eq!(clean("a\0b"), "a\u{fffd}b");
        assert_eq!(name(&"ü".repeat(1000)), "ü".repeat(512));
        assert_eq!(name(&format!("\0{}", "x".repeat(2000))).len(), MAX_KEY);
    }
}
