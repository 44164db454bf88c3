//! The task of one service: waits for its server's exit, then removes the service.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::Inner;
use super::contact::{Contact, Lost};
use super::room::service_remove;
use crate::docker::engine::Engine;
use runtime::handle::{Exit, ProcessState};

/// Delay between attempts to remove something.
const RETRY_DELAY: Duration = Duration::from_millis(250);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(10);
/// Number of attempts to remove a service, over about half an hour. After that it is left to the next sweep.
const MAX_REMOVALS: u32 = 200;
/// Timeout of requests to a daemon that may be gone.
const KILL_TIMEOUT: Duration = Duration::from_secs(3);

pub(super) struct Life {
    pub(super) inner: Arc<Inner>,
    pub(super) service: String,
    /// The daemon of the node.
    pub(super) engine: Arc<Engine>,
    pub(super) node: String,
    pub(super) container: String,
    pub(super) contact: Contact,
    /// The container's exit, as reported by the daemon.
    pub(super) ended: watch::Receiver<Option<Exit>>,
    /// Cancelled when the container was killed but the daemon does not report its exit.
    pub(super) given_up: CancellationToken,
    /// The task that waits for the daemon to report the exit.
    pub(super) reaper: AbortOnDropHandle<()>,
    /// The task that moves the container's streams. It outlives the reaper.
    pub(super) pump: AbortHandle,
    pub(super) shared: Arc<ProcessState>,
    pub(super) exit: watch::Sender<Option<Exit>>,
}

impl Life {
    pub(super) async fn run(self) {
        let mut ended = self.ended.clone();
        let told = async move {
            let exit = ended.wait_for(Option::is_some).await;
            exit.ok().and_then(|exit| *exit).unwrap_or_default()
        };
        let mut told = std::pin::pin!(told);
        let exit = tokio::select! {
            exit = &mut told => exit,
            lost = self.contact.keep(&self.given_up) => {
                let killing = kill(&self.engine, &self.container);
                tokio::select! {
                    exit = &mut told => exit,
                    () = over(lost) => {
                        self.reaper.abort();
                        self.pump.abort();
                        self.shared.log.push(format!(
                            "toolwharf: the node {} no longer responds; by now, the server's instance there has stopped itself",
                            self.node
                        ).into());
                        self.shared.log.close();
                        Exit::default()
                    }
                    never = killing => match never {},
                }
            }
        };
        // If this fails, `clean_up` retries, and the next launch also removes the service.
        let removed = self.inner.service_gone(&self.service).await;
        self.exit.send_replace(Some(exit));
        if !removed {
            self.inner.clean_up(&self.service).await;
        }
    }
}

async fn over(lost: Lost) {
    tokio::time::sleep_until(lost.over).await;
}

/// Kills a container whose watch does not reply, if its daemon responds. Repeats until dropped.
async fn kill(engine: &Engine, container: &str) -> Infallible {
    loop {
        let killing = async { engine.connect().await?.kill(container, "SIGKILL").await };
        if let Ok(Err(error)) = timeout(KILL_TIMEOUT, killing).await {
            tracing::debug!(container, %error, "cannot kill a container whose watch program does not respond");
        }
        sleep(RETRY_DELAY).await;
    }
}

impl Inner {
    /// Removes a service. Returns whether the service is gone, even if another process removed it.
    async fn service_gone(&self, id: &str) -> bool {
        let removed = async {
            let nodes = self.nodes().await?;
            service_remove(&nodes.manager, id).await
        };
        match removed.await {
            Ok(()) => true,
            Err(error) => {
                tracing::debug!(service = id, %error, "cannot remove a service; retrying");
                false
            }
        }
    }

    /// Retries the removal of a service until it is gone or [`MAX_REMOVALS`] is reached.
    async fn clean_up(&self, service: &str) {
        let mut pause = RETRY_DELAY;
        for _ in 0..MAX_REMOVALS {
            sleep(pause).await;
            pause = (2 * pause).min(MAX_RETRY_DELAY);
            if self.service_gone(service).await {
                return;
            }
        }
    }
}
