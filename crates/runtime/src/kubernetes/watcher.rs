//! What the API server says of pods: one watch for all servers.
//!
//! # Invariants
//!
//! - A pod that is followed is told of until it is gone or nobody follows it any more.
//! - A watch that ends is opened again where it ended. Where the API server has forgotten that place, all pods are read
//!   again. It is asked as long as it does not answer; until then nothing is known to have ended.
//! - No label selects the pods: somebody else may take labels off, and a pod that has lost its label is not gone.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, WatchEvent, WatchParams};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::{sleep, timeout};
use tokio_util::task::TaskTracker;

use super::api::{Call, Cluster, call};
use super::life::Seen;
use crate::unit::Error;

/// Seconds after which a watch is opened again.
const WATCH: u32 = 240;
/// Bookmarks come once a minute.
const SILENCE: Duration = Duration::from_secs(75);
const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// Clones are the same.
#[derive(Clone, Default)]
pub(super) struct Watcher(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// Somebody follows a pod no more.
    left: Notify,
}

#[derive(Default)]
struct State {
    /// By the uid of their pods.
    followed: HashMap<String, watch::Sender<Seen>>,
    is_watching: bool,
}

/// Follows a pod until it is dropped.
pub(super) struct Following {
    shared: Arc<Shared>,
    uid: String,
}

impl Drop for Following {
    fn drop(&mut self) {
        self.shared.state.lock().followed.remove(&self.uid);
        self.shared.left.notify_one();
    }
}

impl Watcher {
    /// Follows a pod that was just made. The task that watches belongs to `tasks`; it ends when nobody follows anything.
    pub(super) async fn follow(
        &self,
        cluster: &Cluster,
        pod: Pod,
        tasks: &TaskTracker,
    ) -> (watch::Receiver<Seen>, Following) {
        let name = pod.metadata.name.clone().unwrap_or_default();
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let first = Arc::new(pod);
        let (tell, seen) = watch::channel(Seen::There(Arc::clone(&first)));
        let is_watched = {
            let mut state = self.0.state.lock();
            state.followed.insert(uid.clone(), tell.clone());
            std::mem::replace(&mut state.is_watching, true)
        };
        let following = Following {
            shared: Arc::clone(&self.0),
            uid: uid.clone(),
        };
        if !is_watched {
            let watching = Arc::clone(&self.0).run(cluster.clone());
            tasks.spawn(watching);
        } else if let Ok(Some(pod)) = call("look at a pod", cluster.pods.get_opt(&name)).await {
            // The watch may have told of it before it was followed.
            tell.send_if_modified(|known| {
                let is_new = Arc::ptr_eq(known.pod(), &first) && pod.metadata.uid == Some(uid);
                if is_new {
                    *known = Seen::There(lean(pod));
                }
                is_new
            });
        }
        (seen, following)
    }
}

impl Shared {
    async fn run(self: Arc<Self>, cluster: Cluster) {
        let mut place = None;
        let mut pause = PAUSE;
        while !self.is_over() {
            let watched = async {
                let from = match place.take() {
                    Some(place) => place,
                    None => self.read(&cluster).await?,
                };
                self.watch(&cluster, from).await
            };
            let unwanted = async {
                while !self.state.lock().followed.is_empty() {
                    self.left.notified().await;
                }
            };
            let outcome = tokio::select! {
                outcome = watched => outcome,
                () = unwanted => continue,
            };
            match outcome {
                Ok((from, is_new)) => {
                    place = from;
                    pause = if is_new { PAUSE } else { pause };
                }
                Err(error) => {
                    let error = Error::from(error);
                    tracing::debug!("the API server does not tell of pods: {error}");
                }
            }
            sleep(pause).await;
            pause = (2 * pause).min(PAUSE_MAX);
        }
    }

    /// Whether nobody follows anything: then whoever follows something next begins anew.
    fn is_over(&self) -> bool {
        let mut state = self.state.lock();
        state.is_watching = !state.followed.is_empty();
        !state.is_watching
    }

    /// Reads all pods; where to watch from.
    async fn read(&self, cluster: &Cluster) -> Result<String, Call> {
        // Whatever is followed later may have been made after this.
        let known: Vec<String> = self.state.lock().followed.keys().cloned().collect();
        let pods = call("list pods", cluster.pods.list(&ListParams::default())).await?;
        let mut there: HashMap<String, Pod> = HashMap::new();
        for pod in pods.items {
            there.insert(pod.metadata.uid.clone().unwrap_or_default(), pod);
        }
        for uid in known {
            match there.remove(&uid) {
                Some(pod) => self.tell(pod),
                None => self.tell_gone(&uid, None),
            }
        }
        Ok(pods.metadata.resource_version.unwrap_or_default())
    }

    /// Watches until that ends; where to go on, unless that is forgotten, and whether anything came.
    async fn watch(
        &self,
        cluster: &Cluster,
        mut from: String,
    ) -> Result<(Option<String>, bool), Call> {
        let params = WatchParams::default().timeout(WATCH);
        let opened = call("watch pods", cluster.pods.watch(&params, &from)).await;
        let mut events = match opened {
            Ok(events) => pin!(events),
            Err(Call::Api(410, _)) => return Ok((None, false)),
            Err(error) => return Err(error),
        };
        let mut is_new = false;
        while let Ok(Some(Ok(event))) = timeout(SILENCE, events.next()).await {
            let version = match event {
                WatchEvent::Added(pod) | WatchEvent::Modified(pod) => {
                    let version = pod.metadata.resource_version.clone();
                    self.tell(pod);
                    version
                }
                WatchEvent::Deleted(pod) => {
                    let version = pod.metadata.resource_version.clone();
                    let uid = pod.metadata.uid.clone().unwrap_or_default();
                    self.tell_gone(&uid, Some(pod));
                    version
                }
                WatchEvent::Bookmark(mark) => Some(mark.metadata.resource_version),
                // Its place is too old, for example.
                WatchEvent::Error(_) => return Ok((None, is_new)),
            };
            is_new = true;
            from = version.unwrap_or(from);
        }
        Ok((Some(from), is_new))
    }

    fn tell(&self, pod: Pod) {
        let state = self.state.lock();
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        if let Some(tell) = state.followed.get(uid) {
            tell.send_replace(Seen::There(lean(pod)));
        }
    }

    fn tell_gone(&self, uid: &str, last: Option<Pod>) {
        if let Some(tell) = self.state.lock().followed.remove(uid) {
            let last = last.map_or_else(|| Arc::clone(tell.borrow().pod()), lean);
            tell.send_replace(Seen::Gone(last));
        }
    }
}

/// A pod without who changed what of it, which is half of it.
fn lean(mut pod: Pod) -> Arc<Pod> {
    pod.metadata.managed_fields = None;
    Arc::new(pod)
}
