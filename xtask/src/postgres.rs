//! A private Postgres for the duration of a command: `cargo xtask postgres -- CMD…`, and for the tests.
//!
//! It has a data directory below the system's temporary directory, and listens on a free port of 127.0.0.1 with a
//! random password. The command gets its URL in `TOOLWHARF_TEST_POSTGRES`. Postgres refuses to run as root, so root
//! runs it as the user `postgres` of the Debian package. The data is not kept, so the server does not sync it to the
//! disk.
//!
//! The server stops when the command ends, when this process gets a signal (which is passed to the command first), and,
//! through a parent-death signal, when this process is killed.

use std::{
    fs::{self, File},
    io::Read as _,
    os::unix::fs::chown,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::atomic::AtomicBool,
};

use anyhow::{Context, Result};
use rustix::process::Signal;

use crate::{
    daemon::{self, Daemon, Directory},
    shell::{Cmd, heading, is_executable, is_root, which},
};

/// The environment variable with the URL of the server, for tests.
pub(crate) const VARIABLE: &str = "TOOLWHARF_TEST_POSTGRES";

/// The environment variable with the directory of the Postgres programs, for tests that start a server themselves.
pub(crate) const PROGRAMS: &str = "TOOLWHARF_TEST_POSTGRES_PROGRAMS";

const USER: &str = "postgres";
const DIR_PREFIX: &str = "toolwharf-postgres-";

/// The directory of the Postgres programs. Debian does not put most of them on the `PATH`.
pub(crate) fn programs() -> Option<PathBuf> {
    let complete = |dir: &PathBuf| {
        ["initdb", "pg_isready", "postgres"]
            .iter()
            .all(|program| is_executable(&dir.join(program)))
    };
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten();
    let mut debian: Vec<PathBuf> = versions
        .flatten()
        .map(|version| version.path().join("bin"))
        .collect();
    // The newest version comes last. Versions are sorted as numbers, since 9 is older than 15.
    debian.sort_by_key(|dir| {
        let version = dir.parent().and_then(Path::file_name);
        version.and_then(|version| version.to_str()?.parse::<u32>().ok())
    });
    let on_path = which("initdb").and_then(|file| Some(file.parent()?.to_owned()));
    debian.into_iter().rev().chain(on_path).find(complete)
}

/// Runs a command with a private server, and returns its exit code.
pub(crate) fn run(cmd: Cmd) -> Result<ExitCode> {
    let interrupted = daemon::interruption()?;
    let server = Server::start(&interrupted)?;
    let cmd = cmd.env(PROGRAMS, &server.programs);
    daemon::supervise(cmd.env(VARIABLE, &server.url), &interrupted)
}

pub(crate) struct Server {
    process: Daemon,
    pub(crate) url: String,
    pub(crate) programs: PathBuf,
    // This is dropped last, when the server no longer writes there.
    _dir: Directory,
}

impl Server {
    pub(crate) fn start(interrupted: &AtomicBool) -> Result<Self> {
        heading("a private Postgres");
        let programs = programs().context("Postgres is missing: run `cargo xtask setup`")?;
        let dir = Directory::create(DIR_PREFIX)?;
        let password = password()?;
        let password_file = dir.path.join("password");
        fs::write(&password_file, &password)?;
        if is_root()? {
            let id = |flag| -> Result<u32> {
                let id = Cmd::new("id").args([flag, USER]).output();
                Ok(id?.trim().parse()?)
            };
            let (user, group) = (id("-u")?, id("-g")?);
            chown(&dir.path, Some(user), Some(group))?;
            chown(&password_file, Some(user), Some(group))?;
        }
        let data = dir.path.join("data");
        let initdb = as_user(&programs.join("initdb"))?
            .args(["--auth=scram-sha-256", "--encoding=UTF8", "--no-sync"])
            .args(["--locale=C.UTF-8", "--username=postgres", "--pwfile"])
            .arg(&password_file)
            .arg("--pgdata")
            .arg(&data);
        initdb.dir(&dir.path).run_for_effect()?;

        let port = daemon::free_port()?;
        let postgres = as_user(&programs.join("postgres"))?
            .arg("-D")
            .arg(&data)
            .arg("-k")
            .arg(&dir.path)
            .args(["-h", "127.0.0.1", "-p", &port.to_string()])
            .args(["-c", "fsync=off", "-c", "full_page_writes=off"])
            .args(["-c", "max_connections=200"]);
        let log = dir.path.join("log");
        // SIGINT is a fast shutdown: it does not wait for clients.
        let process = Daemon::start("postgres", postgres.dir(&dir.path), log, Signal::INT)?;
        let mut server = Self {
            process,
            url: format!("postgres://{USER}:{password}@127.0.0.1:{port}/postgres"),
            programs: programs.clone(),
            _dir: dir,
        };
        let ready = programs.join("pg_isready");
        daemon::wait_until_ready("postgres", interrupted, || {
            server.process.ensure_running()?;
            let ready = Cmd::new(&ready).args(["-h", "127.0.0.1", "-p", &port.to_string()]);
            Ok(ready.succeeds())
        })?;
        Ok(server)
    }
}

/// A command for the program, run as a user that Postgres accepts. It gets the signal for a fast shutdown when this
/// process is killed.
fn as_user(program: &Path) -> Result<Cmd> {
    let mut cmd = Cmd::new("setpriv").args(["--pdeathsig", "INT"]);
    if is_root()? {
        let ids = [format!("--reuid={USER}"), format!("--regid={USER}")];
        cmd = cmd.args(ids).arg("--init-groups");
    }
    Ok(cmd.arg("--").arg(program))
}

fn password() -> Result<String> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(hex::encode(bytes))
}
