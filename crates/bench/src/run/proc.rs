//! CPU time and memory of a single process, without its children, as reported by the kernel.

use std::fs;
use std::time::Duration;

use anyhow::Context as _;

/// CPU time that the process has used so far, in nanoseconds.
///
/// The sum over its threads as counted by the scheduler, which is exact, or `utime + stime` in ticks of 10 ms if the
/// kernel does not keep that count. The exact sum lacks threads that have ended, so the larger value is used.
///
/// # Errors
///
/// The process does not exist.
pub(crate) fn cpu_time(pid: u32) -> anyhow::Result<u64> {
    let mut exact = 0;
    for task in fs::read_dir(format!("/proc/{pid}/task")).with_context(|| gone(pid))? {
        // A thread may end between listing and reading.
        if let Ok(stat) = fs::read_to_string(task?.path().join("schedstat")) {
            exact += field(&stat, 0);
        }
    }
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).with_context(|| gone(pid))?;
    // The second field is the command in parentheses, which may contain any character.
    let after = stat.rsplit_once(')').map_or("", |(_, after)| after);
    let ticks = field(after, 11) + field(after, 12);
    // Two ticks of slack. Otherwise the coarse count would win by rounding.
    let coarse = ticks * 10_000_000;
    Ok(if coarse > exact + 20_000_000 {
        coarse
    } else {
        exact
    })
}

/// CPU time that a process and its children have used so far, in nanoseconds. Includes children that have exited, if
/// the process waited for them.
///
/// # Errors
///
/// The process does not exist.
pub(crate) fn family_cpu(pid: u32) -> anyhow::Result<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).with_context(|| gone(pid))?;
    let after = stat.rsplit_once(')').map_or("", |(_, after)| after);
    let ended = (field(after, 13) + field(after, 14)) * 10_000_000;
    let living: u64 = (children(pid).into_iter())
        .map(|child| cpu_time(child).unwrap_or(0))
        .sum();
    Ok(cpu_time(pid)? + ended + living)
}

/// Computes until this process has used this much CPU time.
///
/// # Errors
///
/// The system does not count it.
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
///
/// # Errors
///
/// The process does not exist.
pub(crate) fn private(pid: u32) -> anyhow::Result<u64> {
    let all = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).with_context(|| gone(pid))?;
    let number = |name: &str| {
        let line = all.lines().find_map(|line| line.strip_prefix(name));
        line.map(|line| field(line, 0)).with_context(|| gone(pid))
    };
    Ok(number("Pss_Anon:")? + number("SwapPss:")?)
}

/// [`private`] memory in KiB of the descendants of `pid` that run the same program: the gateway's helper processes.
pub(crate) fn helpers_private(pid: u32) -> u64 {
    let private = |pid| private(pid).unwrap_or(0);
    helpers(pid).into_iter().map(private).sum()
}

/// CPU time of these helper processes so far, in nanoseconds.
pub(crate) fn helpers_cpu(pid: u32) -> u64 {
    let used = |pid| cpu_time(pid).unwrap_or(0);
    helpers(pid).into_iter().map(used).sum()
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

/// Number of open files of the process.
///
/// # Errors
///
/// The process does not exist.
pub(crate) fn descriptors(pid: u32) -> anyhow::Result<usize> {
    let open = fs::read_dir(format!("/proc/{pid}/fd")).with_context(|| gone(pid))?;
    Ok(open.count())
}

/// Processes started with this environment entry, given as `NAME=VALUE` followed by a NUL.
///
/// # Errors
///
/// The system does not list its processes.
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
    use super::*;

    #[test]
    fn own_figures_can_be_read_and_cpu_time_grows_with_work() {
        let pid = std::process::id();
        let before = cpu_time(pid).unwrap();
        let mut sum = 0_u64;
        // Works until the count changes, so that its resolution does not matter.
        for n in 0..2_000_000_000_u64 {
            sum = std::hint::black_box(sum.wrapping_add(n));
            if n % 1_000_000 == 0 && cpu_time(pid).unwrap() > before {
                break;
            }
        }
        assert!(cpu_time(pid).unwrap() > before);
        assert!(private(pid).unwrap() > 100);
    }
}
