//! The handle, and how a database is found and opened.

use std::{
    fmt,
    fs::OpenOptions,
    io,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    str::FromStr,
    sync::Arc,
    time::Duration,
};

use sqlx::{
    ConnectOptions, Connection, Row as _, SqliteConnection,
    postgres::{PgConnectOptions, PgPoolOptions},
    sqlite::{SqliteConnectOptions, SqlitePoolOptions},
};
use tokio::time::Instant;

use crate::{
    error::{Error, OpenError, Result},
    id::new_id,
    migrate,
    sql::{DEADLINE, Pool, within},
    writer::Writer,
};

/// Longest wait for a connection of a pool.
pub(crate) const ACQUIRE: Duration = Duration::from_secs(2);

/// Bytes of a page. What is written most are records of calls, which touch a few pages and a few hundred bytes in each:
/// larger pages would be more to write, and to wait for, and no more to keep.
const PAGE: u32 = 1024;
/// Bytes of the log that are kept when it has been brought into the file.
pub(crate) const LOG: u32 = 64 << 20;
/// Pages in the log before they are brought into the file.
pub(crate) const CHECKPOINT: u32 = 4000;

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
    /// What this process is known by: what it opens and does not close is closed when its replica is lost.
    pub(crate) process: Arc<str>,
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
        let process = new_id().into();
        Ok(Self { pool, process })
    }

    /// The word for the engine: `sqlite` or `postgres`.
    pub fn kind(&self) -> &'static str {
        match &self.pool {
            Pool::Sqlite { .. } => "sqlite",
            Pool::Postgres(_) => "postgres",
        }
    }

    /// The same database over a connection of its own: what has to be in time waits for nobody else. On SQLite it is this one.
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

    /// Asks the database for a sign of life: that it can be read.
    ///
    /// # Errors
    ///
    /// [`crate::Error::Unavailable`] if there is none within three seconds.
    pub async fn ping(&self) -> Result<()> {
        crate::sql::row!(
            self.pool.read().await?,
            (i64,),
            "SELECT version FROM kb.schema_migrations LIMIT 1"
        )?;
        Ok(())
    }

    /// Asks a database that others change, too, whether it is the one that is written to: a standby may not know yet what they changed.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] if it can only be read.
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
    probe(&options, &path)
        .await
        .map_err(|source| OpenError::Database {
            location: location.to_string(),
            source,
        })?;
    let write = Writer::new(options.clone(), &path);
    let read = SqlitePoolOptions::new()
        .max_connections(4)
        .acquire_timeout(ACQUIRE)
        .idle_timeout(Duration::from_secs(300))
        .max_lifetime(None)
        .test_before_acquire(false)
        .after_connect(move |conn, _| {
            let path = path.clone();
            Box::pin(async move { attach(conn, &path, true).await })
        })
        .connect_lazy_with(options);
    Ok(Pool::Sqlite { read, write })
}

/// Connects once outside of a pool: a pool would try again until its deadline and not say why it
/// cannot. Only another process that is setting up the same file is waited for.
async fn probe(options: &SqliteConnectOptions, path: &str) -> Result<()> {
    let since = Instant::now();
    loop {
        let attempt = async {
            let mut conn = options.connect().await?;
            let attached = attach(&mut conn, path, false).await;
            conn.close().await.and(attached)
        };
        match within(attempt).await {
            Err(Error::Unavailable { .. }) if since.elapsed() < ACQUIRE => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            result => return result,
        }
    }
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

pub(crate) async fn attach(
    conn: &mut SqliteConnection,
    path: &str,
    query_only: bool,
) -> sqlx::Result<()> {
    sqlx::query("ATTACH $1 AS kb")
        .bind(path)
        .execute(&mut *conn)
        .await?;
    // The size of pages is that of a new file; an older one keeps its own. A commit is durable only with FULL: NORMAL
    // may lose the last ones when the machine stops.
    let pragmas = format!(
        "PRAGMA kb.page_size = {PAGE}; PRAGMA kb.journal_mode = WAL; PRAGMA kb.synchronous = FULL; \
         PRAGMA kb.journal_size_limit = {LOG}; PRAGMA wal_autocheckpoint = {CHECKPOINT};"
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

fn open_postgres(location: &Location, url: &str) -> Result<Pool, OpenError> {
    // sqlx takes any scheme. Its parser's error may repeat a part of the URL, and with it of the
    // password.
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
            "it names several hosts: name one address that always leads to the server that is written to, such as that of a TCP proxy",
        ));
    }
    let options = options
        .ok_or_else(|| wrong("not a URL as postgres://user:password@host:port/database"))?
        .application_name("toolwharf")
        .options([
            ("statement_timeout", "2s"),
            ("idle_in_transaction_session_timeout", "10s"),
        ])
        .disable_statement_logging();
    let pool = PgPoolOptions::new()
        .max_connections(10)
        .acquire_timeout(ACQUIRE)
        // Instead of a ping. One that can only read leads to a standby, or to a server that was one.
        .test_before_acquire(false)
        .before_acquire(|conn, _| {
            Box::pin(async move {
                let row = sqlx::raw_sql("SHOW transaction_read_only")
                    .fetch_one(conn)
                    .await?;
                Ok(row.try_get::<String, _>(0)? == "off")
            })
        })
        // A connection that was given up may belong to a server that is silent for good; left
        // alone it would be waited for as long as the system keeps it, and count all the time.
        .after_release(|conn, _| {
            Box::pin(async move {
                match tokio::time::timeout(DEADLINE, conn.ping()).await {
                    Ok(Ok(())) => Ok(true),
                    Ok(Err(error)) => Err(error),
                    Err(_) => Err(sqlx::Error::PoolTimedOut),
                }
            })
        })
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        CallWrite, CallWriter, NewCall, NewEvent, NewProject, new_id, now,
        sql::{execute, row},
    };

    async fn open(dir: &Path) -> Store {
        let location = Location::Sqlite(dir.join("wharf.db"));
        Store::open(&location).await.unwrap()
    }

    /// Versions before this one can lose what was committed when a log is reset while it is read.
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

    /// The limit of pages fails as a full disk does, and has the same effect: SQLite rolls the
    /// transaction back by itself.
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
        let call = |arguments: String| {
            CallWrite::Intent(NewCall {
                id: new_id(),
                run_id: None,
                project: None,
                caller: String::new(),
                server: String::new(),
                tool: String::new(),
                arguments_digest: String::new(),
                arguments: Some(arguments),
                started_at: now(),
                replay_of: None,
            })
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
        // One that fits, before one that does not: neither is there.
        let mut calls = store.call_writer();
        let pages = |calls: &mut CallWriter, count: u32| {
            let conn = calls.conn();
            conn.pragma_update(None, "max_page_count", count).unwrap();
        };
        pages(&mut calls, 1);
        let batch = [call(String::new()), call(long.clone())];
        full(calls.write(&batch).await);
        let found = store
            .calls_list(&crate::CallFilter::default(), &crate::Page::default())
            .await;
        assert_eq!(found.unwrap(), []);
        store.project_get(&project.id).await.unwrap();

        // There is room again.
        let mut conn = store.pool.write().await.unwrap();
        execute!(conn, "PRAGMA kb.max_page_count = 1000000").unwrap();
        drop(conn);
        pages(&mut calls, 1_000_000);
        calls.write(&batch).await.unwrap();
        store.event_add(event).await.unwrap();
    }
}
