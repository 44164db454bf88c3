//! A Postgres of one test alone, which may come to harm: it is killed, runs full, or has a standby that takes its place.

use std::{
    fs,
    net::TcpListener,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    str::FromStr as _,
};

use rustix::process::{Pid, Signal, kill_process};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, postgres::PgConnectOptions};
use tempfile::TempDir;
use tokio::process::Command;

use crate::{DEADLINE, Process, wait_for};

/// Where `cargo xtask postgres` says that its programs are.
const PROGRAMS: &str = "TOOLWHARF_TEST_POSTGRES_PROGRAMS";
/// Whom Postgres runs as if the test is root's.
const USER: &str = "postgres";
const PASSWORD: &str = "of-a-test";
/// A smaller one would not take the load of a test; all of it is for tests that end soon.
const SETTINGS: [&str; 7] = [
    "fsync=off",
    "full_page_writes=off",
    "max_connections=120",
    "shared_buffers=16MB",
    "max_wal_size=32MB",
    "min_wal_size=32MB",
    "wal_retrieve_retry_interval=200ms",
];

/// A server with its data. All of it goes when this is dropped.
pub struct Cluster {
    server: Option<Process>,
    /// Keeps the file system that only it sees.
    room: Option<Process>,
    folder: TempDir,
    port: u16,
}

impl Cluster {
    /// Makes a server.
    ///
    /// # Panics
    /// If it cannot be made; the message says what to do.
    pub async fn start() -> Self {
        let mut cluster = Self::empty();
        cluster.init().await;
        cluster.run_server().await;
        cluster
    }

    /// Makes a server on a file system that has so much room, in MiB.
    ///
    /// # Panics
    /// If it cannot be made.
    pub async fn start_within(mebibytes: u32) -> Self {
        let mut cluster = Self::empty();
        let folder = cluster.folder.path().display();
        let mount = format!(
            "mount -t tmpfs -o size={mebibytes}m,mode=0700,uid=$(id -u {USER}),gid=$(id -g {USER}) tmpfs {folder} && \
             echo mounted && exec sleep infinity"
        );
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", &mount]);
        let mut room = Process::spawn(command);
        room.announced(|line| (line == "mounted").then_some(()))
            .await;
        cluster.room = Some(room);
        cluster.init().await;
        cluster.run_server().await;
        cluster
    }

    /// Makes a standby of it, which it reaches at `address`.
    ///
    /// # Panics
    /// If it cannot be made.
    pub async fn standby(&self, address: &str) -> Self {
        let (host, port) = address.rsplit_once(':').expect("host:port");
        let mut standby = Self::empty();
        let mut command = standby.command("pg_basebackup");
        command
            .env("PGPASSWORD", PASSWORD)
            .args(["-h", host, "-p", port, "-U", USER])
            .args(["-R", "-X", "stream", "-c", "fast", "--no-sync", "-D"])
            .arg(standby.data());
        done(command).await;
        standby.run_server().await;
        standby
    }

    /// Confirms no commit any more that the standby does not have.
    ///
    /// # Panics
    /// If there is no standby.
    pub async fn be_synchronous(&self) {
        self.run("ALTER SYSTEM SET synchronous_standby_names = '*'")
            .await;
        self.run("SELECT pg_reload_conf()").await;
        wait_for("the standby to be synchronous", DEADLINE, async || {
            let states = "SELECT COALESCE(MAX(sync_state), '') FROM pg_stat_replication";
            self.one(states).await == "sync"
        })
        .await;
    }

    /// `kill -9` of all its processes: nothing that is under way is confirmed any more.
    ///
    /// # Panics
    /// If it does not run.
    pub async fn kill(&mut self) {
        let mut server = self.server.take().expect("it runs");
        // The server, and what it has started.
        for process in self
            .children(server.pid())
            .into_iter()
            .chain([server.pid()])
        {
            if let Some(pid) = Pid::from_raw(process.cast_signed()) {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
        server.wait(DEADLINE).await;
    }

    /// Makes a standby the one that is written to.
    ///
    /// # Panics
    /// If it is none.
    pub async fn promote(&self) {
        let mut command = self.command("pg_ctl");
        command.args(["promote", "--silent", "-D"]).arg(self.data());
        done(command).await;
    }

    /// Starts the server unless it runs.
    ///
    /// # Panics
    /// If it does not get ready.
    pub async fn start_again(&mut self) {
        if self
            .server
            .as_mut()
            .is_none_or(|server| !server.is_running())
        {
            self.server = None;
            self.run_server().await;
        }
    }

    /// Takes all room but so much, in KiB, or gives it back.
    ///
    /// # Panics
    /// If it is on no file system of its own.
    pub fn leave_free(&self, kibibytes: Option<u64>) {
        let room = self.room.as_ref().expect("it has a file system of its own");
        let inside = format!("/proc/{}/root{}", room.pid(), self.folder.path().display());
        let ballast = Path::new(&inside).join("ballast");
        let _ = fs::remove_file(&ballast);
        if let Some(free) = kibibytes {
            let stat = rustix::fs::statvfs(&inside).expect("it is mounted");
            let taken = (stat.f_bavail * stat.f_frsize).saturating_sub(free << 10);
            let file = fs::File::create(&ballast).expect("there is room");
            rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, taken)
                .expect("there is room");
        }
    }

    /// `host:port`.
    #[must_use]
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// `postgres://…`, with the user and the password.
    #[must_use]
    pub fn url(&self) -> String {
        format!("postgres://{USER}:{PASSWORD}@{}/postgres", self.address())
    }

    /// Runs a statement.
    ///
    /// # Panics
    /// If it fails.
    pub async fn run(&self, statement: &str) {
        self.tried(statement).await.expect(statement);
    }

    /// The one text that a query answers with.
    ///
    /// # Panics
    /// If it fails.
    pub async fn one(&self, query: &'static str) -> String {
        let mut conn = self.options().connect().await.expect("it runs");
        let one = sqlx::query_scalar(query).fetch_one(&mut conn).await;
        one.expect(query)
    }

    async fn tried(&self, statement: &str) -> sqlx::Result<()> {
        let mut conn = self.options().connect().await?;
        sqlx::raw_sql(AssertSqlSafe(statement.to_owned()))
            .execute(&mut conn)
            .await?;
        conn.close().await
    }

    fn options(&self) -> PgConnectOptions {
        PgConnectOptions::from_str(&self.url()).expect("it is a URL")
    }

    fn empty() -> Self {
        let folder = tempfile::Builder::new()
            .prefix("toolwharf-postgres-")
            .tempdir()
            .expect("a folder can be made");
        if is_root() {
            let status = std::process::Command::new("chown")
                .arg(format!("{USER}:"))
                .arg(folder.path())
                .status();
            assert!(status.is_ok_and(|status| status.success()), "chown");
        }
        let port = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr());
        Self {
            server: None,
            room: None,
            folder,
            port: port.expect("a free port").port(),
        }
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    async fn init(&self) {
        // Whoever runs it may read the file; it is nothing that has to be kept.
        let password = tempfile::NamedTempFile::new().expect("a file can be made");
        fs::write(password.path(), PASSWORD).expect("it can be written");
        fs::set_permissions(password.path(), fs::Permissions::from_mode(0o644)).expect("its owner");
        let mut command = self.command("initdb");
        command
            .args(["--auth=scram-sha-256", "--encoding=UTF8", "--no-sync"])
            .args(["--locale=C.UTF-8", "--wal-segsize=1", "--username", USER])
            .arg("--pwfile")
            .arg(password.path())
            .arg("--pgdata")
            .arg(self.data());
        done(command).await;
    }

    async fn run_server(&mut self) {
        let mut command = self.command("postgres");
        command.arg("-D").arg(self.data());
        command.arg("-k").arg(self.folder.path());
        command.args(["-h", "127.0.0.1", "-p", &self.port.to_string()]);
        command.args(SETTINGS.iter().flat_map(|setting| ["-c", setting]));
        self.server = Some(Process::spawn(command));
        wait_for("a Postgres", DEADLINE, async || {
            self.tried("SELECT 1").await.is_ok()
        })
        .await;
    }

    /// One of Postgres' programs, as a user that it accepts, where its files are.
    fn command(&self, program: &str) -> Command {
        let programs = std::env::var(PROGRAMS).unwrap_or_else(|_| {
            panic!(
                "{PROGRAMS} is not set: this test starts Postgres itself. Run it by \
                 `cargo xtask postgres -- cargo nextest run …`"
            )
        });
        let program = Path::new(&programs).join(program);
        let mut words = Vec::new();
        if let Some(room) = &self.room {
            words.push("nsenter".to_owned());
            words.push(format!("--mount=/proc/{}/ns/mnt", room.pid()));
        }
        words.extend(["setpriv", "--pdeathsig", "KILL"].map(str::to_owned));
        if is_root() {
            words.push(format!("--reuid={USER}"));
            words.push(format!("--regid={USER}"));
            words.push("--init-groups".to_owned());
        }
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).arg("--").arg(program);
        command.current_dir("/");
        command
    }

    fn children(&self, of: u32) -> Vec<u32> {
        let path = format!("/proc/{of}/task/{of}/children");
        let children = fs::read_to_string(path).unwrap_or_default();
        let children = children.split_whitespace();
        children.filter_map(|child| child.parse().ok()).collect()
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

async fn done(mut command: Command) {
    let output = command.output().await;
    let output = output.unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {stderr}");
}
