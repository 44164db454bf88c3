//! The sandbox of a server and its resource limits.
//!
//! Invariant: every number is within what hosts can enforce. Deliberately absent: whether this host enforces it.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::Provider;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sandbox {
    /// Never reused, of `[a-z0-9-]`. Containers, cgroups and volumes are named after it.
    pub id: String,
    pub ports: Vec<Port>,
    /// Absolute paths inside. Each is a private volume of the server that outlives its instances.
    pub volumes: Vec<String>,
    /// Bind mounts of host paths. An administrator permitted each of them.
    pub mounts: Vec<Mount>,
    /// Absolute host paths that are visible read-only under the same path. An administrator permitted each of them.
    pub show: Vec<PathBuf>,
    /// Absolute host paths that are hidden even if the command line needs them.
    pub hide: Vec<PathBuf>,
    pub limits: ResourceLimits,
    /// Refuse to start the server if one of the limits cannot be enforced.
    pub strict: bool,
    /// `None`: the strongest available.
    pub provider: Option<Provider>,
    pub network: Network,
}

/// A port on which a server listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Port {
    /// The port inside the sandbox.
    pub inside: u16,
    /// The published port on the host's loopback address. `None`: Toolwharf chooses a port and keeps it.
    pub host: Option<u16>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    pub host: PathBuf,
    /// An absolute path.
    pub inside: String,
    pub read_only: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResourceLimits {
    /// Thousandths of a core.
    pub cpu_millis: u32,
    /// Bytes, including swap.
    pub memory: u64,
    /// Bytes, in total over everything that the server can write to.
    pub disk: u64,
    /// Processes and threads.
    pub pids: u32,
}

/// Network access of a server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Network {
    /// Only the server's own loopback.
    #[default]
    None,
    /// These hosts, through an egress proxy. Each is `host`, `host:port` or `*.domain`, in lower case.
    Allow(Vec<String>),
    /// Everything that the host can reach.
    Open,
}

impl Sandbox {
    /// A sandbox with default settings.
    #[must_use]
    pub fn new(id: impl Into<String>) -> Self {
        Self {
            id: id.into(),
            ports: Vec::new(),
            volumes: Vec::new(),
            mounts: Vec::new(),
            show: Vec::new(),
            hide: Vec::new(),
            limits: ResourceLimits::default(),
            strict: false,
            provider: None,
            network: Network::None,
        }
    }
}

impl Sandbox {
    /// The host paths that the entry makes visible: `mounts` and `show`.
    pub fn host_paths(&self) -> impl Iterator<Item = &PathBuf> {
        let mounts = self.mounts.iter().map(|mount| &mount.host);
        mounts.chain(&self.show)
    }
}

impl ResourceLimits {
    pub const CPU_MILLIS: std::ops::RangeInclusive<u32> = 10..=512_000;
    pub const MEMORY: std::ops::RangeInclusive<u64> = 8 << 20..=4 << 40;
    pub const DISK: std::ops::RangeInclusive<u64> = 1 << 20..=64 << 40;
    pub const PIDS: std::ops::RangeInclusive<u32> = 1..=4_194_304;
}

impl Default for ResourceLimits {
    /// Half a core, 512 MiB of memory, 1 GiB of disk.
    fn default() -> Self {
        Self {
            cpu_millis: 500,
            memory: 512 << 20,
            disk: 1 << 30,
            pids: 512,
        }
    }
}
