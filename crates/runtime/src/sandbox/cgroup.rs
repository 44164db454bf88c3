//! Control groups of this installation: version 1, version 2, or a mixture of both.
//!
//! Each instance has a group `toolwharf/INSTALL/ID.RUN-SERIAL` in every hierarchy that is used. A version 2 hierarchy
//! without controllers is used for `cgroup.kill`.
//!
//! # Invariants
//!
//! - A limit is set before any process joins. Its reported status is read back from the kernel.
//! - Nothing outside `toolwharf/INSTALL` is ever killed or removed.
//! - A group is removed when it is empty. If it cannot be removed, [`Tree::sweep`] removes it later.
//!
//! # Deliberately absent
//!
//! The device and block I/O controllers. The sandbox has no device nodes, and disk limits bound what it writes.

mod files;
mod group;
mod v1;
mod v2;

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    sync::atomic::AtomicBool,
    thread,
    time::Duration,
};

use model::ResourceLimits;
use tokio::time::Instant;

use self::files::{kill_all, remove};

pub(super) use self::group::Group;

/// The directory in a hierarchy that holds the groups of all installations.
const TOP_GROUP: &str = "toolwharf";

/// Deadline for the processes that a sweep killed to exit.
const SWEEP_TIMEOUT: Duration = Duration::from_secs(3);

const POLL_INTERVAL: Duration = Duration::from_millis(2);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// The directory for the groups of one controller.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    /// `…/toolwharf/INSTALL`.
    root: PathBuf,
    version: Version,
}

/// A controller, or the reason why it cannot be used.
type Found = Result<Place, String>;

/// The control groups of this host that can be used.
#[derive(Debug)]
pub(super) struct Tree {
    cpu: Found,
    /// Version 1 accounts for processor time in a separate controller.
    accounts: Option<Place>,
    memory: Found,
    pids: Found,
    /// A version 2 hierarchy that has `cgroup.kill`.
    kill: Option<Place>,
}

/// A mounted hierarchy, from `/proc/self/mountinfo`.
#[derive(Debug, PartialEq, Eq)]
struct Mount {
    version: Version,
    at: PathBuf,
    /// Version 1 only: its controllers, among other mount options.
    options: Vec<String>,
}

impl Tree {
    /// Finds the hierarchies and creates this installation's directories. Blocks briefly.
    pub(super) fn new(install: &str) -> Self {
        let mountinfo = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        Self::find(&mounts(&mountinfo), &own, install)
    }

    fn find(mounts: &[Mount], own: &str, install: &str) -> Self {
        let two = mounts
            .iter()
            .find(|mount| mount.version == Version::Two)
            .map(|mount| v2::unified(mount, own, install));
        let place = |controller: &str| -> Found {
            if let Some(mount) = mounts
                .iter()
                .find(|mount| mount.options.iter().any(|option| option == controller))
            {
                return v1::place(mount, own, controller, install);
            }
            match &two {
                Some(Ok(two)) if two.controllers.contains(controller) => Ok(two.place.clone()),
                Some(Ok(_)) => Err(format!("cgroup controller `{controller}` is not available")),
                Some(Err(why)) => Err(why.clone()),
                None => Err("no control groups are mounted at /sys/fs/cgroup".to_owned()),
            }
        };
        let cpu = place("cpu");
        let accounts = match &cpu {
            Ok(cpu) if cpu.version == Version::Two => Some(cpu.clone()),
            _ => place("cpuacct").ok(),
        };
        let (memory, pids) = (place("memory"), place("pids"));
        let kill = two.and_then(Result::ok).map(|two| two.place);
        Self {
            cpu,
            accounts,
            memory,
            pids,
            kill,
        }
    }

    /// A description for people, such as `cgroup v1 (cpu, memory, pids)`.
    pub(super) fn describe(&self) -> String {
        let found = [
            ("cpu", &self.cpu),
            ("memory", &self.memory),
            ("pids", &self.pids),
        ];
        let of = |version| {
            found
                .iter()
                .filter(|(_, place)| place.as_ref().is_ok_and(|place| place.version == version))
                .map(|(name, _)| *name)
                .collect::<Vec<_>>()
        };
        let mut parts = Vec::new();
        for (version, text) in [(Version::One, "v1"), (Version::Two, "v2")] {
            if !of(version).is_empty() {
                parts.push(format!("cgroup {text} ({})", of(version).join(", ")));
            }
        }
        for (name, place) in found {
            if let Err(why) = place {
                parts.push(format!("no {name} limit: {why}"));
            }
        }
        parts.join("; ")
    }

    /// Creates a group with its limits. `extra` is the number of processes that belong to the sandbox itself.
    ///
    /// # Errors
    ///
    /// There is a hierarchy, but no group could be created in it. A limit that the kernel did not accept is not an
    /// error here: [`Group::enforced`] reports it.
    pub(super) fn group(
        &self,
        name: &str,
        limits: &ResourceLimits,
        extra: u32,
    ) -> io::Result<Group> {
        let mut group = Group {
            name: name.to_owned(),
            cpu: Err(String::new()),
            accounts: None,
            memory: Err(String::new()),
            pids: Err(String::new()),
            kill: None,
            directories: BTreeSet::new(),
            events: None,
            bombed: AtomicBool::new(false),
            removed: AtomicBool::new(false),
        };
        let mut make = |place: &Place| -> io::Result<PathBuf> {
            let path = place.root.join(name);
            if group.directories.insert(path.clone()) {
                fs::create_dir(&path)?;
            }
            Ok(path)
        };
        let memory = self.memory.as_ref().map(|p| (make(p), p.version));
        let cpu = self.cpu.as_ref().map(|p| (make(p), p.version));
        let pids = self.pids.as_ref().map(|p| (make(p), p.version));
        let accounts = self.accounts.as_ref().map(&mut make).transpose()?;
        let kill = self.kill.as_ref().map(&mut make).transpose()?;
        type Made<'a> = Result<(io::Result<PathBuf>, Version), &'a String>;
        let settled = |made: Made<'_>| match made {
            Ok((path, version)) => Ok(Ok((path?, version))),
            Err(why) => Ok::<_, io::Error>(Err(why.clone())),
        };
        group.memory = settled(memory)?;
        group.cpu = settled(cpu)?;
        group.pids = settled(pids)?;
        group.accounts = accounts;
        if let Ok((path, _)) = &group.pids {
            group.events = File::open(path.join("pids.events")).ok();
        }
        group.kill = kill.filter(|path| path.join("cgroup.kill").exists());
        group.limit(limits, extra);
        Ok(group)
    }

    /// Kills the processes in the groups that `stale` accepts and removes these groups. Returns the names of the
    /// removed groups. Blocks for up to about 3 seconds.
    pub(super) fn sweep(&self, stale: impl Fn(&str) -> bool) -> BTreeSet<String> {
        let mut groups: Vec<(String, PathBuf)> = Vec::new();
        for root in self.roots() {
            let entries = fs::read_dir(root).into_iter().flatten().flatten();
            for entry in entries.filter(|e| e.file_type().is_ok_and(|t| t.is_dir())) {
                if let Ok(name) = entry.file_name().into_string()
                    && stale(&name)
                {
                    groups.push((name, entry.path()));
                }
            }
        }
        let deadline = Instant::now() + SWEEP_TIMEOUT;
        let mut gone = BTreeSet::new();
        while !groups.is_empty() {
            for (_, path) in &groups {
                kill_all(path);
            }
            groups.retain(|(name, path)| match remove(path) {
                Ok(()) => {
                    gone.insert(name.clone());
                    false
                }
                Err(_) => true,
            });
            if !groups.is_empty() && Instant::now() >= deadline {
                tracing::warn!(left = groups.len(), "control groups cannot be removed");
                break;
            }
            thread::sleep(POLL_INTERVAL);
        }
        gone
    }

    fn roots(&self) -> BTreeSet<&Path> {
        [self.cpu.as_ref(), self.memory.as_ref(), self.pids.as_ref()]
            .into_iter()
            .flatten()
            .chain(&self.accounts)
            .chain(&self.kill)
            .map(|place| place.root.as_path())
            .collect()
    }
}

fn mounts(mountinfo: &str) -> Vec<Mount> {
    let parse = |line: &str| {
        let (before, after) = line.split_once(" - ")?;
        let at = PathBuf::from(before.split(' ').nth(4)?);
        let mut after = after.split(' ');
        let version = match after.next()? {
            "cgroup" => Version::One,
            "cgroup2" => Version::Two,
            _ => return None,
        };
        let options = match version {
            Version::One => after.nth(1)?.split(',').map(str::to_owned).collect(),
            Version::Two => Vec::new(),
        };
        Some(Mount {
            version,
            at,
            options,
        })
    };
    mountinfo.lines().filter_map(parse).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn hierarchies_are_told_apart() {
        let text = "31 24 0:27 / /sys/fs/cgroup/cpu rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct\n\
                    32 24 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n\
                    33 24 0:29 / /tmp rw - tmpfs tmpfs rw\n\
                    a line that is none";
        let found = mounts(text);
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].version, Version::One);
        assert!(found[0].options.contains(&"cpuacct".to_owned()));
        assert_eq!(found[1].at, Path::new("/sys/fs/cgroup/unified"));
    }

    #[test]
    fn without_hierarchies_every_limit_says_why_it_does_not_hold() {
        let tree = Tree::find(&[], "", "test");
        assert!(
            tree.describe()
                .contains("no memory limit: no control groups")
        );
        let limits = ResourceLimits::default();
        let group = tree.group("a.b-0", &limits, 2).unwrap();
        assert!(group.enforced(&limits, 2).iter().all(|row| !row.holds));
        assert_eq!(group.usage(), None);
        assert!(group.shown().is_empty());
    }

    /// Uses plain files instead of real control groups. Checks what is written and what is read back. Real groups of
    /// the version that the machine has are tested in `tests/sandbox.rs`.
    #[test]
    fn version_2_is_written_and_read_by_its_own_names() {
        let directory = tempfile::tempdir().unwrap();
        let at = directory.path().to_owned();
        let root = at.join(TOP_GROUP).join("test");
        fs::create_dir_all(&root).unwrap();
        for level in [&at, &at.join(TOP_GROUP), &root] {
            fs::write(level.join("cgroup.procs"), "").unwrap();
            fs::write(level.join("cgroup.controllers"), "cpu memory pids").unwrap();
            fs::write(level.join("cgroup.subtree_control"), "").unwrap();
        }
        let mount = Mount {
            version: Version::Two,
            at: at.clone(),
            options: Vec::new(),
        };
        let unified = v2::unified(&mount, "0::/\n", "test").unwrap();
        for level in [&at, &at.join(TOP_GROUP), &root] {
            let written = fs::read_to_string(level.join("cgroup.subtree_control")).unwrap();
            assert_eq!(written, "+pids", "the last value written");
        }
        let place = unified.place;
        let tree = Tree {
            cpu: Ok(place.clone()),
            memory: Ok(place.clone()),
            pids: Ok(place.clone()),
            accounts: Some(place.clone()),
            kill: Some(place),
        };
        let limits = ResourceLimits::default();
        let group = tree.group("a.b-0", &limits, 2).unwrap();
        let read = |file: &str| fs::read_to_string(root.join("a.b-0").join(file)).unwrap();
        assert_eq!(read("memory.max"), "536870912");
        assert_eq!(read("memory.swap.max"), "0");
        assert_eq!(read("cpu.max"), "50000 100000");
        assert_eq!(read("pids.max"), "514");
        assert!(group.enforced(&limits, 2).iter().all(|row| row.holds));
        assert_eq!(group.shown(), [(root.join("a.b-0"), "/sys/fs/cgroup")]);
        let write = |file: &str, text: &str| {
            fs::write(root.join("a.b-0").join(file), text).unwrap();
        };
        write("memory.events", "low 0\noom 2\noom_kill 1\n");
        assert_eq!(group.out_of_memory(), 1);
        write("cpu.stat", "usage_usec 1500\n");
        write("memory.current", "9000");
        write("memory.stat", "anon 1\ninactive_file 4000\n");
        write("pids.current", "3");
        let usage = group.usage().unwrap();
        assert_eq!(usage.cpu, Duration::from_micros(1500));
        assert_eq!(
            (usage.memory, usage.memory_peak, usage.pids),
            (5000, 9000, 3)
        );
        // Plain files cannot be removed like a group, so there is nothing to wait for.
        group.removed.store(true, Ordering::Release);
    }
}
