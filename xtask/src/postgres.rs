//! A Postgres of our own for the time of a command: `cargo xtask postgres -- CMD…`, and around the
//! tests.
//!
//! It has a data directory of its own under the system's temporary one, listens on a free port of
//! 127.0.0.1 with a random password, and is told to the command by its URL in
//! `TOOLWHARF_TEST_POSTGRES`. Postgres refuses to run as root, so that for root it runs as the user
//! `postgres`, whom the Debian package makes. Nothing in it survives: it does not even sync.
//!
//! It stops when the command has ended, when a signal ends this process (which the command is told
//! first), and, by a parent-death signal, when this process is killed.

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

use crate::{
    setup::is_root,
    shell::{Cmd, heading, is_executable, which},
};

/// Where tests find the server.
pub(crate) const VARIABLE: &str = "TOOLWHARF_TEST_POSTGRES";

/// Where tests find Postgres' programs, if they start a server themselves.
pub(crate) const PROGRAMS: &str = "TOOLWHARF_TEST_POSTGRES_PROGRAMS";

const USER: &str = "postgres";
const POLL: Duration = Duration::from_millis(20);
/// Polls until the server has to be ready, and until it has to be gone: 30 s.
const POLLS: u32 = 1500;

/// The directory of Postgres' programs. Debian has most of them not on the `PATH`.
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
    // Newest last; by number, since 9 is older than 15.
    debian.sort_by_key(|dir| {
        let version = dir.parent().and_then(Path::file_name);
        version.and_then(|version| version.to_str()?.parse::<u32>().ok())
    });
    let on_path = which("initdb").and_then(|file| Some(file.parent()?.to_owned()));
    debian.into_iter().rev().chain(on_path).find(complete)
}

/// Runs a command with a server of its own; how it ended.
pub(crate) fn run(cmd: Cmd) -> Result<ExitCode> {
    let interrupted = interruption()?;
    let server = Server::start(&interrupted)?;
    let cmd = cmd.env(PROGRAMS, &server.programs);
    supervise(cmd.env(VARIABLE, &server.url), &interrupted)
}

/// Set when a signal asks this process to end. To be taken before anything is there that a signal
/// could leave behind.
pub(crate) fn interruption() -> Result<Arc<AtomicBool>> {
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&interrupted))?;
    }
    Ok(interrupted)
}

/// Runs a command to its end, and tells it when a signal asks for that; how it ended.
pub(crate) fn supervise(cmd: Cmd, interrupted: &AtomicBool) -> Result<ExitCode> {
    // In a group of its own, so that a signal reaches it once, by us.
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
        thread::sleep(POLL);
    };
    Ok(exit_code(status))
}

/// The command's own exit code, or the one that a shell gives to a death by a signal.
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
        for _ in 0..POLLS {
            ensure!(!interrupted.load(Ordering::Relaxed), "interrupted");
            if let Some(status) = server.child.try_wait()? {
                let log = fs::read_to_string(&log).unwrap_or_default();
                bail!("postgres ended: {status}\n{log}");
            }
            let is_ready = Cmd::new(&ready).args(["-h", "127.0.0.1", "-p", &port.to_string()]);
            if is_ready.succeeds() {
                return Ok(server);
            }
            thread::sleep(POLL);
        }
        bail!("postgres does not get ready")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // SIGINT is a fast shutdown: it does not wait for clients.
        let _ = kill_process(Pid::from_child(&self.child), Signal::INT);
        for _ in 0..POLLS {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            thread::sleep(POLL);
        }
        eprintln!("    postgres does not stop: it is killed");
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A temporary directory that is removed with what is in it.
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

/// The program as a user that Postgres accepts. When this process is killed, it gets the signal for
/// a fast shutdown.
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
