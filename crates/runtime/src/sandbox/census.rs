//! Resource usage of all processes in one namespace, from `/proc`. Used where no control group counts it.
//!
//! Less exact than control groups: shared memory is counted once per process, and the processor time of exited
//! processes is missing.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Pid;

use crate::handle::Usage;

/// Usage of all processes in the process namespace of `pid`.
pub(super) fn usage(pid: Pid) -> Option<Usage> {
    let namespace = |process: &Path| fs::read_link(process.join("ns/pid")).ok();
    let wanted = namespace(&Path::new("/proc").join(pid.as_raw_pid().to_string()))?;
    let mut usage = Usage::default();
    for process in fs::read_dir("/proc").ok()?.flatten() {
        let process: PathBuf = process.path();
        if namespace(&process).as_ref() == Some(&wanted)
            && let Ok(stat) = fs::read_to_string(process.join("stat"))
            && let Some((cpu, memory, threads)) = parse(&stat)
        {
            usage.cpu += cpu;
            usage.memory += memory;
            usage.pids += threads;
        }
    }
    Some(usage)
}

/// Processor time, resident bytes and threads: fields 14 and 15, 24, and 20 of proc_pid_stat(5).
fn parse(stat: &str) -> Option<(Duration, u64, u32)> {
    let (_, after_name) = stat.rsplit_once(") ")?;
    let fields: Vec<_> = after_name.split_ascii_whitespace().collect();
    // The first element of `fields` is field 3.
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    let ticks = field(14)? + field(15)?;
    let cpu = Duration::from_millis(ticks * 1000 / rustix::param::clock_ticks_per_second());
    let memory = field(24)? * rustix::param::page_size() as u64;
    Some((cpu, memory, field(20)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_namespace_has_at_least_this_process() {
        let usage = usage(rustix::process::getpid()).unwrap();
        assert!(usage.pids >= 1 && usage.memory > 1 << 20, "{usage:?}");
    }

    #[test]
    fn a_name_does_not_shift_the_fields() {
        let rest: Vec<String> = (4..=30).map(|field: u32| field.to_string()).collect();
        let line = format!("7 (a) S (b) S {}", rest.join(" "));
        let (cpu, memory, threads) = parse(&line).unwrap();
        assert_eq!(
            cpu,
            Duration::from_millis(29_000 / rustix::param::clock_ticks_per_second())
        );
        assert_eq!(
            (memory, threads),
            (24 * rustix::param::page_size() as u64, 20)
        );
        assert_eq!(parse("7 (a) S 1 2"), None);
    }
}
