//! A Postgres server for one test, which may break it: kill it, fill its disk, or fail over to a standby.

use std::{
    fs,
    net::TcpListener,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    str::FromStr as _,
};

use rustix::process::{Pid, Signal, kill_process};
use sqlx::{ConnectOptions as _, postgres::PgConnectOptions};
use tempfile::TempDir;
use tokio::process::Command;

use crate::{DEADLINE, Process, postgres::execute, wait_for};

/// The environment variable with the directory of Postgres' programs. `cargo xtask postgres` sets it.
const PROGRAMS_VARIABLE: &str = "TOOLWHARF_TEST_POSTGRES_PROGRAMS";
/// The user that runs Postgres if the test runs as root.
const USER: &str = "postgres";
const PASSWORD: &str = "of-a-test";
/// These settings suffice for the load of a test. Commits are not durable, because the data is short-lived.
const SETTINGS: [&str; 7] = [
    "fsync=off",
    "full_page_writes=off",
    "max_connections=120",
    "shared_buffers=16MB",
    "max_wal_size=32MB",
    "min_wal_size=32MB",
    "wal_retrieve_retry_interval=200ms",
];

/// A server and its data. Dropping it removes both.
pub struct Cluster {
    server: Option<Process>,
    /// Holds the mount namespace with the server's private file system.
    room: Option<Process>,
    folder: TempDir,
    port: u16,
}

impl Cluster {
    /// Creates and starts a server.
    pub async fn start() -> Self {
        Self::empty().started().await
    }

    /// Creates a server on a file system of `mebibytes` MiB.
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
        cluster.started().await
    }

    /// Creates a standby of this server. The standby reaches the server at `address`.
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

    /// Makes commits wait until the standby has them.
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

    /// Kills all processes with SIGKILL. Transactions in progress are not confirmed.
    ///
    /// # Panics
    /// If the server is not running.
    pub async fn kill(&mut self) {
        let mut server = self.server.take().expect("it runs");
        // Kill the child processes, then the server.
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

    /// Promotes this standby to primary.
    ///
    /// # Panics
    /// If it is not a standby.
    pub async fn promote(&self) {
        let mut command = self.command("pg_ctl");
        command.args(["promote", "--silent", "-D"]).arg(self.data());
        done(command).await;
    }

    /// Starts the server unless it is running.
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

    /// Fills the file system until only `kibibytes` KiB are free. `None` frees the space again.
    ///
    /// # Panics
    /// If the server has no private file system.
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

    /// The URL `postgres://…`, with user and password.
    #[must_use]
    pub fn url(&self) -> String {
        format!("postgres://{USER}:{PASSWORD}@{}/postgres", self.address())
    }

    /// Runs a statement.
    pub async fn run(&self, statement: &str) {
        self.tried(statement).await.expect(statement);
    }

    /// Returns the single text that a query yields.
    pub async fn one(&self, query: &'static str) -> String {
        let mut conn = self.options().connect().await.expect("it runs");
        let one = sqlx::query_scalar(query).fetch_one(&mut conn).await;
        one.expect(query)
    }

    async fn tried(&self, statement: &str) -> sqlx::Result<()> {
        execute(&self.options(), statement.to_owned()).await
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

    async fn started(mut self) -> Self {
        self.init().await;
        self.run_server().await;
        self
    }

    async fn init(&self) {
        // Any user may read this file, because the password protects nothing worth keeping.
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

    /// Builds a command for one of Postgres' programs, run as a user that Postgres accepts, in the data directory.
    fn command(&self, program: &str) -> Command {
        let programs = std::env::var(PROGRAMS_VARIABLE).unwrap_or_else(|_| {
            panic!(
                "{PROGRAMS_VARIABLE} is not set: this test starts Postgres itself. Run it with \
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
