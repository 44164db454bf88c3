//! Launches a pod for a unit.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{ListParams, PostParams};
use tokio::io::duplex;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::Inner;
use super::api::{Call, Cluster, call, delete, ensure, list};
use super::exec::{self, Meter};
use super::life::{Life, Made};
use super::ports::{Destination, Forward};
use super::readback::{self, state};
use super::rights;
use super::spec::{self, SERVER_CONTAINER, VERIFY_CONTAINER};
use super::stdio::{BUFFER_BYTES, Pump};
use crate::common;
use runtime::unit::{Confined, Error, Fence, Fences, Instance, Stdio, Unit, remove_each};

/// Timeout from the request for a pod until it runs, including the image pull.
const START_TIMEOUT: Duration = Duration::from_secs(120);
/// Timeout for the removal of an earlier pod of the same server.
const REMOVE_TIMEOUT: Duration = Duration::from_secs(45);
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Grace period for stopping an earlier pod of the same server, in seconds.
const GRACE_SECS: u32 = 2;
/// After this time, an earlier pod should have ended.
const LATE_AFTER: Duration = Duration::from_secs(4);
/// Reasons for which a container waits until somebody changes the pod or the cluster.
const STUCK_REASONS: [&str; 8] = [
    "ErrImagePull",
    "ImagePullBackOff",
    "ErrImageNeverPull",
    "InvalidImageName",
    "ErrImageInspect",
    "RegistryUnavailable",
    "CreateContainerConfigError",
    "CreateContainerError",
];

impl Inner {
    pub(super) async fn cluster(&self) -> Result<Cluster, Error> {
        let cluster = self.cluster.get_or_try_init(|| Cluster::new(&self.options));
        cluster.await.cloned()
    }

    /// Checks that the API server responds and grants all permissions.
    pub(super) async fn probe(&self) -> Result<String, Error> {
        let cluster = self.cluster().await?;
        let version = call(
            "read the version of Kubernetes",
            cluster.client.apiserver_version(),
        )
        .await?;
        rights::check(&cluster).await?;
        let what = match &self.options.runtime_class {
            Some(class) => format!("RuntimeClass `{class}`"),
            None => "the default runtime".to_owned(),
        };
        Ok(format!(
            "{what} on Kubernetes {}, namespace `{}`",
            version.git_version, cluster.namespace
        ))
    }

    pub(super) async fn launch(
        self: &Arc<Self>,
        unit: &Unit,
        unwanted: impl Future<Output = ()>,
    ) -> Result<Instance, Error> {
        let unit = unit.confined()?;
        let program = spec::check(unit)?;
        let _turn = self.keyed_lock.turn(&unit.sandbox.id).await?;
        let cluster = self.cluster().await?;
        let name = spec::name(&self.options, unit);
        self.make_room(&cluster, &name, unit.fence).await?;
        let launched = tokio::select! {
            launched = self.create(&cluster, &name, unit, program) => launched,
            () = unwanted => Err(Error::Failed("the launch was cancelled".to_owned())),
        };
        // Remove only objects of this launch, because another gateway may have created new ones under the same name.
        if launched.is_err()
            && let Err(error) = remove(&cluster, &name, false, |meta| {
                self.is_of_this_run(meta)
                    && unit
                        .fence
                        .is_none_or(|fence| number(meta, fence) == Some(fence.number))
            })
            .await
        {
            tracing::warn!(label = unit.label, pod = name, %error, "cannot remove a pod; the next sweep retries");
        }
        launched
    }

    async fn create(
        self: &Arc<Self>,
        cluster: &Cluster,
        name: &str,
        unit: Confined<'_>,
        program: (&str, &[String]),
    ) -> Result<Instance, Error> {
        let options = &self.options;
        let (listeners, ports) = common::listen(&options.ports, unit).await?;
        for path in &unit.sandbox.volumes {
            let claim = spec::claim(options, unit, path);
            ensure("create a volume claim", &cluster.claims, &claim)
                .await
                .map_err(|error| refusal(error, "volumes"))?;
        }
        let create = PostParams::default();
        let secret = spec::secret(options, unit, cluster.gateway.as_ref());
        let secret = call("create a secret", cluster.secrets.create(&create, &secret))
            .await
            .map_err(|error| refusal(error, "environment"))?;
        let policy = spec::policy(options, unit, &secret, cluster.home.as_deref());
        ensure("create a network policy", &cluster.policies, &policy)
            .await
            .map_err(|error| refusal(error, "network"))?;
        let pod = spec::pod(options, unit, program, &secret);
        let pod = call("create a pod", cluster.pods.create(&create, &pod))
            .await
            .map_err(|error| refusal(error, "image"))?;
        let made = Made {
            name: name.to_owned(),
            pod: pod.metadata.uid.clone(),
            secret: secret.metadata.uid.clone(),
        };

        let followed = self.watcher.follow(cluster, pod, &self.tasks);
        let (mut seen, following) = followed.await;
        let looks = options.probe_image.is_some();
        let is_late = timeout(
            START_TIMEOUT,
            seen.wait_for(|seen| {
                seen.end().is_some() || stuck(seen.pod()).is_some() || is_up(seen.pod(), looks)
            }),
        )
        .await
        .is_err();
        let pod = Arc::clone(seen.borrow().pod());
        if let Some(error) = stuck(&pod) {
            return Err(error);
        }
        if is_late {
            let why = match unscheduled(&pod) {
                Some(why) => Some(why),
                None => warning(cluster, &pod).await.or_else(|| waits_for(&pod)),
            };
            return Err(Error::Failed(format!(
                "the pod did not start within {} s: {}",
                START_TIMEOUT.as_secs(),
                why.as_deref().unwrap_or("no reason given")
            )));
        }
        let meter = Meter::new(
            cluster.clone(),
            name.to_owned(),
            unit.label.to_owned(),
            looks,
        );
        let (exit, shared) = common::state(unit.label, Some(Box::new(meter)));
        let (stdin, input) = duplex(BUFFER_BYTES);
        let (output, stdout) = duplex(BUFFER_BYTES);
        let (killed, ended) = (CancellationToken::new(), CancellationToken::new());
        let pump = Pump {
            cluster: cluster.clone(),
            pod: name.to_owned(),
            shared: Arc::clone(&shared),
            has_streams: unit.has_streams(),
            stdin: input,
            stdout: output,
            killed: killed.clone(),
            ended: ended.clone(),
        };
        let (kernel, attached) = tokio::join!(
            async {
                match looks && seen.borrow().end().is_none() {
                    true => exec::run(cluster, name, VERIFY_CONTAINER, exec::KERNEL_SCRIPT)
                        .await
                        .map(Some),
                    false => Ok(None),
                }
            },
            pump.attach(false),
        );
        let attached = match attached {
            // Without permission to attach, the pod is useless. After other errors, a later attempt may succeed.
            Err(error @ Call::Api(403, _)) => return Err(error.into()),
            attached => attached.ok(),
        };
        let enforced = readback::rows(options, unit.sandbox, &pod, kernel?.as_deref())?;
        let limited = |what: &str| what != "kernel" || options.runtime_class.is_some();
        common::check_strict(unit.sandbox, &enforced, limited)?;
        let stdio = match unit.has_streams() {
            true => Some(Stdio {
                stdin: Box::new(stdin),
                stdout: Box::new(stdout),
            }),
            false => {
                let shared = Arc::clone(&shared);
                self.tasks
                    .spawn(async move { shared.log.fill(stdout).await });
                None
            }
        };
        let address = pod
            .status
            .as_ref()
            .and_then(|status| status.pod_ip.as_ref()?.parse().ok());
        let to = Destination::new(
            cluster.clone(),
            name.to_owned(),
            address,
            options.promises_gvisor(),
            Arc::clone(&shared),
        );
        let to = Arc::new(to);
        let forward = (!listeners.is_empty())
            .then(|| AbortOnDropHandle::new(self.tasks.spawn(Forward { listeners, to }.run())));
        let life = Life {
            cluster: cluster.clone(),
            made,
            seen,
            following,
            shared: Arc::clone(&shared),
            pump: self.tasks.spawn(pump.run(attached)),
            forward,
            killed,
            ended,
            exit,
        };
        self.tasks.spawn(life.run());
        Ok(common::instance(shared, stdio, ports, enforced))
    }

    /// Removes the objects with this name and waits until they are gone. They belong to an instance of an earlier run
    /// or of a lost gateway, or to one that was killed but whose exit is unknown.
    async fn make_room(
        &self,
        cluster: &Cluster,
        name: &str,
        fence: Option<&Fence>,
    ) -> Result<(), Error> {
        let begun = Instant::now();
        let waiting = async {
            while self
                .is_taken(cluster, name, fence, begun.elapsed() > LATE_AFTER)
                .await?
            {
                sleep(POLL_INTERVAL).await;
            }
            Ok(())
        };
        let what = "remove an earlier pod of the same server";
        common::late(REMOVE_TIMEOUT, what, waiting).await
    }

    /// Removes any objects with this name. Returns whether there were any.
    async fn is_taken(
        &self,
        cluster: &Cluster,
        name: &str,
        fence: Option<&Fence>,
        is_late: bool,
    ) -> Result<bool, Error> {
        let mut refused = None;
        let left = remove(cluster, name, is_late, |meta| {
            let number = fence.and_then(|fence| number(meta, fence));
            let is_ours = number.is_some() || self.is_ours(meta);
            if let Some((number, fence)) = number.zip(fence)
                && number > fence.number
            {
                refused = Some(common::superseded(number, fence));
            } else if !is_ours {
                refused = Some(Error::Refused {
                    field: "id",
                    why: format!(
                        "a pod or a secret `{name}` in the namespace `{}` was not created by this installation; delete it",
                        cluster.namespace
                    ),
                });
            }
            refused.is_none()
        })
        .await?;
        refused.map_or(Ok(left > 0), Err)
    }

    fn is_ours(&self, meta: &ObjectMeta) -> bool {
        spec::is_labelled(meta, spec::LABEL_INSTALL, &self.options.install)
    }

    fn is_of_this_run(&self, meta: &ObjectMeta) -> bool {
        self.is_ours(meta) && spec::is_labelled(meta, spec::LABEL_RUN, &self.options.run)
    }

    pub(super) async fn sweep(&self) -> Result<usize, Error> {
        let cluster = self.cluster().await?;
        let (label, install) = (spec::LABEL_INSTALL, &self.options.install);
        self.sweep_secrets(&cluster, label, install, |meta| {
            self.is_ours(meta) && !self.is_of_this_run(meta)
        })
        .await
    }

    pub(super) async fn fences(&self, installation: &str) -> Result<BTreeSet<i64>, Error> {
        let cluster = self.cluster().await?;
        let label = spec::LABEL_FENCE_OF;
        let secrets = list("list secrets", &cluster.secrets, label, installation).await?;
        let metas = secrets.iter().map(|secret| &secret.metadata);
        Ok(metas
            .filter_map(|meta| spec::fence_of(meta, installation))
            .collect())
    }

    pub(super) async fn sweep_fenced(&self, lost: &Fences) -> Result<usize, Error> {
        let cluster = self.cluster().await?;
        let installation = &*lost.installation;
        self.sweep_secrets(&cluster, spec::LABEL_FENCE_OF, installation, |meta| {
            spec::fence_of(meta, installation).is_some_and(|number| lost.numbers.contains(&number))
        })
        .await
    }

    /// Removes the objects of unwanted launches, found by their Secrets with a label. Each launch creates its Secret
    /// first.
    async fn sweep_secrets(
        &self,
        cluster: &Cluster,
        label: &str,
        value: &str,
        is_unwanted: impl Fn(&ObjectMeta) -> bool,
    ) -> Result<usize, Error> {
        let mut all = list("list secrets", &cluster.secrets, label, value).await?;
        all.retain(|Secret { metadata, .. }| {
            spec::server_of(metadata).is_some() && is_unwanted(metadata)
        });
        let is_unwanted = &is_unwanted;
        remove_each(all, |secret| async move {
            let name = secret.metadata.name.as_deref().unwrap_or_default();
            remove(cluster, name, false, is_unwanted).await?;
            Ok(1)
        })
        .await
    }

    pub(super) async fn volumes_remove(
        &self,
        id: &str,
        installation: Option<&str>,
    ) -> Result<(), Error> {
        let cluster = self.cluster().await?;
        let what = "remove volume claims";
        let removing = async {
            // A claim exists until the last pod that uses it is gone.
            while self.claims_remove(&cluster, id, installation).await? > 0 {
                sleep(POLL_INTERVAL).await;
            }
            Ok(())
        };
        common::late(REMOVE_TIMEOUT, what, removing).await
    }

    /// Removes the claims of a server. Returns how many still exist.
    async fn claims_remove(
        &self,
        cluster: &Cluster,
        id: &str,
        installation: Option<&str>,
    ) -> Result<usize, Error> {
        let what = "list volume claims";
        let install = &self.options.install;
        let mut claims = list(what, &cluster.claims, spec::LABEL_INSTALL, install).await?;
        if let Some(installation) = installation {
            let label = spec::LABEL_FENCE_OF;
            claims.extend(list(what, &cluster.claims, label, installation).await?);
        }
        claims.retain(|claim| spec::server_of(&claim.metadata) == Some(id));
        for claim in &claims {
            let name = claim.metadata.name.as_deref().unwrap_or_default();
            if claim.metadata.deletion_timestamp.is_none() {
                delete("remove a volume claim", &cluster.claims, name, None, None).await?;
            }
        }
        Ok(claims.len())
    }
}

/// Returns the fencing token that an object was created with, if the object belongs to the same database.
fn number(meta: &ObjectMeta, fence: &Fence) -> Option<i64> {
    spec::fence_of(meta, &fence.installation)
}

/// Removes the unwanted pod and Secret with this name, but none created in the meantime. Returns how many of the two
/// existed. A running pod has the grace period [`GRACE_SECS`]. `is_late`: the pod should have ended by now.
async fn remove(
    cluster: &Cluster,
    name: &str,
    is_late: bool,
    mut is_unwanted: impl FnMut(&ObjectMeta) -> bool,
) -> Result<usize, Error> {
    let pod = call("read a pod", cluster.pods.get_opt(name)).await?;
    let secret = call("read a secret", cluster.secrets.get_metadata_opt(name)).await?;
    let found = usize::from(pod.is_some()) + usize::from(secret.is_some());
    if let Some(pod) = &pod
        && is_unwanted(&pod.metadata)
    {
        let has_ended = readback::has_ended(pod);
        let is_leaving = pod.metadata.deletion_timestamp.is_some();
        let seconds = pod.metadata.deletion_grace_period_seconds;
        let grace = match (has_ended, is_leaving) {
            // The server has ended, so there is no need to wait for its node.
            (true, _) => Some(0),
            (false, false) => Some(GRACE_SECS),
            // Kubelets of Kubernetes 1.20 may report an exit a minute late. Changing the grace period makes them check.
            (false, true) if is_late && seconds > Some(1) => Some(1),
            // The pod is already being deleted, and its grace period stays unchanged.
            (false, true) => None,
        };
        if grace.is_some() {
            let uid = pod.metadata.uid.as_deref();
            delete("remove a pod", &cluster.pods, name, uid, grace).await?;
        }
    }
    if let Some(secret) = &secret
        && is_unwanted(&secret.metadata)
    {
        let uid = secret.metadata.uid.as_deref();
        delete("remove a secret", &cluster.secrets, name, uid, None).await?;
    }
    Ok(found)
}

/// Returns whether the server and, if present, the checking container run.
fn is_up(pod: &Pod, looks: bool) -> bool {
    let runs = |container| state(pod, container).is_some_and(|state| state.running.is_some());
    runs(SERVER_CONTAINER) && (!looks || runs(VERIFY_CONTAINER))
}

/// Returns the error if the pod will never start.
fn stuck(pod: &Pod) -> Option<Error> {
    let failed = |field, why: String| Some(Error::Refused { field, why });
    if let Some(ended) = state(pod, SERVER_CONTAINER).and_then(|state| state.terminated.as_ref())
        && ["StartError", "ContainerCannotRun"]
            .contains(&ended.reason.as_deref().unwrap_or_default())
    {
        return failed("command", ended.message.clone().unwrap_or_default());
    }
    let statuses = pod.status.as_ref()?.container_statuses.as_ref()?;
    for status in statuses {
        let Some(waiting) = status
            .state
            .as_ref()
            .and_then(|state| state.waiting.as_ref())
        else {
            continue;
        };
        let reason = waiting.reason.as_deref().unwrap_or_default();
        if !STUCK_REASONS.contains(&reason) {
            continue;
        }
        let message = waiting.message.as_deref().unwrap_or_default();
        let why = format!("`{}`: {reason}: {message}", status.image);
        if status.name != SERVER_CONTAINER {
            return Some(Error::Unavailable(format!(
                "[kubernetes] probe_image {why}"
            )));
        }
        return match reason.contains("Image") || reason == "RegistryUnavailable" {
            true => failed("image", why),
            false => Some(Error::Failed(why)),
        };
    }
    None
}

/// Returns why no node accepts a pod.
fn unscheduled(pod: &Pod) -> Option<String> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let unscheduled = conditions
        .iter()
        .find(|condition| condition.status == "False" && condition.type_ == "PodScheduled");
    unscheduled?.message.clone()
}

/// Returns the last warning among a pod's events. Its status does not contain failures of volumes, networks and
/// runtimes.
async fn warning(cluster: &Cluster, pod: &Pod) -> Option<String> {
    let uid = pod.metadata.uid.as_deref()?;
    let params = ListParams::default().fields(&format!("involvedObject.uid={uid},type=Warning"));
    let events = call("list events", cluster.events.list(&params))
        .await
        .ok()?;
    let last = events.items.into_iter().max_by_key(|event| {
        let series = event.series.as_ref();
        let observed = series.and_then(|series| series.last_observed_time.as_ref());
        let at = observed.or(event.event_time.as_ref()).map(|time| time.0);
        at.max(event.last_timestamp.as_ref().map(|time| time.0))
    })?;
    let (reason, message) = (last.reason?, last.message?);
    Some(format!("{reason}: {}", message.trim()))
}

/// Returns what the container waits for, according to the node.
fn waits_for(pod: &Pod) -> Option<String> {
    let waiting = state(pod, SERVER_CONTAINER)?.waiting.as_ref()?;
    waiting.message.clone().or_else(|| waiting.reason.clone())
}

/// Finds the invalid field of the request from the API server's error text.
fn refusal(error: Call, otherwise: &'static str) -> Error {
    let Call::Api(422, why) = error else {
        return error.into();
    };
    let field = match why.as_str() {
        why if why.contains(".env[") => "environment",
        why if why.contains(".resources.") => "resource_limits",
        why if why.contains("mountPath") || why.contains("volumes[") => "volumes",
        _ => otherwise,
    };
    Error::Refused { field, why }
}
