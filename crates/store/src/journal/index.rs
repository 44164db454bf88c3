//! Enters the records of journals into the table of calls.

use std::{
    collections::HashMap,
    fs::{File, OpenOptions, TryLockError},
    io::{self, BufRead as _, BufReader, Seek as _, SeekFrom},
    path::Path,
    sync::Arc,
    time::{Duration, SystemTime},
};

use rusqlite::{
    CachedStatement, Connection, ErrorCode, OptionalExtension as _, TransactionBehavior, params,
};

use super::record::{self, Call, End, Position, Reader, Record};
use crate::{
    CallStatus,
    connect::{CHECKPOINT_PAGES, WAL_LIMIT_BYTES},
    error::{Error, Result},
};

/// Bytes of lines that are entered in one transaction. Others wait for it.
pub(super) const STEP_BYTES: usize = 1 << 20;

/// Lines of a journal.
#[derive(Debug)]
pub(super) struct Lines {
    pub(super) file: Arc<str>,
    pub(super) lines: Vec<u8>,
    /// The position after them.
    pub(super) at: Position,
}

/// How durable a transaction is when it is committed.
#[derive(Clone, Copy)]
pub(super) enum Durable {
    /// It is on the disk.
    Now,
    /// It may be lost with its position in the journal if the machine stops, and is then entered again.
    Later,
}

pub(super) fn open(database: &str) -> Result<Connection> {
    let conn = Connection::open(database)?;
    conn.busy_timeout(Duration::from_secs(1))?;
    conn.pragma_update(None, "foreign_keys", true)?;
    conn.pragma_update(None, "journal_size_limit", WAL_LIMIT_BYTES)?;
    conn.pragma_update(None, "wal_autocheckpoint", CHECKPOINT_PAGES)?;
    Ok(conn)
}

/// Runs a transaction that writes.
fn transaction(
    conn: &mut Connection,
    durable: Durable,
    run: impl FnOnce(&Connection) -> Result<()>,
) -> Result<()> {
    let level = match durable {
        Durable::Now => "FULL",
        Durable::Later => "NORMAL",
    };
    conn.pragma_update(None, "synchronous", level)?;
    let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
    run(&tx)?;
    Ok(tx.commit()?)
}

/// Registers a journal. Only registered journals are read, so files that belong to another database are left alone.
/// Returns the newest other one, and the hash of its last line.
pub(super) fn begin(conn: &mut Connection, file: &str) -> Result<Option<(String, String)>> {
    let mut newest = None;
    transaction(conn, Durable::Now, |tx| {
        let newest_text = "SELECT file, hash FROM toolwharf_journals ORDER BY file DESC LIMIT 1";
        newest = tx
            .query_row(newest_text, [], |row| Ok((row.get(0)?, row.get(1)?)))
            .optional()?;
        place(tx, file, Position::START, false)
    })?;
    Ok(newest)
}

/// Enters lines in one transaction. `ended`: journals that are complete.
pub(super) fn enter(
    conn: &mut Connection,
    durable: Durable,
    all: &[Lines],
    ended: &[(Arc<str>, Position)],
) -> Result<()> {
    transaction(conn, durable, |tx| {
        enter_records(tx, all)?;
        // The lines of a journal follow each other, and the last ones end at its position.
        for lines in all.chunk_by(|one, next| one.file == next.file) {
            let last = lines.last().expect("no chunk is empty");
            place(tx, &last.file, last.at, false)?;
        }
        for (file, at) in ended {
            place(tx, file, *at, true)?;
        }
        Ok(())
    })
}

fn place(tx: &Connection, file: &str, at: Position, ended: bool) -> Result<()> {
    let end = i64::try_from(at.end).unwrap_or(i64::MAX);
    let mut statement = tx.prepare_cached(
        "INSERT INTO toolwharf_journals (file, position, hash, ended) VALUES (?1, ?2, ?3, ?4)
         ON CONFLICT (file) DO UPDATE SET position = excluded.position, hash = excluded.hash, ended = excluded.ended",
    )?;
    statement.execute(params![file, end, at.hash.as_str(), ended])?;
    Ok(())
}

/// Enters records. A call whose outcome is among them is entered once, with its outcome.
fn enter_records(tx: &Connection, all: &[Lines]) -> Result<()> {
    let mut calls = Vec::new();
    let mut ends: HashMap<_, End<'_>> = HashMap::new();
    for record in all.iter().flat_map(|lines| record::records(&lines.lines)) {
        match record {
            Ok(Record::Journal(_)) => {}
            Ok(Record::Call(call)) => calls.push(call),
            Ok(Record::End(end)) => {
                ends.entry(end.id.clone()).or_insert(end);
            }
            // It has a valid hash. A later version may write records that this one does not know.
            Err(error) => tracing::error!(
                "a record in the journal of calls is unknown to this version, and is left out: {error}"
            ),
        }
    }
    let mut insert = tx.prepare_cached(
        "INSERT INTO agent_run_tool_calls (id, run_id, project_id, caller, server, tool, arguments_digest, arguments,
             started_at, replay_of, status, error, result_digest, result, finished_at, duration_us, turn_us, sent_us,
             answered_us, questions)
         VALUES (?1, (SELECT id FROM agent_runs WHERE id = ?2), ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15,
             ?16, ?17, ?18, ?19, ?20)
         ON CONFLICT (id) DO NOTHING",
    )?;
    for call in &calls {
        let end = ends.remove(&call.id);
        let is_new = execute(&mut insert, |insert| {
            bind_insert(insert, call, end.as_ref())
        })?;
        if let Some(end) = end.filter(|_| !is_new) {
            ends.insert(end.id.clone(), end);
        }
    }
    let mut close = tx.prepare_cached(
        "UPDATE agent_run_tool_calls SET status = ?2, error = ?3, result_digest = ?4, result = ?5, finished_at = ?6,
             duration_us = ?7, turn_us = ?8, sent_us = ?9, answered_us = ?10, questions = ?11
         WHERE id = ?1 AND status IN ('open', 'unknown')",
    )?;
    for end in ends.values() {
        execute(&mut close, |close| bind_close(close, end))?;
    }
    Ok(())
}

/// Returns whether the statement changed a row. A row that the table refuses is left out: it would be refused again, and
/// all later records would wait for it. This program writes no such record.
fn execute(
    statement: &mut CachedStatement<'_>,
    run: impl FnOnce(&mut CachedStatement<'_>) -> rusqlite::Result<usize>,
) -> Result<bool> {
    match run(statement) {
        Ok(changed) => Ok(changed > 0),
        Err(error) if error.sqlite_error_code() == Some(ErrorCode::ConstraintViolation) => {
            let error = Error::from(error);
            tracing::error!(
                "a record in the journal of calls cannot be entered into the database: {error}"
            );
            Ok(false)
        }
        Err(error) => Err(error.into()),
    }
}

fn bind_insert(
    insert: &mut CachedStatement<'_>,
    call: &Call<'_>,
    end: Option<&End<'_>>,
) -> rusqlite::Result<usize> {
    insert.execute(params![
        call.id,
        call.run_id,
        call.project_id,
        call.caller,
        call.server,
        call.tool,
        call.arguments_digest,
        call.arguments,
        call.started_at,
        call.replay_of,
        end.map_or(CallStatus::Open.as_str(), |end| &*end.status),
        end.and_then(|end| end.error.as_deref()),
        end.and_then(|end| end.result_digest.as_deref()),
        end.and_then(|end| end.result.as_deref()),
        end.map(|end| &*end.finished_at),
        end.map(|end| end.duration_us),
        end.and_then(|end| end.turn_us),
        end.and_then(|end| end.sent_us),
        end.and_then(|end| end.answered_us),
        end.and_then(|end| end.questions),
    ])
}

fn bind_close(close: &mut CachedStatement<'_>, end: &End<'_>) -> rusqlite::Result<usize> {
    close.execute(params![
        end.id,
        end.status,
        end.error,
        end.result_digest,
        end.result,
        end.finished_at,
        end.duration_us,
        end.turn_us,
        end.sent_us,
        end.answered_us,
        end.questions,
    ])
}

/// The journals that may have records which are not in the database, with the number of bytes whose records are.
fn unfinished(conn: &Connection) -> Result<Vec<(Arc<str>, u64)>> {
    let mut statement = conn
        .prepare("SELECT file, position FROM toolwharf_journals WHERE ended = 0 ORDER BY file")?;
    let rows = statement.query_map([], |row| {
        let file: String = row.get(0)?;
        let position: i64 = row.get(1)?;
        Ok((file.into(), position.try_into().unwrap_or(0)))
    })?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

/// Enters what processes that died had written to their journals.
pub(super) fn recover(conn: &mut Connection, folder: &Path) -> Result<()> {
    for (name, known) in unfinished(conn)? {
        let path = folder.join(&*name);
        let file = match OpenOptions::new().read(true).write(true).open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if known > 0 {
                    tracing::warn!("the journal of calls {} is missing", path.display());
                }
                conn.execute("DELETE FROM toolwharf_journals WHERE file = ?1", [&*name])?;
                continue;
            }
            Err(error) => return Err(Error::journal(error)),
        };
        if matches!(file.try_lock(), Err(TryLockError::WouldBlock)) {
            // Its process is alive.
            continue;
        }
        let at = enter_rest(conn, &path, &name, known)?;
        if at.end < known {
            tracing::warn!(
                "the journal of calls {} was changed after byte {}",
                path.display(),
                at.end
            );
        }
        enter(conn, Durable::Now, &[], &[(name, at)])?;
        cut(&file, at.end, &path).map_err(Error::journal)?;
    }
    Ok(())
}

/// Enters all records after the first `known` bytes, and returns the position after the last one. The process that writes
/// the journal may be alive.
fn enter_rest(conn: &mut Connection, path: &Path, name: &Arc<str>, known: u64) -> Result<Position> {
    let mut reader = Reader::open(path).map_err(Error::journal)?;
    let mut lines = Vec::new();
    loop {
        let next = reader.next(&mut lines).map_err(Error::journal)?;
        let at = reader.position();
        if at.end <= known {
            lines.clear();
        }
        if !lines.is_empty() && (next.is_none() || lines.len() >= STEP_BYTES) {
            let lines = Lines {
                file: name.clone(),
                lines: std::mem::take(&mut lines),
                at,
            };
            enter(conn, Durable::Now, &[lines], &[])?;
        }
        if next.is_none() {
            return Ok(at);
        }
    }
}

/// Removes the space that a journal has reserved. Anything else after its last line stays: it was being written when the
/// machine stopped, and was never acknowledged, or the file was changed.
fn cut(file: &File, end: u64, path: &Path) -> io::Result<()> {
    let mut rest = BufReader::new(file);
    rest.seek(SeekFrom::Start(end))?;
    loop {
        let read = rest.fill_buf()?;
        if read.is_empty() {
            return file.set_len(end);
        }
        if read.iter().any(|byte| *byte != 0) {
            tracing::warn!(
                "the journal of calls {} has no valid record after byte {end}",
                path.display()
            );
            return Ok(());
        }
        let length = read.len();
        rest.consume(length);
    }
}

/// Makes a copy of the database complete: enters what the journals have in addition, and forgets the journals.
pub(crate) fn complete(copy: &mut Connection, folder: &Path) -> Result<()> {
    let has_journals = "SELECT COUNT(*) FROM sqlite_master WHERE name = 'toolwharf_journals'";
    if copy.query_row(has_journals, [], |row| row.get(0))? {
        for (name, known) in unfinished(copy)? {
            let path = folder.join(&*name);
            if path.is_file() {
                enter_rest(copy, &path, &name, known)?;
            }
        }
        copy.execute("DELETE FROM toolwharf_journals", [])?;
    }
    Ok(())
}

/// Removes finished journals that were last written before this time.
pub(super) fn prune(conn: &mut Connection, folder: &Path, before: SystemTime) -> Result<()> {
    let mut finished = conn.prepare("SELECT file FROM toolwharf_journals WHERE ended = 1")?;
    let finished = finished.query_map([], |row| row.get(0))?;
    let finished: Vec<String> = finished.collect::<rusqlite::Result<_>>()?;
    for name in finished {
        let path = folder.join(&name);
        let written = path.metadata().and_then(|meta| meta.modified());
        match written {
            Ok(written) if written >= before => continue,
            Ok(_) => std::fs::remove_file(&path).map_err(Error::journal)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(Error::journal(error)),
        }
        conn.execute("DELETE FROM toolwharf_journals WHERE file = ?1", [name])?;
    }
    Ok(())
}
