//! A running program: its processes without its echo servers, their figures, and its end.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep, timeout};

use super::programs::Launch;
use crate::run::{part, proc};

/// Time for a program to exit after SIGTERM.
const STOP_DEADLINE: Duration = Duration::from_secs(10);
/// Time for its other processes to exit after it.
const REST_DEADLINE: Duration = Duration::from_secs(2);
/// Characters of the log in an error.
const LOG_TAIL: usize = 600;

pub(super) struct Running {
    child: Child,
    pub(super) pid: u32,
    /// The echo server's program, whose processes are not the program's own.
    echo: PathBuf,
    log: PathBuf,
}

impl Running {
    /// Starts the program. `folder` is its home and working directory, and gets its log.
    pub(super) fn start(
        launch: &Launch,
        folder: &Path,
        path: Option<&Path>,
    ) -> anyhow::Result<Self> {
        let mut command = Command::new(&launch.file);
        command
            .args(&launch.arguments)
            .current_dir(folder)
            .env("PATH", search_path(path)?)
            .env("NO_PROXY", "127.0.0.1,localhost")
            .env_remove("RUST_LOG");
        part::at_home(&mut command, folder)?;
        let variables = launch.variables.iter();
        command.envs(variables.map(|(name, value)| (*name, value)));
        let child = command.spawn();
        let child = child.with_context(|| format!("cannot start {}", launch.file.display()))?;
        Ok(Self {
            pid: child.id().context("the process has ended")?,
            child,
            echo: part::own_path()?,
            log: folder.join("log"),
        })
    }

    /// Fails if the program has exited, with the end of its log.
    pub(super) fn check(&mut self) -> anyhow::Result<()> {
        if let Some(status) = self.child.try_wait()? {
            anyhow::bail!("it ended with {status}: {}", self.log());
        }
        Ok(())
    }

    /// The end of the log, as one line.
    pub(super) fn log(&self) -> String {
        let log = fs::read(&self.log).unwrap_or_default();
        tail(&String::from_utf8_lossy(&log))
    }

    fn family(&self) -> Vec<u32> {
        proc::family(self.pid, &self.echo)
    }

    /// CPU time of each process so far, in nanoseconds. Processes that have exited are left out.
    pub(super) fn cpu(&self) -> BTreeMap<u32, u64> {
        let pids = self.family().into_iter();
        pids.filter_map(|pid| Some((pid, proc::cpu_time(pid).ok()?)))
            .collect()
    }

    /// CPU time of all processes since `before`, in nanoseconds.
    pub(super) fn cpu_since(&self, before: &BTreeMap<u32, u64>) -> u64 {
        let now = self.cpu().into_iter();
        now.map(|(pid, time)| time.saturating_sub(before.get(&pid).copied().unwrap_or(0)))
            .sum()
    }

    /// The sum of the largest resident memory of each process, in MiB.
    pub(super) fn peak(&self) -> f64 {
        let pids = self.family().into_iter();
        let kb: u64 = pids.map(|pid| proc::peak(pid).unwrap_or(0)).sum();
        kb as f64 / 1024.0
    }

    /// The number of echo servers that it has started.
    pub(super) fn servers(&self) -> usize {
        let all = proc::family(self.pid, Path::new(""));
        all.len().saturating_sub(self.family().len())
    }

    /// Stops the program with all its processes, including its echo servers.
    pub(super) async fn stop(mut self) {
        let exe = |pid: &u32| fs::read_link(format!("/proc/{pid}/exe"));
        let others = proc::family(self.pid, Path::new(""));
        let others: Vec<_> = (others[1..].iter())
            .filter_map(|pid| Some((*pid, exe(pid).ok()?)))
            .collect();
        signal(self.pid, Signal::TERM);
        if timeout(STOP_DEADLINE, self.child.wait()).await.is_err() {
            let _ = self.child.kill().await;
        }
        let deadline = Instant::now() + REST_DEADLINE;
        let is_left = |(pid, program): &&(u32, PathBuf)| exe(pid).is_ok_and(|it| it == *program);
        while others.iter().any(|other| is_left(&other)) && Instant::now() < deadline {
            sleep(Duration::from_millis(10)).await;
        }
        for (pid, _) in others.iter().filter(is_left) {
            signal(*pid, Signal::KILL);
        }
    }
}

fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid.cast_signed()) {
        // This fails if the process has just exited.
        let _ = kill_process(pid, signal);
    }
}

/// The `PATH` of this process, after `first`.
fn search_path(first: Option<&Path>) -> anyhow::Result<OsString> {
    let usual = std::env::var_os("PATH").unwrap_or_default();
    let all = first.map(Path::to_owned).into_iter();
    let all = all.chain(std::env::split_paths(&usual));
    std::env::join_paths(all).context("a folder of the PATH has a colon in its name")
}

/// The last characters of a text, without line ends.
fn tail(text: &str) -> String {
    let words: Vec<_> = text.split_whitespace().collect();
    let line = words.join(" ");
    let skipped = line.chars().count().saturating_sub(LOG_TAIL);
    match skipped {
        0 => line,
        _ => format!("… {}", line.chars().skip(skipped).collect::<String>()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tail_is_one_line() {
        assert_eq!(tail("a\n  b\n"), "a b");
        let long = tail(&"é ".repeat(1000));
        assert!(long.starts_with("… "), "{long}");
        assert_eq!(long.chars().count(), LOG_TAIL + 2);
    }
}
