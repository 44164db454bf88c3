//! Databases for tests, one per test, on the server that `TOOLWHARF_TEST_POSTGRES` names.

use std::{
    str::FromStr,
    sync::atomic::{AtomicU32, Ordering},
    thread,
};

use sqlx::{AssertSqlSafe, ConnectOptions, Connection, PgConnection, postgres::PgConnectOptions};

const VARIABLE: &str = "TOOLWHARF_TEST_POSTGRES";

/// An empty database. Dropping it disconnects all clients and removes it.
pub struct Database {
    name: String,
    url: String,
}

impl Database {
    /// Creates a database.
    pub async fn create() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        // Each test is a process, and all users of the server are on one machine, so the name is unique.
        let name = format!("test_{}_{count}", std::process::id());
        run(format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)")).await;
        run(format!("CREATE DATABASE {name} TEMPLATE template0")).await;
        let url = server().database(&name).to_url_lossy().to_string();
        Self { name, url }
    }

    /// The URL `postgres://…`, with user and password.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Runs a statement in the database.
    pub async fn run(&self, statement: &str) {
        run_at(&server().database(&self.name), statement.to_owned()).await;
    }

    /// Returns the whole database as `pg_dump` writes it.
    pub async fn dump(&self) -> Vec<u8> {
        let output = tokio::process::Command::new("pg_dump")
            .arg(self.url.split('?').next().unwrap_or_default())
            .output()
            .await
            .expect("pg_dump is installed: run `cargo xtask setup`");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "pg_dump: {stderr}");
        output.stdout
    }

    /// Returns the number that a query yields.
    ///
    /// # Panics
    /// If it yields no number.
    pub async fn number(&self, query: &str) -> f64 {
        let found = async {
            let mut conn = PgConnection::connect(&self.url).await?;
            let query = format!("SELECT ({query})::float8");
            let found = sqlx::query_scalar(AssertSqlSafe(query))
                .fetch_one(&mut conn)
                .await?;
            conn.close().await?;
            Ok::<f64, sqlx::Error>(found)
        };
        match found.await {
            Ok(found) => found,
            Err(error) => panic!("{query}: {error}"),
        }
    }

    /// Ends all connections to the database and refuses new ones, like a server that is down.
    pub async fn close_to_all(&self) {
        let name = &self.name;
        run(format!("ALTER DATABASE {name} ALLOW_CONNECTIONS false")).await;
        self.disconnect_all().await;
    }

    /// Undoes [`Database::close_to_all`].
    pub async fn open_to_all(&self) {
        let name = &self.name;
        run(format!("ALTER DATABASE {name} ALLOW_CONNECTIONS true")).await;
    }

    /// Ends all connections to the database, like a server restart.
    pub async fn disconnect_all(&self) {
        let name = &self.name;
        run(format!(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"
        ))
        .await;
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let drop_it = format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name);
        // This uses a separate runtime, because the test's runtime may be shutting down and cannot be blocked on.
        let thread = thread::spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime can be made");
            runtime.block_on(run(drop_it));
        });
        if thread.join().is_err() && !thread::panicking() {
            panic!("cannot drop the test's database");
        }
    }
}

/// Returns the connection options of the server.
fn server() -> PgConnectOptions {
    let url = std::env::var(VARIABLE).unwrap_or_else(|_| {
        panic!(
            "{VARIABLE} is not set: this test needs Postgres. Run it with \
             `cargo xtask postgres -- cargo nextest run …`"
        )
    });
    PgConnectOptions::from_str(&url).expect("the variable holds the URL of a Postgres")
}

async fn run(statement: String) {
    run_at(&server(), statement).await;
}

async fn run_at(place: &PgConnectOptions, statement: String) {
    if let Err(error) = execute(place, statement).await {
        panic!("the test Postgres failed: {error}");
    }
}

/// Runs a statement at a server that may be down.
pub(crate) async fn execute(place: &PgConnectOptions, statement: String) -> sqlx::Result<()> {
    let mut conn = PgConnection::connect_with(place).await?;
    let statement = sqlx::raw_sql(AssertSqlSafe(statement));
    statement.execute(&mut conn).await?;
    conn.close().await
}
