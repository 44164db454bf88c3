//! A private Postgres for the duration of a command: `cargo xtask postgres -- CMD…`, and for the tests.
//!
//! It has a data directory below the system's temporary directory, and listens on a free port of 127.0.0.1 with a
//! random password. The command gets its URL in `TOOLWHARF_TEST_POSTGRES`. Postgres refuses to run as root, so root
//! runs it as the user `postgres` of the Debian package. Its data is not kept, and it does not even sync.
//!
//! It stops when the command ends, when this process gets a signal (which is passed to the command first), and, through
//! a parent-death signal, when this process is killed.

use std::{
    fs::{self, File},
    io::Read as _,
    net::TcpListener,
    os::unix::{
        fs::{DirBuilderExt as _, chown},
        process::{CommandExt as _, ExitStatusExt as _},
    },
    path::{Path, PathBuf},
    process::{Child, ExitCode, ExitStatus, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::shell::is_root;
use crate::shell::{Cmd, heading, is_executable, which};

/// Tells tests where the server is.
pub(crate) const VARIABLE: &str = "TOOLWHARF_TEST_POSTGRES";

/// Tells tests where the programs of Postgres are, to start a server themselves.
pub(crate) const PROGRAMS: &str = "TOOLWHARF_TEST_POSTGRES_PROGRAMS";

const USER: &str = "postgres";
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Polls until the server must be ready, and until it must have stopped: 30 s.
const MAX_POLLS: u32 = 1500;

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
    // Newest last. Sorted by number, since 9 is older than 15.
    debian.sort_by_key(|dir| {
        let version = dir.parent().and_then(Path::file_name);
        version.and_then(|version| version.to_str()?.parse::<u32>().ok())
    });
    let on_path = which("initdb").and_then(|file| Some(file.parent()?.to_owned()));
    debian.into_iter().rev().chain(on_path).find(complete)
}

/// Runs a command with a private server, and returns its exit code.
pub(crate) fn run(cmd: Cmd) -> Result<ExitCode> {
    let interrupted = interruption()?;
    let server = Server::start(&interrupted)?;
    let cmd = cmd.env(PROGRAMS, &server.programs);
    supervise(cmd.env(VARIABLE, &server.url), &interrupted)
}

/// A flag that is set when a signal asks this process to stop. Call this before starting anything that a signal could
/// leave behind.
pub(crate) fn interruption() -> Result<Arc<AtomicBool>> {
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&interrupted))?;
    }
    Ok(interrupted)
}

/// Runs a command until it exits, and passes on a signal to stop. Returns its exit code.
pub(crate) fn supervise(cmd: Cmd, interrupted: &AtomicBool) -> Result<ExitCode> {
    // In a separate process group, so that it gets a signal only once, from here.
    let mut child = cmd
        .into_command()
        .process_group(0)
        .spawn()
        .context("cannot start the command")?;
    let mut told = false;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if interrupted.load(Ordering::Relaxed) && !told {
            told = true;
            kill_process(Pid::from_child(&child), Signal::TERM)?;
        }
        thread::sleep(POLL_INTERVAL);
    };
    Ok(exit_code(status))
}

/// The command's exit code, or the one that a shell uses for a death by signal.
fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status.code().or(status.signal().map(|signal| 128 + signal));
    ExitCode::from(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
}

pub(crate) struct Server {
    child: Child,
    pub(crate) url: String,
    pub(crate) programs: PathBuf,
    // Dropped last, when the server no longer writes there.
    _dir: Directory,
}

impl Server {
    pub(crate) fn start(interrupted: &AtomicBool) -> Result<Self> {
        heading("a private Postgres");
        let programs = programs().context("there is no Postgres: run `cargo xtask setup`")?;
        let dir = Directory::create()?;
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

        let port = free_port()?;
        let log = dir.path.join("log");
        let postgres = as_user(&programs.join("postgres"))?
            .arg("-D")
            .arg(&data)
            .arg("-k")
            .arg(&dir.path)
            .args(["-h", "127.0.0.1", "-p", &port.to_string()])
            .args(["-c", "fsync=off", "-c", "full_page_writes=off"])
            .args(["-c", "max_connections=200"]);
        let child = postgres
            .dir(&dir.path)
            .into_command()
            .process_group(0)
            .stdout(Stdio::null())
            .stderr(File::create(&log)?)
            .spawn()
            .context("cannot start postgres")?;
        let mut server = Self {
            child,
            url: format!("postgres://{USER}:{password}@127.0.0.1:{port}/postgres"),
            programs: programs.clone(),
            _dir: dir,
        };
        let ready = programs.join("pg_isready");
        for _ in 0..MAX_POLLS {
            ensure!(!interrupted.load(Ordering::Relaxed), "interrupted");
            if let Some(status) = server.child.try_wait()? {
                let log = fs::read_to_string(&log).unwrap_or_default();
                bail!("postgres ended: {status}\n{log}");
            }
            let is_ready = Cmd::new(&ready).args(["-h", "127.0.0.1", "-p", &port.to_string()]);
            if is_ready.succeeds() {
                return Ok(server);
            }
            thread::sleep(POLL_INTERVAL);
        }
        bail!("postgres did not become ready")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // SIGINT is a fast shutdown: it does not wait for clients.
        let _ = kill_process(Pid::from_child(&self.child), Signal::INT);
        for _ in 0..MAX_POLLS {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            thread::sleep(POLL_INTERVAL);
        }
        eprintln!("    postgres does not stop and is killed");
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A temporary directory that is removed with its contents.
struct Directory {
    path: PathBuf,
}

impl Directory {
    fn create() -> Result<Self> {
        let name = format!("toolwharf-postgres-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .with_context(|| format!("cannot create {}", path.display()))?;
        Ok(Self { path })
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.path) {
            eprintln!("    cannot remove {}: {error}", self.path.display());
        }
    }
}

/// The program, run as a user that Postgres accepts. It gets the signal for a fast shutdown when this process is
/// killed.
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

pub(crate) fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}
