//! A child process that is killed, with everything in its process group, when its guard is dropped.

use std::{
    collections::VecDeque,
    process::{ExitStatus, Stdio},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader},
    process::{Child, ChildStdin, ChildStdout, Command},
    task::JoinSet,
    time::Instant,
};

use crate::wait::{DEADLINE, wait_for_some, within};

const STDERR_TAIL_BYTES: usize = 256 * 1024;
/// Maximum number of stdout lines kept for [`Process::announced`].
const MAX_STDOUT_LINES: usize = 10_000;

/// A spawned child, leader of its process group.
///
/// Dropping it kills the group with SIGKILL and reaps the child. During a panic, the last stderr output of the child is
/// printed, so that a failed test shows it.
pub struct Process {
    child: Child,
    pid: Pid,
    program: String,
    lines: Arc<Mutex<VecDeque<String>>>,
    stderr: Tail,
    // Owns the readers of stdout and stderr. They end when the pipes are closed or this set is dropped.
    readers: JoinSet<()>,
    _stdin: Option<ChildStdin>,
}

impl Process {
    /// Spawns `command` with stdin held open and stdout read line by line.
    ///
    /// Must be called within a tokio runtime.
    pub fn spawn(command: Command) -> Self {
        let (mut this, stdin, stdout) = Self::spawn_piped(command);
        this._stdin = Some(stdin);
        let lines = Arc::clone(&this.lines);
        this.readers.spawn(async move {
            let mut reader = BufReader::new(stdout).lines();
            while let Ok(Some(line)) = reader.next_line().await {
                let mut lines = lines.lock();
                if lines.len() == MAX_STDOUT_LINES {
                    lines.pop_front();
                }
                lines.push_back(line);
            }
        });
        this
    }

    /// Spawns the workspace binary `name` ([`crate::Bin::path`]) with `arguments`.
    pub fn bin<S: AsRef<std::ffi::OsStr>>(
        name: &str,
        arguments: impl IntoIterator<Item = S>,
    ) -> Self {
        let mut command = Command::new(crate::Bin::path(name));
        command.args(arguments);
        Self::spawn(command)
    }

    /// Spawns `command` and hands its stdin and stdout to the caller.
    pub(crate) fn spawn_piped(mut command: Command) -> (Self, ChildStdin, ChildStdout) {
        let program = format!("{:?}", command.as_std());
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true);
        let mut child = command
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {program}: {error}"));
        let pid = child
            .id()
            .and_then(|id| Pid::from_raw(id.cast_signed()))
            .expect("a child that was just spawned has an id");
        let stdin = child.stdin.take().expect("stdin was asked for as a pipe");
        let stdout = child.stdout.take().expect("stdout was asked for as a pipe");
        let stderr = child.stderr.take().expect("stderr was asked for as a pipe");
        let tail = Tail::default();
        let mut readers = JoinSet::new();
        readers.spawn(tail.clone().fill(stderr));
        let this = Self {
            child,
            pid,
            program,
            lines: Arc::default(),
            stderr: tail,
            readers,
            _stdin: None,
        };
        (this, stdin, stdout)
    }

    /// The process id, which is also the process group id.
    pub fn pid(&self) -> u32 {
        self.pid.as_raw_nonzero().get().cast_unsigned()
    }

    /// Returns the last 256 KiB of stderr.
    pub fn stderr(&self) -> String {
        self.stderr.text()
    }

    /// Returns the lines that the child wrote to stdout so far (at most the last 10,000).
    pub fn stdout_lines(&self) -> Vec<String> {
        let lines = self.lines.lock();
        lines.iter().cloned().collect()
    }

    /// Returns the first URL in the child's output: the first word on stdout or stderr that starts with `http://`.
    ///
    /// # Panics
    /// After [`DEADLINE`], or when the child exits first.
    pub async fn url(&mut self) -> String {
        self.announced(|line| {
            line.split_whitespace()
                .find(|word| word.starts_with("http://"))
                .map(str::to_owned)
        })
        .await
    }

    /// Returns the first value that `find` returns for a line of stdout or stderr.
    ///
    /// # Panics
    /// After [`DEADLINE`], or when the child exits first.
    pub async fn announced<T>(&mut self, find: impl Fn(&str) -> Option<T>) -> T {
        let what = format!("an announcement of {}", self.program);
        wait_for_some(&what, DEADLINE, async || {
            // The exit is checked before the output is read, so that output written before the exit counts.
            let exited = self.child.try_wait().ok().flatten();
            let stdout = self.stdout_lines();
            let stderr = self.stderr();
            let found = stdout
                .iter()
                .map(String::as_str)
                .chain(stderr.lines())
                .find_map(&find);
            if let (None, Some(status)) = (&found, exited) {
                panic!("{} ended with {status}: {stderr}", self.program);
            }
            found
        })
        .await
    }

    /// Returns whether the child is still running.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Sends `signal` to the child, not to its group.
    pub fn signal(&self, signal: Signal) {
        // An error means that the child has exited; the caller notices that next.
        let _ = rustix::process::kill_process(self.pid, signal);
    }

    /// Waits until the child has exited, for at most `limit`.
    ///
    /// # Panics
    /// After `limit`.
    pub async fn wait(&mut self, limit: Duration) -> ExitStatus {
        let what = format!("the exit of {}", self.program);
        within(&what, limit, self.child.wait())
            .await
            .expect("waiting for an own child works")
    }

    /// Waits until the child has exited and all its output was read, for at most `limit` each.
    ///
    /// # Panics
    /// After `limit`: the child is still running, or a process that it started holds its output open.
    pub async fn ended(&mut self, limit: Duration) -> ExitStatus {
        let status = self.wait(limit).await;
        let what = format!("the end of the output of {}", self.program);
        let read = async { while self.readers.join_next().await.is_some() {} };
        within(&what, limit, read).await;
        status
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = kill_process_group(self.pid, Signal::KILL);
        // The child is reaped here and not in the background, so that a test that counts processes afterwards gets the
        // right number. SIGKILL takes effect at once unless the child hangs in the kernel.
        let start = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) && start.elapsed() < Duration::from_secs(5)
        {
            std::thread::sleep(Duration::from_millis(1));
        }
        if std::thread::panicking() {
            eprintln!("--- stderr of {} ---\n{}", self.program, self.stderr());
        }
    }
}

/// The last bytes of a stream, shared between its reader and other callers.
#[derive(Clone, Default)]
struct Tail(Arc<Mutex<VecDeque<u8>>>);

impl Tail {
    async fn fill(self, mut stream: impl AsyncRead + Unpin) {
        let mut buffer = vec![0; 16 * 1024];
        while let Ok(count @ 1..) = stream.read(&mut buffer).await {
            let mut kept = self.0.lock();
            kept.extend(&buffer[..count]);
            let excess = kept.len().saturating_sub(STDERR_TAIL_BYTES);
            kept.drain(..excess);
        }
    }

    fn text(&self) -> String {
        let kept = self.0.lock();
        let (front, back) = kept.as_slices();
        String::from_utf8_lossy(&[front, back].concat()).into_owned()
    }
}
