//! The host's end: starts the sentinel, keeps it alive, tells it the list.
//!
//! # Invariants
//!
//! - The state is locked from before a child is forked until its number is in `live`, so a new
//!   sentinel is told of all that its predecessor knew.
//! - A sentinel that is to be replaced is killed before its socket is closed. It would take the
//!   closing for the host's death.
//! - Nothing waits for a sentinel that does not read: a full socket counts as a dead one.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::net::SendFlags;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::SentinelCommand;

/// How long a new sentinel may take to answer.
const READY: Duration = Duration::from_secs(10);
/// Between attempts to replace one.
const RETRY: Duration = Duration::from_secs(1);

/// Why there is no sentinel. Without one nothing is spawned.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot start the sentinel `{}`", command.program.display())]
    Start {
        command: SentinelCommand,
        #[source]
        source: io::Error,
    },
    #[error(
        "the sentinel `{}` did not say that it is ready; its arguments must lead to `sentinel::main`",
        command.program.display()
    )]
    NotReady {
        command: SentinelCommand,
        #[source]
        source: io::Error,
    },
}

/// A child between `fork` and `exec` lists itself with this.
///
/// Async-signal-safe: two system calls, no allocation, no lock.
///
/// # Errors
///
/// Always `EPIPE`: the sentinel is gone, or does not read. No `exec` fails with that.
pub(crate) fn announce(socket: &UnixStream) -> io::Result<()> {
    let mut line = [0; 16];
    let length = write_line(&mut line, rustix::process::getpid());
    send(socket, &line[..length])
}

fn send(socket: &UnixStream, line: &[u8]) -> io::Result<()> {
    // No SIGPIPE: a child between fork and exec has its default action back.
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    match rustix::net::send(socket, line, flags) {
        Ok(sent) if sent == line.len() => Ok(()),
        _ => Err(Errno::PIPE.into()),
    }
}

/// Writes `+1234\n` without allocating and returns its length.
fn write_line(line: &mut [u8; 16], pid: Pid) -> usize {
    let mut digits = [0; 10];
    let mut count = 0;
    let mut rest = pid.as_raw_pid().unsigned_abs();
    while rest > 0 && count < digits.len() {
        digits[count] = b'0' + (rest % 10) as u8;
        rest /= 10;
        count += 1;
    }
    line[0] = b'+';
    for (place, &digit) in line[1..].iter_mut().zip(digits[..count].iter().rev()) {
        *place = digit;
    }
    line[1 + count] = b'\n';
    count + 2
}

pub(crate) struct Link {
    command: SentinelCommand,
    run: String,
    state: Mutex<State>,
}

struct State {
    /// `None` only before the first sentinel and while one cannot be replaced.
    current: Option<Sentinel>,
    generation: u64,
    live: BTreeSet<i32>,
    /// First processes of containers, with the ticks at which they started.
    guests: BTreeMap<i32, u64>,
    /// In nanoseconds of the monotonic clock; 0: none.
    deadline: u64,
}

struct Sentinel {
    socket: Arc<UnixStream>,
    pidfd: OwnedFd,
}

impl Link {
    /// Starts a sentinel and waits until it is ready.
    pub(crate) fn new(command: SentinelCommand, run: String) -> Result<Arc<Self>, Error> {
        let link = Arc::new(Self {
            command,
            run,
            state: Mutex::new(State {
                current: None,
                generation: 0,
                live: BTreeSet::new(),
                guests: BTreeMap::new(),
                deadline: 0,
            }),
        });
        link.replace(&mut link.state.lock())?;
        Ok(link)
    }

    /// Runs `start` with the socket that the child has to [`announce`] itself on, and lists
    /// the leader that it returns.
    ///
    /// `start` is called again, once, if the sentinel turns out to be gone.
    pub(crate) fn spawn<T>(
        self: &Arc<Self>,
        mut start: impl FnMut(Arc<UnixStream>) -> io::Result<(Pid, T)>,
    ) -> Result<io::Result<T>, Error> {
        let mut state = self.state.lock();
        let socket = match &state.current {
            Some(sentinel) => Arc::clone(&sentinel.socket),
            None => self.replace(&mut state)?,
        };
        let result = match start(socket) {
            Err(error) if error.raw_os_error() == Some(Errno::PIPE.raw_os_error()) => {
                tracing::warn!("the sentinel is gone, starting another");
                start(self.replace(&mut state)?)
            }
            result => result,
        };
        Ok(result.map(|(pid, started)| {
            state.live.insert(pid.as_raw_pid());
            started
        }))
    }

    /// Takes a leader off the list. To be called before it is reaped.
    pub(crate) fn forget(&self, pid: Pid) {
        let mut state = self.state.lock();
        state.live.remove(&pid.as_raw_pid());
        state.tell(&format!("-{}\n", pid.as_raw_pid()));
    }

    /// Has the first process of a container killed like a leader. It is the child of somebody else: `started` is the tick that tells it
    /// from a later namesake.
    pub(crate) fn add_guest(&self, pid: i32, started: u64) {
        let mut state = self.state.lock();
        state.guests.insert(pid, started);
        state.tell(&format!("*{pid} {started}\n"));
    }

    /// Takes a guest off the list.
    pub(crate) fn forget_guest(&self, pid: i32) {
        let mut state = self.state.lock();
        state.guests.remove(&pid);
        state.tell(&format!("/{pid}\n"));
    }

    /// Has everything killed then, in nanoseconds of the monotonic clock, unless another time is said before; 0: never.
    pub(crate) fn deadline(&self, at: u64) {
        let mut state = self.state.lock();
        state.deadline = at;
        state.tell(&format!("!{at}\n"));
    }

    fn replace(self: &Arc<Self>, state: &mut State) -> Result<Arc<UnixStream>, Error> {
        if let Some(old) = state.current.take() {
            old.kill();
        }
        let (child, sentinel) = self.start(&state.greeting(&self.run))?;
        state.generation += 1;
        let socket = Arc::clone(&sentinel.socket);
        state.current = Some(sentinel);
        let weak = Arc::downgrade(self);
        let generation = state.generation;
        thread::Builder::new()
            .name("sentinel-watch".into())
            .spawn(move || watch(&weak, child, generation))
            .map_err(|source| self.not_started(source))?;
        Ok(socket)
    }

    fn not_started(&self, source: io::Error) -> Error {
        let command = self.command.clone();
        Error::Start { command, source }
    }

    fn start(&self, greeting: &str) -> Result<(Child, Sentinel), Error> {
        let (ours, theirs) = UnixStream::pair().map_err(|source| self.not_started(source))?;
        // Before there is anybody to read it: a sentinel that exists knows all, even if the
        // host dies while it starts. The socket takes far more than all there can be.
        greet(&ours, greeting).map_err(|source| self.not_started(source))?;
        let mut child = Command::new(&self.command.program)
            .arg0("toolwharf-sentinel")
            .args(&self.command.args)
            .env_clear()
            .current_dir("/")
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|source| self.not_started(source))?;
        let tell = || {
            let pidfd = pidfd_open(Pid::from_child(&child), PidfdFlags::empty())?;
            ready(&ours)?;
            Ok(pidfd)
        };
        match tell() {
            Ok(pidfd) => {
                let socket = Arc::new(ours);
                Ok((child, Sentinel { socket, pidfd }))
            }
            Err(source) => {
                let _ = child.kill();
                let _ = child.wait();
                let command = self.command.clone();
                Err(Error::NotReady { command, source })
            }
        }
    }
}

impl State {
    /// All that a new sentinel has to know.
    fn greeting(&self, run: &str) -> String {
        let mut text = format!("={run}\n");
        for pid in &self.live {
            text.push_str(&format!("+{pid}\n"));
        }
        for (pid, started) in &self.guests {
            text.push_str(&format!("*{pid} {started}\n"));
        }
        text.push_str(&format!("!{}\n", self.deadline));
        text
    }

    /// What is said is in the greeting of the next one, too.
    fn tell(&self, line: &str) {
        if let Some(sentinel) = &self.current
            && send(&sentinel.socket, line.as_bytes()).is_err()
        {
            // Its thread waits for the end of the process and replaces it. A sentinel
            // that does not read would keep a stale number: make it end.
            sentinel.kill();
        }
    }
}

impl Sentinel {
    fn kill(&self) {
        // The only failure is that it has been reaped, which is as good.
        let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
    }
}

fn greet(socket: &UnixStream, greeting: &str) -> io::Result<()> {
    socket.set_write_timeout(Some(READY))?;
    (&*socket).write_all(greeting.as_bytes())
}

fn ready(socket: &UnixStream) -> io::Result<()> {
    socket.set_read_timeout(Some(READY))?;
    let mut answer = String::new();
    BufReader::new(io::Read::take(socket, 64)).read_line(&mut answer)?;
    if answer == "ready\n" {
        Ok(())
    } else {
        Err(io::Error::other("it ended, or answered something else"))
    }
}

/// Reaps a sentinel and, unless the host is done or it has been replaced, replaces it.
fn watch(link: &Weak<Link>, mut child: Child, generation: u64) {
    let status = child.wait();
    loop {
        let Some(link) = link.upgrade() else { return };
        let mut state = link.state.lock();
        if state.generation != generation {
            return;
        }
        tracing::warn!(
            ?status,
            "the sentinel ended before its host, starting another"
        );
        match link.replace(&mut state) {
            Ok(_) => return,
            Err(error) => {
                tracing::error!(error = &error as &dyn std::error::Error, "no sentinel");
            }
        }
        drop(state);
        drop(link);
        thread::sleep(RETRY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_written_as_format_would() {
        for number in [1, 9, 10, 4_194_304, i32::MAX] {
            let mut line = [0; 16];
            let length = write_line(&mut line, Pid::from_raw(number).unwrap());
            assert_eq!(line[..length], *format!("+{number}\n").as_bytes());
        }
    }
}
