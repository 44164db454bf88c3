//! Which processes belong to an instance, read from `/proc`, and how to kill exactly those.
//!
//! A process belongs to an instance if it is in the leader's session or process group, or
//! carries the instance's marker in its initial environment. The first finds children of every
//! usual kind, the second those that called `setsid`.
//!
//! # Invariants
//!
//! - A process is killed through a pidfd opened *before* it was recognised, so a number reused
//!   between the two never costs a stranger its life.
//! - Zombies are dead: they do not count as members.
//!
//! # Deliberately absent
//!
//! A process that both left the session and wiped its environment is not found. Only a
//! container or a cgroup holds such a one; that is the sandbox's business.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::Read as _;

use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, pidfd_open, pidfd_send_signal, waitpid,
};

/// The environment variable that marks every process of an instance: `<run>:<serial>:<label>`.
pub(crate) const MARKER: &str = "TOOLWHARF_INSTANCE";

/// More than the kernel lets anyone pass (a quarter of an 8 MiB stack, 6 MiB at the most).
const ENVIRON_LIMIT: u64 = 8 << 20;

/// The fields of `/proc/PID/stat` that tell where a process belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stat {
    pub(crate) pid: Pid,
    pub(crate) zombie: bool,
    pub(crate) parent: i32,
    pub(crate) group: i32,
    pub(crate) session: i32,
    /// Clock ticks after boot: with the number, what tells a process from a later namesake.
    pub(crate) started: u64,
}

impl Stat {
    pub(crate) fn read(pid: Pid) -> Option<Self> {
        let text = fs::read(format!("/proc/{}/stat", pid.as_raw_pid())).ok()?;
        Self::parse(pid, &text)
    }

    fn parse(pid: Pid, text: &[u8]) -> Option<Self> {
        // The command's name is in parentheses and may itself hold parentheses and spaces.
        let after_name = text.iter().rposition(|&byte| byte == b')')? + 1;
        let mut fields = std::str::from_utf8(&text[after_name..])
            .ok()?
            .split_ascii_whitespace();
        let state = fields.next()?;
        let parent = fields.next()?.parse().ok()?;
        let group = fields.next()?.parse().ok()?;
        let session = fields.next()?.parse().ok()?;
        // Field 22 of proc_pid_stat(5); four were taken after the name, which is field 2.
        let started = fields.nth(15)?.parse().ok()?;
        let zombie = matches!(state, "Z" | "X" | "x");
        Some(Self {
            pid,
            zombie,
            parent,
            group,
            session,
            started,
        })
    }
}

/// What to look for: some sessions, and a marker.
#[derive(Clone, Debug)]
pub(crate) struct Lineage {
    /// `NAME=value`, or its beginning; `None` looks at sessions and groups only.
    marker: Option<Vec<u8>>,
    /// Numbers of leaders, each of which made a session and a group of its own.
    leaders: Vec<Pid>,
    /// What started before this tick is no descendant. Spares reading most environments.
    since: u64,
}

impl Lineage {
    /// Everything one instance ever started. The leader is not reaped yet.
    pub(crate) fn instance(leader: Pid, marker: &str) -> Self {
        // An environment string ends with a NUL: with it, the marker of instance 1 is not
        // taken for the beginning of instance 10's.
        let marker = format!("{MARKER}={marker}\0").into_bytes();
        Self {
            marker: Some(marker),
            leaders: vec![leader],
            since: Stat::read(leader).map_or(0, |stat| stat.started),
        }
    }

    /// What shares one leader's session or group.
    pub(crate) fn session(leader: Pid) -> Self {
        Self {
            marker: None,
            leaders: vec![leader],
            since: 0,
        }
    }

    /// Everything a run of the host ever started.
    pub(crate) fn run(leaders: Vec<Pid>, run: &str) -> Self {
        let marker = format!("{MARKER}={run}:").into_bytes();
        Self {
            marker: Some(marker),
            leaders,
            since: 0,
        }
    }

    fn holds(&self, stat: &Stat) -> bool {
        !stat.zombie && (self.kin(stat) || stat.started >= self.since && self.marks(stat.pid))
    }

    fn kin(&self, stat: &Stat) -> bool {
        self.leaders.iter().any(|leader| {
            let leader = leader.as_raw_pid();
            stat.session == leader || stat.group == leader
        })
    }

    fn marks(&self, pid: Pid) -> bool {
        let Some(marker) = &self.marker else {
            return false;
        };
        let mut environ = Vec::new();
        // Unreadable means another user's, or gone: in both cases not one of ours.
        let Ok(file) = File::open(format!("/proc/{}/environ", pid.as_raw_pid())) else {
            return false;
        };
        if file.take(ENVIRON_LIMIT).read_to_end(&mut environ).is_err() {
            return false;
        }
        environ
            .split_inclusive(|&byte| byte == 0)
            .any(|variable| variable.starts_with(marker))
    }

    /// The living members.
    pub(crate) fn members(&self) -> Vec<Stat> {
        processes().filter(|stat| self.holds(stat)).collect()
    }

    /// Kills every living member and returns their numbers.
    pub(crate) fn kill(&self) -> Vec<Pid> {
        let members: Vec<_> = self.members().iter().map(|stat| stat.pid).collect();
        for &pid in &members {
            self.kill_one(pid);
        }
        members
    }

    fn kill_one(&self, pid: Pid) {
        // Failures mean that it is gone already, or not ours to kill; the next pass tells.
        if let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty())
            && Stat::read(pid).is_some_and(|stat| self.holds(&stat))
        {
            let _ = pidfd_send_signal(&pidfd, Signal::KILL);
        }
    }

    /// Reaps dead members, and those of `killed`, that became children of this very process, which happens when it is
    /// PID 1 of a container or a subreaper. The leaders are left for their owners.
    pub(crate) fn reap_adopted(&self, killed: &HashSet<Pid>) {
        let me = rustix::process::getpid().as_raw_pid();
        for stat in processes() {
            let orphan = stat.zombie && stat.parent == me && !self.leaders.contains(&stat.pid);
            if orphan && (self.kin(&stat) || killed.contains(&stat.pid)) {
                let _ = waitpid(Some(stat.pid), WaitOptions::NOHANG);
            }
        }
    }
}

fn processes() -> impl Iterator<Item = Stat> {
    fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .filter_map(|entry| parse_pid(entry.ok()?.file_name().to_str()?))
        .filter_map(Stat::read)
}

/// `Pid::from_raw` panics on a negative number.
pub(crate) fn parse_pid(digits: &str) -> Option<Pid> {
    let number: u32 = digits.parse().ok()?;
    Pid::from_raw(number.try_into().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_does_not_shift_the_fields() {
        let pid = Pid::from_raw(7).unwrap();
        let line = b"7 (a) S (b) Z 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 99 20\n";
        let stat = Stat::parse(pid, line).unwrap();
        assert!(stat.zombie);
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

    #[test]
    fn this_process_is_found_by_its_own_number() {
        let me = Stat::read(rustix::process::getpid()).unwrap();
        assert!(!me.zombie);
        assert!(me.started > 0);
        let session = Pid::from_raw(me.session).unwrap();
        assert!(Lineage::session(session).members().contains(&me));
    }
}
