//! Finds the processes of an instance in `/proc`, and kills exactly those.
//!
//! A process belongs to an instance if it is in the leader's session or process group, or has the instance's marker in
//! its initial environment. The session and group identify ordinary children, the marker those that called `setsid`.
//!
//! # Invariants
//!
//! - A process is killed through a pidfd opened *before* it was recognised, so a process id reused in between never
//!   causes the death of another process.
//! - Zombies are dead: they do not count as members.
//! - During an `exec`, a process briefly has no environment. It counts as unsettled, and the search must be repeated.
//! - A search ends with a list of processes that contains no new one. Otherwise a process that forks and exits, as
//!   daemons do, could slip through: listed before its fork, checked after its exit.
//!
//! # Deliberately absent
//!
//! A process that both left the session and cleared its environment is not found. Only a container or cgroup can keep
//! track of it, which is the sandbox's task.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::Read as _;

use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, pidfd_open, pidfd_send_signal, waitpid,
};

/// The environment variable that marks every process of an instance: `<run>:<serial>:<label>`.
pub(crate) const MARKER: &str = "TOOLWHARF_INSTANCE";

/// Limit for the environment of a process. The kernel allows less: a quarter of an 8 MiB stack, at most 6 MiB.
const MAX_ENVIRON_BYTES: u64 = 8 << 20;

/// Limit for repeated listings. Enough unless thousands of processes start every second.
const MAX_LISTINGS: usize = 20;

/// The fields of `/proc/PID/stat` that show where a process belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    pub(crate) pid: Pid,
    pub(crate) zombie: bool,
    pub(crate) parent: i32,
    pub(crate) group: i32,
    pub(crate) session: i32,
    /// Start time in clock ticks after boot. Together with the process id, it identifies a process.
    pub started: u64,
    /// True for a user process whose environment is missing or unreadable.
    unsettled: bool,
}

/// `PF_KTHREAD`: a kernel thread, which never has an environment.
const KERNEL_THREAD: u32 = 0x0020_0000;

impl Stat {
    pub fn read(pid: Pid) -> Option<Self> {
        let text = fs::read(format!("/proc/{}/stat", pid.as_raw_pid())).ok()?;
        Self::parse(pid, &text)
    }

    fn parse(pid: Pid, text: &[u8]) -> Option<Self> {
        // The command name is in parentheses and may itself contain parentheses and spaces.
        let after_name = text.iter().rposition(|&byte| byte == b')')? + 1;
        let mut fields = std::str::from_utf8(&text[after_name..])
            .ok()?
            .split_ascii_whitespace();
        let state = fields.next()?;
        let parent = fields.next()?.parse().ok()?;
        let group = fields.next()?.parse().ok()?;
        let session = fields.next()?.parse().ok()?;
        // Fields 9, 22, 50 and 51 of proc_pid_stat(5). The session was field 6.
        let flags: u32 = fields.nth(2)?.parse().ok()?;
        let started = fields.nth(12)?.parse().ok()?;
        let environ = [fields.nth(27), fields.next()];
        let unsettled = flags & KERNEL_THREAD == 0 && environ.contains(&Some("0"));
        let zombie = matches!(state, "Z" | "X" | "x");
        Some(Self {
            pid,
            zombie,
            parent,
            group,
            session,
            started,
            unsettled,
        })
    }
}

#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) members: Vec<Pid>,
    /// True if the membership of any process could not be determined.
    pub(crate) unsettled: bool,
}

impl Found {
    pub(crate) fn nothing(&self) -> bool {
        self.members.is_empty() && !self.unsettled
    }
}

enum Marked {
    Yes,
    No,
    Unsettled,
}

/// The target of a search: sessions, and a marker.
#[derive(Clone, Debug)]
pub(crate) struct ProcessTree {
    /// `NAME=value`, or the beginning of that. `None` searches sessions and groups only.
    marker: Option<Vec<u8>>,
    /// Process ids of leaders, each with its own session and group.
    leaders: Vec<Pid>,
    /// Processes that started before this tick are no descendants. This avoids reading most environments.
    since: u64,
}

impl ProcessTree {
    /// Everything that one instance ever started. Its leader must not be reaped yet.
    pub(crate) fn instance(leader: Pid, marker: &str) -> Self {
        // The text includes the NUL that ends an environment string, so that the marker of instance 1 does not match
        // instance 10.
        let marker = format!("{MARKER}={marker}\0").into_bytes();
        Self {
            marker: Some(marker),
            leaders: vec![leader],
            since: Stat::read(leader).map_or(0, |stat| stat.started),
        }
    }

    /// The processes in one leader's session or group.
    pub(crate) fn session(leader: Pid) -> Self {
        Self {
            marker: None,
            leaders: vec![leader],
            since: 0,
        }
    }

    /// Everything that a run of the host ever started.
    pub(crate) fn run(leaders: Vec<Pid>, run: &str) -> Self {
        let marker = format!("{MARKER}={run}:").into_bytes();
        Self {
            marker: Some(marker),
            leaders,
            since: 0,
        }
    }

    fn holds(&self, stat: &Stat) -> Marked {
        if stat.zombie {
            Marked::No
        } else if self.kin(stat) {
            Marked::Yes
        } else if stat.started >= self.since {
            self.marks(stat.pid)
        } else {
            Marked::No
        }
    }

    fn kin(&self, stat: &Stat) -> bool {
        self.leaders.iter().any(|leader| {
            let leader = leader.as_raw_pid();
            stat.session == leader || stat.group == leader
        })
    }

    fn marks(&self, pid: Pid) -> Marked {
        let Some(marker) = &self.marker else {
            return Marked::No;
        };
        let mut environ = Vec::new();
        // If the file is unreadable, the process belongs to another user or is gone, and is no member.
        let Ok(file) = File::open(format!("/proc/{}/environ", pid.as_raw_pid())) else {
            return Marked::No;
        };
        if file
            .take(MAX_ENVIRON_BYTES)
            .read_to_end(&mut environ)
            .is_err()
        {
            return Marked::No;
        }
        if environ.is_empty() {
            return match Stat::read(pid) {
                Some(stat) if stat.unsettled && !stat.zombie => Marked::Unsettled,
                _ => Marked::No,
            };
        }
        let mut variables = environ.split_inclusive(|&byte| byte == 0);
        if variables.any(|variable| variable.starts_with(marker)) {
            Marked::Yes
        } else {
            Marked::No
        }
    }

    /// Returns the living members.
    pub(crate) fn find(&self) -> Found {
        let mut found = Found::default();
        let mut seen = HashSet::new();
        for _ in 0..MAX_LISTINGS {
            let known = seen.len();
            for pid in processes().filter(|&pid| seen.insert(pid)) {
                match Stat::read(pid).map(|stat| self.holds(&stat)) {
                    Some(Marked::Yes) => found.members.push(pid),
                    Some(Marked::No) | None => {}
                    Some(Marked::Unsettled) => found.unsettled = true,
                }
            }
            // This pass found no new process, so every living one has been checked.
            if seen.len() == known {
                return found;
            }
        }
        found.unsettled = true;
        found
    }

    /// Kills all living members except those in the groups of `spared` leaders, and returns all. Repeat until no member
    /// is found, because they may still be dying, and may have forked.
    pub(crate) fn kill(&self, spared: &[Pid]) -> Found {
        let found = self.find();
        for &pid in &found.members {
            // A failure means that the process is gone, or that this user may not kill it.
            if let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty())
                && let Some(stat) = Stat::read(pid)
                && let Marked::Yes = self.holds(&stat)
                && !spared
                    .iter()
                    .any(|leader| leader.as_raw_pid() == stat.group)
            {
                let _ = pidfd_send_signal(&pidfd, Signal::KILL);
            }
        }
        found
    }

    /// Reaps dead members, and those of `killed`, that became children of this process. This happens if this process is
    /// PID 1 of a container or a subreaper. The leaders are left to their owners.
    pub(crate) fn reap_adopted(&self, killed: &HashSet<Pid>) {
        let me = rustix::process::getpid().as_raw_pid();
        for stat in processes().filter_map(Stat::read) {
            let orphan = stat.zombie && stat.parent == me && !self.leaders.contains(&stat.pid);
            if orphan && (self.kin(&stat) || killed.contains(&stat.pid)) {
                let _ = waitpid(Some(stat.pid), WaitOptions::NOHANG);
            }
        }
    }
}

fn processes() -> impl Iterator<Item = Pid> {
    fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .filter_map(|entry| parse_pid(entry.ok()?.file_name().to_str()?))
}

/// Needed because `Pid::from_raw` panics on a negative number.
pub(crate) fn parse_pid(digits: &str) -> Option<Pid> {
    let number: u32 = digits.parse().ok()?;
    Pid::from_raw(number.try_into().ok()?)
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt as _;

    use super::*;

    #[test]
    fn a_name_with_parentheses_does_not_shift_the_fields() {
        let pid = Pid::from_raw(7).unwrap();
        let rest: Vec<String> = (23..=52).map(|field: u32| field.to_string()).collect();
        let start = "7 (a) S (b) Z 1 2 3 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 99";
        let line = format!("{start} {}\n", rest.join(" "));
        let stat = Stat::parse(pid, line.as_bytes()).unwrap();
        assert!(stat.zombie && !stat.unsettled);
        for field in [" 50 ", " 51 "] {
            let line = line.replace(field, " 0 ");
            assert!(Stat::parse(pid, line.as_bytes()).unwrap().unsettled);
        }
        assert_eq!((stat.parent, stat.group, stat.session), (1, 2, 3));
        assert_eq!(stat.started, 99);
    }

    #[test]
    fn a_cut_off_line_is_no_process() {
        let pid = Pid::from_raw(7).unwrap();
        for line in [
            &b""[..],
            b"7 (a",
            b"7 (a)",
            b"7 (a) S 1 2",
            b"7 (a) S x 2 3 4",
        ] {
            assert_eq!(Stat::parse(pid, line), None);
        }
    }

    /// Uses a process with its own group in the same session. If the session leader is outside the PID namespace, this
    /// process's session reads 0.
    #[test]
    fn a_process_is_found_by_the_number_of_its_group() {
        let mut child = std::process::Command::new("cat")
            .stdin(std::process::Stdio::piped())
            .process_group(0)
            .spawn()
            .expect("cat is part of every system");
        let leader = Pid::from_child(&child);
        let stat = Stat::read(leader).unwrap();
        assert!(!stat.zombie && stat.started > 0);
        assert_eq!(stat.group, leader.as_raw_pid());
        assert!(
            ProcessTree::session(leader)
                .find()
                .members
                .contains(&leader)
        );
        drop(child.stdin.take());
        assert!(child.wait().unwrap().success());
        assert!(
            !ProcessTree::session(leader)
                .find()
                .members
                .contains(&leader)
        );
    }
}
