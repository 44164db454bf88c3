//! One watch on the API server for the pods of all servers.
//!
//! # Invariants
//!
//! - A followed pod is reported until it is gone or no longer followed.
//! - A watch that ends continues where it ended. If the API server no longer has that position, all pods are read
//!   again. Requests are repeated until the API server responds; until then, no pod counts as ended.
//! - The watch uses no label selector. Another program may remove labels, and a pod that lost its label is not gone.

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
use crate::kubernetes::seen::Seen;
use runtime::unit::Error;

/// Duration of one watch request in seconds. After that, a new one is opened.
const WATCH_SECS: u32 = 240;
/// A watch that receives nothing for this long counts as lost. Bookmarks arrive once a minute.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(75);
const RETRY_DELAY: Duration = Duration::from_millis(100);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(5);

/// Watches the pods. Cheap to clone; clones share state.
#[derive(Clone, Default)]
pub(super) struct Watcher(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// Notified when a [`Following`] is dropped.
    left: Notify,
}

#[derive(Default)]
struct State {
    /// Keyed by pod uid.
    followed: HashMap<String, watch::Sender<Seen>>,
    is_watching: bool,
}

/// Follows a pod until dropped.
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
    /// Follows a pod that was just created. The watch task belongs to `tasks` and ends when no pod is followed.
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
        } else if let Ok(Some(pod)) = call("read a pod", cluster.pods.get_opt(&name)).await {
            // The watch may have reported the pod before it was followed.
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
        let mut pause = RETRY_DELAY;
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
                    pause = if is_new { RETRY_DELAY } else { pause };
                }
                Err(error) => {
                    let error = Error::from(error);
                    tracing::debug!("cannot watch pods: {error}");
                }
            }
            sleep(pause).await;
            pause = (2 * pause).min(MAX_RETRY_DELAY);
        }
    }

    /// Returns whether no pod is followed any more. The next followed pod then starts a new watch.
    fn is_over(&self) -> bool {
        let mut state = self.state.lock();
        state.is_watching = !state.followed.is_empty();
        !state.is_watching
    }

    /// Reads all pods. Returns the position to watch from.
    async fn read(&self, cluster: &Cluster) -> Result<String, Call> {
        // Copy the uids before listing the pods, because a pod that is followed later may have been created after the
        // list.
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

    /// Watches until the request ends. Returns the position to continue from, unless the server no longer has it, and
    /// whether anything was received.
    async fn watch(
        &self,
        cluster: &Cluster,
        mut from: String,
    ) -> Result<(Option<String>, bool), Call> {
        let params = WatchParams::default().timeout(WATCH_SECS);
        let opened = call("watch pods", cluster.pods.watch(&params, &from)).await;
        let mut events = match opened {
            Ok(events) => pin!(events),
            Err(Call::Api(410, _)) => return Ok((None, false)),
            Err(error) => return Err(error),
        };
        let mut is_new = false;
        while let Ok(Some(Ok(event))) = timeout(SILENCE_TIMEOUT, events.next()).await {
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
                // For example, the position is too old.
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

/// Removes the field managers from a pod, which are half of its size.
fn lean(mut pod: Pod) -> Arc<Pod> {
    pod.metadata.managed_fields = None;
    Arc::new(pod)
}
