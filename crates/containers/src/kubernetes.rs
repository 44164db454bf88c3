//! Instances as pods of a Kubernetes cluster.
//!
//! [`Kubernetes`] uses the API server of a kubeconfig, or of the cluster in which this process runs. It creates a new
//! pod for each instance, communicates with it over `attach`, and removes it after it has ended. The kubelet restarts
//! nothing: the supervisor handles restarts, as for every runtime.
//!
//! # What a server gets
//!
//! - A pod named after the server, with a read-only root, and `/tmp` and `/run` in memory. No service account token, no
//!   capabilities, no new privileges, the runtime's seccomp profile, and [`Options::user`] instead of root.
//! - Its variables from a Secret with the pod's name. The Secret owns the pod and its NetworkPolicy, so deleting it
//!   removes everything. If the gateway runs in the cluster, its pod owns the Secret.
//! - A NetworkPolicy, unless the network is open. Ingress is allowed only from Toolwharf to the server's ports, egress
//!   only to the addresses of the allow-list.
//! - A PersistentVolumeClaim for each volume, which outlives the pod.
//! - The RuntimeClass [`Options::runtime_class`]. A second container, of [`Options::probe_image`], checks the pod's
//!   kernel. If it is not the kernel that the class promises, the pod is removed and the launch fails.
//!
//! # Invariants
//!
//! - Every request has a deadline. A watch that receives nothing for too long is opened again.
//! - A pod is named after its server, so the API server guarantees that two never exist. A pod is force-deleted only
//!   after its server is known to have ended, so its name does not become free earlier.
//! - If the API server does not respond, the request is repeated. Until then, the instance counts as running.
//! - A broken connection to the streams is opened again while the pod runs. Data in flight may be lost.
//! - Everything created carries the ids of the installation and the run that created it, and the launch's fencing
//!   token. Objects of another installation are never touched, except those with an older fencing token of the same
//!   database.
//! - Variable values exist only in the Secret, not in pods, logs or errors.
//!
//! # Deliberately absent
//!
//! Host names in allow-lists (policies support addresses only), mounts of a node's files, process limits (Kubernetes
//! sets them per node, not per pod).

mod api;
mod channels;
mod exec;
mod launch;
mod life;
mod ports;
mod readback;
mod rights;
mod seen;
mod spec;
mod stdio;
mod watcher;

use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::OnceCell;
use tokio_util::task::TaskTracker;

use self::api::Cluster;
pub use self::api::without_proxy;
pub use self::spec::LABEL_INSTALL;
use self::watcher::Watcher;
use crate::common::{is_lower, refused};
use runtime::keyed_lock::KeyedLock;
use runtime::ports::Ports;
use runtime::unit::{Error, Instance, Runtime};

/// The cluster to use, and the identity of this installation.
#[derive(Clone, Debug)]
pub struct Options {
    /// The kubeconfig file. `None`: `KUBECONFIG`, `~/.kube/config`, or the cluster in which this process runs.
    pub kubeconfig: Option<PathBuf>,
    /// The context to use. `None`: the kubeconfig's current context.
    pub context: Option<String>,
    /// The servers' namespace. `None`: the namespace of the context, or of this process's own pod.
    pub namespace: Option<String>,
    /// The RuntimeClass of the pods. `None`: the cluster's default runtime.
    pub runtime_class: Option<String>,
    /// Class of the volumes. `None`: the cluster's default class.
    pub storage_class: Option<String>,
    /// An image with `sh`, `cat`, `dmesg` and `sleep`, for checking the kernel and the processes of each pod. `None`:
    /// the pod is not checked, and only the information from the cluster is used.
    pub probe_image: Option<String>,
    /// The user that servers run as, and the group of their volumes. `None`: the user of their image, which may be
    /// root.
    pub user: Option<u32>,
    /// Distinguishes this installation from others in the same namespace: lower-case letters, digits, `-`.
    pub install: String,
    /// Distinguishes this run of the gateway from earlier ones.
    pub run: String,
    pub ports: Ports,
}

/// Runs servers as pods. Cheap to clone; clones share state.
#[derive(Clone)]
pub struct Kubernetes(Arc<Inner>);

struct Inner {
    options: Options,
    cluster: OnceCell<Cluster>,
    keyed_lock: KeyedLock,
    watcher: Watcher,
    /// Owns all background tasks.
    tasks: TaskTracker,
}

impl Kubernetes {
    /// Does not contact the cluster; [`Runtime::probe`] does.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] if the installation or run id cannot be a label or part of a pod name.
    pub fn new(options: Options) -> Result<Self, Error> {
        for (field, text) in [("install", &options.install), ("run", &options.run)] {
            let fits = (1..=40).contains(&text.len())
                && text.bytes().all(is_lower)
                && !text.starts_with('-')
                && !text.ends_with('-');
            if !fits {
                let why = format!(
                    "`{text}` must consist of 1 to 40 lower-case letters, digits and `-`, without `-` at either end"
                );
                return refused(field, why);
            }
        }
        Ok(Self(Arc::new(Inner {
            options,
            cluster: OnceCell::new(),
            keyed_lock: KeyedLock::default(),
            watcher: Watcher::default(),
            tasks: TaskTracker::new(),
        })))
    }
}

runtime_of_inner!(Kubernetes, volumes_follow: true);
