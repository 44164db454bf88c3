//! The location of a database, and the set-up of connections to it.

use std::{fmt, path::PathBuf, time::Duration};

use sqlx::SqliteConnection;

/// Timeout for getting a connection to Postgres.
pub(crate) const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(2);
/// Timeout for anything that waits for the disk of a SQLite file: a statement, or the writes before it. A commit is
/// durable only after an fsync, which takes seconds on a memory card or during a backup. A call that waits is better
/// than one that fails, and clients wait longer than this.
pub(crate) const DISK_TIMEOUT: Duration = Duration::from_secs(20);
/// Bytes per page. Most writes change a few hundred bytes in a few pages. Larger pages would make each write larger and
/// slower, and would not save space.
const PAGE_BYTES: u32 = 1024;
/// Size in bytes to which the write-ahead log is truncated after a checkpoint.
pub(crate) const WAL_LIMIT_BYTES: u32 = 64 << 20;
/// Pages in the write-ahead log that trigger a checkpoint.
pub(crate) const CHECKPOINT_PAGES: u32 = 4000;

/// The location of a database.
#[derive(Clone, PartialEq, Eq)]
pub enum Location {
    /// A file, created with mode 0600 if it is missing. Its directory must exist. While it is open, SQLite keeps two
    /// more files in the same directory (`-wal`, `-shm`), and we keep two empty ones (`-next`, `-turn`) and the folder
    /// with the journals of calls (`-calls`).
    Sqlite(PathBuf),
    /// A URL, `postgres://user:password@host:port/database`.
    Postgres(String),
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sqlite(file) => write!(f, "{}", file.display()),
            Self::Postgres(url) => f.write_str(&model::url_for_display(url)),
        }
    }
}

impl fmt::Debug for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Location({self})")
    }
}

pub(crate) async fn attach(
    conn: &mut SqliteConnection,
    path: &str,
    query_only: bool,
) -> sqlx::Result<()> {
    sqlx::query("ATTACH $1 AS kb")
        .bind(path)
        .execute(&mut *conn)
        .await?;
    // The page size applies to new files only; an existing file keeps its page size. Only FULL makes a commit durable: NORMAL may
    // lose the last commits when the machine stops.
    let pragmas = format!(
        "PRAGMA kb.page_size = {PAGE_BYTES}; PRAGMA kb.journal_mode = WAL; PRAGMA kb.synchronous = FULL; \
         PRAGMA kb.journal_size_limit = {WAL_LIMIT_BYTES}; PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES};"
    );
    sqlx::raw_sql(sqlx::AssertSqlSafe(pragmas))
        .execute(&mut *conn)
        .await?;
    if query_only {
        sqlx::raw_sql("PRAGMA query_only = ON")
            .execute(conn)
            .await?;
    }
    Ok(())
}
