//! Long results of tool calls, kept for a limited time for their callers.
//!
//! Invariants: a result is found only with its caller and project. The results of a caller, and all together, have at most
//! the size that [`ResultRoom`] allows: a new result replaces the oldest ones of the same caller, never those of another.
//! Texts are stored as bytes, because they may contain a NUL. They are not encrypted, like recorded bodies.

use model::ProjectId;
use sqlx::FromRow;

use crate::{
    Store, Time,
    error::Result,
    id::now,
    project::scope,
    sql::{Key, Tx, execute, row},
};

/// Counted for each result in addition to its bytes.
const ROW_BYTES: usize = 512;
/// Expired results that are deleted at a time.
const PRUNED_AT_ONCE: i64 = 100;
/// The advisory lock of Postgres for the sizes of results.
const ADVISORY_LOCK_ID: i64 = 0x746f_6f6c_7265_7375;

#[derive(Clone, Copy)]
pub struct NewResult<'a> {
    /// A random id, which cannot be guessed.
    pub id: &'a str,
    pub project: Option<&'a ProjectId>,
    /// The caller's name in call records.
    pub caller: &'a str,
    pub text: &'a [u8],
    /// The structured content, as JSON, if the text is something else.
    pub structured: Option<&'a [u8]>,
    pub expires_at: Time,
}

/// Maximum size of stored results, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResultRoom {
    /// Of one caller in one project.
    pub of_caller: u64,
    pub in_total: u64,
}

/// A stored result.
#[derive(Clone, PartialEq, Eq, FromRow)]
pub struct ResultRow {
    pub text: Vec<u8>,
    pub structured: Option<Vec<u8>>,
    pub expires_at: Time,
}

impl Store {
    /// Stores a result. Older ones of the same caller are removed to make room. Returns false, and changes nothing, if there
    /// is not enough.
    pub async fn result_put(&self, new: NewResult<'_>, room: ResultRoom) -> Result<bool> {
        let bytes = new.text.len() + new.structured.map_or(0, <[u8]>::len) + ROW_BYTES;
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        let most = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
        if bytes > most(room.of_caller) {
            return Ok(false);
        }
        let mut tx = self.pool.begin().await?;
        if let Tx::Postgres(_) = &tx {
            // Otherwise, two replicas could fill the same room.
            execute!(tx, "SELECT pg_advisory_xact_lock($1)", ADVISORY_LOCK_ID)?;
        }
        execute!(
            tx,
            "DELETE FROM kb.toolwharf_results WHERE id IN
                 (SELECT id FROM kb.toolwharf_results WHERE expires_at <= $1 ORDER BY expires_at LIMIT $2)",
            now(),
            PRUNED_AT_ONCE,
        )?;
        let of_caller = row!(
            tx,
            (i64,),
            "SELECT CAST(COALESCE(SUM(bytes), 0) AS BIGINT) FROM kb.toolwharf_results
             WHERE project_id = $1 AND caller = $2",
            scope(new.project),
            Key(new.caller),
        )?;
        let in_total = row!(
            tx,
            (i64,),
            "SELECT CAST(COALESCE(SUM(bytes), 0) AS BIGINT) FROM kb.toolwharf_results",
        )?;
        let (of_caller, in_total) = (
            of_caller.map_or(0, |row| row.0),
            in_total.map_or(0, |row| row.0),
        );
        let excess = |stored: i64, most: i64| stored.saturating_add(bytes).saturating_sub(most);
        let excess =
            excess(of_caller, most(room.of_caller)).max(excess(in_total, most(room.in_total)));
        if excess > of_caller {
            return Ok(false);
        }
        if excess > 0 {
            execute!(
                tx,
                "DELETE FROM kb.toolwharf_results WHERE id IN (
                     SELECT id FROM (
                         SELECT id, SUM(bytes) OVER (ORDER BY created_at, id) - bytes AS older
                         FROM kb.toolwharf_results WHERE project_id = $1 AND caller = $2
                     ) AS own WHERE older < $3)",
                scope(new.project),
                Key(new.caller),
                excess,
            )?;
        }
        execute!(
            tx,
            "INSERT INTO kb.toolwharf_results (id, project_id, caller, created_at, expires_at, bytes, text, structured)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
            Key(new.id),
            scope(new.project),
            Key(new.caller),
            now(),
            new.expires_at,
            bytes,
            new.text,
            new.structured,
        )?;
        tx.commit().await?;
        Ok(true)
    }

    /// A result of this caller that has not expired.
    pub async fn result_get(
        &self,
        project: Option<&ProjectId>,
        caller: &str,
        id: &str,
    ) -> Result<Option<ResultRow>> {
        row!(
            self.pool.read().await?,
            ResultRow,
            "SELECT text, structured, expires_at FROM kb.toolwharf_results
             WHERE id = $1 AND project_id = $2 AND caller = $3 AND expires_at > $4",
            Key(id),
            scope(project),
            Key(caller),
            now(),
        )
    }

    /// Deletes some of the results that have expired, and returns their number. Call it until it returns 0.
    pub async fn result_prune(&self) -> Result<u64> {
        execute!(
            self.pool.write().await?,
            "DELETE FROM kb.toolwharf_results WHERE id IN
                 (SELECT id FROM kb.toolwharf_results WHERE expires_at <= $1 ORDER BY expires_at LIMIT $2)",
            now(),
            PRUNED_AT_ONCE,
        )
    }
}
