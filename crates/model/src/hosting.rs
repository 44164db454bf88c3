//! How a server is hosted: what runs it, within which bounds, and what happens when it falls.
//!
//! Invariants: every number here is within what hosts can enforce; values of variables and
//! arguments may be secrets, so `Debug` shows none of them. Deliberately absent: any state.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{Provider, RestartPolicy};

/// A server that Toolwharf runs in a sandbox, and keeps running.
#[derive(Clone, PartialEq, Eq)]
pub struct Hosting {
    /// Unique for ever, of `[a-z0-9-]`: containers, control groups and volumes are named by it.
    pub id: String,
    pub source: Source,
    /// Whether it is spoken to over its standard streams. If not, it is an HTTP server at the first of `ports`.
    pub bridge: bool,
    /// Ports that the server listens on inside of its sandbox.
    pub ports: Vec<u16>,
    /// Where its MCP endpoint is when it is not bridged; begins with `/`.
    pub path: String,
    pub env: BTreeMap<String, String>,
    /// Absolute paths inside; each is a volume of the server's own that outlives its instances.
    pub volumes: Vec<String>,
    /// What it sees of the host; each was permitted by an administrator.
    pub mounts: Vec<Mount>,
    pub limits: ResourceLimits,
    /// Whether it is not started at all where one of the limits cannot be enforced.
    pub strict: bool,
    /// `None`: the strongest there is.
    pub provider: Option<Provider>,
    pub network: Network,
    pub restart: RestartPolicy,
    /// `None`: it is not asked whether it still answers.
    pub heartbeat: Option<Heartbeat>,
}

/// What is run.
#[derive(Clone, PartialEq, Eq)]
pub enum Source {
    /// An image of a container, and what to run in it instead of what it says itself, if that is not empty.
    Image { image: String, command: Vec<String> },
    /// A program of this host.
    Command { program: String, args: Vec<String> },
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

/// How to find out whether a server that runs still answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heartbeat {
    /// From one answer to the next question.
    pub interval: Duration,
    /// An answer that takes longer is a miss.
    pub timeout: Duration,
    /// Misses in a row after which it is unresponsive.
    pub misses: u32,
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

impl Default for Heartbeat {
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(30),
            timeout: Duration::from_secs(10),
            misses: 3,
        }
    }
}

impl Hosting {
    /// A bridged server with everything at its default.
    #[must_use]
    pub fn new(id: impl Into<String>, source: Source) -> Self {
        Self {
            id: id.into(),
            source,
            bridge: true,
            ports: Vec::new(),
            path: "/mcp".to_owned(),
            env: BTreeMap::new(),
            volumes: Vec::new(),
            mounts: Vec::new(),
            limits: ResourceLimits::default(),
            strict: false,
            provider: None,
            network: Network::None,
            restart: RestartPolicy::default(),
            heartbeat: Some(Heartbeat::default()),
        }
    }
}

impl Source {
    /// The image, or the command without its arguments: fit for lists and logs.
    #[must_use]
    pub fn target(&self) -> &str {
        match self {
            Self::Image { image, .. } => image,
            Self::Command { program, .. } => program,
        }
    }

    /// What may hold secrets.
    #[must_use]
    pub fn args(&self) -> &[String] {
        match self {
            Self::Image { command, .. } => command,
            Self::Command { args, .. } => args,
        }
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self {
            Self::Image { .. } => "Image",
            Self::Command { .. } => "Command",
        };
        f.debug_struct(kind)
            .field("target", &self.target())
            .field("args", &format_args!("[{} hidden]", self.args().len()))
            .finish()
    }
}

impl fmt::Debug for Hosting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hosting")
            .field("id", &self.id)
            .field("source", &self.source)
            .field("bridge", &self.bridge)
            .field("ports", &self.ports)
            .field("env", &self.env.keys())
            .field("volumes", &self.volumes)
            .field("mounts", &self.mounts)
            .field("limits", &self.limits)
            .field("provider", &self.provider)
            .field("network", &self.network)
            .field("restart", &self.restart)
            .field("heartbeat", &self.heartbeat)
            .finish_non_exhaustive()
    }
}
