//! The host's side: starts the sentinel, replaces it if it dies, and sends it the list.
//!
//! # Invariants
//!
//! - The state is locked from before a fork until the child's process id is in `live`, so a new sentinel gets
//!   everything that its predecessor knew.
//! - A sentinel that is to be replaced is killed before its socket is closed. Otherwise it would mistake the closed
//!   socket for the host's death.
//! - Nothing waits for a sentinel that does not read: a full socket counts as a dead sentinel.

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

/// Timeout for a new sentinel to report that it is ready.
const READY_TIMEOUT: Duration = Duration::from_secs(10);
/// Delay between attempts to replace a sentinel.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// Why no sentinel is running. Without one, nothing is spawned.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot start the sentinel `{}`", command.program.display())]
    Start {
        command: SentinelCommand,
        #[source]
        source: io::Error,
    },
    #[error(
        "the sentinel `{}` did not become ready; started as the sentinel, a program must call `sentinel::main`",
        command.program.display()
    )]
    NotReady {
        command: SentinelCommand,
        #[source]
        source: io::Error,
    },
}

/// Adds the calling child to the list, between `fork` and `exec`.
///
/// Async-signal-safe: two system calls, no allocation, no lock.
///
/// # Errors
///
/// Always `EPIPE`: the sentinel is gone or does not read. `exec` never fails with this error.
pub(crate) fn announce(socket: &UnixStream) -> io::Result<()> {
    let mut line = [0; 16];
    let length = write_line(&mut line, rustix::process::getpid());
    send(socket, &line[..length])
}

fn send(socket: &UnixStream, line: &[u8]) -> io::Result<()> {
    // `NOSIGNAL` prevents SIGPIPE, whose default action would end a child between fork and exec.
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
    /// `None` only before the first sentinel, and while it cannot be replaced.
    current: Option<Sentinel>,
    generation: u64,
    live: BTreeSet<i32>,
    /// First processes of containers, with their start ticks.
    guests: BTreeMap<i32, u64>,
    /// When the sentinel kills everything, in nanoseconds of the monotonic clock. 0: no deadline.
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

    /// Runs `start` with the socket for [`announce`] in the child, and lists the leader that it returns.
    ///
    /// `start` is called a second time if the sentinel turns out to be gone.
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
                tracing::warn!("the sentinel is gone; Toolwharf starts another one");
                start(self.replace(&mut state)?)
            }
            result => result,
        };
        Ok(result.map(|(pid, started)| {
            state.live.insert(pid.as_raw_pid());
            started
        }))
    }

    /// Removes a leader from the list. Call before it is reaped.
    pub(crate) fn forget(&self, pid: Pid) {
        let mut state = self.state.lock();
        state.live.remove(&pid.as_raw_pid());
        state.tell(&format!("-{}\n", pid.as_raw_pid()));
    }

    /// Adds the first process of a container, to be killed like a leader. It is not a child of this process: the tick
    /// `started` distinguishes it from a later process with the same id.
    pub(crate) fn add_guest(&self, pid: i32, started: u64) {
        let mut state = self.state.lock();
        state.guests.insert(pid, started);
        state.tell(&format!("*{pid} {started}\n"));
    }

    /// Removes a guest from the list.
    pub(crate) fn forget_guest(&self, pid: i32) {
        let mut state = self.state.lock();
        state.guests.remove(&pid);
        state.tell(&format!("/{pid}\n"));
    }

    /// Sets a time at which everything is killed, in nanoseconds of the monotonic clock, unless a later call changes
    /// it. 0: never.
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
        // The greeting is sent before the sentinel starts, so the sentinel knows everything even if the host dies in
        // the meantime. The socket buffer is far larger than any greeting.
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
    /// Everything that a new sentinel must know.
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

    /// Sends a change of the list. A later sentinel gets the change with its greeting.
    fn tell(&self, line: &str) {
        if let Some(sentinel) = &self.current
            && send(&sentinel.socket, line.as_bytes()).is_err()
        {
            // A sentinel that does not read would keep stale process ids, so kill it. The thread that waits for its
            // exit starts another.
            sentinel.kill();
        }
    }
}

impl Sentinel {
    fn kill(&self) {
        // Fails only if the sentinel has been reaped already, which is fine.
        let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
    }
}

fn greet(socket: &UnixStream, greeting: &str) -> io::Result<()> {
    socket.set_write_timeout(Some(READY_TIMEOUT))?;
    (&*socket).write_all(greeting.as_bytes())
}

fn ready(socket: &UnixStream) -> io::Result<()> {
    socket.set_read_timeout(Some(READY_TIMEOUT))?;
    let mut answer = String::new();
    BufReader::new(io::Read::take(socket, 64)).read_line(&mut answer)?;
    if answer == "ready\n" {
        Ok(())
    } else {
        Err(io::Error::other("it exited, or sent an unexpected answer"))
    }
}

/// Reaps a sentinel and replaces it, unless the host is done or it has already been replaced.
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
            "the sentinel ended before Toolwharf did; Toolwharf starts another one"
        );
        match link.replace(&mut state) {
            Ok(_) => return,
            Err(error) => {
                tracing::error!(
                    error = &error as &dyn std::error::Error,
                    "cannot replace the sentinel"
                );
            }
        }
        drop(state);
        drop(link);
        thread::sleep(RETRY_DELAY);
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
