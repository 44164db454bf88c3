//! CPU time and memory of a single process, without its children, as reported by the kernel. Reading them fails if the
//! process does not exist.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use rustix::process::Pid;

/// CPU time that the process has used so far, in nanoseconds.
///
/// The sum over its threads as counted by the scheduler, which is exact, or `utime + stime` in ticks of 10 ms if the
/// kernel does not keep that count. The exact sum lacks threads that have ended, so the larger of the two values is
/// used.
pub(crate) fn cpu_time(pid: u32) -> anyhow::Result<u64> {
    let mut exact = 0;
    for task in fs::read_dir(format!("/proc/{pid}/task")).with_context(|| gone(pid))? {
        // A thread may end between listing and reading.
        if let Ok(stat) = fs::read_to_string(task?.path().join("schedstat")) {
            exact += field(&stat, 0);
        }
    }
    let stat = stat(pid)?;
    let ticks = field(&stat, 11) + field(&stat, 12);
    // The coarse count must be two ticks larger to be used, because it may exceed the exact sum by rounding alone.
    let coarse = ticks * 10_000_000;
    Ok(if coarse > exact + 20_000_000 {
        coarse
    } else {
        exact
    })
}

/// CPU time that a process and its children have used so far, in nanoseconds. Includes children that have exited, if
/// the process waited for them.
pub(crate) fn family_cpu(pid: u32) -> anyhow::Result<u64> {
    let stat = stat(pid)?;
    let ended = (field(&stat, 13) + field(&stat, 14)) * 10_000_000;
    let living: u64 = (children(pid).into_iter())
        .map(|child| cpu_time(child).unwrap_or(0))
        .sum();
    Ok(cpu_time(pid)? + ended + living)
}

/// The parent process.
pub(crate) fn parent(pid: u32) -> anyhow::Result<u32> {
    Ok(u32::try_from(field(&stat(pid)?, 1))?)
}

/// The process's status (proc(5), `stat`), beginning with its state.
fn stat(pid: u32) -> anyhow::Result<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).with_context(|| gone(pid))?;
    // The second field is the command in parentheses, which may contain any character.
    let after = stat.rsplit_once(')').map_or("", |(_, after)| after);
    Ok(after.to_owned())
}

/// Computes until this process has used this much CPU time.
pub(crate) fn compute(work: Duration) -> anyhow::Result<()> {
    let wanted = work.as_nanos() as u64;
    let own = std::process::id();
    while wanted > 0 && cpu_time(own)? < wanted {
        for n in 0..1_000_000_u64 {
            std::hint::black_box(n);
        }
    }
    Ok(())
}

/// Private anonymous memory of the process in KiB, including swapped-out memory (proc(5), `smaps_rollup`). Does not
/// include the program text, which the kernel caches and can drop.
pub(crate) fn private(pid: u32) -> anyhow::Result<u64> {
    let all = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).with_context(|| gone(pid))?;
    let number = |name: &str| {
        let line = all.lines().find_map(|line| line.strip_prefix(name));
        line.map(|line| field(line, 0)).with_context(|| gone(pid))
    };
    Ok(number("Pss_Anon:")? + number("SwapPss:")?)
}

/// The sum of a figure over the descendants of `pid` that run the same program: the gateway's helper processes.
pub(crate) fn of_helpers(pid: u32, figure: fn(u32) -> anyhow::Result<u64>) -> u64 {
    let helpers = helpers(pid).into_iter();
    helpers.map(|pid| figure(pid).unwrap_or(0)).sum()
}

fn helpers(pid: u32) -> Vec<u32> {
    let Ok(program) = fs::read_link(format!("/proc/{pid}/exe")) else {
        return Vec::new();
    };
    let mut below = vec![pid];
    let mut found = Vec::new();
    while let Some(parent) = below.pop() {
        for child in children(parent) {
            below.push(child);
            if fs::read_link(format!("/proc/{child}/exe")).is_ok_and(|path| path == program) {
                found.push(child);
            }
        }
    }
    found
}

/// The process and its descendants, apart from descendants that run `program`.
pub(crate) fn family(pid: u32, program: &Path) -> Vec<u32> {
    let mut found = vec![pid];
    let mut next = 0;
    while let Some(parent) = found.get(next).copied() {
        next += 1;
        let others = children(parent).into_iter().filter(|child| {
            let exe = fs::read_link(format!("/proc/{child}/exe"));
            exe.is_ok_and(|exe| exe != program)
        });
        found.extend(others);
    }
    found
}

/// The largest resident memory that the process had so far, in KiB (proc(5), `status`).
pub(crate) fn peak(pid: u32) -> anyhow::Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).with_context(|| gone(pid))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.map(|line| field(line, 0)).with_context(|| gone(pid))
}

/// Number of open files of the process.
pub(crate) fn descriptors(pid: u32) -> anyhow::Result<usize> {
    let open = fs::read_dir(format!("/proc/{pid}/fd")).with_context(|| gone(pid))?;
    Ok(open.count())
}

/// Processes started with this environment entry, given as `NAME=VALUE` followed by a NUL.
pub(crate) fn with_variable(wanted: &str) -> anyhow::Result<Vec<u32>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")?.flatten() {
        let pid: Option<u32> = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok());
        let environment = fs::read(entry.path().join("environ")).unwrap_or_default();
        if memchr::memmem::find(&environment, wanted.as_bytes()).is_some() {
            found.extend(pid);
        }
    }
    Ok(found)
}

/// The process of a hosted server, by its environment entry, given as `NAME=VALUE`, and the start of its program's name.
pub(crate) fn hosted(entry: &str, program: &str) -> anyhow::Result<Pid> {
    let found = with_variable(&format!("{entry}\0"))?
        .into_iter()
        .find(|pid| {
            // The shim that starts the server has the variable, too, but another program name.
            let comm = fs::read_to_string(format!("/proc/{pid}/comm"));
            comm.is_ok_and(|comm| comm.starts_with(program))
        });
    let pid = found.with_context(|| format!("{entry} has no process"))?;
    Pid::from_raw(pid.cast_signed()).context("no process has this id")
}

fn children(pid: u32) -> Vec<u32> {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return Vec::new();
    };
    tasks
        .flatten()
        .filter_map(|task| fs::read_to_string(task.path().join("children")).ok())
        .flat_map(|line| {
            line.split_ascii_whitespace()
                .filter_map(|pid| pid.parse().ok())
                .collect::<Vec<_>>()
        })
        .collect()
}

fn field(line: &str, n: usize) -> u64 {
    line.split_ascii_whitespace()
        .nth(n)
        .and_then(|field| field.parse().ok())
        .unwrap_or(0)
}

fn gone(pid: u32) -> String {
    format!("process {pid} is gone")
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_family_is_without_the_given_program() {
        // Two processes: the shell, and the program that it starts, which waits for the end of its input.
        let mut shell = Command::new("sh")
            .args(["-c", "cat; true"])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let pid = shell.id();
        let other = Path::new("/nowhere");
        while family(pid, other).len() < 2 {
            std::thread::yield_now();
        }
        let cat = family(pid, other)[1];
        // Right after its start, the child is still a copy of the shell.
        let exe = |pid| fs::read_link(format!("/proc/{pid}/exe")).unwrap();
        while exe(cat) == exe(pid) {
            std::thread::yield_now();
        }
        assert_eq!(family(pid, &exe(cat)), [pid]);
        drop(shell.stdin.take());
        assert!(shell.wait().unwrap().success());
    }

    #[test]
    fn own_figures_can_be_read_and_cpu_time_grows_with_work() {
        let pid = std::process::id();
        let before = cpu_time(pid).unwrap();
        let mut sum = 0_u64;
        // Computes until the CPU time changes, so that the test does not depend on its resolution.
        for n in 0..2_000_000_000_u64 {
            sum = std::hint::black_box(sum.wrapping_add(n));
            if n % 1_000_000 == 0 && cpu_time(pid).unwrap() > before {
                break;
            }
        }
        assert!(cpu_time(pid).unwrap() > before);
        assert!(private(pid).unwrap() > 100);
        assert!(peak(pid).unwrap() > 100);
    }
}
