//! What became of a process in a sandbox, read from the kernel before the server runs.
//!
//! # Invariants
//!
//! - What is told to hold was seen to hold, of the very process that is to become the server.

use std::fs;
use std::path::Path;

use model::Network;
use rustix::process::Pid;

use super::seccomp;
use crate::unit::Enforced;

/// Namespaces that are the sandbox's own in any case.
const NAMESPACES: [&str; 4] = ["pid", "mnt", "ipc", "uts"];
/// What is writable inside: scratch, device nodes, and what only shows processes.
const WRITABLE: [&str; 5] = ["/tmp", "/run", "/dev", "/proc", "/dev/shm"];

/// Filesystem, network, privileges, system calls and kernel. `own`: paths inside that were asked for and are writable.
pub(super) fn isolation(pid: Pid, network: &Network, own: &[&str], user: u32) -> [Enforced; 5] {
    let row = |what, found: Result<String, String>| Enforced {
        what,
        holds: found.is_ok(),
        how: found.unwrap_or_else(|why| why),
    };
    [
        row("filesystem", filesystem(pid, own)),
        row("network", reach(pid, network)),
        row("privileges", privileges(pid, user)),
        row("system calls", system_calls(pid)),
        row("kernel", Err(kernel())),
    ]
}

fn filesystem(pid: Pid, own: &[&str]) -> Result<String, String> {
    for namespace in NAMESPACES {
        if !apart(pid, namespace)? {
            return Err(format!("it is in the host's {namespace} namespace"));
        }
    }
    let mounts = read(pid, "mountinfo")?;
    let mut writable = Vec::new();
    for line in mounts.lines() {
        let mut fields = line.split(' ');
        let (Some(at), Some(options)) = (fields.nth(4), fields.next()) else {
            return Err("its list of mounts cannot be read".to_owned());
        };
        if options.split(',').any(|option| option == "ro") {
            continue;
        }
        let at = unescape(at);
        let at = at.as_str();
        if own.contains(&at) {
            writable.push(at.to_owned());
        } else if !WRITABLE.contains(&at) && !at.starts_with("/dev/") && !at.starts_with("/proc/") {
            return Err(format!("`{at}` is writable inside"));
        }
    }
    let mut how =
        "own mount, pid, ipc and uts namespaces; read-only root; writable: /tmp, /run, /dev/shm"
            .to_owned();
    for at in writable {
        how.push_str(", ");
        how.push_str(&at);
    }
    Ok(how)
}

fn reach(pid: Pid, network: &Network) -> Result<String, String> {
    if *network == Network::Open {
        return Err(
            "it has the host's network, as it was asked for (`network`: `open`)".to_owned(),
        );
    }
    if !apart(pid, "net")? {
        return Err("it is in the host's network namespace".to_owned());
    }
    let devices = read(pid, "net/dev")?;
    // Two lines of headings.
    let devices: Vec<_> = devices
        .lines()
        .skip(2)
        .filter_map(|line| line.trim().split(':').next())
        .collect();
    // Kernels with tunnels built in put their idle ends into every namespace, down and without address.
    let others = devices.iter().filter(|&&name| name != "lo").count();
    let routes = read(pid, "net/route")?.lines().count().saturating_sub(1);
    if routes > 0 {
        return Err("its network namespace has routes to elsewhere".to_owned());
    }
    let mut how = "own network namespace with nothing but loopback".to_owned();
    if others > 0 {
        how = "own network namespace without routes".to_owned();
    }
    if let Network::Allow(hosts) = network {
        how = format!("{how}; {} by way of the egress proxy", plural(hosts.len()));
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
        .ok_or_else(|| format!("the kernel does not tell `{name}`"))
}

/// Whether the filter of system calls is in force. Where this process has one itself (in a container), it is one more.
fn system_calls(pid: Pid) -> Result<String, String> {
    let status = read(pid, "status")?;
    if field(&status, "Seccomp")? != "2" {
        return Err("nothing filters them".to_owned());
    }
    let filters = |status: &str| field(status, "Seccomp_filters").ok()?.parse::<u32>().ok();
    let own = fs::read_to_string("/proc/self/status").unwrap_or_default();
    if let (Some(its), Some(own)) = (filters(&status), filters(&own))
        && its <= own
    {
        return Err("no filter but that of the host's own process".to_owned());
    }
    Ok(format!(
        "a filter allows {} of them; not: namespaces, ptrace, io_uring, bpf, keyctl, userfaultfd, AF_VSOCK",
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
        return Err("it could gain privileges by what it executes".to_owned());
    }
    let users: Vec<_> = field("Uid")?.split_ascii_whitespace().collect();
    if users.iter().any(|found| *found != user.to_string()) {
        return Err(format!("it runs as user {}", users.join(", ")));
    }
    Ok(format!("user {user}, no capabilities, no_new_privs"))
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
    fs::read_to_string(format!("/proc/{}/{file}", pid.as_raw_pid()))
        .map_err(|error| format!("`{file}` of it cannot be read: {error}"))
}

/// Blanks and backslashes are in octal there.
fn unescape(text: &str) -> String {
    text.replace("\\040", " ").replace("\\134", "\\")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_is_in_no_sandbox_is_found_out() {
        let me = rustix::process::getpid();
        let rows = isolation(me, &Network::None, &[], 12_345);
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
