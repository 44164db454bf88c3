//! The task of one pod: waits for its server's exit, then removes the pod.

use crate::kubernetes::seen::Seen;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt as _, pending};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::api::{Call, Cluster, delete};
use super::watcher::Following;
use runtime::handle::{Exit, ProcessState, Stop};
use runtime::ladder::{Ladder, Step};

/// Timeout for the streams to end after the server has ended.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(500);
const RETRY_DELAY: Duration = Duration::from_millis(100);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(5);
/// Attempts to remove an ended pod, over about half an hour. After that it is left to the next sweep.
const MAX_REMOVALS: u32 = 360;
/// Grace period in seconds for an immediate stop. With 0, the pod would be deleted before its node reports the exit.
const MIN_GRACE_SECS: u32 = 1;

/// Waits until a server has ended.
async fn end(mut seen: watch::Receiver<Seen>) -> (Exit, Option<String>) {
    let found = seen.wait_for(|seen| seen.end().is_some()).await;
    let end = found.ok().and_then(|seen| seen.end());
    end.unwrap_or_default()
}

/// The objects of an instance, with their uids, because a later instance may have the same name.
#[derive(Clone)]
pub(super) struct Made {
    /// The name of the pod and its Secret.
    pub(super) name: String,
    pub(super) pod: Option<String>,
    pub(super) secret: Option<String>,
}

impl Made {
    /// Starts to delete the pod with this grace period in seconds.
    async fn stop(&self, cluster: &Cluster, grace: u32) -> Result<(), Call> {
        let (name, pod) = (&self.name, self.pod.as_deref());
        delete("remove a pod", &cluster.pods, name, pod, Some(grace)).await
    }

    /// Removes all objects. `grace`: grace period of the pod in seconds.
    pub(super) async fn remove(&self, cluster: &Cluster, grace: u32) -> Result<(), Call> {
        let Self { name, secret, .. } = self;
        self.stop(cluster, grace).await?;
        delete(
            "remove a secret",
            &cluster.secrets,
            name,
            secret.as_deref(),
            None,
        )
        .await
    }
}

pub(super) struct Life {
    pub(super) cluster: Cluster,
    pub(super) made: Made,
    pub(super) seen: watch::Receiver<Seen>,
    pub(super) following: Following,
    pub(super) shared: Arc<ProcessState>,
    pub(super) pump: JoinHandle<()>,
    pub(super) forward: Option<AbortOnDropHandle<()>>,
    pub(super) killed: CancellationToken,
    pub(super) ended: CancellationToken,
    pub(super) exit: watch::Sender<Option<Exit>>,
}

impl Life {
    pub(super) async fn run(mut self) {
        let mut ladder = Ladder::new(self.shared.requests());
        let mut ended = end(self.seen.clone()).boxed();
        // The removal request being sent; a more urgent one replaces it.
        let mut removal: BoxFuture<'static, ()> = pending().boxed();
        let (exit, note) = loop {
            tokio::select! {
                end = &mut ended => break end,
                () = &mut removal => removal = pending().boxed(),
                step = ladder.next() => match step {
                    Step::Terminate => removal = self.remove_within(self.grace()),
                    Step::Kill => {
                        self.killed.cancel();
                        removal = self.remove_within(MIN_GRACE_SECS);
                    }
                    Step::GiveUp => {
                        tracing::warn!(label = self.shared.label, pod = self.made.name, "killed the instance, but its exit could not be confirmed");
                        // Callers stop waiting; the task continues, to remove the pod when possible.
                        self.exit.send_replace(Some(Exit::default()));
                    }
                },
            }
        };
        // Read this before the streams end, because their end also requests a stop.
        let asked = *self.shared.requests().borrow() != Stop::No;
        self.ended.cancel();
        if let Some(forward) = self.forward.take() {
            forward.abort();
            // The pod's ports are free once the forwarding task has ended.
            let _ = forward.await;
        }
        if timeout(DRAIN_TIMEOUT, &mut self.pump).await.is_err() {
            self.killed.cancel();
            self.pump.abort();
            let _ = (&mut self.pump).await;
        }
        if let Some(note) = note
            && !asked
        {
            self.shared.log.push(note.into());
        }
        // The node has reported the exit, so there is no need to wait for the rest of the pod.
        let mut removed = self.made.remove(&self.cluster, 0).await.is_ok();
        drop(self.following);
        self.shared.log.close();
        self.exit.send_replace(Some(self.shared.explained(exit)));
        for _ in 0..MAX_REMOVALS {
            if removed {
                return;
            }
            sleep(MAX_RETRY_DELAY).await;
            removed = self.made.remove(&self.cluster, 0).await.is_ok();
        }
    }

    /// The grace period in whole seconds, from a stop request to the kill. The node measures it.
    fn grace(&self) -> u32 {
        let requests = self.shared.requests();
        let until = match *requests.borrow() {
            Stop::By(until) => until.saturating_duration_since(Instant::now()),
            _ => Duration::ZERO,
        };
        let seconds = until.as_secs_f64().ceil();
        (seconds as u32).max(MIN_GRACE_SECS)
    }

    /// Requests the deletion. Retries until the API server accepts it.
    fn remove_within(&self, grace: u32) -> BoxFuture<'static, ()> {
        let (cluster, made) = (self.cluster.clone(), self.made.clone());
        async move {
            let mut pause = RETRY_DELAY;
            while made.stop(&cluster, grace).await.is_err() {
                sleep(pause).await;
                pause = (2 * pause).min(MAX_RETRY_DELAY);
            }
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::kubernetes::spec::SERVER_CONTAINER;

    fn seen(status: serde_json::Value) -> Seen {
        let pod = json!({"metadata": {"name": "x"}, "status": status});
        Seen::There(Arc::new(serde_json::from_value(pod).expect("a pod")))
    }

    fn terminated(code: i32, reason: &str) -> Seen {
        let state = json!({"terminated": {"exitCode": code, "reason": reason}});
        seen(json!({"phase": "Failed", "containerStatuses": [{
            "name": SERVER_CONTAINER, "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state,
        }]}))
    }

    #[test]
    fn ends_are_told_as_the_cluster_tells_them() {
        let end = |seen: &Seen| {
            seen.end()
                .map(|(exit, _)| (exit.code, exit.signal, exit.out_of_memory))
        };
        assert_eq!(end(&terminated(7, "Error")), Some((Some(7), None, false)));
        assert_eq!(
            end(&terminated(0, "Completed")),
            Some((Some(0), None, false))
        );
        assert_eq!(
            end(&terminated(137, "OOMKilled")),
            Some((None, Some(9), true))
        );
        assert_eq!(end(&seen(json!({"phase": "Running"}))), None);
        let evicted =
            seen(json!({"phase": "Failed", "reason": "Evicted", "message": "low on memory"}));
        assert_eq!(end(&evicted), Some((None, None, false)));
        let (_, note) = evicted.end().expect("it has ended");
        assert!(note.is_some_and(|note| note.ends_with("Evicted: low on memory")));
        let gone = Seen::Gone(Arc::clone(seen(json!({"phase": "Running"})).pod()));
        assert!(gone.end().is_some_and(|(_, note)| note.is_some()));
    }
}
