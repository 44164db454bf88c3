//! Names and rules that are specific to version 1.

use std::{
    fs::{self, OpenOptions},
    path::Path,
};

use super::{Found, Mount, Place, TOP_GROUP, Version, files::set};
use crate::sandbox::cgroup::files::CPU_PERIOD_MICROS;
use crate::sandbox::cgroup::files::Memory;
use crate::sandbox::cgroup::files::check;
use crate::sandbox::cgroup::files::swapping;

pub(super) const OUT_OF_MEMORY: &str = "memory.oom_control";
pub(super) const MEMORY: Memory = Memory {
    now: "memory.usage_in_bytes",
    peak: "memory.max_usage_in_bytes",
    cache: "total_inactive_file",
};

/// Finds where groups can be created in a version 1 hierarchy.
pub(super) fn place(mount: &Mount, own: &str, controller: &str, install: &str) -> Found {
    let own = own.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let controllers = fields.nth(1)?;
        controllers
            .split(',')
            .any(|one| one == controller)
            .then(|| fields.next())?
    });
    let own = own.unwrap_or_default().trim_start_matches('/');
    let mut why = String::new();
    for base in [mount.at.clone(), mount.at.join(own)] {
        let root = base.join(TOP_GROUP).join(install);
        let usable = fs::create_dir_all(&root).and_then(|()| {
            OpenOptions::new()
                .write(true)
                .open(root.join("cgroup.procs"))
        });
        match usable {
            Ok(_) => {
                let version = Version::One;
                return Ok(Place { root, version });
            }
            Err(error) => why = format!("cannot create `{}`: {error}", root.display()),
        }
    }
    Err(format!("{why}; control groups of version 1 need root"))
}

pub(super) fn limit_memory(path: &Path, bytes: u64) {
    set(&path.join("memory.limit_in_bytes"), bytes);
    set(&path.join("memory.memsw.limit_in_bytes"), bytes);
}

pub(super) fn memory_enforced(path: &Path, expected: &str) -> Result<String, String> {
    let how = check(path, "memory.limit_in_bytes", expected, Version::One)?;
    let swap = path.join("memory.memsw.limit_in_bytes");
    match fs::read_to_string(swap) {
        Ok(found) if found.trim() == expected => Ok(how + ", swap included"),
        _ if !swapping() => Ok(how + ", no swap in use"),
        _ => Err(format!(
            "{how}, but swap is not counted; boot with `swapaccount=1` or run `swapoff -a`"
        )),
    }
}

pub(super) fn limit_cpu(path: &Path, quota: u64) {
    set(&path.join("cpu.cfs_period_us"), CPU_PERIOD_MICROS);
    let (file, value) = cpu_limit(quota);
    set(&path.join(file), value);
}

/// The file of the limit, and its content.
pub(super) fn cpu_limit(quota: u64) -> (&'static str, String) {
    ("cpu.cfs_quota_us", quota.to_string())
}
