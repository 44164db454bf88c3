//! Restores a copy of a Postgres database ([`crate::Tables`]) in one transaction: either all of it is there afterwards,
//! or nothing has changed. A copy of a SQLite database is a file and needs no import.
//!
//! The restored database is a new history ([`Store::timeline_is_new`]): what gateways held is free, and fencing tokens
//! continue above all that were granted.

use std::{io, time::Duration};

use sqlx::PgConnection;

use crate::{
    Store,
    connect::Location,
    error::{Error, OpenError},
    export::{CHUNK_TIMEOUT, Chunk, Dump, TEXT_FORMS, quoted},
    migrate,
    open::open_postgres,
    sql::{Pool, Text, Tx, execute, row, within},
};

/// Timeout for the end of a table, at which Postgres checks all references, and for the end of the transaction.
const FINISH_TIMEOUT: Duration = Duration::from_secs(3600);
/// Fencing tokens that may have been granted after the copy was made.
const MAX_LATER_FENCES: i64 = 1_000_000;
/// The error of calls and runs that were open when the copy was made.
const OPEN_ERROR: &str =
    "the database was restored from a backup that was made before the result was recorded";

/// The contents of a database before a restore.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Existing {
    /// True if it has tables of this program.
    pub has_tables: bool,
    /// The number of gateways that run on it.
    pub replicas: usize,
}

/// Why a copy was not restored. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    #[error("the database has data already")]
    Exists,
    /// The schema of the copy cannot be created.
    #[error(transparent)]
    Schema(OpenError),
    #[error(transparent)]
    Database(#[from] Error),
    /// The copy could not be read.
    #[error("the copy cannot be read")]
    Source(#[source] io::Error),
    /// The copy does not fit the schema.
    #[error("the copy has rows of {0:?}, which is not a table of the database")]
    Table(String),
}

impl Store {
    /// Looks into a Postgres database. Creates nothing. For SQLite, the caller looks for the file.
    ///
    /// # Errors
    /// The location is invalid, or the database does not respond.
    pub async fn existing(location: &Location) -> Result<Existing, OpenError> {
        let Location::Postgres(url) = location else {
            return Ok(Existing::default());
        };
        let pool = open_postgres(location, url)?;
        let found = existing(&pool).await;
        close(pool).await;
        found.map_err(|source| OpenError::Database {
            location: location.to_string(),
            source,
        })
    }

    /// Restores a copy into Postgres. `next` returns the rows in the order of [`Dump::tables`], and `None` at the end.
    /// `replace`: replaces the data that the database has.
    ///
    /// # Errors
    /// [`ImportError`]. Nothing was changed, unless the connection broke at the very end.
    ///
    /// # Panics
    /// If `location` is not Postgres.
    pub async fn import(
        location: &Location,
        dump: &Dump,
        replace: bool,
        next: impl AsyncFnMut() -> io::Result<Option<Chunk>>,
    ) -> Result<(), ImportError> {
        let Location::Postgres(url) = location else {
            panic!("only a copy of Postgres is imported");
        };
        let pool = open_postgres(location, url).map_err(ImportError::Schema)?;
        let done = import(&pool, location, dump, replace, next).await;
        close(pool).await;
        done
    }
}

async fn close(pool: Pool) {
    if let Pool::Postgres(pool) = pool {
        pool.close().await;
    }
}

async fn existing(pool: &Pool) -> Result<Existing, Error> {
    let mut conn = pool.read().await?;
    let tables = row!(
        conn,
        (i64,),
        "SELECT COUNT(*) FROM pg_tables WHERE schemaname = 'kb'"
    )?;
    let has_replicas = row!(
        conn,
        (bool,),
        "SELECT to_regclass('kb.toolwharf_replicas') IS NOT NULL"
    )?;
    let replicas = match has_replicas {
        Some((true,)) => row!(
            conn,
            (i64,),
            "SELECT COUNT(*) FROM kb.toolwharf_replicas WHERE expires_at > clock_timestamp()"
        )?,
        _ => None,
    };
    Ok(Existing {
        has_tables: tables.is_some_and(|(count,)| count > 0),
        replicas: replicas.map_or(0, |(count,)| usize::try_from(count).unwrap_or(0)),
    })
}

async fn import(
    pool: &Pool,
    location: &Location,
    dump: &Dump,
    replace: bool,
    mut next: impl AsyncFnMut() -> io::Result<Option<Chunk>>,
) -> Result<(), ImportError> {
    dump.check().map_err(ImportError::Schema)?;
    let mut tx = pool.begin().await?;
    // Before the check, so that no gateway creates tables after it.
    migrate::wait_for_turn(&mut tx).await?;
    let setting = sqlx::raw_sql(TEXT_FORMS).execute(postgres(&mut tx));
    within(CHUNK_TIMEOUT, setting).await?;
    let tables = row!(
        tx,
        (i64,),
        "SELECT COUNT(*) FROM pg_tables WHERE schemaname = 'kb'"
    )?;
    if tables.is_some_and(|(count,)| count > 0) {
        if !replace {
            return Err(ImportError::Exists);
        }
        run(&mut tx, "DROP SCHEMA kb CASCADE").await?;
    }
    let migrated = migrate::run_in(&mut tx, location, dump.version()).await;
    migrated.map_err(ImportError::Schema)?;
    // Triggers write change notes and notifications for running gateways. No gateway runs during a restore.
    for table in &dump.tables {
        require_table(&mut tx, &table.name).await?;
        triggers(&mut tx, &table.name, "DISABLE").await?;
    }
    let mut rows = next().await.map_err(ImportError::Source)?;
    for table in &dump.tables {
        let text = table.copy("FROM STDIN");
        let copying = postgres(&mut tx).copy_in_raw(&text);
        let mut copy = within(CHUNK_TIMEOUT, copying).await?;
        while let Some(chunk) = rows.take_if(|chunk| chunk.table == table.name) {
            within(CHUNK_TIMEOUT, copy.send(chunk.rows)).await?;
            rows = next().await.map_err(ImportError::Source)?;
        }
        within(FINISH_TIMEOUT, copy.finish()).await?;
    }
    if let Some(chunk) = rows {
        return Err(ImportError::Table(chunk.table));
    }
    for table in &dump.tables {
        triggers(&mut tx, &table.name, "ENABLE").await?;
    }
    for migration in &dump.migrations {
        if let Some(needs) = migration.needs {
            execute!(
                tx,
                "UPDATE kb.schema_migrations SET needs = $2 WHERE version = $1",
                migration.version,
                needs,
            )?;
        }
    }
    let migrated = migrate::run_in(&mut tx, location, migrate::LATEST).await;
    migrated.map_err(ImportError::Schema)?;
    begin_history(&mut tx, dump).await?;
    match tx {
        Tx::Postgres(tx) => within(FINISH_TIMEOUT, tx.commit()).await?,
        Tx::Sqlite(_) => unreachable!("the pool is of Postgres"),
    }
    Ok(())
}

/// Closes what was open, and makes the first gateway begin a new history.
async fn begin_history(tx: &mut Tx, dump: &Dump) -> Result<(), Error> {
    execute!(
        tx,
        "UPDATE kb.agent_run_tool_calls SET status = 'unknown', error = $1, finished_at = clock_timestamp()
         WHERE status = 'open'",
        Text(OPEN_ERROR),
    )?;
    execute!(
        tx,
        "UPDATE kb.agent_runs SET status = 'interrupted', error = $1, finished_at = clock_timestamp()
         WHERE status = 'running'",
        Text(OPEN_ERROR),
    )?;
    execute!(tx, "DELETE FROM kb.toolwharf_timelines")?;
    row!(
        tx,
        (i64,),
        "SELECT setval('kb.toolwharf_fences', $1)",
        dump.fence.saturating_add(MAX_LATER_FENCES),
    )?;
    Ok(())
}

async fn require_table(tx: &mut Tx, name: &str) -> Result<(), ImportError> {
    let found = row!(
        tx,
        (i64,),
        "SELECT COUNT(*) FROM pg_tables WHERE schemaname = 'kb' AND tablename = $1",
        Text(name),
    )?;
    match found {
        Some((1,)) => Ok(()),
        _ => Err(ImportError::Table(name.to_owned())),
    }
}

/// Turns the triggers of a table on or off. Checks of references stay on.
async fn triggers(tx: &mut Tx, table: &str, how: &str) -> Result<(), Error> {
    let text = format!("ALTER TABLE kb.{} {how} TRIGGER USER", quoted(table));
    run(tx, &text).await
}

async fn run(tx: &mut Tx, text: &str) -> Result<(), Error> {
    let statement = sqlx::raw_sql(sqlx::AssertSqlSafe(text.to_owned()));
    within(FINISH_TIMEOUT, statement.execute(postgres(tx))).await?;
    Ok(())
}

fn postgres(tx: &mut Tx) -> &mut PgConnection {
    match tx {
        Tx::Postgres(tx) => tx,
        Tx::Sqlite(_) => unreachable!("the pool is of Postgres"),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use testkit::postgres::Database;

    use super::*;
    use crate::{Export, NewProject, dump_of_file};

    fn project() -> NewProject {
        NewProject::new(model::ProjectId::parse("p").unwrap())
    }

    /// A backup of an earlier version is migrated when it is restored, or when the file is opened.
    #[tokio::test]
    async fn o07_copies_of_earlier_versions_are_restored() {
        for version in [1, 11, 13, 16, migrate::LATEST - 1, migrate::LATEST] {
            let source = Database::create().await;
            let location = Location::Postgres(source.url().to_owned());
            let old = Store::open_with(&location, version).await.unwrap();
            old.project_put(&project()).await.unwrap();
            let exported = old.export("unused".as_ref(), &AtomicU64::new(0)).await;
            let Export::Tables(tables) = exported.unwrap() else {
                panic!("it is Postgres");
            };
            let dump = tables.dump().clone();
            assert_eq!(dump.version(), version);
            let mut chunks = Vec::new();
            let sent = tables.send(async |chunk| {
                chunks.push(chunk);
                true
            });
            sent.await.unwrap();
            let target = Database::create().await;
            let location = Location::Postgres(target.url().to_owned());
            let mut chunks = chunks.into_iter();
            let next = async || Ok(chunks.next());
            Store::import(&location, &dump, false, next).await.unwrap();
            let store = Store::open(&location).await.unwrap();
            store.project_get(&project().id).await.unwrap();
            assert!(store.timeline_is_new().await.unwrap());
        }
        for version in [1, 12, 13, migrate::LATEST] {
            let dir = tempfile::tempdir().unwrap();
            let location = Location::Sqlite(dir.path().join("old.db"));
            let old = Store::open_with(&location, version).await.unwrap();
            old.project_put(&project()).await.unwrap();
            let copy = dir.path().join("copy.db");
            std::fs::File::create(&copy).unwrap();
            let exported = old.export(&copy, &AtomicU64::new(0)).await.unwrap();
            let Export::File(dump) = exported else {
                panic!("it is SQLite");
            };
            assert_eq!(dump.version(), version);
            assert_eq!(dump_of_file(&copy).unwrap(), dump);
            let store = Store::open(&Location::Sqlite(copy)).await.unwrap();
            store.project_get(&project().id).await.unwrap();
        }
    }
}
