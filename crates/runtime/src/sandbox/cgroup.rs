//! Control groups of this installation, of version 1, version 2, or a mixture of both.
//!
//! Every instance has a group `toolwharf/INSTALL/ID.RUN-SERIAL` in each hierarchy that is used.
//! Where version 2 holds no controllers it is used all the same, for `cgroup.kill`.
//!
//! # Invariants
//!
//! - A limit is set before anybody joins, and what is told of it was read back from the kernel.
//! - Nothing outside of `toolwharf/INSTALL` is ever killed or removed.
//! - A group is removed when it is empty; what cannot be removed is left for [`Tree::sweep`].
//!
//! # Deliberately absent
//!
//! Controllers of devices and of block I/O: the sandbox has no device nodes, and what it writes
//! is bounded in size.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use model::ResourceLimits;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::time::Instant;

use crate::lineage::{Stat, parse_pid};
use crate::unit::{Enforced, Usage};

/// The directory of all installations in a hierarchy.
const TOP: &str = "toolwharf";
/// Where this process goes when its own group has to become one that only has children.
const HOST: &str = "toolwharf-host";
/// Microseconds; the kernel's own default.
const PERIOD: u64 = 100_000;
const CONTROLLERS: [&str; 3] = ["memory", "cpu", "pids"];
/// How long a group may stay busy when all that was in it is dead.
const BUSY: Duration = Duration::from_millis(500);
/// How far up a process looks for who started it.
const GENERATIONS: usize = 64;
const PAUSE: Duration = Duration::from_millis(2);
/// How long what a sweep kills may take to die.
const SWEEP: Duration = Duration::from_secs(3);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// Where the groups of one controller are made.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    /// `…/toolwharf/INSTALL`.
    root: PathBuf,
    version: Version,
}

/// A controller, or why there is none.
type Found = Result<Place, String>;

/// What of this host's control groups can be used.
#[derive(Debug)]
pub(super) struct Tree {
    cpu: Found,
    /// Version 1 counts apart from limiting.
    accounts: Option<Place>,
    memory: Found,
    pids: Found,
    /// A hierarchy of version 2 that has `cgroup.kill`.
    kill: Option<Place>,
}

/// One instance's groups.
#[derive(Debug)]
pub(super) struct Group {
    name: String,
    cpu: Result<(PathBuf, Version), String>,
    accounts: Option<PathBuf>,
    memory: Result<(PathBuf, Version), String>,
    pids: Result<(PathBuf, Version), String>,
    kill: Option<PathBuf>,
    directories: BTreeSet<PathBuf>,
    /// The kernel's count of refused processes. Kept open, for it is looked at again and again.
    events: Option<File>,
    /// Whether it was killed as a fork bomb.
    bombed: AtomicBool,
    removed: AtomicBool,
}

/// A mounted hierarchy, from `/proc/self/mountinfo`.
#[derive(Debug, PartialEq, Eq)]
struct Mount {
    version: Version,
    at: PathBuf,
    /// Of version 1: its controllers, among other options.
    options: Vec<String>,
}

impl Tree {
    /// Looks around and makes this installation's directories. Blocks for a moment.
    pub(super) fn new(install: &str) -> Self {
        let mountinfo = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        Self::find(&mounts(&mountinfo), &own, install)
    }

    fn find(mounts: &[Mount], own: &str, install: &str) -> Self {
        let two = mounts
            .iter()
            .find(|mount| mount.version == Version::Two)
            .map(|mount| unified(mount, own, install));
        let place = |controller: &str| -> Found {
            if let Some(mount) = mounts
                .iter()
                .find(|mount| mount.options.iter().any(|option| option == controller))
            {
                return first(mount, own, controller, install);
            }
            match &two {
                Some(Ok(two)) if two.controllers.contains(controller) => Ok(two.place.clone()),
                Some(Ok(_)) => Err(format!("the kernel has no controller `{controller}` here")),
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

    /// For a person: `cgroup v1 (cpu, memory, pids)`.
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

    /// Makes a group with its limits. `extra` are processes of the sandbox's own.
    ///
    /// # Errors
    ///
    /// Only what made it impossible to have a group at all where there is a hierarchy; a limit that
    /// the kernel did not take is told by [`Group::enforced`].
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

    /// Kills what is in the groups that `stale` accepts, and removes them; the names of those
    /// that are gone. Blocks, for 3 seconds or little more.
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
        let deadline = Instant::now() + SWEEP;
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
            thread::sleep(PAUSE);
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

impl Group {
    fn limit(&self, limits: &ResourceLimits, extra: u32) {
        let set = |path: PathBuf, value: u64| {
            // What did not take is seen when it is read back.
            let _ = fs::write(path, value.to_string());
        };
        if let Ok((path, version)) = &self.memory {
            match version {
                Version::One => {
                    set(path.join("memory.limit_in_bytes"), limits.memory);
                    set(path.join("memory.memsw.limit_in_bytes"), limits.memory);
                }
                Version::Two => {
                    set(path.join("memory.max"), limits.memory);
                    set(path.join("memory.swap.max"), 0);
                }
            }
        }
        if let Ok((path, version)) = &self.cpu {
            let quota = quota(limits.cpu_millis);
            match version {
                Version::One => {
                    set(path.join("cpu.cfs_period_us"), PERIOD);
                    set(path.join("cpu.cfs_quota_us"), quota);
                }
                Version::Two => {
                    let _ = fs::write(path.join("cpu.max"), format!("{quota} {PERIOD}"));
                }
            }
        }
        if let Ok((path, _)) = &self.pids {
            set(
                path.join("pids.max"),
                u64::from(limits.pids) + u64::from(extra),
            );
        }
    }

    /// What the kernel says of the limits of cpu, memory and processes.
    pub(super) fn enforced(&self, limits: &ResourceLimits, extra: u32) -> [Enforced; 3] {
        let cpu = self.cpu.clone().and_then(|(path, version)| {
            let quota = quota(limits.cpu_millis);
            let (file, expected) = match version {
                Version::One => ("cpu.cfs_quota_us", quota.to_string()),
                Version::Two => ("cpu.max", format!("{quota} {PERIOD}")),
            };
            check(&path, file, &expected, version)
        });
        let memory = self.memory.clone().and_then(|(path, version)| {
            // The kernel counts in pages.
            let expected = (limits.memory & !(page() - 1)).to_string();
            match version {
                Version::One => {
                    let how = check(&path, "memory.limit_in_bytes", &expected, version)?;
                    let swap = path.join("memory.memsw.limit_in_bytes");
                    match fs::read_to_string(swap) {
                        Ok(found) if found.trim() == expected => Ok(how + ", swap included"),
                        _ if !swapping() => Ok(how + ", no swap in use"),
                        _ => Err(format!(
                            "{how}, but swap is not counted; boot with `swapaccount=1` or switch swap off"
                        )),
                    }
                }
                Version::Two => {
                    let how = check(&path, "memory.max", &expected, version)?;
                    match fs::read_to_string(path.join("memory.swap.max")) {
                        Ok(found) if found.trim() == "0" => Ok(how + ", no swap"),
                        _ if !swapping() => Ok(how + ", no swap in use"),
                        _ => Err(format!("{how}, but swap is not limited; switch swap off")),
                    }
                }
            }
        });
        let pids = self.pids.clone().and_then(|(path, version)| {
            let expected = (u64::from(limits.pids) + u64::from(extra)).to_string();
            let how = check(&path, "pids.max", &expected, version)?;
            Ok(format!("{how}, {extra} of them the sandbox's own"))
        });
        [("cpu", cpu), ("memory", memory), ("pids", pids)].map(|(what, found)| Enforced {
            what,
            holds: found.is_ok(),
            how: found.unwrap_or_else(|why| why),
        })
    }

    /// Files for joining all of its groups by writing `0`.
    pub(super) fn doors(&self) -> io::Result<Vec<OwnedFd>> {
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

    /// Whether `pid` is in every one of its groups.
    pub(super) fn holds(&self, pid: Pid) -> bool {
        let number = pid.as_raw_pid().to_string();
        self.directories.iter().all(|path| {
            fs::read_to_string(path.join("cgroup.procs"))
                .is_ok_and(|procs| procs.lines().any(|line| line == number))
        })
    }

    pub(super) fn kill(&self) {
        match &self.kill {
            Some(path) if fs::write(path.join("cgroup.kill"), "1").is_ok() => {}
            _ => self.directories.iter().for_each(|path| kill_all(path)),
        }
    }

    /// Whether no living process is in it. The dead that wait to be reaped do not count.
    pub(super) fn empty(&self) -> bool {
        self.directories.iter().all(|path| {
            members(path)
                .into_iter()
                .all(|pid| Stat::read(pid).is_none_or(|stat| stat.zombie))
        })
    }

    /// How many of its processes were killed for want of memory.
    pub(super) fn out_of_memory(&self) -> u64 {
        let Ok((path, version)) = &self.memory else {
            return 0;
        };
        let file = match version {
            Version::One => "memory.oom_control",
            Version::Two => "memory.events",
        };
        field(&path.join(file), "oom_kill").unwrap_or(0)
    }

    /// How many processes it was refused so far, if that is counted.
    pub(super) fn refused(&self) -> Option<u64> {
        let mut text = [0; 256];
        let length = self.events.as_ref()?.read_at(&mut text, 0).ok()?;
        field_of(std::str::from_utf8(&text[..length]).ok()?, "max")
    }

    /// Kills what is in it for what it was refused.
    pub(super) fn end_bomb(&self) {
        self.bombed.store(true, Ordering::Release);
        self.kill();
    }

    /// Whether that was done.
    pub(super) fn fork_bomb(&self) -> bool {
        self.bombed.load(Ordering::Acquire)
    }

    /// Whether there is anything that counts.
    pub(super) fn counts(&self) -> bool {
        self.accounts.is_some()
    }

    pub(super) fn usage(&self) -> Option<Usage> {
        let mut usage = Usage::default();
        let accounts = self.accounts.as_ref()?;
        usage.cpu = match number(&accounts.join("cpuacct.usage")) {
            Some(nanos) => Duration::from_nanos(nanos),
            None => Duration::from_micros(field(&accounts.join("cpu.stat"), "usage_usec")?),
        };
        if let Ok((path, version)) = &self.memory {
            let (now, peak, cache) = match version {
                Version::One => (
                    "memory.usage_in_bytes",
                    "memory.max_usage_in_bytes",
                    "total_inactive_file",
                ),
                Version::Two => ("memory.current", "memory.peak", "inactive_file"),
            };
            let now = number(&path.join(now))?;
            // Older kernels of version 2 keep no peak.
            usage.memory_peak = number(&path.join(peak)).unwrap_or(0).max(now);
            // Pages of files that the kernel can take back at any time are no need of the server's.
            let cache = field(&path.join("memory.stat"), cache).unwrap_or(0);
            usage.memory = now.saturating_sub(cache);
        }
        usage.pids = match &self.pids {
            Ok((path, _)) => number(&path.join("pids.current"))?.try_into().ok()?,
            Err(_) => members(accounts).len().try_into().ok()?,
        };
        Some(usage)
    }

    /// Removes it, if it is empty or soon is.
    pub(super) fn remove(&self) {
        if self.removed.swap(true, Ordering::AcqRel) {
            return;
        }
        let deadline = Instant::now() + BUSY;
        for path in &self.directories {
            while let Err(error) = remove(path) {
                if Instant::now() >= deadline {
                    tracing::warn!(group = self.name, %error, "control group cannot be removed");
                    break;
                }
                self.kill();
                thread::sleep(PAUSE);
            }
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.remove();
    }
}

/// A usable hierarchy of version 2.
struct Unified {
    place: Place,
    controllers: BTreeSet<String>,
}

/// Where groups can be made in version 2, with controllers as far as they are delegated.
fn unified(mount: &Mount, own: &str, install: &str) -> Result<Unified, String> {
    let own = own
        .lines()
        .find_map(|line| line.strip_prefix("0::/"))
        .unwrap_or_default();
    let mut bases = vec![mount.at.clone()];
    if !own.is_empty() && !own.contains("..") {
        // An earlier run may have moved there already.
        let own = own.strip_suffix(HOST).unwrap_or(own);
        bases.push(mount.at.join(own.trim_end_matches('/')));
    }
    let mut why = String::new();
    for base in bases {
        match delegated(&base, install) {
            Ok(unified) => return Ok(unified),
            Err(error) => why = format!("`{}` is not ours to divide: {error}", base.display()),
        }
    }
    Err(why + "; run it as root, or as a systemd service with `Delegate=yes`")
}

fn delegated(base: &Path, install: &str) -> io::Result<Unified> {
    let top = base.join(TOP);
    let root = top.join(install);
    fs::create_dir_all(&root)?;
    // Without this nobody may be moved here, whatever else is allowed.
    OpenOptions::new()
        .write(true)
        .open(base.join("cgroup.procs"))?;
    let offered = words(&base.join("cgroup.controllers"));
    let wanted: Vec<_> = CONTROLLERS
        .iter()
        .filter(|controller| offered.contains(**controller))
        .collect();
    // Only the first group of all may have processes beside groups. It alone has no events. With
    // processes elsewhere some controllers could be had all the same, and spoil it for the others.
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

/// Whether a process is `ancestor` or one of its descendants, or gone.
fn descends(pid: Pid, ancestor: Pid) -> bool {
    let mut next = Some(pid);
    for _ in 0..GENERATIONS {
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

/// A group of version 2 with processes of its own hands no controllers on, save the first of all.
/// If there is none in it but this one and its descendants, they move on.
fn make_way(base: &Path) -> io::Result<()> {
    let me = rustix::process::getpid();
    let members = members(base);
    let ours = |&pid: &Pid| descends(pid, me);
    if !members.iter().all(ours) {
        return Err(io::Error::other("others run in the same control group"));
    }
    let host = base.join(HOST);
    match fs::create_dir(&host) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    for pid in members {
        fs::write(host.join("cgroup.procs"), pid.as_raw_pid().to_string())?;
    }
    Ok(())
}

/// Where groups can be made in a hierarchy of version 1.
fn first(mount: &Mount, own: &str, controller: &str, install: &str) -> Found {
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
        let root = base.join(TOP).join(install);
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
            Err(error) => why = format!("cannot make `{}`: {error}", root.display()),
        }
    }
    Err(format!("{why}; control groups of version 1 need root"))
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

fn quota(cpu_millis: u32) -> u64 {
    u64::from(cpu_millis) * PERIOD / 1000
}

fn page() -> u64 {
    rustix::param::page_size() as u64
}

fn check(path: &Path, file: &str, expected: &str, version: Version) -> Result<String, String> {
    let version = match version {
        Version::One => "v1",
        Version::Two => "v2",
    };
    match fs::read_to_string(path.join(file)) {
        Ok(found) if found.trim() == expected => {
            Ok(format!("{file} = {expected} (cgroup {version})"))
        }
        Ok(found) => Err(format!(
            "the kernel keeps {file} at {} and not at {expected} (cgroup {version})",
            found.trim()
        )),
        Err(error) => Err(format!("{file}: {error} (cgroup {version})")),
    }
}

fn swapping() -> bool {
    fs::read_to_string("/proc/swaps").map_or(true, |swaps| swaps.lines().count() > 1)
}

fn words(path: &Path) -> BTreeSet<String> {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.split_ascii_whitespace().map(str::to_owned).collect()
}

fn number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn field(path: &Path, name: &str) -> Option<u64> {
    field_of(&fs::read_to_string(path).ok()?, name)
}

/// A number of a file that has a name and a number in each line.
fn field_of(text: &str, name: &str) -> Option<u64> {
    text.lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
}

fn members(path: &Path) -> Vec<Pid> {
    let text = fs::read_to_string(path.join("cgroup.procs")).unwrap_or_default();
    text.lines().filter_map(parse_pid).collect()
}

/// Kills what is in one group. To be repeated until it is empty, for they fork.
fn kill_all(path: &Path) {
    if fs::write(path.join("cgroup.kill"), "1").is_ok() {
        return;
    }
    for pid in members(path) {
        // It is looked for again, for the number may be a stranger's by now.
        if let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty())
            && members(path).contains(&pid)
        {
            let _ = pidfd_send_signal(&pidfd, Signal::KILL);
        }
    }
}

/// Removes a group, and those that were made inside of it.
fn remove(path: &Path) -> io::Result<()> {
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

#[cfg(test)]
mod tests {
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
    }

    /// Plain files in the place of a kernel's: what is written where, and what is read back. Real
    /// groups are in `tests/sandbox.rs`, of the version that the machine has.
    #[test]
    fn version_2_is_written_and_read_by_its_own_names() {
        let directory = tempfile::tempdir().unwrap();
        let at = directory.path().to_owned();
        let root = at.join(TOP).join("test");
        fs::create_dir_all(&root).unwrap();
        for level in [&at, &at.join(TOP), &root] {
            fs::write(level.join("cgroup.procs"), "").unwrap();
            fs::write(level.join("cgroup.controllers"), "cpu memory pids").unwrap();
            fs::write(level.join("cgroup.subtree_control"), "").unwrap();
        }
        let mount = Mount {
            version: Version::Two,
            at: at.clone(),
            options: Vec::new(),
        };
        let unified = unified(&mount, "0::/\n", "test").unwrap();
        for level in [&at, &at.join(TOP), &root] {
            let written = fs::read_to_string(level.join("cgroup.subtree_control")).unwrap();
            assert_eq!(written, "+pids", "the last that was written");
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
        // Files cannot be removed as a group can: nothing to wait for.
        group.removed.store(true, Ordering::Release);
    }
}
