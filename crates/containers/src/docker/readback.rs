//! Verifies what runs and which limits hold, from the daemon and from the kernel.
//!
//! The daemon's responses only show what the daemon was asked for. If the container is a process of this host, its
//! control groups and its program are therefore checked as well.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bollard::models::{ContainerInspectResponse, HostConfig};
use bollard::query_parameters::StatsOptionsBuilder;
use futures_util::future::BoxFuture;
use futures_util::{FutureExt as _, StreamExt as _};
use model::{Network, Provider, Sandbox};
use rustix::process::Pid;
use tokio::time::timeout;

use super::Options;
use super::engine::Client;
use super::spec::{CPU_PERIOD_MICROS, Host, pids};
use super::volumes::{Limit, Volumes};
use crate::docker::net::Space;
use runtime::handle::Usage;
use runtime::process_tree::Stat;
use runtime::unit::{Enforced, Error};

const STATS_TIMEOUT: Duration = Duration::from_secs(5);
const PROGRAM_DIRS: [&str; 4] = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin"];
const VM_PROGRAMS: [&str; 4] = ["qemu", "firecracker", "cloud-hypervisor", "dragonball"];

/// Finds the program that a daemon names, if it exists on this host.
pub(super) fn locate(program: &str) -> Option<PathBuf> {
    let path = Path::new(program);
    if path.is_absolute() {
        return path.exists().then(|| path.to_owned());
    }
    PROGRAM_DIRS
        .iter()
        .map(|dir| Path::new(dir).join(program))
        .find(|path| path.exists())
}

/// Returns the enforcement status of a started container.
///
/// # Errors
///
/// [`Error::Unavailable`] if the container runs under another provider than requested.
pub(super) fn rows(
    options: &Options,
    host: &Host,
    sandbox: &Sandbox,
    volumes: &Volumes,
    container: &ContainerInspectResponse,
    space: Option<Space>,
) -> Result<Vec<Enforced>, Error> {
    let empty = HostConfig::default();
    let config = container.host_config.as_ref().unwrap_or(&empty);
    let seen = Seen::look(container);
    let limits = sandbox.limits;
    let mut rows = Vec::with_capacity(8);
    let mut row = |what, holds, how: String| rows.push(Enforced { what, holds, how });

    let quota = config.cpu_quota.unwrap_or(0);
    let cores = quota as f64 / CPU_PERIOD_MICROS as f64;
    let (holds, how) = seen.limit("cpu", ["cpu.cfs_quota_us", "cpu.max"], quota, host.cpu);
    row("cpu", holds && quota > 0, format!("{cores} cores: {how}"));

    let memory = config.memory.unwrap_or(0);
    let (holds, how) = seen.limit(
        "memory",
        ["memory.limit_in_bytes", "memory.max"],
        memory,
        host.memory,
    );
    row("memory", holds && memory > 0, how);

    let mounts = &sandbox.mounts;
    let unknown = container.mounts.iter().flatten().find(|mount| {
        let name = mount.name.as_deref().unwrap_or_default();
        mount.typ.as_deref() == Some("volume") && !volumes.has(name)
    });
    let (holds, how) = match &volumes.limit {
        _ if let Some(mount) = unknown => (
            false,
            format!(
                "the image's volume `{}` has no limit",
                mount.destination.as_deref().unwrap_or_default()
            ),
        ),
        _ if let Some(mount) = mounts.iter().find(|mount| !mount.read_only) => (
            false,
            format!("`{}` is a host directory without a limit", mount.inside),
        ),
        Limit::Nothing => (true, "the server stores nothing on disk".to_owned()),
        Limit::Each(size) => (
            true,
            format!("each volume is an ext4 file system of {size} bytes"),
        ),
        Limit::None(why) => (false, why.clone()),
    };
    row("disk", holds, how);

    let asked = limits.pids;
    let most = config.pids_limit.unwrap_or(0);
    let (holds, how) = seen.limit("pids", ["pids.max", "pids.max"], most, host.pids);
    if pids(options.provider, asked) == asked {
        row("pids", holds && most > 0, how);
    } else {
        row(
            "pids",
            false,
            format!("{how}: gVisor needs that many for itself"),
        );
    }

    let read_only = config.readonly_rootfs == Some(true);
    row(
        "filesystem",
        read_only,
        format!("ReadonlyRootfs = {read_only}"),
    );

    let mode = config.network_mode.as_deref().unwrap_or_default();
    let (holds, how) = match (&sandbox.network, space) {
        (Network::Allow(entries), Some(space)) => seen.proxied(space, entries)?,
        (network, _) => (
            *network == Network::Open || mode == "none",
            format!("NetworkMode = {mode}"),
        ),
    };
    row("network", holds, how);

    let dropped = config.cap_drop.iter().flatten().any(|cap| cap == "ALL");
    let no_new = config.security_opt.iter().flatten();
    let no_new = no_new
        .clone()
        .any(|option| option.starts_with("no-new-privileges"));
    let confined = dropped && no_new && config.privileged != Some(true);
    row(
        "privileges",
        confined,
        format!("no capabilities = {dropped}, no-new-privileges = {no_new}"),
    );

    let asked = config.runtime.as_deref().unwrap_or_default();
    let (holds, how) = match (options.provider, seen.kernel(options, host)) {
        _ if asked != options.runtime => return Err(not_it(options, &format!("`{asked}`"))),
        (Provider::Runc, _) => (false, "the container shares this host's kernel".to_owned()),
        (_, Kernel::Own(how)) => (true, how),
        (_, Kernel::Other(program)) => return Err(not_it(options, &program)),
        (_, Kernel::Unseen(why)) => (false, format!("Runtime = {asked}, but {why}")),
    };
    row("kernel", holds, how);
    Ok(rows)
}

fn not_it(options: &Options, found: &str) -> Error {
    Error::Unavailable(format!(
        "the daemon was asked for the runtime `{}` and ran {found}, which does not isolate as requested",
        options.runtime
    ))
}

/// The container's first process and its start tick, if it is a process of this host.
pub(super) fn guest(container: &ContainerInspectResponse) -> Option<(i32, u64)> {
    let pid = container.state.as_ref()?.pid?;
    let pid = i32::try_from(pid).ok()?;
    // Read the start tick first. The next check shows that the process belongs to the container, so the tick is the
    // container's.
    let started = Stat::read(Pid::from_raw(pid)?)?.started;
    match Seen::look(container) {
        Seen::Process { .. } => Some((pid, started)),
        Seen::Not(_) => None,
    }
}

/// A container's first process on this host.
pub(super) enum Seen {
    Process { pid: i64, groups: String },
    Not(&'static str),
}

enum Kernel {
    Own(String),
    Other(String),
    Unseen(String),
}

impl Seen {
    pub(super) fn look(container: &ContainerInspectResponse) -> Self {
        let state = container.state.as_ref();
        let pid = state.and_then(|state| state.pid).unwrap_or(0);
        if pid <= 0 {
            return Self::Not("the container exited before it could be checked");
        }
        let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        // If the daemon is on another host or in another PID namespace, the number may belong to any process here.
        match &container.id {
            Some(id) if groups.contains(id.as_str()) => Self::Process { pid, groups },
            _ => Self::Not("the container's process is not visible from this host"),
        }
    }

    /// Returns whether the limit in force is the requested one, and how this was checked. `files`: names of the file
    /// with the limit, in control groups of version 1 and of version 2.
    pub(super) fn limit(
        &self,
        controller: &str,
        files: [&str; 2],
        asked: i64,
        able: bool,
    ) -> (bool, String) {
        let (file, text) = match self.group_file(controller, files) {
            Some(found) => found,
            None => {
                let how = match able {
                    true => format!("{asked}, according to the daemon"),
                    false => "the daemon says that its host cannot limit this resource".to_owned(),
                };
                return (able, how);
            }
        };
        let text = text.trim();
        // The file contains, for example, "50000 100000", "536870912", "max" or "-1".
        let found = text
            .split(' ')
            .next()
            .and_then(|number| number.parse().ok());
        // The kernel rounds memory limits down to whole pages.
        let holds = found.is_some_and(|found: i64| found > 0 && found <= asked);
        (holds, format!("{file} = {text}"))
    }

    fn group_file(&self, controller: &str, [v1, v2]: [&str; 2]) -> Option<(String, String)> {
        let Self::Process { groups, .. } = self else {
            return None;
        };
        let read = |dir: &str, group: &str, file: &str, version| {
            let path = format!("/sys/fs/cgroup/{dir}{group}/{file}");
            let text = fs::read_to_string(path).ok()?;
            Some((format!("{file} (cgroup v{version})"), text))
        };
        groups.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':');
            let (_, names, group) = (fields.next()?, fields.next()?, fields.next()?);
            if names.is_empty() {
                return read("", group, v2, 2);
            }
            let mine = names.split(',').any(|name| name == controller);
            mine.then(|| read(controller, group, v1, 1))?
        })
    }

    /// Checks that the process is in the network namespace of its proxy, and that this namespace has only a loopback
    /// device.
    ///
    /// # Errors
    ///
    /// The process is in another namespace.
    fn proxied(&self, space: Space, entries: &[String]) -> Result<(bool, String), Error> {
        let pid = match self {
            Self::Process { pid, .. } => *pid,
            Self::Not(why) => return Ok((false, (*why).to_owned())),
        };
        let Ok(found) = Space::of(pid) else {
            return Ok((
                false,
                "the container exited before it could be checked".to_owned(),
            ));
        };
        let table = fs::read_to_string(format!("/proc/{pid}/net/dev")).unwrap_or_default();
        // Skip the two heading lines. The other lines look like `lo: 0 0 …`.
        let devices = table
            .lines()
            .skip(2)
            .filter_map(|line| line.split(':').next());
        let devices: Vec<&str> = devices.map(str::trim).collect();
        if found != space || devices.iter().any(|&device| device != "lo") {
            return Err(Error::Failed(format!(
                "the container is not in the network of its proxy: process {pid} has the devices {}",
                devices.join(", ")
            )));
        }
        let how = format!(
            "process {pid} has a loopback device only, with a proxy to {}",
            entries.join(", ")
        );
        Ok((true, how))
    }

    fn kernel(&self, options: &Options, host: &Host) -> Kernel {
        let pid = match self {
            Self::Process { pid, .. } => pid,
            Self::Not(why) => return Kernel::Unseen((*why).to_owned()),
        };
        let file = |path: &Path| fs::metadata(path).ok().map(|file| (file.dev(), file.ino()));
        let program = PathBuf::from(format!("/proc/{pid}/exe"));
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let name = line.split(|&byte| byte == 0).next().unwrap_or_default();
        let mut name = String::from_utf8_lossy(name).into_owned();
        if name.is_empty() {
            // The process is about to execute its program, has erased its name, or has exited.
            let Ok(executed) = fs::read_link(&program) else {
                return Kernel::Unseen(
                    "the container exited before it could be checked".to_owned(),
                );
            };
            name = executed.display().to_string();
        }
        let same = |path: &PathBuf| Some(file(path)? == file(&program)?);
        let same = host.runtime_path.as_ref().and_then(same);
        let own = match options.provider {
            Provider::Gvisor => is_gvisor(&name, same),
            _ => VM_PROGRAMS.iter().any(|vm| name.contains(vm)),
        };
        match own {
            true => Kernel::Own(format!("process {pid} is {name}")),
            false => Kernel::Other(format!("`{name}`")),
        }
    }
}

/// Returns whether a process of this name is gVisor's `runsc-sandbox`. `is_runtime`: whether it executes the file of the
/// daemon's runtime, by device and inode, if known.
///
/// Both are needed: a process can choose its name, and any other runtime executes its own file (`runc init`) just before
/// it executes the container's program.
fn is_gvisor(name: &str, is_runtime: Option<bool>) -> bool {
    let file = name.rsplit('/').next().unwrap_or_default();
    file.starts_with("runsc") && is_runtime != Some(false)
}

/// Reads resource usage from the daemon.
pub(super) struct Meter {
    client: Client,
    id: String,
    /// The peak is computed here, because version 2 of control groups does not report it.
    peak: AtomicU64,
}

impl Meter {
    pub(super) fn new(client: Client, id: String) -> Self {
        Self {
            client,
            id,
            peak: AtomicU64::new(0),
        }
    }
}

impl runtime::handle::Meter for Meter {
    fn read(&self) -> BoxFuture<'_, Option<Usage>> {
        async {
            let options = StatsOptionsBuilder::default().stream(false).one_shot(true);
            let mut stats = self.client.docker.stats(&self.id, Some(options.build()));
            let stats = timeout(STATS_TIMEOUT, stats.next()).await.ok()??.ok()?;
            let memory = stats.memory_stats?;
            let total = memory.usage?;
            // Inactive page cache does not count as used, because the kernel reclaims it when needed.
            let detail = memory.stats.unwrap_or_default();
            let idle = detail
                .get("total_inactive_file")
                .or_else(|| detail.get("inactive_file"));
            let used = total.saturating_sub(idle.copied().unwrap_or(0));
            let peak = memory.max_usage.unwrap_or(0).max(used);
            let peak = self.peak.fetch_max(peak, Ordering::Relaxed).max(peak);
            let cpu = stats.cpu_stats.and_then(|cpu| cpu.cpu_usage?.total_usage);
            let pids = stats.pids_stats.and_then(|pids| pids.current).unwrap_or(0);
            Some(Usage {
                cpu: Duration::from_nanos(cpu.unwrap_or(0)),
                memory: used,
                memory_peak: peak,
                pids: u32::try_from(pids).unwrap_or(u32::MAX),
            })
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::is_gvisor;

    #[test]
    fn gvisor_is_recognised_by_name_and_file() {
        assert!(is_gvisor("runsc-sandbox", Some(true)));
        assert!(is_gvisor("runsc-sandbox", None));
        for (name, is_runtime) in [
            // A program in the container that has chosen this name.
            ("runsc-sandbox", Some(false)),
            // Another runtime, before it executes the container's program.
            ("runc", Some(true)),
            ("/usr/sbin/runc", Some(true)),
            ("/bin/cat", Some(false)),
            ("/bin/cat", None),
        ] {
            assert!(!is_gvisor(name, is_runtime), "{name}");
        }
    }
}
