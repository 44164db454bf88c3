//! The sentinel, a helper process. It outlives this process for a short time, and kills every other process that does.
//!
//! A sentinel is the host's own binary, started again with an argument known only to the host. The binary then calls
//! [`main`] and does nothing else. Host and sentinel are connected by a socket. While the host lives, the sentinel only
//! keeps the list of leaders. When the socket ends, however the host ended, it kills the processes on the list, then
//! all processes with the run's marker, and exits. Clients such as `docker run` get SIGTERM and a second to stop their
//! container first.
//!
//! # Protocol
//!
//! Lines of text. First the host sends `=RUN` (the run's id), and the sentinel answers `ready`. Then:
//!
//! - `+PID` adds a leader, `-PID` removes one. A leader's process id is also the id of its session and process group.
//! - `*PID TICK` adds a guest, the first process of a container; `/PID` removes one. It is not a child of the host, so
//!   it is killed only if the process with this id started at that clock tick.
//! - `!NANOS` sets or changes a deadline on the monotonic clock. When it passes, all leaders are killed, including
//!   those added later; `!0` removes the deadline. So a suspended host has no running servers when another host starts
//!   them.
//!
//! # Invariants
//!
//! - **No child runs before it is on the list.** It sends `+PID` itself, between `fork` and `exec`. Until its `exec`,
//!   the child also holds a copy of the host's end of the socket, so the sentinel reads that line before the end of the
//!   stream. So there is no gap, whenever the host dies.
//! - **A leader is removed from the list before it is reaped.** So while the host lives, no process id on the list can
//!   be reused, dead or alive. After the host's death, an id could be reused. The sentinel uses an id only if its
//!   process started at the listed tick, or if no process has the id. In the latter case, the processes in the session
//!   with this id were left behind by the leader: the kernel does not assign an id again while it is in use as a
//!   session id.
//! - The sentinel has its own session, an empty environment, `/` as its directory and no terminal. So no signal or
//!   clean-up aimed at the host affects it, not even the sweep of an outer host that started this host.
//!
//! # Deliberately absent
//!
//! Logs and configuration. When a sentinel dies, the host starts another and sends it the list; see `Link`.

mod link;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process, kill_process_group, setpriority_pgrp};
use rustix::time::{ClockId, Timespec, clock_gettime};
use tokio::signal::unix::{Signal as Listener, SignalKind, signal};
use tokio::time::Instant;

use crate::process_tree::{ProcessTree, Stat, parse_pid};

pub use self::link::Error;
pub(crate) use self::link::{Link, announce};

/// Limit for the sweep, which repeats while it finds processes.
const SWEEP_TIMEOUT: Duration = Duration::from_secs(2);
/// Time for a container client to stop its container.
const CLIENT_GRACE: Duration = Duration::from_secs(1);
const CONTAINER_CLIENTS: [&str; 3] = ["docker", "nerdctl", "podman"];
const SWEEP_INTERVAL: Duration = Duration::from_millis(10);
/// The highest priority (setpriority(2)).
const PRIORITY: i32 = -20;
/// The list is pruned when it has this many entries, because a failed `exec` leaves an entry behind.
const PRUNE_AT: usize = 64;

#[derive(Clone, Debug)]
pub struct SentinelCommand {
    /// An absolute path.
    pub program: PathBuf,
    pub args: Vec<OsString>,
}

impl SentinelCommand {
    /// The running binary, even if its file has been replaced.
    pub fn this_binary(args: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        Self {
            program: PathBuf::from("/proc/self/exe"),
            args: args.into_iter().map(Into::into).collect(),
        }
    }
}

/// The sentinel's main function. Returns when the host and everything that it started are gone.
///
/// Needs the socket as standard input, as provided by [`crate::process::Spawner`]; fails immediately if started by
/// hand. Must not be called from an async runtime.
#[must_use]
pub fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "sentinel: {error}");
            ExitCode::from(2)
        }
    }
}

fn run() -> io::Result<()> {
    // Fails for the leader of a process group, which already has its own session.
    let _ = rustix::process::setsid();
    // The name shown by `ps`, which would otherwise be `exe`.
    let _ = fs::write("/proc/self/comm", "wharf-sentinel");
    hurry(rustix::process::getpid());
    let _deaf = Deaf::new()?;
    let mut socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let mut host = Host::new(socket.try_clone()?);
    let greeting = match host.line(None) {
        Heard::Line(line) => line,
        Heard::Nothing | Heard::Gone => Vec::new(),
    };
    let run = match greeting.split_first() {
        Some((b'=', run)) if !run.is_empty() => String::from_utf8_lossy(run).into_owned(),
        _ => {
            return Err(io::Error::other("only Toolwharf starts this command"));
        }
    };
    // The host may be dead already, but its list must still be read.
    let answered = socket.write_all(b"ready\n");
    if answered
        .as_ref()
        .is_err_and(|error| error.kind() != io::ErrorKind::BrokenPipe)
    {
        return answered;
    }

    let mut list = List::default();
    loop {
        match host.line(list.deadline) {
            Heard::Line(line) => list.apply(&line),
            Heard::Nothing => list.lapse(&run),
            Heard::Gone => break,
        }
    }
    list.kill(&run);
    Ok(())
}

/// The host's end of the socket.
struct Host {
    socket: UnixStream,
    read: Vec<u8>,
}

enum Heard {
    Line(Vec<u8>),
    /// Nothing before the deadline.
    Nothing,
    /// The host is gone, or reading failed.
    Gone,
}

impl Host {
    fn new(socket: UnixStream) -> Self {
        let read = Vec::new();
        Self { socket, read }
    }

    /// Returns the next line. `until`: nanoseconds of the monotonic clock. Lines sent before that time are still
    /// returned.
    fn line(&mut self, until: Option<u64>) -> Heard {
        loop {
            if let Some(end) = self.read.iter().position(|byte| *byte == b'\n') {
                let mut line: Vec<u8> = self.read.drain(..=end).collect();
                line.pop();
                return Heard::Line(line);
            }
            let left = until.map(|until| until.saturating_sub(monotonic_nanos()));
            let left = left.map(|left| Timespec {
                tv_sec: i64::try_from(left / 1_000_000_000).unwrap_or(i64::MAX),
                tv_nsec: (left % 1_000_000_000) as _,
            });
            let mut socket = [PollFd::new(&self.socket, PollFlags::IN)];
            match poll(&mut socket, left.as_ref()) {
                Ok(0) => return Heard::Nothing,
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(_) => return Heard::Gone,
            }
            let mut some = [0; 4096];
            match self.socket.read(&mut some) {
                Ok(0) => return Heard::Gone,
                Ok(length) => self.read.extend_from_slice(&some[..length]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return Heard::Gone,
            }
        }
    }
}

/// The monotonic clock in nanoseconds, which is the same for all processes of a host.
#[must_use]
pub fn monotonic_nanos() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
    seconds * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or_default()
}

/// Ignores the signals that end a process by default.
struct Deaf {
    _runtime: tokio::runtime::Runtime,
    _listeners: Vec<Listener>,
}

impl Deaf {
    fn new() -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .build()?;
        // Without unsafe code, a signal can only be ignored by a handler that does nothing. The listeners do that
        // without being polled.
        let _guard = runtime.enter();
        let listeners = [
            SignalKind::alarm(),
            SignalKind::hangup(),
            SignalKind::interrupt(),
            SignalKind::pipe(),
            SignalKind::quit(),
            SignalKind::terminate(),
            SignalKind::user_defined1(),
            SignalKind::user_defined2(),
        ]
        .into_iter()
        .map(signal)
        .collect::<io::Result<_>>()?;
        drop(_guard);
        Ok(Self {
            _runtime: runtime,
            _listeners: listeners,
        })
    }
}

/// The list of leaders, each with its start tick.
#[derive(Debug, Default)]
struct List {
    leaders: BTreeMap<i32, Option<u64>>,
    /// Guests, each with its start tick.
    guests: BTreeMap<i32, u64>,
    prune_at: usize,
    /// The deadline, in nanoseconds of the monotonic clock.
    deadline: Option<u64>,
    /// True if the deadline has passed and no new one was set.
    lapsed: bool,
}

impl List {
    fn apply(&mut self, line: &[u8]) {
        let Some((&sign, number)) = line.split_first() else {
            return;
        };
        if sign == b'!' {
            let nanos = std::str::from_utf8(number).ok();
            let nanos = nanos.and_then(|nanos| nanos.parse().ok());
            self.deadline = nanos.filter(|nanos| *nanos > 0);
            self.lapsed = false;
            return;
        }
        let Ok(text) = std::str::from_utf8(number) else {
            return;
        };
        let (number, tick) = text.split_once(' ').unwrap_or((text, ""));
        let Some(pid) = parse_pid(number) else {
            return;
        };
        match sign {
            b'*' => {
                let Ok(started) = tick.parse() else { return };
                self.guests.insert(pid.as_raw_pid(), started);
                if self.lapsed {
                    self.kill_guests();
                }
            }
            b'/' => {
                self.guests.remove(&pid.as_raw_pid());
            }
            _ if !tick.is_empty() => {}
            b'+' => {
                let started = Stat::read(pid).map(|stat| stat.started);
                self.leaders.insert(pid.as_raw_pid(), started);
                if self.lapsed {
                    let _ = kill_process(pid, Signal::KILL);
                }
                self.prune();
            }
            b'-' => {
                self.leaders.remove(&pid.as_raw_pid());
            }
            _ => {}
        }
    }

    /// Kills everything, because the host did not extend the deadline in time.
    fn lapse(&mut self, run: &str) {
        self.deadline = None;
        self.lapsed = true;
        self.kill(run);
    }

    /// Removes leaders without a process. While the host lives, these never reached their `exec`.
    fn prune(&mut self) {
        if self.leaders.len() < self.prune_at.max(PRUNE_AT) {
            return;
        }
        self.leaders.retain(|&pid, started| {
            let now = Pid::from_raw(pid).and_then(Stat::read);
            now.is_some_and(|stat| Some(stat.started) == *started)
        });
        self.prune_at = 2 * self.leaders.len();
    }

    /// Returns the leaders whose process ids still belong to them.
    fn valid(&self) -> Vec<Pid> {
        self.leaders
            .iter()
            .filter_map(|(&pid, started)| Some((Pid::from_raw(pid)?, started)))
            .filter(|&(pid, started)| {
                Stat::read(pid).is_none_or(|stat| Some(stat.started) == *started)
            })
            .map(|(pid, _)| pid)
            .collect()
    }

    fn kill_guests(&self) {
        for (&pid, started) in &self.guests {
            if let Some(pid) = Pid::from_raw(pid)
                && Stat::read(pid).is_some_and(|stat| stat.started == *started)
            {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
    }

    fn kill(&mut self, run: &str) {
        self.kill_guests();
        let (clients, others): (Vec<Pid>, Vec<Pid>) =
            self.valid().into_iter().partition(runs_container_client);
        // First the process groups, each with one signal: members cannot escape it by forking.
        for leader in others {
            // A killed process has to run once more to exit, which takes long on a busy machine.
            hurry(leader);
            let _ = kill_process_group(leader, Signal::KILL);
        }
        for leader in &clients {
            let _ = kill_process_group(*leader, Signal::TERM);
        }
        let begun = Instant::now();
        loop {
            let spared = match begun.elapsed() < CLIENT_GRACE {
                true => &clients[..],
                false => &[],
            };
            let found = ProcessTree::run(self.valid(), run).kill(spared);
            if found.nothing() || begun.elapsed() >= SWEEP_TIMEOUT {
                return;
            }
            std::thread::sleep(SWEEP_INTERVAL);
        }
    }
}

/// Raises the priority of a session leader and its process group. Needs root or CAP_SYS_NICE; without it, everything
/// takes longer on a busy machine.
fn hurry(leader: Pid) {
    let _ = setpriority_pgrp(Some(leader), PRIORITY);
    // Many kernels divide processor time between sessions first (sched(7), "The autogroup feature").
    let autogroup = format!("/proc/{}/autogroup", leader.as_raw_pid());
    let _ = fs::write(autogroup, PRIORITY.to_string());
}

/// Returns whether a program of this name is a client of a container daemon. `docker run` stops its container on
/// SIGTERM, and leaves it running on SIGKILL.
pub(crate) fn is_container_client(name: &str) -> bool {
    CONTAINER_CLIENTS.contains(&name)
}

fn runs_container_client(pid: &Pid) -> bool {
    let name = fs::read_to_string(format!("/proc/{}/comm", pid.as_raw_pid()));
    name.is_ok_and(|name| is_container_client(name.trim_end()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(lines: &[&str], expected: &[i32]) {
        let mut list = List::default();
        for line in lines {
            list.apply(line.as_bytes());
        }
        assert_eq!(list.leaders.keys().copied().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn the_list_follows_the_lines() {
        check(&["+1", "+3", "-1"], &[3]);
        check(&["-1"], &[]);
        check(
            &[
                "",
                "+",
                "-",
                "+x",
                "+-4",
                "+0",
                "+99999999999",
                "?1",
                "+ 2",
                "+2 3",
            ],
            &[],
        );
    }

    #[test]
    fn a_guest_is_killed_at_its_own_tick_only() {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .expect("sleep is part of every system");
        let pid = Pid::from_child(&child);
        let started = Stat::read(pid).unwrap().started;
        let mut list = List::default();
        for line in ["*1", "* 1", "*1 x", "*0 1"] {
            list.apply(line.as_bytes());
        }
        assert!(list.guests.is_empty());
        list.apply(format!("*{} {}", pid.as_raw_pid(), started + 1).as_bytes());
        list.kill_guests();
        assert!(child.try_wait().unwrap().is_none(), "it is another process");
        list.apply(format!("*{} {started}", pid.as_raw_pid()).as_bytes());
        list.apply(format!("/{}", pid.as_raw_pid()).as_bytes());
        list.kill_guests();
        assert!(child.try_wait().unwrap().is_none(), "it was removed");
        list.apply(format!("*{} {started}", pid.as_raw_pid()).as_bytes());
        list.kill_guests();
        assert!(!child.wait().unwrap().success());
    }

    #[test]
    fn a_list_of_the_dead_does_not_grow() {
        let mut list = List::default();
        // The process ids are beyond the largest one that Linux can be configured to use.
        for pid in 0..10_000 {
            list.apply(format!("+{}", 5_000_000 + pid).as_bytes());
        }
        assert!(list.leaders.len() < PRUNE_AT);
    }

    #[test]
    fn a_reused_number_is_not_honoured() {
        let me = rustix::process::getpid().as_raw_pid();
        let mut list = List::default();
        list.apply(format!("+{me}").as_bytes());
        assert_eq!(list.valid().len(), 1);
        list.leaders.insert(me, Some(1));
        assert_eq!(list.valid().len(), 0);
    }
}
