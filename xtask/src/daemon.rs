//! Programs and directories that exist for the duration of a command.
//!
//! A command runs next to daemons ([`Daemon`]) until it exits or this process gets a signal, which is passed to the
//! command first. Dropping a daemon stops it; dropping a [`Directory`] removes it, with everything that daemons left.
//! What a killed process leaves behind is found by [`remains`].

use std::{
    env,
    fs::{self, File},
    io,
    net::TcpListener,
    os::unix::{
        fs::DirBuilderExt as _,
        process::{CommandExt as _, ExitStatusExt as _},
    },
    path::{Path, PathBuf},
    process::{Child, Command, ExitCode, ExitStatus, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::shell::Cmd;

pub(crate) const CGROUPS: &str = "/sys/fs/cgroup";
pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Maximum number of polls until a daemon is ready: 60 s.
const MAX_READY_POLLS: u32 = 1200;
/// Maximum number of polls until a daemon has stopped: 30 s.
const MAX_STOP_POLLS: u32 = 600;
const LOG_TAIL_LINES: usize = 40;

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
    // The command runs in a separate process group, so that it gets each signal only once, from this process.
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

/// The command's exit code or, if a signal killed the command, 128 plus the signal's number, as in shells.
fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status.code().or(status.signal().map(|signal| 128 + signal));
    ExitCode::from(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
}

/// A running program, which is stopped when this value is dropped, and by the kernel when this process is killed.
pub(crate) struct Daemon {
    pub(crate) name: String,
    child: Child,
    log: PathBuf,
    /// The signal that stops the program.
    signal: Signal,
}

impl Daemon {
    /// Starts a program that writes its log to standard error.
    pub(crate) fn start(name: &str, cmd: Cmd, log: PathBuf, signal: Signal) -> Result<Self> {
        let child = cmd
            .into_command()
            .process_group(0)
            .stdout(Stdio::null())
            .stderr(File::create(&log)?)
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        Ok(Self {
            name: name.to_owned(),
            child,
            log,
            signal,
        })
    }

    /// Fails if the daemon has exited. The error contains the end of its log.
    pub(crate) fn ensure_running(&mut self) -> Result<()> {
        let Some(status) = self.child.try_wait()? else {
            return Ok(());
        };
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let tail = &lines[lines.len().saturating_sub(LOG_TAIL_LINES)..];
        bail!("{} ended: {status}\n{}", self.name, tail.join("\n"))
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let child = &mut self.child;
        if !matches!(child.try_wait(), Ok(None)) {
            return;
        }
        let _ = kill_process(Pid::from_child(child), self.signal);
        if !stops(|| !matches!(child.try_wait(), Ok(None))) {
            eprintln!("    killing {}, still there after 30 s", self.name);
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Waits until something is ready.
pub(crate) fn wait_until_ready(
    what: &str,
    interrupted: &AtomicBool,
    mut is_ready: impl FnMut() -> Result<bool>,
) -> Result<()> {
    for _ in 0..MAX_READY_POLLS {
        ensure!(!interrupted.load(Ordering::Relaxed), "interrupted");
        if is_ready()? {
            return Ok(());
        }
        thread::sleep(POLL_INTERVAL);
    }
    bail!("{what} did not become ready within 60 s")
}

/// Waits until something has stopped. Returns whether it has.
pub(crate) fn stops(mut has_stopped: impl FnMut() -> bool) -> bool {
    for _ in 0..MAX_STOP_POLLS {
        if has_stopped() {
            return true;
        }
        thread::sleep(POLL_INTERVAL);
    }
    false
}

pub(crate) fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// Directories left by processes that no longer exist, each with the process id. Dropping a directory removes it.
pub(crate) fn remains(prefix: &str) -> Result<Vec<(u32, Directory)>> {
    let mut all = Vec::new();
    for entry in fs::read_dir(env::temp_dir())? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let owner = name.strip_prefix(prefix);
        let Some(owner) = owner.and_then(|owner| Pid::from_raw(owner.parse().ok()?)) else {
            continue;
        };
        if test_kill_process(owner) == Err(rustix::io::Errno::SRCH) {
            eprintln!("    removing what {name} left behind");
            let path = entry.path();
            let owner = owner.as_raw_nonzero().get().unsigned_abs();
            all.push((owner, Directory { path, name }));
        }
    }
    Ok(all)
}

/// A directory that is removed with its contents, and with the processes, mounts and control groups that a daemon may
/// have left.
pub(crate) struct Directory {
    pub(crate) path: PathBuf,
    pub(crate) name: String,
}

impl Directory {
    /// Creates a directory below the system's temporary directory. Its name contains the id of this process, for
    /// [`remains`].
    pub(crate) fn create(prefix: &str) -> Result<Self> {
        let name = format!("{prefix}{}", std::process::id());
        let path = env::temp_dir().join(&name);
        fs::DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .with_context(|| format!("cannot create {}", path.display()))?;
        Ok(Self { path, name })
    }

    /// Processes with a path in this directory on their command line: `containerd`, its shims, `runsc`.
    fn processes(&self) -> Vec<Pid> {
        let path = self.path.to_string_lossy().into_owned();
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        entries
            .filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?))
            .filter(|&pid| pid != rustix::process::getpid())
            .filter(|pid| {
                let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
                String::from_utf8_lossy(&line).contains(&format!("{path}/"))
            })
            .collect()
    }

    fn mounts(&self) -> Vec<String> {
        let table = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let inside = table.lines().filter_map(|line| line.split(' ').nth(1));
        let inside = inside.filter(|mount| Path::new(mount).starts_with(&self.path));
        // The latest mount comes first, since mounts must be removed in reverse order.
        inside.map(str::to_owned).rev().collect()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        stops(|| {
            let processes = self.processes();
            for pid in &processes {
                let _ = kill_process(*pid, Signal::KILL);
            }
            processes.is_empty()
        });
        for mount in self.mounts() {
            let _ = Command::new("umount").args(["--lazy", &mount]).status();
        }
        let hierarchies = fs::read_dir(CGROUPS).into_iter().flatten().flatten();
        let hierarchies = hierarchies.map(|entry| entry.path());
        for hierarchy in hierarchies.chain([CGROUPS.into()]) {
            remove_group(&hierarchy.join(&self.name));
        }
        if let Err(error) = fs::remove_dir_all(&self.path) {
            eprintln!("    cannot remove {}: {error}", self.path.display());
        }
    }
}

/// Removes control groups from the innermost outwards. The kernel refuses as long as it still has to clean up processes
/// in them.
fn remove_group(group: &Path) {
    let Ok(entries) = fs::read_dir(group) else {
        return;
    };
    for entry in entries.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_group(&entry.path());
        }
    }
    for _ in 0..20 {
        match fs::remove_dir(group) {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                thread::sleep(POLL_INTERVAL)
            }
            _ => return,
        }
    }
}
