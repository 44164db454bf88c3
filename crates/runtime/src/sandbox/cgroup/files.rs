//! Reads and writes the files and directories of control groups.

use super::Version;
use std::{collections::BTreeSet, fmt::Display, fs, io, path::Path};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::process_tree::parse_pid;

/// Scheduling period in microseconds; the kernel's default.
pub(super) const CPU_PERIOD_MICROS: u64 = 100_000;

/// Writes a value. Errors are ignored: reading the value back shows whether it took effect.
pub(super) fn set(path: &Path, value: impl Display) {
    let _ = fs::write(path, value.to_string());
}

pub(super) fn words(path: &Path) -> BTreeSet<String> {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.split_ascii_whitespace().map(str::to_owned).collect()
}

pub(super) fn number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

pub(super) fn field(path: &Path, name: &str) -> Option<u64> {
    field_of(&fs::read_to_string(path).ok()?, name)
}

/// Finds a number in a file with a name and a number on each line.
pub(super) fn field_of(text: &str, name: &str) -> Option<u64> {
    text.lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
}

pub(super) fn members(path: &Path) -> Vec<Pid> {
    let text = fs::read_to_string(path.join("cgroup.procs")).unwrap_or_default();
    text.lines().filter_map(parse_pid).collect()
}

/// Kills the processes in one group. Repeat until it is empty, because they may fork.
pub(super) fn kill_all(path: &Path) {
    if fs::write(path.join("cgroup.kill"), "1").is_ok() {
        return;
    }
    for pid in members(path) {
        // Membership is checked again after opening, because the process id may have been reused.
        if let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty())
            && members(path).contains(&pid)
        {
            let _ = pidfd_send_signal(&pidfd, Signal::KILL);
        }
    }
}

/// Removes a group and the groups created inside it.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => {
            let inner = fs::read_dir(path).into_iter().flatten().flatten();
            for entry in inner.filter(|e| e.file_type().is_ok_and(|t| t.is_dir())) {
                kill_all(&entry.path());
                remove(&entry.path())?;
            }
            fs::remove_dir(path).map_err(|_| error)
        }
        Ok(()) => Ok(()),
    }
}

/// The files with current and peak memory usage, and the field of `memory.stat` for the part that the kernel can
/// reclaim.
pub(super) struct Memory {
    pub(super) now: &'static str,
    pub(super) peak: &'static str,
    pub(super) cache: &'static str,
}

pub(super) fn check(
    path: &Path,
    file: &str,
    expected: &str,
    version: Version,
) -> Result<String, String> {
    let version = match version {
        Version::One => "v1",
        Version::Two => "v2",
    };
    match fs::read_to_string(path.join(file)) {
        Ok(found) if found.trim() == expected => {
            Ok(format!("{file} = {expected} (cgroup {version})"))
        }
        Ok(found) => Err(format!(
            "{file} is {} instead of {expected} (cgroup {version})",
            found.trim()
        )),
        Err(error) => Err(format!("{file}: {error} (cgroup {version})")),
    }
}

pub(super) fn swapping() -> bool {
    fs::read_to_string("/proc/swaps").map_or(true, |swaps| swaps.lines().count() > 1)
}
