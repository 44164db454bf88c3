//! A database that is locked, does not respond, is gone, or was changed by another program.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};
use std::{os::unix::fs::PermissionsExt as _, time::Duration};

use serde_json::json;
use sqlx::{Connection as _, PgConnection, SqliteConnection};
use store::{Location, NewProject, OpenError, Page, RunFilter, Store};
use testkit::{postgres::Database, wait_for};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream, tcp},
    sync::watch,
    task::JoinSet,
    time::Instant,
};

use crate::support::{Db, Place, new_run, new_server, project, server};

/// Maximum wait: 2 s for a connection and 3 s for a statement, plus a margin.
const MAX_WAIT: Duration = Duration::from_secs(7);

on_both!(
    what_was_written_is_there_after_opening_again,
    clones_and_closing,
    locked_by_another_process,
    two_that_open_at_once,
);

async fn what_was_written_is_there_after_opening_again(db: &Db) {
    let id = db.project("p").await;
    db.store.server_put(&id, &new_server("time")).await.unwrap();
    db.store.close().await;
    let again = db.another().await;
    assert!(again.server_get(&id, &server("time")).await.is_ok());
}

async fn clones_and_closing(db: &Db) {
    let clone = db.store.clone();
    db.project("p").await;
    clone.project_get(&project("p")).await.unwrap();
    db.store.close().await;
    assert_error!(clone.project_get(&project("p")).await, Unavailable);
    assert_error!(clone.ping().await, Unavailable);
}

async fn two_that_open_at_once(db: &Db) {
    // A new database that has not been migrated yet.
    let (location, _place) = match &db.place {
        Place::Directory(dir) => (Location::Sqlite(dir.path().join("new.db")), None),
        Place::Server(_) => {
            let database = Database::create().await;
            (
                Location::Postgres(database.url().to_owned()),
                Some(database),
            )
        }
    };
    let opened: Vec<_> = (0..8)
        .map(|_| {
            let location = location.clone();
            async move { Store::open(&location).await }
        })
        .collect::<JoinSet<_>>()
        .join_all()
        .await;
    for store in opened {
        store.unwrap().ping().await.unwrap();
    }
}

async fn locked_by_another_process(db: &Db) {
    let id = db.project("p").await;
    let new = new_server("time");
    let put = || db.store.server_put(&id, &new);
    match &db.location {
        Location::Sqlite(file) => {
            let url = format!("sqlite://{}", file.display());
            let mut other = SqliteConnection::connect(&url).await.unwrap();
            let lock = other.begin_with("BEGIN IMMEDIATE").await.unwrap();
            assert_waits_but_not_long(put()).await;
            // Readers are not blocked by the lock.
            assert_eq!(db.store.server_list(&id).await.unwrap(), []);
            drop(lock);
            other.ping().await.unwrap();
        }
        Location::Postgres(url) => {
            let mut other = PgConnection::connect(url).await.unwrap();
            let mut lock = other.begin().await.unwrap();
            let text = "LOCK TABLE kb.projects IN EXCLUSIVE MODE";
            sqlx::raw_sql(text).execute(&mut *lock).await.unwrap();
            assert_waits_but_not_long(put()).await;
            assert_eq!(db.store.server_list(&id).await.unwrap(), []);
            lock.rollback().await.unwrap();
        }
    }
    put().await.unwrap();
}

async fn assert_waits_but_not_long<T: std::fmt::Debug>(
    call: impl Future<Output = store::Result<T>>,
) {
    let start = Instant::now();
    assert_error!(call.await, Unavailable);
    let took = start.elapsed();
    assert!(
        (Duration::from_millis(900)..Duration::from_secs(4)).contains(&took),
        "{took:?}"
    );
}

async fn until<T>(what: &str, put: impl AsyncFn() -> store::Result<T>) {
    let limit = Duration::from_secs(5);
    wait_for(what, limit, async || put().await.is_ok()).await;
}

#[tokio::test]
async fn postgres_that_goes_away_and_comes_back() {
    let database = Database::create().await;
    let mut proxy = Proxy::start(database.url()).await;
    let store = Store::open(&proxy.location).await.unwrap();
    let put = async || store.project_put(&NewProject::new(project("p"))).await;
    put().await.unwrap();

    // After a restart, all connections are closed and new ones can be made.
    database.disconnect_all().await;
    until("the restarted database", &put).await;

    proxy.stop();
    let start = Instant::now();
    assert_error!(put().await, Unavailable);
    assert_error!(store.project_list(&Page::default()).await, Unavailable);
    assert!(start.elapsed() < MAX_WAIT, "{:?}", start.elapsed());
    proxy.start_again().await;
    until("the returned database", &put).await;
}

#[tokio::test]
async fn postgres_that_is_silent() {
    let database = Database::create().await;
    let proxy = Proxy::start(database.url()).await;
    let store = Store::open(&proxy.location).await.unwrap();
    let put = async || store.project_put(&NewProject::new(project("p"))).await;
    put().await.unwrap();

    proxy.passes.send_replace(false);
    let start = Instant::now();
    // More calls than connections, so that every connection is affected.
    let calls: JoinSet<_> = (0..30)
        .map(|_| {
            let store = store.clone();
            async move { store.project_put(&NewProject::new(project("p"))).await }
        })
        .collect();
    for result in calls.join_all().await {
        assert_error!(result, Unavailable);
    }
    assert!(start.elapsed() < MAX_WAIT, "{:?}", start.elapsed());
    proxy.passes.send_replace(true);
    until("the database to speak again", &put).await;

    // No connection has an open transaction from a cancelled `BEGIN`: a successful write is visible to all.
    proxy.at_begin.store(true, Ordering::Relaxed);
    let (project, manifest) = (project("p"), json!({}));
    let install = store.product_install(&project, "p", "1", &manifest, &[]);
    assert_error!(install.await, Unavailable);
    proxy.passes.send_replace(true);
    const RUNS: usize = 60;
    let runs: JoinSet<_> = (0..RUNS)
        .map(|_| {
            let store = store.clone();
            async move { store.run_put(new_run(None)).await }
        })
        .collect();
    for run in runs.join_all().await {
        run.unwrap();
    }
    let other = Store::open(&Location::Postgres(database.url().to_owned())).await;
    let other = other.unwrap();
    let (filter, page) = (RunFilter::default(), Page::first(100));
    let all = other.run_list(&filter, &page).await;
    assert_eq!(all.unwrap().len(), RUNS);
}

/// A proxy between the store and Postgres.
struct Proxy {
    address: String,
    target: String,
    location: Location,
    passes: watch::Sender<bool>,
    /// Blocks all traffic after the next `BEGIN`.
    at_begin: Arc<AtomicBool>,
    tasks: JoinSet<()>,
}

impl Proxy {
    async fn start(url: &str) -> Self {
        let at = url.find('@').unwrap() + 1;
        let end = at + url[at..].find('/').unwrap();
        let target = url[at..end].to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let mut this = Self {
            location: Location::Postgres(format!("{}{address}{}", &url[..at], &url[end..])),
            address,
            target,
            passes: watch::Sender::new(true),
            at_begin: Arc::default(),
            tasks: JoinSet::new(),
        };
        this.serve(listener);
        this
    }

    /// Closes the port and every connection.
    fn stop(&mut self) {
        self.tasks.abort_all();
    }

    async fn start_again(&mut self) {
        while self.tasks.join_next().await.is_some() {}
        let listener = TcpListener::bind(&self.address).await.unwrap();
        self.serve(listener);
    }

    fn serve(&mut self, listener: TcpListener) {
        let (target, passes) = (self.target.clone(), self.passes.clone());
        let at_begin = self.at_begin.clone();
        self.tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(&target).await.unwrap();
                let (client, server) = (client.into_split(), server.into_split());
                let (to, back) = (passes.subscribe(), passes.subscribe());
                let (passes, at_begin) = (passes.clone(), at_begin.clone());
                let sent = move |bytes: &[u8]| {
                    let begins = bytes.windows(5).any(|word| word == b"BEGIN");
                    if begins && at_begin.swap(false, Ordering::Relaxed) {
                        passes.send_replace(false);
                    }
                };
                connections.spawn(forward(client.0, server.1, to, sent));
                connections.spawn(forward(server.0, client.1, back, |_| {}));
            }
        });
    }
}

async fn forward(
    mut from: tcp::OwnedReadHalf,
    mut to: tcp::OwnedWriteHalf,
    mut passes: watch::Receiver<bool>,
    seen: impl Fn(&[u8]),
) {
    let mut buffer = [0; 4096];
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        if passes.wait_for(|passes| *passes).await.is_err() {
            return;
        }
        seen(&buffer[..length]);
        if to.write_all(&buffer[..length]).await.is_err() {
            return;
        }
    }
}

#[tokio::test]
async fn sqlite_files_are_private() {
    let db = Db::sqlite().await;
    db.project("p").await;
    let Place::Directory(dir) = &db.place else {
        unreachable!("it is on SQLite")
    };
    let names = || {
        let mut names = Vec::new();
        for file in std::fs::read_dir(dir.path()).unwrap().map(Result::unwrap) {
            let mode = file.metadata().unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{file:?}");
            names.push(file.file_name().into_string().unwrap());
        }
        names.sort();
        names
    };
    assert_eq!(
        names(),
        [
            "wharf.db",
            "wharf.db-next",
            "wharf.db-shm",
            "wharf.db-turn",
            "wharf.db-wal"
        ]
    );
    // After closing, the database has no log, so it can be copied. The files of turns are empty.
    db.store.close().await;
    assert_eq!(names(), ["wharf.db", "wharf.db-next", "wharf.db-turn"]);
}

#[tokio::test]
async fn what_cannot_be_opened() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str| Location::Sqlite(dir.path().join(name));
    let message =
        async |location: &Location| model::with_causes(&Store::open(location).await.unwrap_err());
    let text = message(&file("no/such/directory.db")).await;
    assert!(
        text.contains("no/such/directory.db`: No such file"),
        "{text}"
    );
    std::fs::write(
        dir.path().join("text.db"),
        "this is no database, ".repeat(1000),
    )
    .unwrap();
    let text = message(&file("text.db")).await;
    assert!(text.contains("file is not a database"), "{text}");

    for url in [
        "postgres://u:hunter2@h:port/db",
        "mysql://u:hunter2@h/db",
        "hunter2",
    ] {
        let location = Location::Postgres(url.to_owned());
        let result = Store::open(&location).await;
        assert!(
            matches!(result, Err(OpenError::Location { .. })),
            "{url}: {result:?}"
        );
    }
    // Opening fails for a port without a listener, and for a wrong password.
    let database = Database::create().await;
    let at = database.url().find('@').unwrap();
    let gone = "postgres://u:hunter2@127.0.0.1:1/db".to_owned();
    let wrong = format!("postgres://postgres:hunter2{}", &database.url()[at..]);
    for url in [gone, wrong] {
        let location = Location::Postgres(url.clone());
        let start = Instant::now();
        let error = Store::open(&location).await.unwrap_err();
        assert!(start.elapsed() < MAX_WAIT);
        let text = format!("{error:?} {location:?} {}", message(&location).await);
        assert!(matches!(error, OpenError::Database { .. }), "{text}");
        assert!(!text.contains("hunter2"), "{text}");
    }
}

/// With two hosts, the client would connect to any that answers, which may not be the primary.
#[tokio::test]
async fn a_url_names_one_server() {
    for url in [
        "postgres://u:p@a,b/d",
        "postgres://u:p@a:1,b:2/d?target_session_attrs=read-write",
        "postgres:///d?user=u&password=p&host=a,b",
    ] {
        let refused = Store::open(&Location::Postgres(url.to_owned())).await;
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains("it names several hosts"), "{refused}");
    }
}
