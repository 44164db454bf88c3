//! A consistent copy of the whole database, for backups. It contains every row that was committed before it began.
//!
//! On SQLite, the copy is a file (`VACUUM INTO`, one read transaction, during which others can write), completed with the
//! calls that are only in the journals. On Postgres, it is
//! the text form of `COPY` for each table, read in one transaction with the isolation level `REPEATABLE READ`.
//!
//! Left out on Postgres: rows that belong to running gateways (replicas, leases, change notes), long results, which are
//! kept for a short time, and the list of histories, because a restored database begins a new one.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::TryStreamExt as _;
use rusqlite::{Connection, InterruptHandle, OpenFlags};
use serde::{Deserialize, Serialize};
use sqlx::{PgPool, Postgres};
use tokio::task;

use crate::{
    Store,
    error::{Error, Fault, OpenError, Result},
    journal,
    migrate::{self, NEEDS_RECORDED},
    sql::{Pool, STATEMENT_TIMEOUT, Whole, within},
};

/// Maximum size of a [`Chunk`] in bytes.
const CHUNK_BYTES: usize = 1 << 20;
/// Timeout for the next rows of a table.
pub(crate) const CHUNK_TIMEOUT: Duration = Duration::from_secs(60);
/// Interval between updates of the progress.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);
/// Time that a SQLite file may be locked by another process.
const LOCK_TIMEOUT: Duration = Duration::from_secs(20);
/// Tables of Postgres that a backup does not contain.
const LEFT_OUT: [&str; 6] = [
    "schema_migrations",
    "toolwharf_changes",
    "toolwharf_leases",
    "toolwharf_replicas",
    "toolwharf_results",
    "toolwharf_timelines",
];
/// Makes the text form of all values independent of the settings of the server.
pub(crate) const TEXT_FORMS: &str = "SET LOCAL statement_timeout = 0; \
     SET LOCAL idle_in_transaction_session_timeout = '10min'; \
     SET LOCAL datestyle = 'ISO, YMD'; SET LOCAL timezone = 'UTC'; SET LOCAL bytea_output = 'hex'; \
     SET LOCAL extra_float_digits = 1";

/// What a copy contains.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dump {
    /// `sqlite` or `postgres`.
    pub engine: String,
    /// The applied migrations, in order.
    pub migrations: Vec<DumpMigration>,
    /// The tables on Postgres, each after the tables that it refers to. Empty on SQLite.
    #[serde(default)]
    pub tables: Vec<DumpTable>,
    /// The highest fencing token on Postgres.
    #[serde(default)]
    pub fence: i64,
}

/// An applied migration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DumpMigration {
    pub version: i64,
    /// The SHA-256 of its text, in hexadecimal digits.
    pub checksum: String,
    /// The oldest version that can use the database.
    pub needs: Option<i64>,
}

/// A table of a copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DumpTable {
    pub name: String,
    /// The columns, in the order of the values in the rows.
    pub columns: Vec<String>,
}

/// A part of a table in the text form of `COPY`, at most 1 MiB. A part may end within a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    pub table: String,
    pub rows: Vec<u8>,
}

/// A copy in progress.
pub enum Export {
    /// The file is complete.
    File(Dump),
    Tables(Box<Tables>),
}

/// The tables of Postgres at one point in time. Dropping it ends the transaction.
pub struct Tables {
    tx: Whole,
    dump: Dump,
}

impl Dump {
    /// Checks that this program can restore the copy.
    ///
    /// # Errors
    /// [`OpenError::Newer`] if a newer version of this program made it, [`OpenError::Changed`] if another build made it.
    pub fn check(&self) -> std::result::Result<(), OpenError> {
        let applied: Vec<(i64, String)> = self
            .migrations
            .iter()
            .map(|migration| (migration.version, migration.checksum.clone()))
            .collect();
        migrate::check_known(&applied, &self.engine)
    }

    /// The schema version.
    #[must_use]
    pub fn version(&self) -> i64 {
        self.migrations.last().map_or(0, |last| last.version)
    }
}

impl DumpTable {
    /// The statement that copies the table. `way`: `TO STDOUT` or `FROM STDIN`.
    pub(crate) fn copy(&self, way: &str) -> String {
        let columns: Vec<String> = self.columns.iter().map(|name| quoted(name)).collect();
        format!(
            "COPY kb.{} ({}) {way}",
            quoted(&self.name),
            columns.join(", ")
        )
    }
}

/// An identifier in double quotes.
pub(crate) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

impl Store {
    /// Begins a copy of the database. `into`: an empty file, which gets the copy on SQLite and is not used on Postgres.
    /// `copied`: is set to the number of bytes written so far.
    ///
    /// # Cancel safety
    /// A dropped copy stops soon after, and removes its file.
    ///
    /// # Errors
    /// The database is unavailable or damaged, or `into` cannot be written.
    pub async fn export(&self, into: &Path, copied: &AtomicU64) -> Result<Export> {
        match &self.pool {
            Pool::Sqlite { write, .. } => {
                let dump = copy_file(write.path().clone(), into, copied).await?;
                Ok(Export::File(dump))
            }
            Pool::Postgres(pool) => Ok(Export::Tables(Box::new(Tables::begin(pool).await?))),
        }
    }
}

/// Ends the copy of a file when it is dropped. A statement that has not begun cannot be interrupted, so the thread that
/// copies checks `is_cancelled`, too.
struct Interrupt {
    handle: InterruptHandle,
    is_cancelled: Arc<AtomicBool>,
}

impl Drop for Interrupt {
    fn drop(&mut self) {
        self.is_cancelled.store(true, Ordering::SeqCst);
        self.handle.interrupt();
    }
}

async fn copy_file(source: Arc<str>, into: &Path, copied: &AtomicU64) -> Result<Dump> {
    let journals = journal::folder(&source);
    let opening = move || -> Result<Connection> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let conn = Connection::open_with_flags(&*source, flags)?;
        conn.busy_timeout(LOCK_TIMEOUT)?;
        Ok(conn)
    };
    let conn = blocking(opening).await?;
    let is_cancelled = Arc::new(AtomicBool::new(false));
    let interrupt = Interrupt {
        handle: conn.get_interrupt_handle(),
        is_cancelled: is_cancelled.clone(),
    };
    let file = into.to_owned();
    let copying = blocking(move || {
        let not_text = || Error::Invalid(format!("the path {} is not UTF-8", file.display()));
        let path = file.to_str().ok_or_else(not_text)?;
        if is_cancelled.load(Ordering::SeqCst) {
            return Err(Error::interrupted());
        }
        let copied = conn.execute("VACUUM INTO ?1", [path]);
        let copied = copied.map_err(Error::from).and_then(|_| {
            let mut copy = Connection::open(&file)?;
            journal::complete(&mut copy, &journals)
        });
        if is_cancelled.load(Ordering::SeqCst) {
            let _ = std::fs::remove_file(&file);
        }
        copied
    });
    tokio::pin!(copying);
    let mut tick = tokio::time::interval(PROGRESS_INTERVAL);
    loop {
        tokio::select! {
            done = &mut copying => {
                done?;
                break;
            }
            _ = tick.tick() => {
                let written = std::fs::metadata(into).map_or(0, |meta| meta.len());
                copied.store(written, Ordering::Relaxed);
            }
        }
    }
    drop(interrupt);
    let file = into.to_owned();
    blocking(move || dump_of_file(&file)).await
}

/// Runs something that blocks.
async fn blocking<T: Send + 'static>(
    run: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    // The task ends early only if the program stops.
    let done = task::spawn_blocking(run).await;
    done.unwrap_or_else(|_| Err(Error::interrupted()))
}

/// Reads what a copy of a SQLite database contains, and checks that the file is not damaged. Blocks for as long as it
/// takes to read the file.
///
/// # Errors
/// [`Error::Corrupt`] if the file is damaged, or not a database of this program.
pub fn dump_of_file(file: &Path) -> Result<Dump> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags(file, flags)?;
    // A copy of a damaged database is damaged too. That has to be noticed while the earlier backups are still there.
    let verdict: String = conn.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
    if verdict != "ok" {
        return Err(Error::Corrupt(Fault::new(verdict)));
    }
    let latest: Option<i64> =
        conn.query_row("SELECT MAX(version) FROM schema_migrations", [], |row| {
            row.get(0)
        })?;
    let mut statement = conn.prepare(migrations_text("", latest.unwrap_or_default()))?;
    let rows = statement.query_map([], |row| {
        Ok(DumpMigration {
            version: row.get(0)?,
            checksum: row.get(1)?,
            needs: row.get(2)?,
        })
    })?;
    Ok(Dump {
        engine: "sqlite".to_owned(),
        migrations: rows.collect::<rusqlite::Result<_>>()?,
        tables: Vec::new(),
        fence: 0,
    })
}

/// The query for the applied migrations. Earlier versions lack the column `needs`.
fn migrations_text(schema: &str, latest: i64) -> &'static str {
    match (schema, latest >= NEEDS_RECORDED) {
        ("", true) => "SELECT version, checksum, needs FROM schema_migrations ORDER BY version",
        ("", false) => "SELECT version, checksum, NULL FROM schema_migrations ORDER BY version",
        (_, true) => "SELECT version, checksum, needs FROM kb.schema_migrations ORDER BY version",
        (_, false) => {
            "SELECT version, checksum, NULL::BIGINT FROM kb.schema_migrations ORDER BY version"
        }
    }
}

impl Tables {
    async fn begin(pool: &PgPool) -> Result<Self> {
        let mut tx = within(STATEMENT_TIMEOUT, Whole::begin(pool)).await?;
        let isolation = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY";
        for text in [isolation, TEXT_FORMS] {
            let setting = sqlx::raw_sql(text).execute(&mut *tx);
            within(STATEMENT_TIMEOUT, setting).await?;
        }
        let latest = "SELECT COALESCE(MAX(version), 0) FROM kb.schema_migrations";
        let latest = sqlx::query_scalar::<Postgres, i64>(latest).fetch_one(&mut *tx);
        let latest = within(STATEMENT_TIMEOUT, latest).await?;
        let text = migrations_text("kb", latest);
        let rows = sqlx::query_as::<Postgres, (i64, String, Option<i64>)>(text).fetch_all(&mut *tx);
        let rows = within(STATEMENT_TIMEOUT, rows).await?;
        let migrations = rows
            .into_iter()
            .map(|(version, checksum, needs)| DumpMigration {
                version,
                checksum,
                needs,
            });
        let has_fences = "SELECT to_regclass('kb.toolwharf_fences') IS NOT NULL";
        let has_fences = sqlx::query_scalar::<Postgres, bool>(has_fences).fetch_one(&mut *tx);
        let fence = match within(STATEMENT_TIMEOUT, has_fences).await? {
            true => {
                let text = "SELECT last_value FROM kb.toolwharf_fences";
                let value = sqlx::query_scalar::<Postgres, i64>(text).fetch_one(&mut *tx);
                within(STATEMENT_TIMEOUT, value).await?
            }
            false => 0,
        };
        let dump = Dump {
            engine: "postgres".to_owned(),
            migrations: migrations.collect(),
            tables: tables(&mut tx).await?,
            fence,
        };
        Ok(Self { tx, dump })
    }

    #[must_use]
    pub fn dump(&self) -> &Dump {
        &self.dump
    }

    /// Passes all rows to `put`, table by table, in the order of [`Dump::tables`]. Stops if `put` returns false. Returns
    /// whether all rows were passed.
    ///
    /// # Errors
    /// The database is unavailable.
    pub async fn send(mut self, mut put: impl AsyncFnMut(Chunk) -> bool) -> Result<bool> {
        for table in &self.dump.tables {
            let text = table.copy("TO STDOUT");
            let mut stream = within(CHUNK_TIMEOUT, self.tx.copy_out_raw(&text)).await?;
            let mut rows = Vec::new();
            loop {
                let next = within(CHUNK_TIMEOUT, stream.try_next()).await?;
                let is_last = next.is_none();
                rows.extend_from_slice(&next.unwrap_or_default());
                while rows.len() >= CHUNK_BYTES || (is_last && !rows.is_empty()) {
                    let rest = rows.split_off(rows.len().min(CHUNK_BYTES));
                    let chunk = Chunk {
                        table: table.name.clone(),
                        rows: std::mem::replace(&mut rows, rest),
                    };
                    if !put(chunk).await {
                        return Ok(false);
                    }
                }
                if is_last {
                    break;
                }
            }
        }
        within(STATEMENT_TIMEOUT, self.tx.commit()).await?;
        Ok(true)
    }
}

/// The tables of the schema with their columns, each after the tables that it refers to.
async fn tables(tx: &mut Whole) -> Result<Vec<DumpTable>> {
    let text = "SELECT c.relname::TEXT, a.attname::TEXT
         FROM pg_class AS c JOIN pg_attribute AS a ON a.attrelid = c.oid
         WHERE c.relnamespace = 'kb'::regnamespace AND c.relkind = 'r' AND a.attnum > 0 AND NOT a.attisdropped
         ORDER BY c.relname, a.attnum";
    let columns = sqlx::query_as::<Postgres, (String, String)>(text).fetch_all(&mut **tx);
    let columns = within(STATEMENT_TIMEOUT, columns).await?;
    let text = "SELECT child.relname::TEXT, parent.relname::TEXT
         FROM pg_constraint AS k JOIN pg_class AS child ON child.oid = k.conrelid
             JOIN pg_class AS parent ON parent.oid = k.confrelid
         WHERE k.contype = 'f' AND k.connamespace = 'kb'::regnamespace";
    let references = sqlx::query_as::<Postgres, (String, String)>(text).fetch_all(&mut **tx);
    let references = within(STATEMENT_TIMEOUT, references).await?;
    let mut all: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (table, column) in columns {
        if !LEFT_OUT.contains(&table.as_str()) {
            all.entry(table).or_default().push(column);
        }
    }
    Ok(in_order(all, &references))
}

/// Sorts tables so that each follows those that it refers to. `references`: pairs of a table and one that it refers to.
fn in_order(
    mut all: BTreeMap<String, Vec<String>>,
    references: &[(String, String)],
) -> Vec<DumpTable> {
    let mut sorted = Vec::new();
    while !all.is_empty() {
        let waits = |name: &str| {
            let mut parents = references.iter().filter(|(child, _)| child == name);
            parents.any(|(child, parent)| parent != child && all.contains_key(parent))
        };
        let free = all.keys().find(|name| !waits(name));
        // In a cycle of references, which the schema does not have, any order is as good.
        let next = free.or_else(|| all.keys().next()).cloned();
        if let Some((name, columns)) = next.and_then(|name| all.remove_entry(&name)) {
            sorted.push(DumpTable { name, columns });
        }
    }
    sorted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_follows_those_that_it_refers_to() {
        let all = ["a", "b", "c", "d"].map(|name| (name.to_owned(), Vec::new()));
        let pair = |(child, parent): (&str, &str)| (child.to_owned(), parent.to_owned());
        let references = [("a", "d"), ("b", "a"), ("c", "c"), ("b", "gone")].map(pair);
        let sorted = in_order(BTreeMap::from(all), &references);
        let names: Vec<_> = sorted.iter().map(|table| table.name.as_str()).collect();
        assert_eq!(names, ["c", "d", "a", "b"]);
    }
}
