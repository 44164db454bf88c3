//! The event log of servers. One task writes in order; no caller waits for it.
//!
//! Bounded: at most `MAX_QUEUED_WRITES` writes wait. If the store is too slow, events are dropped and counted. The
//! latest status of a server is kept and retried until it is written. Deliberately absent: when something is logged.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use lifecycle::Saved;
use model::{ProjectId, ServerName};
use serde_json::Value;
use store::{NewEvent, Store};
use tokio::sync::{broadcast, mpsc, oneshot};

const MAX_QUEUED_WRITES: usize = 4096;
/// Warnings buffered per listener. A slower listener loses the oldest ones.
const MAX_QUEUED_WARNINGS: usize = 256;
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// An entry to write.
pub enum Write {
    /// A server's status, and the state for the next start of the gateway.
    Status { id: String, saved: Saved },
    Event {
        project: Option<ProjectId>,
        id: String,
        name: ServerName,
        kind: &'static str,
        warning: bool,
        detail: Value,
    },
    /// Notifies the sender once all earlier entries were written or have failed.
    Flush(oneshot::Sender<()>),
}

/// A health warning about a server (H10, H15).
#[derive(Clone, Debug)]
pub struct Warning {
    pub project: Option<ProjectId>,
    pub id: String,
    pub name: ServerName,
    pub kind: &'static str,
    pub detail: Value,
}

/// Cheap to clone. The task ends with the last clone.
#[derive(Clone)]
pub struct EventLog {
    writes: mpsc::Sender<Write>,
    warnings: broadcast::Sender<Warning>,
    lost: Arc<AtomicU64>,
}

impl EventLog {
    /// Returns the event log and its task, which the caller has to run.
    pub fn new(store: Store) -> (Self, impl Future<Output = ()> + Send + 'static) {
        let (writes, queue) = mpsc::channel(MAX_QUEUED_WRITES);
        let event_log = Self {
            writes,
            warnings: broadcast::Sender::new(MAX_QUEUED_WARNINGS),
            lost: Arc::default(),
        };
        (event_log, write_all(store, queue))
    }

    pub fn write(&self, write: Write) {
        if let Write::Event {
            project,
            id,
            name,
            kind,
            warning: true,
            detail,
        } = &write
        {
            // Fails only if there is no listener.
            let _ = self.warnings.send(Warning {
                project: project.clone(),
                id: id.clone(),
                name: name.clone(),
                kind,
                detail: detail.clone(),
            });
        }
        if self.writes.try_send(write).is_err() {
            let lost = self.lost.fetch_add(1, Ordering::Relaxed) + 1;
            tracing::error!(
                lost,
                "a server event was dropped: too many are waiting to be written"
            );
        }
    }

    pub async fn flush(&self) {
        let (done, flushed) = oneshot::channel();
        if self.writes.send(Write::Flush(done)).await.is_ok() {
            let _ = flushed.await;
        }
    }

    pub fn warnings(&self) -> broadcast::Receiver<Warning> {
        self.warnings.subscribe()
    }
}

async fn write_all(store: Store, mut queue: mpsc::Receiver<Write>) {
    let mut open: BTreeMap<String, Saved> = BTreeMap::new();
    loop {
        let write = if open.is_empty() {
            queue.recv().await
        } else {
            match tokio::time::timeout(RETRY_DELAY, queue.recv()).await {
                Ok(write) => write,
                Err(_) => {
                    retry(&store, &mut open).await;
                    continue;
                }
            }
        };
        match write {
            None => break,
            Some(Write::Flush(done)) => {
                retry(&store, &mut open).await;
                let _ = done.send(());
            }
            Some(Write::Status { id, saved }) => {
                open.insert(id, saved);
                retry(&store, &mut open).await;
            }
            Some(Write::Event {
                project,
                id,
                kind,
                detail,
                ..
            }) => {
                let event = NewEvent {
                    project: project.as_ref(),
                    server: &id,
                    kind,
                    detail: &detail,
                };
                if let Err(error) = store.event_add(event).await {
                    tracing::error!(id, kind, "a server event could not be written: {error}");
                }
            }
        }
    }
    retry(&store, &mut open).await;
}

async fn retry(store: &Store, open: &mut BTreeMap<String, Saved>) {
    let mut left = BTreeMap::new();
    for (id, saved) in std::mem::take(open) {
        let Saved { status, last } = saved;
        match store
            .registration_set_status(&id, status, last.word())
            .await
        {
            Ok(_) | Err(store::Error::NotFound { .. }) => {}
            Err(error) => {
                tracing::warn!(
                    id,
                    "the status of a hosted server could not be written yet: {error}"
                );
                left.insert(id, saved);
            }
        }
    }
    *open = left;
}
