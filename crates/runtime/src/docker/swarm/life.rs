//! The task of one service: it sees its server to its end, and removes what was made for it.

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
use crate::handle::{Exit, ProcessState};

/// From one attempt to remove something to the next.
const PAUSE: Duration = Duration::from_millis(250);
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// Attempts: about half an hour. The next sweep finds the rest.
const REMOVALS: u32 = 200;
/// For a daemon that may be gone.
const BRIEF: Duration = Duration::from_secs(3);

pub(super) struct Life {
    pub(super) inner: Arc<Inner>,
    pub(super) service: String,
    /// Of the node.
    pub(super) engine: Arc<Engine>,
    pub(super) node: String,
    pub(super) container: String,
    pub(super) contact: Contact,
    /// How its container ended, by the daemon's word.
    pub(super) ended: watch::Receiver<Option<Exit>>,
    /// It was killed, and the daemon does not say that it has ended.
    pub(super) given_up: CancellationToken,
    /// What finds that out.
    pub(super) reaper: AbortOnDropHandle<()>,
    /// What moves its streams, and outlives the reaper.
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
                            "toolwharf: the node {} does not answer any more; what it ran there has ended itself",
                            self.node
                        ).into());
                        self.shared.log.close();
                        Exit::default()
                    }
                    never = killing => match never {},
                }
            }
        };
        // The next launch makes sure of that.
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

/// Kills a container whose watch does not answer, if its daemon does. Until it is dropped.
async fn kill(engine: &Engine, container: &str) -> Infallible {
    loop {
        let killing = async { engine.connect().await?.kill(container, "SIGKILL").await };
        if let Ok(Err(error)) = timeout(BRIEF, killing).await {
            tracing::debug!(container, %error, "a container whose watch is lost is not killed");
        }
        sleep(PAUSE).await;
    }
}

impl Inner {
    /// Removes a service, whoever has it removed before; whether it is gone.
    async fn service_gone(&self, id: &str) -> bool {
        let removed = async {
            let nodes = self.nodes().await?;
            service_remove(&nodes.manager, id).await
        };
        match removed.await {
            Ok(()) => true,
            Err(error) => {
                tracing::debug!(service = id, %error, "a service is not removed yet");
                false
            }
        }
    }

    /// Removes a service that could not be removed at once.
    async fn clean_up(&self, service: &str) {
        let mut pause = PAUSE;
        for _ in 0..REMOVALS {
            sleep(pause).await;
            pause = (2 * pause).min(PAUSE_MAX);
            if self.service_gone(service).await {
                return;
            }
        }
    }
}
