//! The writer for call records.
//!
//! Call records are written more often than anything else, and each tool call waits for two writes. On Postgres, a
//! batch is a few statements. On SQLite, the writer does not go through sqlx: it uses a separate connection directly on
//! the calling thread. sqlx runs each connection on a separate thread, and the two channel messages per statement, to
//! that thread and back, take longer than the statement itself.

use std::{sync::Arc, time::Duration};

use chrono::SecondsFormat;
use rusqlite::{Connection, TransactionBehavior, params};
use sqlx::{PgConnection, PgPool, Postgres, QueryBuilder};

use crate::connect::CHECKPOINT_PAGES;
use crate::connect::WAL_LIMIT_BYTES;
use crate::{
    CallEnd, CallStatus, CallWrite, NewCall, Store, Time,
    call::{clean, name},
    error::Result,
    id::micros,
    sql::{Pool, STATEMENT_TIMEOUT, Whole, within},
    writer::Writer,
};

const MAX_STATEMENT_ROWS: usize = 64;

/// Writes call records, one batch at a time.
#[derive(Debug)]
pub struct CallWriter(Way);

#[derive(Debug)]
enum Way {
    Sqlite(File),
    Postgres(PgPool, Arc<str>),
}

#[derive(Debug)]
struct File {
    others: Writer,
    conn: Option<Connection>,
}

impl Store {
    pub fn call_writer(&self) -> CallWriter {
        CallWriter(match &self.pool {
            Pool::Sqlite { write, .. } => Way::Sqlite(File {
                others: write.clone(),
                conn: None,
            }),
            Pool::Postgres(pool) => Way::Postgres(pool.clone(), self.process.clone()),
        })
    }
}

impl CallWriter {
    /// Writes a batch as one transaction. The batch is durable when this method returns. Intents are written before
    /// outcomes, regardless of their order in the batch. An outcome without an intent changes nothing.
    ///
    /// With SQLite, the method waits up to 20 s for other writes. It then blocks the thread for as long as the disk takes,
    /// plus up to 1 s if a program other than Toolwharf is writing. Run it on a dedicated thread.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`]: the batch can be written again.
    pub async fn write(&mut self, writes: &[CallWrite]) -> Result<()> {
        if writes.is_empty() {
            return Ok(());
        }
        let mut intents = Vec::with_capacity(writes.len());
        let mut outcomes = Vec::new();
        for write in writes {
            match write {
                CallWrite::Intent(call) => intents.push(call),
                CallWrite::Outcome(end) => outcomes.push(end),
            }
        }
        match &mut self.0 {
            Way::Sqlite(file) => {
                let _turn = file.others.clone().turn().await?;
                file.write(&intents, &outcomes)
            }
            Way::Postgres(pool, process) => {
                within(
                    STATEMENT_TIMEOUT,
                    into_postgres(pool, process, intents, outcomes),
                )
                .await
            }
        }
    }
}

impl File {
    fn conn(&mut self) -> rusqlite::Result<&mut Connection> {
        if self.conn.is_none() {
            self.conn = Some(open(self.others.path())?);
        }
        Ok(self.conn.as_mut().expect("it was opened"))
    }

    fn write(&mut self, intents: &[&NewCall], outcomes: &[&CallEnd]) -> Result<()> {
        let conn = self.conn()?;
        if intents.len() + outcomes.len() == 1 {
            // A single statement is its own transaction.
            write_rows(conn, intents, outcomes)?;
        } else {
            let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
            write_rows(&tx, intents, outcomes)?;
            tx.commit()?;
        }
        Ok(())
    }
}

fn open(path: &str) -> rusqlite::Result<Connection> {
    let conn = Connection::open(path)?;
    conn.busy_timeout(Duration::from_secs(1))?;
    conn.pragma_update(None, "foreign_keys", true)?;
    conn.pragma_update(None, "synchronous", "FULL")?;
    conn.pragma_update(None, "journal_size_limit", WAL_LIMIT_BYTES)?;
    conn.pragma_update(None, "wal_autocheckpoint", CHECKPOINT_PAGES)?;
    Ok(conn)
}

fn write_rows(
    conn: &Connection,
    intents: &[&NewCall],
    outcomes: &[&CallEnd],
) -> rusqlite::Result<()> {
    if !intents.is_empty() {
        let mut statement = conn.prepare_cached(
            "INSERT INTO agent_run_tool_calls (id, run_id, project_id, caller, server, tool,
                 arguments_digest, arguments, started_at, status, replay_of)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11) ON CONFLICT (id) DO NOTHING",
        )?;
        for call in intents {
            statement.execute(params![
                name(&call.id),
                call.run_id.as_deref().map(name),
                call.project.as_ref().map(|project| name(project.as_str())),
                name(&call.caller),
                name(&call.server),
                name(&call.tool),
                name(&call.arguments_digest),
                call.arguments.as_deref().map(clean),
                text(call.started_at),
                CallStatus::Open.as_str(),
                call.replay_of.as_deref().map(name),
            ])?;
        }
    }
    if !outcomes.is_empty() {
        let mut statement = conn.prepare_cached(
            "UPDATE agent_run_tool_calls SET status = ?2, error = ?3, result_digest = ?4, result = ?5,
                 finished_at = ?6, duration_us = ?7, turn_us = ?8, sent_us = ?9, answered_us = ?10, questions = ?11
             WHERE id = ?1 AND status IN ('open', 'unknown')",
        )?;
        for end in outcomes {
            statement.execute(params![
                name(&end.id),
                end.status.as_str(),
                end.error.as_deref().map(clean),
                end.result_digest.as_deref().map(name),
                end.result.as_deref().map(clean),
                text(end.finished_at),
                end.duration_us,
                end.steps.turn_us,
                end.steps.sent_us,
                end.steps.answered_us,
                end.steps.questions,
            ])?;
        }
    }
    Ok(())
}

/// Formats a time as sqlx does.
fn text(time: Time) -> String {
    micros(time).to_rfc3339_opts(SecondsFormat::AutoSi, false)
}

async fn into_postgres(
    pool: &PgPool,
    process: &str,
    mut intents: Vec<&NewCall>,
    mut outcomes: Vec<&CallEnd>,
) -> sqlx::Result<()> {
    fill(&mut intents);
    fill(&mut outcomes);
    if intents.len().max(outcomes.len()) <= MAX_STATEMENT_ROWS
        && intents.is_empty() != outcomes.is_empty()
    {
        // A single statement is its own transaction. It needs one third of the round trips of an explicit transaction.
        let mut conn = pool.acquire().await?;
        return if outcomes.is_empty() {
            insert(&mut conn, process, &intents).await
        } else {
            close(&mut conn, &outcomes).await
        };
    }
    let mut tx = Whole::begin(pool).await?;
    for chunk in intents.chunks(MAX_STATEMENT_ROWS) {
        insert(&mut tx, process, chunk).await?;
    }
    for chunk in outcomes.chunks(MAX_STATEMENT_ROWS) {
        close(&mut tx, chunk).await?;
    }
    tx.commit().await
}

async fn insert(conn: &mut PgConnection, process: &str, calls: &[&NewCall]) -> sqlx::Result<()> {
    let mut query = QueryBuilder::<Postgres>::new(
        "INSERT INTO kb.agent_run_tool_calls (id, run_id, project_id, caller, server, tool,
             arguments_digest, arguments, started_at, status, replay_of, process) ",
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
            .push_bind(CallStatus::Open.as_str())
            .push_bind(call.replay_of.as_deref().map(name))
            .push_bind(process);
    });
    query.push(" ON CONFLICT (id) DO NOTHING");
    query.build().execute(conn).await.map(|_| ())
}

async fn close(conn: &mut PgConnection, ends: &[&CallEnd]) -> sqlx::Result<()> {
    let mut query = QueryBuilder::<Postgres>::new(
        "WITH v (id, status, error, result_digest, result, finished_at, duration_us, turn_us, sent_us, answered_us,
                 questions) AS (",
    );
    query.push_values(ends, |mut row, end| {
        row.push_bind(name(&end.id))
            .push_bind(end.status.as_str())
            .push_bind(end.error.as_deref().map(clean))
            .push_bind(end.result_digest.as_deref().map(name))
            .push_bind(end.result.as_deref().map(clean))
            .push_bind(micros(end.finished_at))
            .push_bind(end.duration_us)
            .push_bind(end.steps.turn_us)
            .push_bind(end.steps.sent_us)
            .push_bind(end.steps.answered_us)
            .push_bind(end.steps.questions);
    });
    query.push(
        ") UPDATE kb.agent_run_tool_calls AS c SET
             status = v.status, error = v.error, result_digest = v.result_digest,
             result = v.result, finished_at = v.finished_at, duration_us = v.duration_us, turn_us = v.turn_us,
             sent_us = v.sent_us, answered_us = v.answered_us, questions = v.questions
           FROM v WHERE c.id = v.id AND c.status IN ('open', 'unknown')",
    );
    query.build().execute(conn).await.map(|_| ())
}

/// Repeats the last row until the number of rows is a power of two or a multiple of [`MAX_STATEMENT_ROWS`]. This limits
/// the number of different statements to prepare and cache, and lets a small batch fit into one statement. The database
/// writes a repeated row only once.
fn fill<T: Copy>(rows: &mut Vec<T>) {
    if let Some(last) = rows.last().copied() {
        let chunks = rows.len().next_multiple_of(MAX_STATEMENT_ROWS);
        rows.resize(rows.len().next_power_of_two().min(chunks), last);
    }
}

#[cfg(test)]
impl CallWriter {
    pub(crate) fn conn(&mut self) -> &Connection {
        match &mut self.0 {
            Way::Sqlite(file) => file.conn().unwrap(),
            Way::Postgres(..) => panic!("not SQLite"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The call writer waits for a write on the other connection, even if its transaction takes long.
    #[tokio::test]
    async fn it_takes_turns_with_what_else_is_written() {
        let dir = tempfile::tempdir().expect("a folder");
        let location = crate::Location::Sqlite(dir.path().join("wharf.db"));
        let store = Store::open(&location).await.expect("a new database");
        let Pool::Sqlite { write, .. } = &store.pool else {
            panic!("it is a file");
        };
        let mut writing = write.acquire().await.expect("the connection");
        writing.begin().await.expect("a transaction");
        let mut writer = store.call_writer();
        let end = CallWrite::Outcome(CallEnd {
            id: crate::new_id(),
            status: CallStatus::Ok,
            error: None,
            result_digest: None,
            result: None,
            finished_at: crate::now(),
            duration_us: 1,
            steps: crate::CallSteps::default(),
        });
        let ends = [end];
        let mut written = std::pin::pin!(writer.write(&ends));
        let mut acquired = std::pin::pin!(write.acquire());
        tokio::time::pause();
        // The other write takes 15 s, as on a busy memory card.
        for passed in [0, 15] {
            tokio::time::advance(Duration::from_secs(passed)).await;
            tokio::select! {
                biased;
                result = &mut written => panic!("it did not wait: {result:?}"),
                _ = &mut acquired => panic!("another write did not wait"),
                () = std::future::ready(()) => {}
            }
        }
        tokio::time::resume();
        writing.commit().await.expect("the end of the transaction");
        written.await.expect("its turn");
        acquired.await.expect("its turn");
    }

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
}
