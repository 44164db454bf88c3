//! Instances that are containers of a Docker daemon: under runc, gVisor, Kata or Firecracker.
//!
//! [`Docker`] speaks the Engine API over the daemon's socket. A container is made anew for every
//! instance, spoken to over a stream that is attached before it starts, and removed when it has
//! ended, with whatever volumes its image asked for.
//!
//! # What a container gets
//!
//! - Its image, read-only; `/tmp`, `/run` and what the image declares as `VOLUME` in memory, of
//!   limited size and empty; its own volumes; the mounts that an administrator permitted. Nothing
//!   else of the host: no devices, no host namespaces.
//! - No capability, no new privileges, the daemon's seccomp profile, an init that passes signals
//!   on and reaps (without one, PID 1 ignores `SIGTERM`).
//! - The environment of the server and that of the image. Labels of an image grant nothing, and
//!   its health check is not run.
//! - A volume is an ext4 file system of limited size in a file under [`Options::dir`], where this
//!   process may set up loop devices and the daemon sees the same `/dev`; else an ordinary volume
//!   of the daemon, without a limit, and [`Instance::enforced`] says so.
//!
//! # The network
//!
//! - [`Network::None`]: a namespace with a loopback device.
//! - [`Network::Allow`]: the same namespace shared with a second container that only holds it, and in it the proxy of
//!   `crate::egress`, which the server finds in `HTTP_PROXY` and the like. Under runc, and under gVisor where `runsc` is
//!   registered with `--network=host`.
//! - [`Network::Open`]: the daemon's network [`Options::network`].
//!
//! Its ports are reached on this host's loopback: with an open network the daemon publishes them, else `relay` brings
//! connections to the loopback inside.
//!
//! [`Network::None`]: model::Network::None
//! [`Network::Allow`]: model::Network::Allow
//! [`Network::Open`]: model::Network::Open
//!
//! # Invariants
//!
//! - No engine call is without a deadline.
//! - A container is named by its server's id: the daemon itself sees to it that there are never two.
//! - What runs is looked at, not believed: some daemons ignore the runtime that is asked for
//!   (podman's does). A process that is not of that runtime is killed, and the launch fails.
//! - A daemon that is gone is waited for; until it has answered, the instance has not ended, but
//!   for one that was killed and has a caller waiting for it.
//! - Everything that is made carries the installation and the run that made it. Nothing that
//!   carries another installation's mark is ever touched.
//!
//! # When this process is killed
//!
//! A container is the daemon's child. The sentinel knows its first process and kills it, as it does children of this
//! process, where the daemon is on this host and the process may be killed: that takes the rights of root. Elsewhere the end of our
//! stream closes its stdin, which ends an MCP server that minds it; any other one stays until [`Runtime::sweep`] of the
//! next run removes it, or another gateway that starts the same server, or sweeps what has an old fence. It is removed and started anew, never taken over: half an answer may be
//! under way in its streams.
//!
//! # Deliberately absent
//!
//! Egress allow-lists where the runtime has a network of its own (see `holder`), remote daemons, registry logins,
//! building of images.

mod engine;
mod holder;
mod images;
mod launch;
mod readback;
mod reaper;
mod relay;
mod spec;
mod stdio;
mod swarm;
mod volumes;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use model::Provider;
use tokio_util::task::TaskTracker;

use self::engine::Engine;
pub use self::swarm::{Options as SwarmOptions, Swarm};
use crate::apart;
use crate::ports::Ports;
use crate::process::Guests;
use crate::turns::Turns;
use crate::unit::{Error, Fences, Instance, Runtime, Unit};

/// Which daemon, which of its runtimes, and for whom.
#[derive(Clone, Debug)]
pub struct Options {
    /// `unix:///run/docker.sock`.
    pub host: String,
    /// What `runtime` counts as.
    pub provider: Provider,
    /// The daemon's name of it: `runsc`, `runc`, `kata-fc`.
    pub runtime: String,
    /// The daemon's network for servers that may reach everything.
    pub network: String,
    /// Tells this installation from others on the same daemon: letters, digits, `-`, `_`.
    pub install: String,
    /// Tells this run from earlier ones.
    pub run: String,
    /// Has the sentinel kill containers when this process no longer can.
    pub guests: Guests,
    /// Where volumes with a limit are kept.
    pub dir: PathBuf,
    pub ports: Ports,
}

/// A Docker daemon with one of its runtimes.
#[derive(Clone)]
pub struct Docker(Arc<Inner>);

struct Inner {
    options: Options,
    engine: Arc<Engine>,
    turns: Turns,
    /// Owns everything that goes on behind a handle.
    tasks: TaskTracker,
}

impl Options {
    /// The daemon that `DOCKER_HOST` names, or the usual one.
    #[must_use]
    pub fn default_host() -> String {
        match std::env::var("DOCKER_HOST") {
            Ok(host) if !host.is_empty() => host,
            _ => "unix:///var/run/docker.sock".to_owned(),
        }
    }
}

impl Docker {
    /// Does not look for the daemon yet: [`Runtime::probe`] does.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] for a host that is no `unix://` path, a provider that Docker is not, or an
    /// installation that cannot be part of a container's name.
    pub fn new(options: Options) -> Result<Self, Error> {
        let fits = |text: &str| {
            (1..=64).contains(&text.len())
                && text
                    .bytes()
                    .all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
        };
        if !fits(&options.install) {
            return Err(Error::Refused {
                field: "install",
                why: format!(
                    "`{}` is not 1 to 64 letters, digits, `-` and `_`",
                    options.install
                ),
            });
        }
        if matches!(options.provider, Provider::E2b | Provider::Process) {
            return Err(Error::Refused {
                field: "provider",
                why: "a Docker daemon is `gvisor`, `firecracker` or `runc`".to_owned(),
            });
        }
        let engine = Arc::new(Engine::new(&options.host)?);
        Ok(Self(Arc::new(Inner {
            options,
            engine,
            turns: Turns::default(),
            tasks: TaskTracker::new(),
        })))
    }

    /// Waits until nothing goes on any more. Has no deadline of its own: instances whose handles
    /// are held, and a daemon that is gone, take as long as they take.
    pub async fn idle(&self) {
        self.0.tasks.close();
        self.0.tasks.wait().await;
    }
}

impl Runtime for Docker {
    fn probe(&self) -> BoxFuture<'_, Result<String, Error>> {
        self.0.probe().boxed()
    }

    fn launch(&self, unit: Unit) -> BoxFuture<'_, Result<Instance, Error>> {
        let inner = Arc::clone(&self.0);
        apart::launched(&self.0.tasks, |unwanted| async move {
            inner.launch(&unit, unwanted.cancelled()).await
        })
    }

    fn sweep(&self) -> BoxFuture<'_, Result<usize, Error>> {
        self.0.sweep().boxed()
    }

    fn fences<'a>(&'a self, installation: &'a str) -> BoxFuture<'a, Result<BTreeSet<i64>, Error>> {
        self.0.fences(installation).boxed()
    }

    fn sweep_fenced<'a>(&'a self, lost: &'a Fences) -> BoxFuture<'a, Result<usize, Error>> {
        self.0.sweep_fenced(lost).boxed()
    }

    fn volumes_remove<'a>(
        &'a self,
        id: &'a str,
        _installation: Option<&'a str>,
    ) -> BoxFuture<'a, Result<(), Error>> {
        self.0.volumes_remove(id).boxed()
    }
}
