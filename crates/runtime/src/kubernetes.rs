//! Instances that are pods of a Kubernetes cluster.
//!
//! [`Kubernetes`] speaks to the API server that a kubeconfig names, or to that of the cluster it runs in. A pod is made anew
//! for every instance, spoken to over `attach`, and removed when it has ended. The kubelet restarts nothing: restarts are
//! the supervisor's, as for every other runtime.
//!
//! # What a server gets
//!
//! - A pod named after its server, of its image, with a read-only root and `/tmp` and `/run` in memory; no token of a service
//!   account, no capability, no new privileges, the runtime's seccomp profile, and [`Options::user`] instead of root.
//! - Its variables from a Secret of the pod's own name. The Secret owns the pod and its NetworkPolicy: whatever removes it
//!   removes all. In the cluster, the Secret belongs to the pod of the gateway.
//! - A NetworkPolicy that lets nothing in but Toolwharf to its ports, and nothing out but to the addresses of its allow-list,
//!   unless its network is open.
//! - A PersistentVolumeClaim for each volume, which outlives the pod.
//! - The RuntimeClass [`Options::runtime_class`]. A second container of [`Options::probe_image`] in the pod is asked which
//!   kernel it has. A pod that does not have the kernel that the class promises is removed, and the launch fails.
//!
//! # Invariants
//!
//! - No request is without a deadline, and a watch on which nothing comes for too long is opened again.
//! - A pod's name is its server's: the API server sees to it that there are never two. A pod is removed by force
//!   only when its server is known to have ended, so that its name is free only then.
//! - An API server that does not answer is asked again; until it has answered, the instance has not ended.
//! - A connection to the streams that breaks off is made again as long as the pod runs. What was under way may be lost.
//! - Everything that is made carries the installation and the run that made it, and the launch's fence. Nothing that carries
//!   another installation's mark is ever touched, but for what has an older fence of the same database.
//! - Values of variables are in the Secret, and in no pod, log or error.
//!
//! # Deliberately absent
//!
//! Names of hosts in allow-lists (policies know addresses only), mounts of a node's files, limits of processes (nodes have
//! them, pods do not).

mod api;
mod channels;
mod exec;
mod launch;
mod life;
mod ports;
mod readback;
mod rights;
mod spec;
mod stdio;
mod watcher;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use tokio::sync::OnceCell;
use tokio_util::task::TaskTracker;

use self::api::Cluster;
pub use self::spec::LABEL_INSTALL;
use self::watcher::Watcher;
use crate::apart;
use crate::ports::Ports;
use crate::turns::Turns;
use crate::unit::{Error, Fences, Instance, Runtime, Unit};

/// Which cluster, and for whom.
#[derive(Clone, Debug)]
pub struct Options {
    /// `None`: `KUBECONFIG`, `~/.kube/config`, or the cluster that this process runs in.
    pub kubeconfig: Option<PathBuf>,
    /// `None`: the kubeconfig's current one.
    pub context: Option<String>,
    /// `None`: that of the context, or of this process's own pod.
    pub namespace: Option<String>,
    /// `None`: the cluster's default runtime.
    pub runtime_class: Option<String>,
    /// Of volumes; `None`: the cluster's default class.
    pub storage_class: Option<String>,
    /// An image with `sh`, `cat`, `dmesg` and `sleep`, which looks at the kernel and the processes of each pod. `None`: the
    /// cluster's word is taken.
    pub probe_image: Option<String>,
    /// Whom servers run as, and the group that their volumes belong to; `None`: whom their image says, which may be root.
    pub user: Option<u32>,
    /// Tells this installation from others in the same namespace: lower-case letters, digits, `-`.
    pub install: String,
    /// Tells this run from earlier ones.
    pub run: String,
    pub ports: Ports,
}

/// Runs servers as pods. Clones are the same.
#[derive(Clone)]
pub struct Kubernetes(Arc<Inner>);

struct Inner {
    options: Options,
    cluster: OnceCell<Cluster>,
    turns: Turns,
    watcher: Watcher,
    /// Owns everything that goes on behind a handle.
    tasks: TaskTracker,
}

impl Kubernetes {
    /// Does not look for the cluster yet: [`Runtime::probe`] does.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] for an installation or a run that cannot be a label, or be part of a pod's name.
    pub fn new(options: Options) -> Result<Self, Error> {
        for (field, text) in [("install", &options.install), ("run", &options.run)] {
            let sound =
                |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
            let fits = (1..=40).contains(&text.len())
                && text.bytes().all(sound)
                && !text.starts_with('-')
                && !text.ends_with('-');
            if !fits {
                let why = format!("`{text}` is not 1 to 40 lower-case letters, digits and `-`");
                return Err(Error::Refused { field, why });
            }
        }
        Ok(Self(Arc::new(Inner {
            options,
            cluster: OnceCell::new(),
            turns: Turns::default(),
            watcher: Watcher::default(),
            tasks: TaskTracker::new(),
        })))
    }

    /// Waits until nothing goes on any more. Has no deadline of its own: instances whose handles are held, and a cluster that
    /// is gone, take as long as they take.
    pub async fn idle(&self) {
        self.0.tasks.close();
        self.0.tasks.wait().await;
    }
}

impl Runtime for Kubernetes {
    fn probe(&self) -> BoxFuture<'_, Result<String, Error>> {
        self.0.probe().boxed()
    }

    fn launch(&self, unit: Unit) -> BoxFuture<'_, Result<Instance, Error>> {
        let inner = Arc::clone(&self.0);
        apart::launched(&self.0.tasks, |unwanted| async move {
            inner.launch(&unit, unwanted.cancelled()).await
        })
    }

    fn fences<'a>(&'a self, installation: &'a str) -> BoxFuture<'a, Result<BTreeSet<i64>, Error>> {
        self.0.fences(installation).boxed()
    }

    fn sweep_fenced<'a>(&'a self, lost: &'a Fences) -> BoxFuture<'a, Result<usize, Error>> {
        self.0.sweep_fenced(lost).boxed()
    }

    fn volumes_follow(&self) -> bool {
        true
    }

    fn sweep(&self) -> BoxFuture<'_, Result<usize, Error>> {
        self.0.sweep().boxed()
    }

    fn volumes_remove<'a>(
        &'a self,
        id: &'a str,
        installation: Option<&'a str>,
    ) -> BoxFuture<'a, Result<(), Error>> {
        self.0.volumes_remove(id, installation).boxed()
    }
}
