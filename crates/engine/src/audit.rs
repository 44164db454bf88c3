//! The record of tool calls (P09): the intent is durable before the server hears of a call, the outcome before
//! the caller does.
//!
//! One thread writes, in batches: whatever came while the last batch was on its way is the next one. What cannot
//! be written is said at once to whoever waits; outcomes that could not be written are kept and written later,
//! so far as memory is set aside for them. Nothing is ever made again. Deliberately absent: what is in the
//! table, and how long it stays there.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use model::{AuditBodies, ProjectId};
use sha2::{Digest, Sha256};
use store::{CallEnd, CallStatus, CallWrite, CallWriter, NewCall};
use tokio::{
    sync::{mpsc, oneshot},
    time::Instant,
};

use crate::secrets::hex;

/// Records that wait to be written.
const QUEUE: usize = 16_384;
/// The most records of one batch: two for each of as many calls as are usually in flight.
const BATCH: usize = 256;
/// Outcomes that are kept while they cannot be written.
const LATE: usize = 65_536;
/// How often they are tried again.
const RETRY: Duration = Duration::from_secs(1);
/// How long a call waits for its record.
const DEADLINE: Duration = Duration::from_secs(8);
const STOPPING: &str = "the product is stopping";
/// Longest error text that is kept, in bytes.
const ERROR_BYTES: usize = 2_000;

/// Why a call was not recorded.
#[derive(Debug, Clone, thiserror::Error)]
#[error("the call could not be recorded: {0}")]
pub struct NotRecorded(Arc<str>);

type Done = oneshot::Sender<Result<(), NotRecorded>>;

/// Records calls. Cheap to clone; the thread that writes ends with the last clone, or with [`Audit::end`].
#[derive(Clone)]
pub(crate) struct Audit {
    records: mpsc::Sender<Entry>,
}

/// Something for the thread that writes.
struct Entry {
    /// Nothing to write: the end.
    write: Option<CallWrite>,
    done: Option<Done>,
}

/// Who calls what.
pub(crate) struct Intent<'a> {
    pub(crate) project: Option<&'a ProjectId>,
    pub(crate) caller: &'a str,
    pub(crate) server: &'a str,
    pub(crate) tool: &'a str,
    /// The run of an agent that it belongs to.
    pub(crate) run: Option<&'a str>,
    /// JSON text.
    pub(crate) arguments: &'a [u8],
    pub(crate) bodies: AuditBodies,
    /// Blots out what must not be kept.
    pub(crate) redact: &'a (dyn Fn(&str) -> String + Sync),
}

/// What came of it.
pub(crate) struct Outcome<'a> {
    pub(crate) status: CallStatus,
    pub(crate) error: Option<&'a str>,
    /// JSON text.
    pub(crate) result: Option<&'a [u8]>,
}

/// An open record. Dropped without an outcome, the call was cancelled.
pub(crate) struct Record {
    audit: Audit,
    id: String,
    began: Instant,
    bodies: AuditBodies,
    open: bool,
}

impl Audit {
    /// An audit, with a thread that writes for it.
    ///
    /// # Panics
    /// If the system has no more threads to give, or outside of a runtime.
    pub(crate) fn new(writer: CallWriter) -> Self {
        let (records, queue) = mpsc::channel(QUEUE);
        let runtime = tokio::runtime::Handle::current();
        std::thread::Builder::new()
            .name("audit".to_owned())
            .spawn(move || runtime.block_on(write(writer, queue)))
            .expect("a thread can be started");
        Self { records }
    }

    /// Records that a call is about to be made.
    ///
    /// # Errors
    /// [`NotRecorded`]: then it must not be made.
    pub(crate) async fn open(&self, intent: Intent<'_>) -> Result<Record, NotRecorded> {
        let id = store::new_id();
        let arguments = (intent.bodies == AuditBodies::Full)
            .then(|| (intent.redact)(&String::from_utf8_lossy(intent.arguments)));
        let call = NewCall {
            id: id.clone(),
            run_id: intent.run.map(str::to_owned),
            project: intent.project.cloned(),
            caller: intent.caller.to_owned(),
            server: intent.server.to_owned(),
            tool: intent.tool.to_owned(),
            arguments_digest: digest(intent.arguments),
            arguments,
            started_at: store::now(),
        };
        let began = Instant::now();
        self.written(Some(CallWrite::Intent(call))).await?;
        Ok(Record {
            audit: self.clone(),
            id,
            began,
            bodies: intent.bodies,
            open: true,
        })
    }

    /// Waits until everything that came before is written, or cannot be. Nothing is recorded from now on.
    pub(crate) async fn end(&self) {
        let _ = self.written(None).await;
    }

    /// Writes what another than a server's call has to record.
    pub(crate) async fn write(&self, write: CallWrite) -> Result<(), NotRecorded> {
        self.written(Some(write)).await
    }

    async fn written(&self, write: Option<CallWrite>) -> Result<(), NotRecorded> {
        let (done, outcome) = oneshot::channel();
        let done = Some(done);
        self.records
            .try_send(Entry { write, done })
            .map_err(|error| match error {
                mpsc::error::TrySendError::Full(_) => "too many records wait already",
                mpsc::error::TrySendError::Closed(_) => STOPPING,
            })
            .map_err(|why| NotRecorded(why.into()))?;
        match tokio::time::timeout(DEADLINE, outcome).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(_)) => Err(NotRecorded(STOPPING.into())),
            Err(_) => Err(NotRecorded("the database did not answer in time".into())),
        }
    }
}

impl Record {
    /// Records what came of the call.
    ///
    /// # Errors
    /// [`NotRecorded`]: it is tried again later, but the caller cannot be told the outcome.
    pub(crate) async fn close(
        mut self,
        outcome: Outcome<'_>,
        redact: &(dyn Fn(&str) -> String + Sync),
    ) -> Result<(), NotRecorded> {
        self.open = false;
        let result = outcome
            .result
            .filter(|_| self.bodies == AuditBodies::Full)
            .map(|text| redact(&String::from_utf8_lossy(text)));
        let error = outcome.error.map(|text| {
            let mut text = redact(text);
            text.truncate(text.floor_char_boundary(ERROR_BYTES));
            text
        });
        let end = self.end(outcome.status, error, outcome.result.map(digest), result);
        self.audit.written(Some(CallWrite::Outcome(end))).await
    }

    fn end(
        &self,
        status: CallStatus,
        error: Option<String>,
        result_digest: Option<String>,
        result: Option<String>,
    ) -> CallEnd {
        CallEnd {
            id: self.id.clone(),
            status,
            error,
            result_digest,
            result,
            finished_at: store::now(),
            duration_us: i64::try_from(self.began.elapsed().as_micros()).unwrap_or(i64::MAX),
        }
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        if !self.open {
            return;
        }
        let end = self.end(CallStatus::Cancelled, None, None, None);
        if self
            .audit
            .records
            .try_send(Entry {
                write: Some(CallWrite::Outcome(end)),
                done: None,
            })
            .is_err()
        {
            tracing::error!(call = self.id, "a cancelled call stays open in the records");
        }
    }
}

fn digest(text: &[u8]) -> String {
    hex(&Sha256::digest(text))
}

async fn write(mut writer: CallWriter, mut queue: mpsc::Receiver<Entry>) {
    let mut late: VecDeque<CallEnd> = VecDeque::new();
    let mut batch = Vec::with_capacity(BATCH);
    let mut ending = None;
    while ending.is_none() {
        let came = if late.is_empty() {
            queue.recv_many(&mut batch, BATCH).await
        } else {
            // Who waits goes first; what is late is tried beside it.
            tokio::time::timeout(RETRY, queue.recv_many(&mut batch, BATCH))
                .await
                .unwrap_or(usize::MAX)
        };
        if came == 0 {
            break;
        }
        let mut writes = Vec::with_capacity(batch.len());
        let mut done = Vec::with_capacity(batch.len());
        for entry in batch.drain(..) {
            match entry.write {
                Some(write) => {
                    writes.push(write);
                    done.extend(entry.done);
                }
                None => ending = entry.done,
            }
        }
        let waiting = writes.len();
        writes.extend(late.iter().take(BATCH).cloned().map(CallWrite::Outcome));
        let written = writer.write(&writes).await;
        match &written {
            Ok(()) => {
                late.drain(..writes.len() - waiting);
            }
            Err(error) => {
                tracing::error!(
                    records = waiting,
                    "calls cannot be recorded: {}",
                    chain(error)
                );
                for write in writes.into_iter().take(waiting) {
                    if let CallWrite::Outcome(end) = write {
                        if late.len() >= LATE {
                            tracing::error!(call = end.id, "its outcome is lost: it stays open");
                        } else {
                            late.push_back(end);
                        }
                    }
                }
            }
        }
        let outcome = written.map_err(|error| NotRecorded(error.to_string().into()));
        for done in done {
            let _ = done.send(outcome.clone());
        }
    }
    queue.close();
    // One last time for what is late.
    let rest: Vec<_> = late.drain(..).map(CallWrite::Outcome).collect();
    if !rest.is_empty() && writer.write(&rest).await.is_err() {
        tracing::error!(
            records = rest.len(),
            "outcomes of calls could not be recorded: they stay open"
        );
    }
    drop(writer);
    if let Some(ending) = ending {
        let _ = ending.send(Ok(()));
    }
}

fn chain(error: &store::Error) -> String {
    use std::error::Error;
    match error.source() {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}
