//! Names and rules that are specific to version 2.

use std::{
    collections::BTreeSet,
    fs::{self, OpenOptions},
    io,
    path::Path,
};

use rustix::process::Pid;

use super::{
    Mount, Place, TOP_GROUP, Version,
    files::{members, set, words},
};
use crate::process_tree::{Stat, parse_pid};
use crate::sandbox::cgroup::files::CPU_PERIOD_MICROS;
use crate::sandbox::cgroup::files::Memory;
use crate::sandbox::cgroup::files::check;
use crate::sandbox::cgroup::files::swapping;

/// The group to which this process moves if its own group may only have child groups.
const HOST_GROUP: &str = "toolwharf-host";

const CONTROLLERS: [&str; 3] = ["memory", "cpu", "pids"];

/// Limit for the ancestors of a process that are checked.
const MAX_ANCESTORS: usize = 64;

pub(super) const OUT_OF_MEMORY: &str = "memory.events";
pub(super) const MEMORY: Memory = Memory {
    now: "memory.current",
    peak: "memory.peak",
    cache: "inactive_file",
};

/// A usable version 2 hierarchy.
pub(super) struct Unified {
    pub(super) place: Place,
    pub(super) controllers: BTreeSet<String>,
}

/// Finds where groups can be created in version 2, with the delegated controllers.
pub(super) fn unified(mount: &Mount, own: &str, install: &str) -> Result<Unified, String> {
    let own = own
        .lines()
        .find_map(|line| line.strip_prefix("0::/"))
        .unwrap_or_default();
    let mut bases = vec![mount.at.clone()];
    if !own.is_empty() && !own.contains("..") {
        // If an earlier run already moved this process into the host group, use the group around that.
        let own = own.strip_suffix(HOST_GROUP).unwrap_or(own);
        bases.push(mount.at.join(own.trim_end_matches('/')));
    }
    let mut why = String::new();
    for base in bases {
        match delegated(&base, install) {
            Ok(unified) => return Ok(unified),
            Err(error) => {
                why = format!(
                    "cannot create control groups in `{}`: {error}",
                    base.display()
                )
            }
        }
    }
    Err(why + "; run Toolwharf as root, or as a systemd service with `Delegate=yes`")
}

fn delegated(base: &Path, install: &str) -> io::Result<Unified> {
    let top = base.join(TOP_GROUP);
    let root = top.join(install);
    fs::create_dir_all(&root)?;
    // Without write access to this file, no process can be moved into the group, even if everything else is allowed.
    OpenOptions::new()
        .write(true)
        .open(base.join("cgroup.procs"))?;
    let offered = words(&base.join("cgroup.controllers"));
    let wanted: Vec<_> = CONTROLLERS
        .iter()
        .filter(|controller| offered.contains(**controller))
        .collect();
    // Only the root group may contain both processes and groups with controllers; it alone has no `cgroup.events`. In
    // other groups, some controllers can be enabled next to processes, but the others would then be unusable.
    let divided = !wanted.is_empty() && base.join("cgroup.events").exists();
    if divided && !members(base).is_empty() {
        make_way(base)?;
    }
    for controller in wanted {
        for level in [base, &top, &root] {
            fs::write(
                level.join("cgroup.subtree_control"),
                format!("+{controller}"),
            )?;
        }
    }
    let controllers = words(&root.join("cgroup.subtree_control"));
    let place = Place {
        root,
        version: Version::Two,
    };
    Ok(Unified { place, controllers })
}

/// A version 2 group that contains processes delegates no controllers, except the root group. If the group contains
/// only this process and its descendants, they are moved into a child group.
fn make_way(base: &Path) -> io::Result<()> {
    let me = rustix::process::getpid();
    let members = members(base);
    let ours = |&pid: &Pid| descends(pid, me);
    if !members.iter().all(ours) {
        return Err(io::Error::other(
            "other processes run in the same control group",
        ));
    }
    let host = base.join(HOST_GROUP);
    match fs::create_dir(&host) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    for pid in members {
        fs::write(host.join("cgroup.procs"), pid.as_raw_pid().to_string())?;
    }
    Ok(())
}

/// Returns whether a process is `ancestor`, a descendant of it, or gone.
pub(super) fn descends(pid: Pid, ancestor: Pid) -> bool {
    let mut next = Some(pid);
    for _ in 0..MAX_ANCESTORS {
        match next {
            Some(pid) if pid == ancestor => return true,
            Some(pid) => match Stat::read(pid) {
                Some(stat) => next = u32::try_from(stat.parent).ok().and_then(numbered),
                None => return true,
            },
            None => return false,
        }
    }
    false
}

fn numbered(number: u32) -> Option<Pid> {
    parse_pid(&number.to_string())
}

pub(super) fn limit_memory(path: &Path, bytes: u64) {
    set(&path.join("memory.max"), bytes);
    set(&path.join("memory.swap.max"), 0);
}

pub(super) fn memory_enforced(path: &Path, expected: &str) -> Result<String, String> {
    let how = check(path, "memory.max", expected, Version::Two)?;
    match fs::read_to_string(path.join("memory.swap.max")) {
        Ok(found) if found.trim() == "0" => Ok(how + ", no swap"),
        _ if !swapping() => Ok(how + ", no swap in use"),
        _ => Err(format!("{how}, but swap is not limited; run `swapoff -a`")),
    }
}

pub(super) fn limit_cpu(path: &Path, quota: u64) {
    let (file, value) = cpu_limit(quota);
    set(&path.join(file), value);
}

/// The file of the limit, and its content.
pub(super) fn cpu_limit(quota: u64) -> (&'static str, String) {
    ("cpu.max", format!("{quota} {CPU_PERIOD_MICROS}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descent_is_followed_upwards() {
        let me = rustix::process::getpid();
        let mut child = std::process::Command::new("cat")
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let pid = Pid::from_child(&child);
        assert!(descends(me, me) && descends(pid, me));
        assert!(!descends(me, pid));
        drop(child.stdin.take());
        child.wait().unwrap();
    }
}
