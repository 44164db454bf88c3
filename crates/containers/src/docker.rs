//! Instances as containers of a Docker daemon, under runc, gVisor, Kata or Firecracker.
//!
//! [`Docker`] uses the Engine API over the daemon's socket. It creates a new container for each instance, attaches to
//! its streams before it starts, and removes it after it has ended, together with the anonymous volumes of its image.
//!
//! # What a container gets
//!
//! - Its image, read-only. `/tmp`, `/run` and the image's `VOLUME` paths are empty, in memory and limited in size. The
//!   server's own volumes and the mounts that an administrator permitted are added. The container has no access to
//!   anything else on the host: no devices, no host namespaces.
//! - No capabilities, no new privileges, the daemon's seccomp profile, and an init that forwards signals and reaps
//!   processes (without one, PID 1 ignores `SIGTERM`).
//! - The environment of the server and of the image. Image labels grant nothing, and the image's health check is not
//!   run.
//! - Volumes. If this process may set up loop devices and the daemon sees the same `/dev`, a volume is an ext4 file
//!   system of limited size in a file below [`Options::dir`]. Otherwise it is an ordinary volume of the daemon without
//!   a limit, which [`Instance::enforced`] reports.
//!
//! # The network
//!
//! - [`Network::None`]: a namespace with a loopback device.
//! - [`Network::Allow`]: the same, shared with a second container that only keeps the namespace open. The proxy of
//!   `runtime::egress` listens in it. The server finds its address in `HTTP_PROXY` and similar variables. Works under
//!   runc, and under gVisor if `runsc` is registered with `--network=host`.
//! - [`Network::Open`]: the daemon's network [`Options::network`].
//!
//! The server's ports are published on this host's loopback. With an open network the daemon publishes them; otherwise
//! `relay` forwards connections to the loopback device in the container.
//!
//! [`Network::None`]: model::Network::None
//! [`Network::Allow`]: model::Network::Allow
//! [`Network::Open`]: model::Network::Open
//!
//! # Invariants
//!
//! - Every engine call has a deadline.
//! - A container is named after its server's id, so the daemon itself guarantees that two never exist.
//! - The runtime of a started container is verified, because some daemons (podman's) ignore the requested one. A
//!   process of another runtime is killed, and the launch fails.
//! - If the daemon stops responding, the instance counts as running until the daemon responds again. Exception: if the
//!   exit of a killed instance cannot be confirmed in time, callers stop waiting.
//! - Everything created carries the ids of the installation and the run that created it. Objects of another
//!   installation are never touched.
//!
//! # When this process is killed
//!
//! A container is a child of the daemon. The sentinel knows the container's first process and kills it like a child of
//! this process. This requires a daemon on this host, and root. Otherwise, the end of the stream closes the container's
//! stdin, and a well-behaved MCP server exits. Any other container stays until it is removed by [`Runtime::sweep`] in
//! the next run, or by another gateway that starts the same server or sweeps old fencing tokens. It is removed and
//! started again, never adopted: its streams may contain half a response.
//!
//! # Deliberately absent
//!
//! Egress allow-lists for runtimes with their own network stack (see `pause`), remote daemons, registry logins, and
//! building images.

mod engine;
mod images;
mod launch;
mod net;
mod pause;
mod readback;
mod reaper;
mod relay;
mod spec;
mod stdio;
mod swarm;
mod volumes;

use std::path::PathBuf;
use std::sync::Arc;

use model::Provider;
use tokio_util::task::TaskTracker;

use self::engine::Engine;
pub use self::swarm::{Options as SwarmOptions, Swarm};
use crate::common::{check_word, refused};
use runtime::keyed_lock::KeyedLock;
use runtime::ports::Ports;
use runtime::process::Guests;
use runtime::unit::{Error, Instance, Runtime};

/// The daemon and runtime to use, and the identity of this installation.
#[derive(Clone, Debug)]
pub struct Options {
    /// The daemon's address, for example `unix:///run/docker.sock`.
    pub host: String,
    /// The provider that `runtime` implements.
    pub provider: Provider,
    /// The daemon's name for the runtime: `runsc`, `runc`, `kata-fc`.
    pub runtime: String,
    /// The daemon's network for servers with an open network.
    pub network: String,
    /// Distinguishes this installation from others on the same daemon: letters, digits, `-`, `_`.
    pub install: String,
    /// Distinguishes this run of the gateway from earlier ones.
    pub run: String,
    /// Makes the sentinel kill containers if this process cannot.
    pub guests: Guests,
    /// Directory of the volumes that have a limit.
    pub dir: PathBuf,
    pub ports: Ports,
}

/// A Docker daemon with one of its runtimes.
#[derive(Clone)]
pub struct Docker(Arc<Inner>);

struct Inner {
    options: Options,
    engine: Arc<Engine>,
    keyed_lock: KeyedLock,
    /// Owns all background tasks.
    tasks: TaskTracker,
}

impl Options {
    /// Returns the daemon in `DOCKER_HOST`, or the default one.
    #[must_use]
    pub fn default_host() -> String {
        match std::env::var("DOCKER_HOST") {
            Ok(host) if !host.is_empty() => host,
            _ => "unix:///var/run/docker.sock".to_owned(),
        }
    }
}

impl Docker {
    /// Does not contact the daemon; [`Runtime::probe`] does.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] if the host is not a `unix://` path, Docker does not implement the provider, or the
    /// installation id cannot be part of a container name.
    pub fn new(options: Options) -> Result<Self, Error> {
        check_word("install", &options.install)?;
        if matches!(options.provider, Provider::E2b | Provider::Process) {
            let why = "a Docker daemon supports only `gvisor`, `firecracker` and `runc`";
            return refused("provider", why);
        }
        let engine = Arc::new(Engine::new(&options.host)?);
        Ok(Self(Arc::new(Inner {
            options,
            engine,
            keyed_lock: KeyedLock::default(),
            tasks: TaskTracker::new(),
        })))
    }
}

runtime_of_inner!(Docker, volumes_follow: false);
