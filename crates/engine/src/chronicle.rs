//! What happens to servers, written down: one task writes, in order, and nobody waits for it.
//!
//! Bounded: `QUEUE` writes wait. Where the store does not keep up, events are lost and counted; the last status of a
//! server is kept and tried again until it is written. Deliberately absent: when something is written.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use model::{ProjectId, ServerName};
use serde_json::Value;
use store::{NewEvent, Store};
use tokio::sync::{broadcast, mpsc, oneshot};

const QUEUE: usize = 4096;
/// Warnings that a slow listener may be behind.
const WARNINGS: usize = 256;
const RETRY: Duration = Duration::from_secs(1);

/// Something to write down.
pub(crate) enum Write {
    /// How a server is left, for the next start of the product.
    Status { id: String, word: &'static str },
    Event {
        project: Option<ProjectId>,
        id: String,
        name: ServerName,
        kind: &'static str,
        warning: bool,
        detail: Value,
    },
    /// Tell when all before it is written, or was tried.
    Flush(oneshot::Sender<()>),
}

/// A health warning of a server (H10, H15).
#[derive(Clone, Debug)]
pub struct Warning {
    pub project: Option<ProjectId>,
    pub id: String,
    pub name: ServerName,
    pub kind: &'static str,
    pub detail: Value,
}

/// Cheap to clone; the task ends with the last clone.
#[derive(Clone)]
pub(crate) struct Chronicle {
    writes: mpsc::Sender<Write>,
    warnings: broadcast::Sender<Warning>,
    lost: Arc<AtomicU64>,
}

impl Chronicle {
    /// The task is to be run by whoever owns tasks.
    pub(crate) fn new(store: Store) -> (Self, impl Future<Output = ()> + Send + 'static) {
        let (writes, queue) = mpsc::channel(QUEUE);
        let chronicle = Self {
            writes,
            warnings: broadcast::Sender::new(WARNINGS),
            lost: Arc::default(),
        };
        (chronicle, write_all(store, queue))
    }

    pub(crate) fn write(&self, write: Write) {
        if let Write::Event {
            project,
            id,
            name,
            kind,
            warning: true,
            detail,
        } = &write
        {
            // An error only says that nobody listens.
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
            tracing::error!(lost, "what happened to a server is not written down");
        }
    }

    pub(crate) async fn flush(&self) {
        let (done, flushed) = oneshot::channel();
        if self.writes.send(Write::Flush(done)).await.is_ok() {
            let _ = flushed.await;
        }
    }

    pub(crate) fn warnings(&self) -> broadcast::Receiver<Warning> {
        self.warnings.subscribe()
    }
}

async fn write_all(store: Store, mut queue: mpsc::Receiver<Write>) {
    let mut open: BTreeMap<String, &'static str> = BTreeMap::new();
    loop {
        let write = if open.is_empty() {
            queue.recv().await
        } else {
            match tokio::time::timeout(RETRY, queue.recv()).await {
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
            Some(Write::Status { id, word }) => {
                open.insert(id, word);
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
                    tracing::error!(id, kind, "an event is not written down: {error}");
                }
            }
        }
    }
    retry(&store, &mut open).await;
}

async fn retry(store: &Store, open: &mut BTreeMap<String, &'static str>) {
    let mut left = BTreeMap::new();
    for (id, word) in std::mem::take(open) {
        match store.workspace_set_status(&id, word).await {
            Ok(_) | Err(store::Error::NotFound { .. }) => {}
            Err(error) => {
                tracing::warn!(
                    id,
                    "the status of a hosted server is not written yet: {error}"
                );
                left.insert(id, word);
            }
        }
    }
    *open = left;
}
