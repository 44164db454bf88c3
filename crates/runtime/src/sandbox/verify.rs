//! Reads the isolation of a sandboxed process back from the kernel, before the server runs.
//!
//! # Invariants
//!
//! - Isolation is reported as in force only if it was observed on the process that will become the server.

use std::collections::BTreeSet;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use model::Network;
use rustix::fs::{Mode, OFlags, ResolveFlags, fstat, open, openat2};
use rustix::process::Pid;

use super::mounts::{self, Mounted};
use super::seccomp;
use super::view::{Identity, Own, Plan};
use crate::unit::Enforced;

/// Namespaces that every sandbox has.
const NAMESPACES: [&str; 4] = ["pid", "mnt", "ipc", "uts"];
/// Writable paths inside: scratch space, device nodes, and views of processes.
pub(super) const WRITABLE: [&str; 5] = ["/tmp", "/run", "/dev", "/proc", "/dev/shm"];

/// The expected files of a sandbox.
#[derive(Clone, Copy)]
pub(super) struct Files<'a> {
    /// Paths inside that were requested as writable.
    pub(super) writable: &'a [PathBuf],
    pub(super) plan: &'a Plan,
    /// Toolwharf's own files. None of these files may be visible inside.
    pub(super) own: &'a Own,
    /// Paths inside that belong to Toolwharf but may be visible to this server: its package and its volumes.
    pub(super) given: &'a [PathBuf],
}

/// Checks file system, network, privileges, system calls and kernel.
pub(super) fn isolation(pid: Pid, network: &Network, files: Files<'_>, user: u32) -> [Enforced; 5] {
    let row = |what, found: Result<String, String>| Enforced {
        what,
        holds: found.is_ok(),
        how: found.unwrap_or_else(|why| why),
    };
    [
        row("filesystem", filesystem(pid, files)),
        row("network", reach(pid, network)),
        row("privileges", privileges(pid, user)),
        row("system calls", system_calls(pid)),
        row("kernel", Err(kernel())),
    ]
}

fn filesystem(pid: Pid, files: Files<'_>) -> Result<String, String> {
    for namespace in NAMESPACES {
        if !apart(pid, namespace)? {
            return Err(format!("it is in the host's {namespace} namespace"));
        }
    }
    let mounts = mounts::parse(&read(pid, "mountinfo")?)?;
    let mut writable = BTreeSet::new();
    for mount in &mounts {
        let at = mount.at.display();
        if mount.is_attached {
            return Err(format!("the mount `{at}` propagates from the host"));
        }
        let is_scratch = || {
            WRITABLE
                .iter()
                .any(|scratch| mount.at == Path::new(scratch))
                || mount.at.starts_with("/dev")
                || mount.at.starts_with("/proc")
        };
        let asked = files.writable.iter().find(|own| mount.at.starts_with(own));
        match asked {
            _ if mount.read_only => {}
            Some(own) => drop(writable.insert(own)),
            None if is_scratch() => {}
            None => return Err(format!("`{at}` is writable in the sandbox")),
        }
    }
    let root = open_root(pid)?;
    for (at, expected) in &files.plan.bound {
        match identity(&root, at) {
            Some(found) if found != *expected => {
                return Err(format!(
                    "`{}` was replaced while the sandbox was created",
                    at.display()
                ));
            }
            _ => {}
        }
    }
    hides_own_files(&root, &mounts, files)?;
    let mut how =
        "own mount, pid, ipc and uts namespaces; private mounts; read-only root; Toolwharf's own files are not there; \
         writable: /tmp, /run, /dev/shm"
            .to_owned();
    for at in writable {
        how.push_str(", ");
        how.push_str(&at.display().to_string());
    }
    Ok(how)
}

/// Searches for Toolwharf's own files inside: under their own paths, below every shown folder that contains them, and
/// in every mount of a part of their file system.
fn hides_own_files(root: &OwnedFd, mounts: &[Mounted], files: Files<'_>) -> Result<(), String> {
    let host = fs::read_to_string("/proc/self/mountinfo")
        .map_err(|error| format!("the host's mounts cannot be read: {error}"))?;
    let host = mounts::parse(&host)?;
    for own in files.own.paths() {
        let Ok(about) = fs::metadata(own) else {
            continue;
        };
        let expected = (about.dev(), about.ino());
        let mut places = vec![own.clone()];
        for one in &files.plan.files.visible {
            let around = one.host.as_ref().and_then(|host| host.canonicalize().ok());
            if let Some(Ok(rest)) =
                around.map(|around| own.strip_prefix(around).map(Path::to_owned))
            {
                places.push(one.path.join(rest));
            }
        }
        let holder = host.iter().filter(|mount| own.starts_with(&mount.at));
        let holder = holder.max_by_key(|mount| mount.at.components().count());
        if let Some((device, inner)) = holder.and_then(|mount| {
            let rest = own.strip_prefix(&mount.at).ok()?;
            Some((&mount.device, mount.root.join(rest)))
        }) {
            for mount in mounts.iter().filter(|mount| mount.device == *device) {
                if let Ok(rest) = inner.strip_prefix(&mount.root) {
                    places.push(mount.at.join(rest));
                } else if mount.root.starts_with(&inner)
                    && !files.given.iter().any(|given| mount.at.starts_with(given))
                {
                    let at = mount.at.display();
                    return Err(format!(
                        "a part of `{}` is visible in the sandbox, at `{at}`",
                        own.display()
                    ));
                }
            }
        }
        let seen = places
            .iter()
            .find(|place| identity(root, place) == Some(expected));
        if let Some(place) = seen {
            return Err(format!(
                "`{}` is visible in the sandbox, at `{}`",
                own.display(),
                place.display()
            ));
        }
    }
    Ok(())
}

fn open_root(pid: Pid) -> Result<OwnedFd, String> {
    let root = format!("/proc/{}/root", pid.as_raw_pid());
    open(
        root,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .map_err(|error| format!("its root cannot be opened: {error}"))
}

/// The identity of the file at a path inside. `None`: no such file.
fn identity(root: &OwnedFd, path: &Path) -> Option<Identity> {
    let path = path.strip_prefix("/").ok()?;
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let found = openat2(root, path, flags, Mode::empty(), ResolveFlags::IN_ROOT).ok()?;
    let about = fstat(found).ok()?;
    Some((about.st_dev, about.st_ino))
}

fn reach(pid: Pid, network: &Network) -> Result<String, String> {
    if *network == Network::Open {
        return Err("it has the host's network, as configured (`network`: `open`)".to_owned());
    }
    if !apart(pid, "net")? {
        return Err("it is in the host's network namespace".to_owned());
    }
    let devices = read(pid, "net/dev")?;
    // Skip the two heading lines.
    let devices: Vec<_> = devices
        .lines()
        .skip(2)
        .filter_map(|line| line.trim().split(':').next())
        .collect();
    // Kernels with built-in tunnel drivers add tunnel devices to every network namespace, down and without an address.
    let others = devices.iter().filter(|&&name| name != "lo").count();
    let routes = read(pid, "net/route")?.lines().count().saturating_sub(1);
    if routes > 0 {
        return Err("its network namespace has routes to other networks".to_owned());
    }
    let mut how = "own network namespace with nothing but loopback".to_owned();
    if others > 0 {
        how = "own network namespace without routes".to_owned();
    }
    if let Network::Allow(hosts) = network {
        how = format!("{how}; {} through the egress proxy", plural(hosts.len()));
    }
    Ok(how)
}

fn plural(count: usize) -> String {
    if count == 1 {
        "1 host".to_owned()
    } else {
        format!("{count} hosts")
    }
}

fn field<'a>(status: &'a str, name: &str) -> Result<&'a str, String> {
    status
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        .map(str::trim)
        .ok_or_else(|| format!("the kernel does not report `{name}`"))
}

/// Checks that the system call filter is in force. If this process itself has a filter (in a container), the server
/// must have one filter more.
fn system_calls(pid: Pid) -> Result<String, String> {
    let status = read(pid, "status")?;
    if field(&status, "Seccomp")? != "2" {
        return Err("no system call filter is in force".to_owned());
    }
    let filters = |status: &str| field(status, "Seccomp_filters").ok()?.parse::<u32>().ok();
    let own = fs::read_to_string("/proc/self/status").unwrap_or_default();
    if let (Some(its), Some(own)) = (filters(&status), filters(&own))
        && its <= own
    {
        return Err("no system call filter in addition to the gateway's own".to_owned());
    }
    Ok(format!(
        "a filter allows {} system calls; not: namespaces, ptrace, io_uring, bpf, keyctl, userfaultfd, AF_VSOCK",
        seccomp::allowed()
    ))
}

fn privileges(pid: Pid, user: u32) -> Result<String, String> {
    let status = read(pid, "status")?;
    let field = |name| field(&status, name);
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        let value = field(set)?;
        if value.bytes().any(|digit| digit != b'0') {
            return Err(format!("it has capabilities: {set} {value}"));
        }
    }
    if field("NoNewPrivs")? != "1" {
        return Err(
            "it could gain privileges by executing programs (no_new_privs is not set)".to_owned(),
        );
    }
    let users: Vec<_> = field("Uid")?.split_ascii_whitespace().collect();
    if users.iter().any(|found| *found != user.to_string()) {
        return Err(format!(
            "it runs as user {} instead of {user}",
            users.join(", ")
        ));
    }
    let limits = read(pid, "limits")?;
    let core = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max core file size"));
    if core.is_none_or(|core| core.split_whitespace().take(2).any(|limit| limit != "0")) {
        return Err("it could leave core files".to_owned());
    }
    Ok(format!(
        "user {user}, no capabilities, no_new_privs, no core files"
    ))
}

fn kernel() -> String {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!(
        "shared with the host (Linux {}); gVisor or a virtual machine has its own",
        release.trim()
    )
}

fn apart(pid: Pid, namespace: &str) -> Result<bool, String> {
    let link = |of: &str| {
        fs::read_link(Path::new("/proc").join(of).join("ns").join(namespace))
            .map_err(|error| format!("its {namespace} namespace cannot be read: {error}"))
    };
    Ok(link("self")? != link(&pid.as_raw_pid().to_string())?)
}

fn read(pid: Pid, file: &str) -> Result<String, String> {
    let path = format!("/proc/{}/{file}", pid.as_raw_pid());
    fs::read_to_string(&path).map_err(|error| format!("`{path}` cannot be read: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_is_in_no_sandbox_is_found_out() {
        let me = rustix::process::getpid();
        let files = Files {
            writable: &[],
            plan: &Plan::default(),
            own: &Own::default(),
            given: &[],
        };
        let rows = isolation(me, &Network::None, files, 12_345);
        let whats: Vec<_> = rows.iter().map(|row| row.what).collect();
        let expected = [
            "filesystem",
            "network",
            "privileges",
            "system calls",
            "kernel",
        ];
        assert_eq!(whats, expected);
        for row in &rows {
            assert!(!row.holds, "{row:?}");
        }
        assert!(rows[0].how.contains("host's pid"), "{rows:?}");
    }
}
