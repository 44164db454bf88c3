//! What confines a server, and what it may use.
//!
//! Invariant: every number here is within what hosts can enforce. Deliberately absent: whether this host enforces it.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::Provider;

/// What confines a server, and what it may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sandbox {
    /// Unique for ever, of `[a-z0-9-]`: containers, control groups and volumes are named by it.
    pub id: String,
    pub ports: Vec<Port>,
    /// Absolute paths inside; each is a volume of the server's own that outlives its instances.
    pub volumes: Vec<String>,
    /// What it sees of the host; each was permitted by an administrator.
    pub mounts: Vec<Mount>,
    /// Absolute paths of the host that it sees read-only, under the same path; each was permitted by an administrator.
    pub show: Vec<PathBuf>,
    /// Absolute paths of the host that it does not see although its command line needs them.
    pub hide: Vec<PathBuf>,
    pub limits: ResourceLimits,
    /// Whether it is not started at all where one of the limits cannot be enforced.
    pub strict: bool,
    /// `None`: the strongest there is.
    pub provider: Option<Provider>,
    pub network: Network,
}

/// A port that a server listens on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Port {
    /// Inside of its sandbox.
    pub inside: u16,
    /// Where it is reached on the host's loopback; `None`: at one that is chosen and kept.
    pub host: Option<u16>,
}

/// A path of the host that a server sees.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    pub host: PathBuf,
    /// Absolute.
    pub inside: String,
    pub read_only: bool,
}

/// What one server may use at most (H16, H17).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResourceLimits {
    /// Thousandths of a core.
    pub cpu_millis: u32,
    /// Bytes, swap included.
    pub memory: u64,
    /// Bytes, of everything that it can write to.
    pub disk: u64,
    /// Processes and threads.
    pub pids: u32,
}

/// What a server may reach.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Network {
    /// Nothing but itself.
    #[default]
    None,
    /// These hosts, through a proxy that stands between; `host`, `host:port` or `*.domain`, lower case.
    Allow(Vec<String>),
    /// Everything that the host reaches.
    Open,
}

impl Sandbox {
    /// A sandbox with everything at its default.
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
    /// The host's paths that it sees because its entry says so: those of `mounts` and `show`.
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
    /// H16: half a core, 512 MiB, 1 GiB.
    fn default() -> Self {
        Self {
            cpu_millis: 500,
            memory: 512 << 20,
            disk: 1 << 30,
            pids: 512,
        }
    }
}
