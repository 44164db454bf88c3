//! The task of one pod, which sees it to its end and removes it.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt as _, pending};
use k8s_openapi::api::core::v1::Pod;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::api::{Call, Cluster, delete};
use super::readback::state;
use super::spec::SERVER;
use super::watcher::Following;
use crate::handle::{Exit, ProcessState, Stop};
use crate::ladder::{Ladder, Step};

/// How long the streams may take to come to their end when the server has.
const DRAIN: Duration = Duration::from_millis(500);
const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// Attempts at removing what has ended: about half an hour. The next sweep finds the rest.
const REMOVALS: u32 = 360;
/// Seconds. With none the pod would be gone without its node having said so.
const AT_ONCE: u32 = 1;

/// A pod as the watch showed it last.
#[derive(Clone)]
pub(super) enum Seen {
    There(Arc<Pod>),
    /// It is no more; how it was last.
    Gone(Arc<Pod>),
}

impl Seen {
    pub(super) fn pod(&self) -> &Arc<Pod> {
        let (Self::There(pod) | Self::Gone(pod)) = self;
        pod
    }

    /// How the server ended, and what is to be said of it; `None` while it may run.
    pub(super) fn end(&self) -> Option<(Exit, Option<String>)> {
        let pod = self.pod();
        let ended = state(pod, SERVER).and_then(|state| state.terminated.as_ref());
        let status = pod.status.as_ref();
        let reason = status.and_then(|status| status.reason.as_deref());
        let message = status
            .and_then(|status| status.message.as_deref())
            .unwrap_or_default();
        let removed = reason.map(|reason| {
            format!("toolwharf: the pod was ended by the cluster: {reason}: {message}")
        });
        if let Some(ended) = ended {
            let out_of_memory = ended.reason.as_deref() == Some("OOMKilled");
            let exit = Exit {
                out_of_memory,
                ..of_code(ended.exit_code)
            };
            return Some((exit, removed));
        }
        let failed = status.and_then(|status| status.phase.as_deref()) == Some("Failed");
        match self {
            Self::There(_) if !failed => None,
            _ => {
                let gone = || "toolwharf: the pod was removed by somebody else".to_owned();
                Some((Exit::default(), Some(removed.unwrap_or_else(gone))))
            }
        }
    }
}

/// A signal is told by the code that a shell would give to it.
fn of_code(code: i32) -> Exit {
    match code {
        129..=159 => Exit {
            signal: Some(code - 128),
            ..Exit::default()
        },
        code => Exit {
            code: Some(code),
            ..Exit::default()
        },
    }
}

/// Waits until a server has ended.
async fn end(mut seen: watch::Receiver<Seen>) -> (Exit, Option<String>) {
    let found = seen.wait_for(|seen| seen.end().is_some()).await;
    let end = found.ok().and_then(|seen| seen.end());
    end.unwrap_or_default()
}

/// What was made for an instance: another one may have the same name later.
#[derive(Clone)]
pub(super) struct Made {
    /// Of the pod and its Secret.
    pub(super) name: String,
    pub(super) pod: Option<String>,
    pub(super) secret: Option<String>,
}

impl Made {
    /// Has it end, in so many seconds.
    async fn stop(&self, cluster: &Cluster, grace: u32) -> Result<(), Call> {
        let (name, pod) = (&self.name, self.pod.as_deref());
        delete("remove a pod", &cluster.pods, name, pod, Some(grace)).await
    }

    /// Removes it. `grace`: seconds that the pod has.
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
        // The removal that is under way; a more urgent one replaces it.
        let mut removal: BoxFuture<'static, ()> = pending().boxed();
        let (exit, note) = loop {
            tokio::select! {
                end = &mut ended => break end,
                () = &mut removal => removal = pending().boxed(),
                step = ladder.next() => match step {
                    Step::Terminate => removal = self.remove_within(self.grace()),
                    Step::Kill => {
                        self.killed.cancel();
                        removal = self.remove_within(AT_ONCE);
                    }
                    Step::GiveUp => {
                        tracing::warn!(label = self.shared.label, pod = self.made.name, "killed, and its end is not known");
                        // Those who wait have an answer; the task stays, to remove it yet.
                        self.exit.send_replace(Some(Exit::default()));
                    }
                },
            }
        };
        // The end of its streams, which comes now, has it asked for.
        let asked = *self.shared.requests().borrow() != Stop::No;
        self.ended.cancel();
        if let Some(forward) = self.forward.take() {
            forward.abort();
            // Its ports are free when it is gone.
            let _ = forward.await;
        }
        if timeout(DRAIN, &mut self.pump).await.is_err() {
            self.killed.cancel();
            self.pump.abort();
            let _ = (&mut self.pump).await;
        }
        if let Some(note) = note
            && !asked
        {
            self.shared.log.push(note.into());
        }
        // Its node has said that it has ended: nobody has to wait for the rest of the pod.
        let mut removed = self.made.remove(&self.cluster, 0).await.is_ok();
        drop(self.following);
        self.shared.log.close();
        self.exit.send_replace(Some(exit));
        for _ in 0..REMOVALS {
            if removed {
                return;
            }
            sleep(PAUSE_MAX).await;
            removed = self.made.remove(&self.cluster, 0).await.is_ok();
        }
    }

    /// Whole seconds until what was asked to end is to be killed: the node counts them.
    fn grace(&self) -> u32 {
        let requests = self.shared.requests();
        let until = match *requests.borrow() {
            Stop::By(until) => until.saturating_duration_since(Instant::now()),
            _ => Duration::ZERO,
        };
        let seconds = until.as_secs_f64().ceil();
        (seconds as u32).max(AT_ONCE)
    }

    /// Asked for again until the API server has taken it.
    fn remove_within(&self, grace: u32) -> BoxFuture<'static, ()> {
        let (cluster, made) = (self.cluster.clone(), self.made.clone());
        async move {
            let mut pause = PAUSE;
            while made.stop(&cluster, grace).await.is_err() {
                sleep(pause).await;
                pause = (2 * pause).min(PAUSE_MAX);
            }
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn seen(status: serde_json::Value) -> Seen {
        let pod = json!({"metadata": {"name": "x"}, "status": status});
        Seen::There(Arc::new(serde_json::from_value(pod).expect("a pod")))
    }

    fn terminated(code: i32, reason: &str) -> Seen {
        let state = json!({"terminated": {"exitCode": code, "reason": reason}});
        seen(json!({"phase": "Failed", "containerStatuses": [{
            "name": SERVER, "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state,
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
