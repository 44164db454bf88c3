//! The writer for call records.
//!
//! Call records are written more often than anything else, and each tool call waits for two writes. On Postgres, a
//! batch is one statement. On SQLite, it is appended to the [journal](crate::journal).

use std::{collections::HashSet, sync::Arc};

use sqlx::{PgConnection, PgPool};

use crate::{
    CallEnd, CallWrite, NewCall, Store,
    error::Result,
    id::micros,
    journal::Journal,
    names::{clean, name},
    sql::{Pool, STATEMENT_TIMEOUT, Whole, within},
};

/// Writes call records, one batch at a time.
#[derive(Debug)]
pub struct CallWriter(Way);

#[derive(Debug)]
enum Way {
    Sqlite(Journal),
    Postgres(PgPool, Arc<str>),
}

impl Store {
    pub fn call_writer(&self) -> CallWriter {
        CallWriter(match &self.pool {
            Pool::Sqlite { journal, .. } => Way::Sqlite(journal.clone()),
            Pool::Postgres(pool) => Way::Postgres(pool.clone(), self.process.clone()),
        })
    }
}

impl CallWriter {
    /// Writes a batch as a whole. It is durable when this method returns. Intents count before outcomes, regardless of
    /// their order in the batch. An outcome without an intent changes nothing.
    ///
    /// With SQLite, the method blocks the thread for as long as the disk takes. Run it on a dedicated thread.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`]: the batch can be written again.
    pub async fn write(&mut self, writes: &[CallWrite]) -> Result<()> {
        if writes.is_empty() {
            return Ok(());
        }
        match &self.0 {
            Way::Sqlite(journal) => journal.append(writes).await,
            Way::Postgres(pool, process) => {
                let written = into_postgres(pool, process, writes);
                within(STATEMENT_TIMEOUT, written).await
            }
        }
    }
}

/// Writes a batch in one statement, which is one transaction and one round trip.
async fn into_postgres(pool: &PgPool, process: &str, writes: &[CallWrite]) -> sqlx::Result<()> {
    let mut intents = Vec::with_capacity(writes.len());
    let mut outcomes = Vec::new();
    for write in writes {
        match write {
            CallWrite::Intent(call) => intents.push(call),
            CallWrite::Outcome(end) => outcomes.push(end),
        }
    }
    // A statement does not see the rows that it inserts itself.
    let new: HashSet<&str> = intents.iter().map(|call| &*call.id).collect();
    let (late, outcomes): (Vec<_>, Vec<_>) =
        (outcomes.into_iter()).partition(|end| new.contains(&*end.id));
    if late.is_empty() {
        let mut conn = pool.acquire().await?;
        return write_rows(&mut conn, process, &intents, &outcomes).await;
    }
    let mut tx = Whole::begin(pool).await?;
    write_rows(&mut tx, process, &intents, &outcomes).await?;
    write_rows(&mut tx, process, &[], &late).await?;
    tx.commit().await
}

async fn write_rows(
    conn: &mut PgConnection,
    process: &str,
    calls: &[&NewCall],
    ends: &[&CallEnd],
) -> sqlx::Result<()> {
    let statement = sqlx::query(
        "WITH new AS (
             INSERT INTO kb.agent_run_tool_calls (id, run_id, project_id, caller, server, tool, arguments_digest,
                 arguments, started_at, replay_of, status, process)
             SELECT c.*, 'open', $11
             FROM UNNEST($1::TEXT[], $2::TEXT[], $3::TEXT[], $4::TEXT[], $5::TEXT[], $6::TEXT[], $7::TEXT[], $8::TEXT[],
                 $9::TIMESTAMPTZ[], $10::TEXT[]) AS c
             ON CONFLICT (id) DO NOTHING)
         UPDATE kb.agent_run_tool_calls AS c SET
             status = v.status, error = v.error, result_digest = v.result_digest, result = v.result,
             finished_at = v.finished_at, duration_us = v.duration_us, turn_us = v.turn_us, sent_us = v.sent_us,
             answered_us = v.answered_us, questions = v.questions
         FROM UNNEST($12::TEXT[], $13::TEXT[], $14::TEXT[], $15::TEXT[], $16::TEXT[], $17::TIMESTAMPTZ[], $18::BIGINT[],
             $19::BIGINT[], $20::BIGINT[], $21::BIGINT[], $22::BIGINT[])
             AS v (id, status, error, result_digest, result, finished_at, duration_us, turn_us, sent_us, answered_us,
                 questions)
         WHERE c.id = v.id AND c.status IN ('open', 'unknown')",
    );
    let statement = statement
        .bind(column(calls, |call| name(&call.id)))
        .bind(column(calls, |call| call.run_id.as_deref().map(name)))
        .bind(column(calls, |call| {
            call.project.as_ref().map(|project| name(project.as_str()))
        }))
        .bind(column(calls, |call| name(&call.caller)))
        .bind(column(calls, |call| name(&call.server)))
        .bind(column(calls, |call| name(&call.tool)))
        .bind(column(calls, |call| name(&call.arguments_digest)))
        .bind(column(calls, |call| call.arguments.as_deref().map(clean)))
        .bind(column(calls, |call| micros(call.started_at)))
        .bind(column(calls, |call| call.replay_of.as_deref().map(name)))
        .bind(process)
        .bind(column(ends, |end| name(&end.id)))
        .bind(column(ends, |end| end.status.as_str()))
        .bind(column(ends, |end| end.error.as_deref().map(clean)))
        .bind(column(ends, |end| end.result_digest.as_deref().map(name)))
        .bind(column(ends, |end| end.result.as_deref().map(clean)))
        .bind(column(ends, |end| micros(end.finished_at)))
        .bind(column(ends, |end| end.duration_us))
        .bind(column(ends, |end| end.steps.turn_us))
        .bind(column(ends, |end| end.steps.sent_us))
        .bind(column(ends, |end| end.steps.answered_us))
        .bind(column(ends, |end| end.steps.questions));
    statement.execute(conn).await.map(|_| ())
}

/// The values of one column.
fn column<'r, R, V>(rows: &[&'r R], value: impl Fn(&'r R) -> V) -> Vec<V> {
    rows.iter().copied().map(value).collect()
}
