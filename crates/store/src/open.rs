//! The handle, and how a database is found and opened.

use std::{
    fmt,
    fs::OpenOptions,
    io,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    str::FromStr,
    time::Duration,
};

use sqlx::{
    ConnectOptions, Connection, SqliteConnection,
    postgres::{PgConnectOptions, PgPoolOptions},
    sqlite::{SqliteConnectOptions, SqlitePoolOptions},
};

use crate::{
    error::{OpenError, Result},
    migrate,
    sql::Pool,
};

/// Longest wait for a connection of a pool.
const ACQUIRE: Duration = Duration::from_secs(2);

/// Where a database is.
#[derive(Clone, PartialEq, Eq)]
pub enum Location {
    /// A file, made with mode 0600 if it is missing; its directory has to be there. SQLite keeps two
    /// more files beside it while it is open (`-wal`, `-shm`).
    Sqlite(PathBuf),
    /// A URL, `postgres://user:password@host:port/database`.
    Postgres(String),
}

/// A handle to a database; cheap to clone.
#[derive(Clone, Debug)]
pub struct Store {
    pub(crate) pool: Pool,
}

impl Store {
    /// Opens a database and brings its schema up to date.
    ///
    /// # Errors
    ///
    /// If it cannot be opened, or if another version of this program has changed it: then nothing
    /// is touched.
    pub async fn open(location: &Location) -> Result<Self, OpenError> {
        Self::open_with(location, migrate::LATEST).await
    }

    pub(crate) async fn open_with(location: &Location, version: i64) -> Result<Self, OpenError> {
        let pool = match location {
            Location::Sqlite(file) => open_sqlite(location, file).await?,
            Location::Postgres(url) => open_postgres(location, url)?,
        };
        migrate::run(&pool, location, version).await?;
        Ok(Self { pool })
    }

    /// Asks the database for a sign of life: that it can be read.
    ///
    /// # Errors
    ///
    /// [`crate::Error::Unavailable`] if there is none within three seconds.
    pub async fn ping(&self) -> Result<()> {
        let mut conn = self.pool.read().await?;
        crate::sql::row!(
            conn,
            (i64,),
            "SELECT version FROM kb.schema_migrations LIMIT 1"
        )?;
        Ok(())
    }

    /// Closes all connections; SQLite then writes its log back into the one file. Methods of any
    /// clone fail from now on.
    pub async fn close(&self) {
        match &self.pool {
            Pool::Sqlite { read, write } => {
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
    // A relative path would change its meaning, and one that begins with `file:` would be a URI.
    let path = std::path::absolute(file).map_err(|error| wrong(error.to_string()))?;
    let path = path
        .to_str()
        .ok_or_else(|| wrong("the path is not UTF-8".to_owned()))?
        .to_owned();
    private_file(Path::new(&path)).map_err(|error| wrong(error.to_string()))?;

    // The unnamed main database is an empty temporary one; ours is attached to it, so that tables
    // are called `kb.…` as in Postgres. A main database in memory would put `kb` in memory too.
    let options = SqliteConnectOptions::new()
        .filename("")
        .create_if_missing(true)
        .foreign_keys(true)
        .busy_timeout(Duration::from_secs(1))
        .disable_statement_logging();
    let pool = |connections: u32, query_only: bool| {
        let path = path.clone();
        SqlitePoolOptions::new()
            .max_connections(connections)
            .acquire_timeout(ACQUIRE)
            .max_lifetime(None)
            .test_before_acquire(false)
            .after_connect(move |conn, _| {
                let path = path.clone();
                Box::pin(async move { attach(conn, &path, query_only).await })
            })
            // A transaction that SQLite itself has rolled back (on a full disk) leaves the
            // connection believing that it is in one; such a connection is replaced. The ping
            // lets a rollback that is still queued happen first.
            .after_release(|conn, _| {
                Box::pin(async move {
                    conn.ping().await?;
                    Ok(!conn.is_in_transaction())
                })
            })
    };
    let write = pool(1, false).idle_timeout(None);
    let read = pool(4, true).idle_timeout(Duration::from_secs(300));
    let pool = Pool::Sqlite {
        read: read.connect_lazy_with(options.clone()),
        write: write.connect_lazy_with(options),
    };
    Ok(pool)
}

/// Makes the file, for its owner only; SQLite gives its other files the same mode.
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

async fn attach(conn: &mut SqliteConnection, path: &str, query_only: bool) -> sqlx::Result<()> {
    sqlx::query("ATTACH $1 AS kb")
        .bind(path)
        .execute(&mut *conn)
        .await?;
    // A commit is durable only with FULL: NORMAL may lose the last ones when the machine stops.
    let pragmas = "PRAGMA kb.journal_mode = WAL; PRAGMA kb.synchronous = FULL; \
                   PRAGMA kb.journal_size_limit = 67108864;";
    sqlx::raw_sql(pragmas).execute(&mut *conn).await?;
    if query_only {
        sqlx::raw_sql("PRAGMA query_only = ON")
            .execute(conn)
            .await?;
    }
    Ok(())
}

fn open_postgres(location: &Location, url: &str) -> Result<Pool, OpenError> {
    // The parser's own error may repeat a part of the URL, and with it of the password.
    let options = PgConnectOptions::from_str(url).map_err(|_| OpenError::Location {
        location: location.to_string(),
        why: "not a URL as postgres://user:password@host:port/database".to_owned(),
    })?;
    let options = options
        .application_name("toolwharf")
        .options([
            ("statement_timeout", "2s"),
            ("idle_in_transaction_session_timeout", "10s"),
        ])
        .disable_statement_logging();
    let pool = PgPoolOptions::new()
        .max_connections(10)
        .acquire_timeout(ACQUIRE)
        .connect_lazy_with(options);
    Ok(Pool::Postgres(pool))
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
