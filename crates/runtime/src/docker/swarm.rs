//! Instances that are services of a Docker Swarm.
//!
//! [`Swarm`] speaks to the daemons of the swarm's nodes: to a manager, which decides where a server runs, and to the node
//! that runs it, whose container it attaches to as [`Docker`](super::Docker) does. Swarm itself has no way to a service's
//! streams.
//!
//! # What a server gets
//!
//! - A service of its own, of one task that Swarm never starts again: restarts are the supervisor's.
//! - In its container first of all the gate (`relay/gate.rs`), a program of ours that comes as a config of the swarm. It is told
//!   over the stream what to run and with which variables, when its container was looked at, and becomes that.
//! - A watch beside it, which ends all that is in the container when it does not hear from here for a while.
//! - No capability, no new privileges, a read-only root, `/tmp` and `/run` in memory, limits of CPU, memory and processes.
//! - The network that [`Options::network`] names, or none: the container is taken out of all networks before the gate opens.
//! - Volumes of [`Options::volume_driver`]. Without one they are on the node that the server ran on first, and so is the
//!   server from then on.
//!
//! # Invariants
//!
//! - A service is named after its server: the swarm itself sees to it that there are never two.
//! - What is started without us is a gate and nothing else: by Swarm, for whatever reason, or by a person.
//! - An instance has ended when the daemon of its node says so, or when its watch must have ended it: see `contact`. Nothing is
//!   started in its place before. One that was killed and does not end is not spoken to any more, so that its watch ends it.
//! - Values of variables are in no object of the swarm, nor is what the server is called with.
//! - Everything that is made carries the installation and the run that made it. Nothing that carries another
//!   installation's mark is ever touched.
//!
//! # Deliberately absent
//!
//! Allow-lists of hosts and mounts of a node's files; the choice of a runtime, which services do not have; logins to registries.

mod contact;
mod gate;
mod launch;
mod life;
mod nodes;
mod readback;
mod room;
mod spec;
mod volumes;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use tokio_util::task::TaskTracker;

use super::engine::Engine;
use crate::apart;
use crate::ports::Ports;
use crate::turns::Turns;
use crate::unit::{Error, Fences, Instance, Runtime, Unit};

/// Which swarm, and for whom.
#[derive(Clone, Debug)]
pub struct Options {
    /// The daemons of its nodes, a manager among them: `unix:///run/docker.sock`, `tcp://10.0.0.2:2376`. Only these nodes are used.
    pub daemons: Vec<String>,
    /// The directory of `ca.pem`, `cert.pem` and `key.pem`, for daemons that are elsewhere.
    pub tls: Option<PathBuf>,
    /// What a node has to be like, as Docker has it: `node.labels.zone == a`.
    pub constraints: Vec<String>,
    /// Whether the kernel has to be gVisor's. It is the runtime of the nodes' daemons that makes it so.
    pub gvisor: bool,
    /// The network for servers that may reach everything.
    pub network: String,
    /// What brings volumes to the node that a server runs on; `None`: they stay where they are.
    pub volume_driver: Option<String>,
    pub volume_options: BTreeMap<String, String>,
    /// Tells this installation from others in the same swarm: lower-case letters, digits, `-`.
    pub install: String,
    /// Tells this run from earlier ones.
    pub run: String,
    pub ports: Ports,
}

/// Runs servers as services. Clones are the same.
#[derive(Clone)]
pub struct Swarm(Arc<Inner>);

struct Inner {
    options: Options,
    engines: Vec<Arc<Engine>>,
    turns: Turns,
    /// Owns everything that goes on behind a handle.
    tasks: TaskTracker,
}

impl Swarm {
    /// Does not look for the daemons yet: [`Runtime::probe`] does.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] for no daemon, an address that is none, or an installation that cannot be part of a service's name.
    pub fn new(options: Options) -> Result<Self, Error> {
        spec::check_install(&options.install)?;
        if options.daemons.is_empty() {
            return Err(Error::Refused {
                field: "daemons",
                why: "no daemon of a node is named".to_owned(),
            });
        }
        let engine = |host: &String| Engine::anywhere(host, options.tls.as_deref()).map(Arc::new);
        let engines: Result<_, Error> = options.daemons.iter().map(engine).collect();
        Ok(Self(Arc::new(Inner {
            engines: engines?,
            options,
            turns: Turns::default(),
            tasks: TaskTracker::new(),
        })))
    }

    /// Waits until nothing goes on any more. Has no deadline of its own: instances whose handles are held, and daemons
    /// that are gone, take as long as they take.
    pub async fn idle(&self) {
        self.0.tasks.close();
        self.0.tasks.wait().await;
    }
}

impl Runtime for Swarm {
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

    /// Those that stay on a node are there for every gateway.
    fn volumes_follow(&self) -> bool {
        true
    }

    fn volumes_remove<'a>(
        &'a self,
        id: &'a str,
        installation: Option<&'a str>,
    ) -> BoxFuture<'a, Result<(), Error>> {
        self.0.volumes_remove(id, installation).boxed()
    }
}
