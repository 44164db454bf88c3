//! The handle to a database, and the functions that open one.

use crate::connect::Location;
use crate::connect::attach;
use crate::connect::{ACQUIRE_TIMEOUT, DISK_TIMEOUT};
use std::{
    fs::OpenOptions, io, os::unix::fs::OpenOptionsExt, path::Path, str::FromStr, sync::Arc,
    time::Duration,
};

use sqlx::{
    ConnectOptions, Connection, Row as _,
    postgres::{PgConnectOptions, PgPoolOptions},
    sqlite::{SqliteConnectOptions, SqlitePoolOptions},
};
use tokio::time::Instant;

use crate::{
    error::{Error, OpenError, Result},
    id::new_id,
    journal::Journal,
    migrate,
    sql::{Pool, STATEMENT_TIMEOUT, within},
    writer::Writer,
};

/// A handle to a database. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Store {
    pub(crate) pool: Pool,
    /// Identifies this process. When its replica is lost, the calls and runs that the process left open are closed.
    pub(crate) process: Arc<str>,
}

impl Store {
    /// Opens a database and migrates its schema.
    ///
    /// # Errors
    ///
    /// The database cannot be opened, or an incompatible version of this program has changed it. In the latter case
    /// nothing is changed.
    pub async fn open(location: &Location) -> Result<Self, OpenError> {
        Self::open_with(location, migrate::LATEST).await
    }

    /// Opens a database that exists, to read the secrets of the configuration file. Creates and migrates nothing. Returns
    /// `None` if the database does not exist, or if its version predates these secrets.
    ///
    /// # Errors
    ///
    /// The database cannot be opened.
    pub async fn open_existing(location: &Location) -> Result<Option<Self>, OpenError> {
        let Some(store) = Self::open_unmigrated(location).await? else {
            return Ok(None);
        };
        let has_secrets = migrate::has_secrets(&store.pool).await;
        let has_secrets = has_secrets.map_err(|source| OpenError::Database {
            location: location.to_string(),
            source,
        })?;
        Ok(has_secrets.then_some(store))
    }

    /// Opens a database that exists, whatever its version, for [`Store::export`]. Creates and migrates nothing. Returns
    /// `None` if a SQLite file does not exist.
    ///
    /// # Errors
    /// The location is invalid, or a SQLite file cannot be opened.
    pub async fn open_unmigrated(location: &Location) -> Result<Option<Self>, OpenError> {
        let pool = match location {
            Location::Sqlite(file) if !file.is_file() => return Ok(None),
            Location::Sqlite(file) => open_sqlite(location, file).await?,
            Location::Postgres(url) => open_postgres(location, url)?,
        };
        let process = new_id().into();
        Ok(Some(Self { pool, process }))
    }

    pub(crate) async fn open_with(location: &Location, version: i64) -> Result<Self, OpenError> {
        let pool = match location {
            Location::Sqlite(file) => open_sqlite(location, file).await?,
            Location::Postgres(url) => open_postgres(location, url)?,
        };
        migrate::run(&pool, location, version).await?;
        let process = new_id().into();
        let store = Self { pool, process };
        if version >= migrate::HAS_JOURNALS {
            let recovered = store.calls_recover().await;
            recovered.map_err(|source| OpenError::Database {
                location: location.to_string(),
                source,
            })?;
        }
        Ok(store)
    }

    /// The name of the engine: `sqlite` or `postgres`.
    pub fn kind(&self) -> &'static str {
        match &self.pool {
            Pool::Sqlite { .. } => "sqlite",
            Pool::Postgres(_) => "postgres",
        }
    }

    /// A handle to the same database with a separate connection, for urgent statements that must not wait for others.
    /// On SQLite, a clone of this handle.
    #[must_use]
    pub fn apart(&self) -> Self {
        let Pool::Postgres(pool) = &self.pool else {
            return self.clone();
        };
        let options = pool.options().clone().max_connections(1);
        let pool = options.connect_lazy_with((*pool.connect_options()).clone());
        Self {
            pool: Pool::Postgres(pool),
            process: self.process.clone(),
        }
    }

    /// Checks that the database can be read.
    ///
    /// # Errors
    ///
    /// [`crate::Error::Unavailable`] if the database does not respond within three seconds.
    pub async fn ping(&self) -> Result<()> {
        crate::sql::row!(
            self.pool.read().await?,
            (i64,),
            "SELECT version FROM kb.schema_migrations LIMIT 1"
        )?;
        Ok(())
    }

    /// Checks that a database shared by replicas is the primary. A standby may lag behind.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] if the database is read-only.
    pub async fn check_writable(&self) -> Result<()> {
        if !self.has_replicas() {
            return Ok(());
        }
        let row = crate::sql::row!(
            self.pool.read().await?,
            (String,),
            "SELECT current_setting('transaction_read_only')",
        )?;
        match row.is_some_and(|(read_only,)| read_only == "off") {
            true => Ok(()),
            false => Err(Error::read_only()),
        }
    }

    /// Closes all connections. SQLite then checkpoints its log into the main file. The methods of all clones fail
    /// afterwards.
    pub async fn close(&self) {
        match &self.pool {
            Pool::Sqlite {
                read,
                write,
                journal,
            } => {
                journal.close().await;
                read.close().await;
                write.close().await;
            }
            Pool::Postgres(pool) => pool.close().await,
        }
    }
}

async fn open_sqlite(location: &Location, file: &Path) -> Result<Pool, OpenError> {
    let wrong = |why: String| OpenError::Location {
        location: location.to_string(),
        why,
    };
    // The path is made absolute, because a relative path would depend on the working directory, and one that begins
    // with `file:` would be a URI.
    let path = std::path::absolute(file).map_err(|error| wrong(error.to_string()))?;
    let path = path
        .to_str()
        .ok_or_else(|| wrong("the path is not UTF-8".to_owned()))?
        .to_owned();
    private_file(Path::new(&path)).map_err(|error| wrong(error.to_string()))?;

    // The unnamed main database is an empty temporary one. Ours is attached to it as `kb`, so that tables are called
    // `kb.…` as in Postgres. With a main database in memory, `kb` would be in memory too.
    let options = SqliteConnectOptions::new()
        .filename("")
        .create_if_missing(true)
        .foreign_keys(true)
        .busy_timeout(Duration::from_secs(1))
        .disable_statement_logging();
    probe(&options, &path)
        .await
        .map_err(|source| OpenError::Database {
            location: location.to_string(),
            source,
        })?;
    let write = Writer::new(options.clone(), &path);
    let read = SqlitePoolOptions::new()
        .max_connections(4)
        .acquire_timeout(DISK_TIMEOUT)
        .idle_timeout(Duration::from_secs(300))
        .max_lifetime(None)
        .test_before_acquire(false)
        .after_connect(move |conn, _| {
            let path = path.clone();
            Box::pin(async move { attach(conn, &path, true).await })
        })
        .connect_lazy_with(options);
    let journal = Journal::new(write.clone());
    Ok(Pool::Sqlite {
        read,
        write,
        journal,
    })
}

/// Connects once outside of a pool, because a pool would retry until its deadline and not report the reason. The
/// connection waits only if another process is setting up the same file.
async fn probe(options: &SqliteConnectOptions, path: &str) -> Result<()> {
    let since = Instant::now();
    loop {
        let attempt = async {
            let mut conn = options.connect().await?;
            let attached = attach(&mut conn, path, false).await;
            conn.close().await.and(attached)
        };
        match within(DISK_TIMEOUT, attempt).await {
            Err(Error::Unavailable { .. }) if since.elapsed() < ACQUIRE_TIMEOUT => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            result => return result,
        }
    }
}

/// Creates the file with access for its owner only. SQLite gives its other files the same mode.
fn private_file(file: &Path) -> io::Result<()> {
    let made = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(file);
    match made {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

pub(crate) fn open_postgres(location: &Location, url: &str) -> Result<Pool, OpenError> {
    // sqlx accepts any scheme. The error of the sqlx parser may repeat a part of the URL, including the password.
    let is_ours = url.starts_with("postgres://") || url.starts_with("postgresql://");
    let wrong = |why: &str| OpenError::Location {
        location: location.to_string(),
        why: why.to_owned(),
    };
    let authority = url.split(['/', '?']).nth(2).unwrap_or_default();
    let hosts = authority.rsplit_once('@').map_or(authority, |(_, it)| it);
    let options = PgConnectOptions::from_str(url).ok().filter(|_| is_ours);
    let has_several = |options: &PgConnectOptions| options.get_host().contains(',');
    if hosts.contains(',') || options.as_ref().is_some_and(has_several) {
        return Err(wrong(
            "it names several hosts: use one address that always leads to the primary, for example the address of a TCP proxy",
        ));
    }
    let options = options
        .ok_or_else(|| wrong("write --database-url postgres://user:password@host:port/database"))?
        .application_name("toolwharf")
        .options([
            ("statement_timeout", "2s"),
            ("idle_in_transaction_session_timeout", "10s"),
        ])
        .disable_statement_logging();
    let pool = PgPoolOptions::new()
        .max_connections(10)
        .acquire_timeout(ACQUIRE_TIMEOUT)
        // Instead of a ping, the next check asks whether the connection is read-only. A read-only connection leads to a
        // standby, or to a server that was demoted to one.
        .test_before_acquire(false)
        .before_acquire(|conn, _| {
            Box::pin(async move {
                let row = sqlx::raw_sql("SHOW transaction_read_only")
                    .fetch_one(conn)
                    .await?;
                Ok(row.try_get::<String, _>(0)? == "off")
            })
        })
        // The server of a cancelled connection may no longer respond. Without this check, the connection would wait for
        // the operating system's timeout, and would occupy a place in the pool until then.
        .after_release(|conn, _| {
            Box::pin(async move {
                match tokio::time::timeout(STATEMENT_TIMEOUT, conn.ping()).await {
                    Ok(Ok(())) => Ok(true),
                    Ok(Err(error)) => Err(error),
                    Err(_) => Err(sqlx::Error::PoolTimedOut),
                }
            })
        })
        .connect_lazy_with(options);
    Ok(Pool::Postgres(pool))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        NewEvent, NewProject,
        sql::{execute, row},
    };

    async fn open(dir: &Path) -> Store {
        let location = Location::Sqlite(dir.join("wharf.db"));
        Store::open(&location).await.unwrap()
    }

    /// Earlier versions can lose committed data when the log is reset during a read.
    #[tokio::test]
    async fn the_bundled_sqlite_is_new_enough() {
        let dir = tempfile::tempdir().unwrap();
        let mut conn = open(dir.path()).await.pool.read().await.unwrap();
        let version = row!(conn, (String,), "SELECT sqlite_version()").unwrap();
        let (version,) = version.unwrap();
        let numbers: Vec<u32> = version.split('.').map(|n| n.parse().unwrap()).collect();
        assert!(numbers >= vec![3, 51, 3], "{version}");
    }

    #[tokio::test]
    async fn every_connection_is_set_up() {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path()).await;
        let mut conns = vec![store.pool.write().await.unwrap()];
        for _ in 0..4 {
            conns.push(store.pool.read().await.unwrap());
        }
        for (index, conn) in conns.iter_mut().enumerate() {
            let text = "SELECT j.journal_mode, s.synchronous, f.foreign_keys, q.query_only
                 FROM pragma_journal_mode('kb') j, pragma_synchronous('kb') s, pragma_foreign_keys f,
                     pragma_query_only q";
            let row = row!(conn, (String, i64, i64, i64), text).unwrap();
            let query_only = i64::from(index > 0);
            assert_eq!(row, Some(("wal".to_owned(), 2, 1, query_only)));
        }
        let write = execute!(conns[1], "DELETE FROM kb.projects");
        assert!(matches!(write, Err(Error::Unavailable { .. })), "{write:?}");
    }

    /// Exceeding the page limit fails like a full disk, with the same effect: SQLite rolls back the transaction
    /// automatically.
    #[tokio::test]
    async fn a_full_disk() {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path()).await;
        let project = NewProject::new(model::ProjectId::parse("p").unwrap());
        store.project_put(&project).await.unwrap();
        let fill = async || {
            let mut conn = store.pool.write().await.unwrap();
            execute!(conn, "PRAGMA kb.max_page_count = 1").unwrap();
        };
        let full = |result: Result<()>| {
            let text = format!("{result:?}");
            assert!(matches!(result, Err(Error::Unavailable { .. })), "{text}");
            assert!(text.contains("the disk is full"), "{text}");
        };
        let long = "x".repeat(1 << 20);
        let detail = json!(long);
        let event = NewEvent {
            project: None,
            server: "s",
            kind: "k",
            detail: &detail,
        };
        fill().await;
        full(store.event_add(event).await);
        store.project_get(&project.id).await.unwrap();

        // There is free space again.
        let mut conn = store.pool.write().await.unwrap();
        execute!(conn, "PRAGMA kb.max_page_count = 1000000").unwrap();
        drop(conn);
        store.event_add(event).await.unwrap();
    }
}
