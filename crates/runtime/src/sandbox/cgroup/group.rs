//! The control groups of one instance: limits, usage and removal.

use crate::sandbox::cgroup::files::CPU_PERIOD_MICROS;
use crate::sandbox::cgroup::files::Memory;
use crate::sandbox::cgroup::files::check;
use std::{
    collections::BTreeSet,
    fs::{self, File, OpenOptions},
    io,
    os::{fd::OwnedFd, unix::fs::FileExt as _},
    path::PathBuf,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use model::ResourceLimits;
use rustix::process::Pid;
use tokio::time::Instant;

use super::{
    POLL_INTERVAL, Version,
    files::{field, field_of, kill_all, members, number, remove, set},
    v1, v2,
};
use crate::handle::Usage;
use crate::{process_tree::Stat, unit::Enforced};

/// Deadline for a group to become removable after its last process is dead.
const REMOVE_TIMEOUT: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub(in crate::sandbox) struct Group {
    pub(super) name: String,
    pub(super) cpu: Result<(PathBuf, Version), String>,
    pub(super) accounts: Option<PathBuf>,
    pub(super) memory: Result<(PathBuf, Version), String>,
    pub(super) pids: Result<(PathBuf, Version), String>,
    pub(super) kill: Option<PathBuf>,
    pub(super) directories: BTreeSet<PathBuf>,
    /// The file in which the kernel counts refused processes. Kept open because it is polled.
    pub(super) events: Option<File>,
    /// True if the fork-bomb guard killed the instance.
    pub(super) bombed: AtomicBool,
    pub(super) removed: AtomicBool,
}

impl Group {
    pub(super) fn limit(&self, limits: &ResourceLimits, extra: u32) {
        if let Ok((path, version)) = &self.memory {
            match version {
                Version::One => v1::limit_memory(path, limits.memory),
                Version::Two => v2::limit_memory(path, limits.memory),
            }
        }
        if let Ok((path, version)) = &self.cpu {
            match version {
                Version::One => v1::limit_cpu(path, quota(limits)),
                Version::Two => v2::limit_cpu(path, quota(limits)),
            }
        }
        if let Ok((path, _)) = &self.pids {
            set(
                &path.join("pids.max"),
                u64::from(limits.pids) + u64::from(extra),
            );
        }
    }

    /// Reads the processor, memory and process limits back from the kernel.
    pub(in crate::sandbox) fn enforced(
        &self,
        limits: &ResourceLimits,
        extra: u32,
    ) -> [Enforced; 3] {
        let cpu = self.cpu.clone().and_then(|(path, version)| {
            let (file, expected) = match version {
                Version::One => v1::cpu_limit(quota(limits)),
                Version::Two => v2::cpu_limit(quota(limits)),
            };
            check(&path, file, &expected, version)
        });
        let memory = self.memory.clone().and_then(|(path, version)| {
            // The kernel counts in whole pages.
            let expected = (limits.memory & !(page() - 1)).to_string();
            match version {
                Version::One => v1::memory_enforced(&path, &expected),
                Version::Two => v2::memory_enforced(&path, &expected),
            }
        });
        let pids = self.pids.clone().and_then(|(path, version)| {
            let expected = (u64::from(limits.pids) + u64::from(extra)).to_string();
            let how = check(&path, "pids.max", &expected, version)?;
            Ok(format!("{how}, {extra} of them used by the sandbox itself"))
        });
        [("cpu", cpu), ("memory", memory), ("pids", pids)].map(|(what, found)| Enforced {
            what,
            holds: found.is_ok(),
            how: found.unwrap_or_else(|why| why),
        })
    }

    /// Opens the files that a process writes `0` to in order to join all groups.
    pub(in crate::sandbox) fn doors(&self) -> io::Result<Vec<OwnedFd>> {
        self.directories
            .iter()
            .map(|path| {
                let file = OpenOptions::new()
                    .write(true)
                    .open(path.join("cgroup.procs"))?;
                Ok(file.into())
            })
            .collect()
    }

    /// The group's own directories that its processes may read, with the paths at which runtimes such as those of Java
    /// and .NET look for their limits.
    pub(in crate::sandbox) fn shown(&self) -> Vec<(PathBuf, &'static str)> {
        let of_one = |found: &Result<(PathBuf, Version), String>, at| match found {
            Ok((path, Version::One)) => Some((path.clone(), at)),
            _ => None,
        };
        match &self.memory {
            Ok((path, Version::Two)) => vec![(path.clone(), "/sys/fs/cgroup")],
            _ => {
                let memory = of_one(&self.memory, "/sys/fs/cgroup/memory");
                let cpu = of_one(&self.cpu, "/sys/fs/cgroup/cpu");
                memory.into_iter().chain(cpu).collect()
            }
        }
    }

    /// Returns whether `pid` is in all groups of the instance.
    pub(in crate::sandbox) fn holds(&self, pid: Pid) -> bool {
        let number = pid.as_raw_pid().to_string();
        self.directories.iter().all(|path| {
            fs::read_to_string(path.join("cgroup.procs"))
                .is_ok_and(|procs| procs.lines().any(|line| line == number))
        })
    }

    pub(in crate::sandbox) fn kill(&self) {
        match &self.kill {
            Some(path) if fs::write(path.join("cgroup.kill"), "1").is_ok() => {}
            _ => self.directories.iter().for_each(|path| kill_all(path)),
        }
    }

    /// Returns whether the group contains no living process. Zombies do not count.
    pub(in crate::sandbox) fn empty(&self) -> bool {
        self.directories.iter().all(|path| {
            members(path)
                .into_iter()
                .all(|pid| Stat::read(pid).is_none_or(|stat| stat.zombie))
        })
    }

    /// Number of its processes that the out-of-memory killer has killed.
    pub(in crate::sandbox) fn out_of_memory(&self) -> u64 {
        let Ok((path, version)) = &self.memory else {
            return 0;
        };
        let file = match version {
            Version::One => v1::OUT_OF_MEMORY,
            Version::Two => v2::OUT_OF_MEMORY,
        };
        field(&path.join(file), "oom_kill").unwrap_or(0)
    }

    /// Number of processes that the kernel has refused to create so far, if counted.
    pub(in crate::sandbox) fn refused(&self) -> Option<u64> {
        let mut text = [0; 256];
        let length = self.events.as_ref()?.read_at(&mut text, 0).ok()?;
        field_of(std::str::from_utf8(&text[..length]).ok()?, "max")
    }

    /// Kills all processes of the group, and records that they were a fork bomb.
    pub(in crate::sandbox) fn end_bomb(&self) {
        self.bombed.store(true, Ordering::Release);
        self.kill();
    }

    /// Returns whether [`Group::end_bomb`] was called.
    pub(in crate::sandbox) fn fork_bomb(&self) -> bool {
        self.bombed.load(Ordering::Acquire)
    }

    /// Returns whether a controller accounts for the group's usage.
    pub(in crate::sandbox) fn counts(&self) -> bool {
        self.accounts.is_some()
    }

    pub(in crate::sandbox) fn usage(&self) -> Option<Usage> {
        let mut usage = Usage::default();
        let accounts = self.accounts.as_ref()?;
        usage.cpu = match number(&accounts.join("cpuacct.usage")) {
            Some(nanos) => Duration::from_nanos(nanos),
            None => Duration::from_micros(field(&accounts.join("cpu.stat"), "usage_usec")?),
        };
        if let Ok((path, version)) = &self.memory {
            let Memory { now, peak, cache } = match version {
                Version::One => v1::MEMORY,
                Version::Two => v2::MEMORY,
            };
            let now = number(&path.join(now))?;
            // Older kernels of version 2 record no peak.
            usage.memory_peak = number(&path.join(peak)).unwrap_or(0).max(now);
            // Page cache that the kernel can reclaim at any time does not count.
            let cache = field(&path.join("memory.stat"), cache).unwrap_or(0);
            usage.memory = now.saturating_sub(cache);
        }
        usage.pids = match &self.pids {
            Ok((path, _)) => number(&path.join("pids.current"))?.try_into().ok()?,
            Err(_) => members(accounts).len().try_into().ok()?,
        };
        Some(usage)
    }

    /// Removes the group if it is empty, or becomes empty soon.
    pub(in crate::sandbox) fn remove(&self) {
        if self.removed.swap(true, Ordering::AcqRel) {
            return;
        }
        let deadline = Instant::now() + REMOVE_TIMEOUT;
        for path in &self.directories {
            while let Err(error) = remove(path) {
                if Instant::now() >= deadline {
                    tracing::warn!(group = self.name, %error, "control group cannot be removed");
                    break;
                }
                self.kill();
                thread::sleep(POLL_INTERVAL);
            }
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.remove();
    }
}

/// Microseconds per [`CPU_PERIOD_MICROS`].
fn quota(limits: &ResourceLimits) -> u64 {
    u64::from(limits.cpu_millis) * CPU_PERIOD_MICROS / 1000
}

fn page() -> u64 {
    rustix::param::page_size() as u64
}
