//! Instances as services of a Docker Swarm.
//!
//! [`Swarm`] uses the daemons of the swarm's nodes: a manager, which decides where a server runs, and the node that
//! runs it. It attaches to the container on that node like [`Docker`](super::Docker), because Swarm offers no access to
//! a service's streams.
//!
//! # What a server gets
//!
//! - A separate service with one task, which Swarm never restarts. The supervisor handles restarts.
//! - The gate (`relay/gate.rs`) as the first program in its container. This program of Toolwharf is distributed as a
//!   config of the swarm. After the container has been checked, the gate receives over the stream what to run and with
//!   which variables, and becomes that program.
//! - A watch process in the container. It kills everything in the container if it receives no ping from the gateway for
//!   too long (see `contact`).
//! - No capabilities, no new privileges, a read-only root, `/tmp` and `/run` in memory, and CPU, memory and process
//!   limits.
//! - The network [`Options::network`], or none: the container is disconnected from all networks before the gate opens.
//! - Volumes of [`Options::volume_driver`]. Without a driver, the volumes are on the node on which the server first
//!   ran, and the server always runs there.
//!
//! # Invariants
//!
//! - A service is named after its server, so the swarm itself guarantees that two never exist.
//! - If anything else (Swarm itself, or a person) starts a task of the service, only a gate runs.
//! - An instance has ended when its node's daemon says so, or when its watch must have killed it (see `contact`). No
//!   replacement starts before that. If an instance was killed but does not end, the gateway stops pinging it, so that
//!   the watch kills it.
//! - Swarm objects contain neither variable values nor the server's arguments.
//! - Everything created carries the ids of the installation and the run that created it. Objects of another
//!   installation are never touched.
//!
//! # Deliberately absent
//!
//! Egress allow-lists, mounts of a node's files, a choice of runtime (which services do not have), registry logins.

mod contact;
mod gate;
mod launch;
mod life;
mod nodes;
mod readback;
mod room;
mod spec;
mod volumes;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use tokio_util::task::TaskTracker;

use super::engine::Engine;
use crate::common::refused;
use runtime::keyed_lock::KeyedLock;
use runtime::ports::Ports;
use runtime::unit::{Error, Instance, Runtime};

/// The swarm to use, and the identity of this installation.
#[derive(Clone, Debug)]
pub struct Options {
    /// The daemons of its nodes, including a manager: `unix:///run/docker.sock`, `tcp://10.0.0.2:2376`. Only these
    /// nodes are used.
    pub daemons: Vec<String>,
    /// The directory with `ca.pem`, `cert.pem` and `key.pem`, for remote daemons.
    pub tls: Option<PathBuf>,
    /// Placement constraints in Docker's syntax: `node.labels.zone == a`.
    pub constraints: Vec<String>,
    /// True if containers must run on gVisor's kernel. The default runtime of the nodes' daemons determines this.
    pub gvisor: bool,
    /// The network for servers with an open network.
    pub network: String,
    /// The driver that provides volumes on any node. `None`: volumes stay on their node.
    pub volume_driver: Option<String>,
    pub volume_options: BTreeMap<String, String>,
    /// Distinguishes this installation from others in the same swarm: lower-case letters, digits, `-`.
    pub install: String,
    /// Distinguishes this run of the gateway from earlier ones.
    pub run: String,
    pub ports: Ports,
}

/// Runs servers as services. Cheap to clone; clones share state.
#[derive(Clone)]
pub struct Swarm(Arc<Inner>);

struct Inner {
    options: Options,
    engines: Vec<Arc<Engine>>,
    keyed_lock: KeyedLock,
    /// Owns all background tasks.
    tasks: TaskTracker,
}

impl Swarm {
    /// Does not contact the daemons; [`Runtime::probe`] does.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] if the list of daemons is empty, an address is invalid, or the installation id cannot be part
    /// of a service name.
    pub fn new(options: Options) -> Result<Self, Error> {
        spec::check_install(&options.install)?;
        if options.daemons.is_empty() {
            return refused("daemons", "`[swarm] daemons` must list at least one daemon");
        }
        let engine = |host: &String| Engine::anywhere(host, options.tls.as_deref()).map(Arc::new);
        let engines: Result<_, Error> = options.daemons.iter().map(engine).collect();
        Ok(Self(Arc::new(Inner {
            engines: engines?,
            options,
            keyed_lock: KeyedLock::default(),
            tasks: TaskTracker::new(),
        })))
    }
}

// Volumes that stay on a node can be used by every gateway.
runtime_of_inner!(Swarm, volumes_follow: true);
