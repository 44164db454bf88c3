//! The record of tool calls (P09): the intent is durable before the server hears of a call, the outcome before
//! the caller does.
//!
//! One thread writes, in batches: whatever came while the last batch was on its way is the next one. What cannot
//! be written is said at once to whoever waits; outcomes that could not be written are kept and written later,
//! so far as memory is set aside for them. Nothing is ever made again. Deliberately absent: what is in the
//! table, and how long it stays there.
//!
//! An intent that was handed to the writer gets its outcome, wherever the call is dropped: the place of the outcome in
//! the queue is reserved before the intent goes into it ([`Pending`]).

use std::{collections::VecDeque, sync::Arc, time::Duration};

use model::{AuditBodies, ProjectId};
use runtime::Repeats;
use sha2::{Digest, Sha256};
use store::{CallEnd, CallStatus, CallSteps, CallWrite, CallWriter, NewCall};
use tokio::{
    sync::{
        mpsc::{self, OwnedPermit, error::TrySendError},
        oneshot,
    },
    time::Instant,
};

/// Records that wait to be written, and places for the outcomes of calls in flight.
const QUEUE: usize = 32_768;
/// The most records of one batch: two for each of as many calls as are usually in flight.
const BATCH: usize = 256;
/// Outcomes that are kept while they cannot be written.
const LATE: usize = 65_536;
/// Intents of which the database did not say whether they were written, and that are to be closed if they were. Those
/// that come after so many failures are not written: the first failures are the ones in doubt.
const DOUBTFUL: usize = 4_096;
/// How long the writer waits at its end for outcomes of calls that are just being dropped.
const LAST: Duration = Duration::from_secs(1);
/// How often they are tried again.
const RETRY: Duration = Duration::from_secs(1);
/// How long a call waits for its record.
const DEADLINE: Duration = Duration::from_secs(8);
const STOPPING: &str = "the product is stopping";
const TOO_MANY: &str = "too many records wait already";
const NOT_MADE: &str = "its record was not confirmed in time, so it was not made";
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
    /// The call that is made again.
    pub(crate) replay_of: Option<&'a str>,
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
    pub(crate) steps: CallSteps,
}

/// An open record. Dropped without an outcome, the call was cancelled.
pub(crate) struct Record {
    pending: Pending,
    bodies: AuditBodies,
}

/// A call whose intent the writer has and whose outcome it does not have yet. Dropped, the call was cancelled.
struct Pending {
    /// The place of the outcome in the queue; `None` once it is used or not needed.
    place: Option<OwnedPermit<Entry>>,
    id: String,
    began: Instant,
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
            replay_of: intent.replay_of.map(str::to_owned),
        };
        Ok(Record {
            pending: self.intend(call).await?,
            bodies: intent.bodies,
        })
    }

    /// Writes an intent. If this is dropped before it is done, or nobody can tell what came of it, the intent gets an
    /// outcome all the same.
    async fn intend(&self, call: NewCall) -> Result<Pending, NotRecorded> {
        let place = self
            .records
            .clone()
            .try_reserve_owned()
            .map_err(not_taken)?;
        let mut pending = Pending {
            place: Some(place),
            id: call.id.clone(),
            began: Instant::now(),
        };
        let written = match self.send(Some(CallWrite::Intent(call))) {
            Ok(written) => written,
            Err(why) => {
                pending.place = None;
                return Err(why);
            }
        };
        match tokio::time::timeout(DEADLINE, written).await {
            Ok(Ok(Ok(()))) => Ok(pending),
            // The writer knows of it, and closes what is in doubt.
            Ok(Ok(Err(why))) => {
                pending.place = None;
                Err(why)
            }
            Ok(Err(_)) => {
                pending.place = None;
                Err(NotRecorded(STOPPING.into()))
            }
            Err(_) => {
                let error = Some(NOT_MADE.to_owned());
                pending.give(pending.end(CallStatus::Error, error, None, None), None);
                Err(overdue())
            }
        }
    }

    /// Waits until everything that came before is written, or cannot be. Nothing is recorded from now on.
    pub(crate) async fn end(&self) {
        let (done, ended) = oneshot::channel();
        let entry = Entry {
            write: None,
            done: Some(done),
        };
        if self.records.send(entry).await.is_ok() {
            let _ = ended.await;
        }
    }

    /// Writes what another than a server's call has to record.
    pub(crate) async fn write(&self, write: CallWrite) -> Result<(), NotRecorded> {
        match write {
            CallWrite::Intent(call) => {
                let mut pending = self.intend(call).await?;
                // Its outcome comes by another way.
                pending.place = None;
                Ok(())
            }
            outcome @ CallWrite::Outcome(_) => answered(self.send(Some(outcome))?).await,
        }
    }

    /// Hands something to the writer, which tells what came of it.
    fn send(&self, write: Option<CallWrite>) -> Result<Written, NotRecorded> {
        let (done, written) = oneshot::channel();
        let done = Some(done);
        self.records
            .try_send(Entry { write, done })
            .map_err(not_taken)?;
        Ok(written)
    }
}

type Written = oneshot::Receiver<Result<(), NotRecorded>>;

fn not_taken<T>(error: TrySendError<T>) -> NotRecorded {
    let why = match error {
        TrySendError::Full(_) => TOO_MANY,
        TrySendError::Closed(_) => STOPPING,
    };
    NotRecorded(why.into())
}

fn overdue() -> NotRecorded {
    NotRecorded("the database did not answer in time".into())
}

async fn answered(written: Written) -> Result<(), NotRecorded> {
    match tokio::time::timeout(DEADLINE, written).await {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(_)) => Err(NotRecorded(STOPPING.into())),
        Err(_) => Err(overdue()),
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
        let result = outcome
            .result
            .filter(|_| self.bodies == AuditBodies::Full)
            .map(|text| redact(&String::from_utf8_lossy(text)));
        let error = outcome.error.map(|text| {
            let mut text = redact(text);
            text.truncate(text.floor_char_boundary(ERROR_BYTES));
            text
        });
        let pending = &mut self.pending;
        let end = CallEnd {
            steps: outcome.steps,
            ..pending.end(outcome.status, error, outcome.result.map(digest), result)
        };
        let (done, written) = oneshot::channel();
        pending.give(end, Some(done));
        answered(written).await
    }
}

impl Pending {
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
            steps: CallSteps::default(),
        }
    }

    /// Gives the outcome to the writer; the first one counts.
    fn give(&mut self, end: CallEnd, done: Option<Done>) {
        if let Some(place) = self.place.take() {
            let write = Some(CallWrite::Outcome(end));
            place.send(Entry { write, done });
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if self.place.is_some() {
            self.give(self.end(CallStatus::Cancelled, None, None, None), None);
        }
    }
}

fn digest(text: &[u8]) -> String {
    hex::encode(Sha256::digest(text))
}

async fn write(writer: CallWriter, mut queue: mpsc::Receiver<Entry>) {
    let mut book = Book::new(writer);
    let mut batch = Vec::with_capacity(BATCH);
    let mut ending = None;
    while ending.is_none() {
        let came = if book.is_clear() {
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
        let outcome = book.enter(writes).await;
        for done in done {
            let _ = done.send(outcome.clone());
        }
    }
    // Calls that are dropped with the product have places in the queue yet; new ones get none.
    queue.close();
    let mut last = Vec::new();
    let until = Instant::now() + LAST;
    while let Ok(Some(entry)) = tokio::time::timeout_at(until, queue.recv()).await {
        last.extend(
            entry
                .write
                .filter(|write| matches!(write, CallWrite::Outcome(_))),
        );
    }
    book.finish(last).await;
    if let Some(ending) = ending {
        let _ = ending.send(Ok(()));
    }
}

/// The writer's own account: what could not be written yet.
struct Book {
    writer: CallWriter,
    late: VecDeque<CallEnd>,
    doubtful: VecDeque<CallEnd>,
    failures: Repeats,
}

impl Book {
    fn new(writer: CallWriter) -> Self {
        Self {
            writer,
            late: VecDeque::new(),
            doubtful: VecDeque::new(),
            failures: Repeats::default(),
        }
    }

    fn is_clear(&self) -> bool {
        self.late.is_empty() && self.doubtful.is_empty()
    }

    /// Writes these records, and some of those that are late.
    async fn enter(&mut self, mut writes: Vec<CallWrite>) -> Result<(), NotRecorded> {
        let new = writes.len();
        let late = self.late.iter().take(BATCH);
        writes.extend(late.cloned().map(CallWrite::Outcome));
        let doubtful_from = writes.len();
        let doubtful = self.doubtful.iter().take(BATCH);
        writes.extend(doubtful.cloned().map(CallWrite::Outcome));
        match self.writer.write(&writes).await {
            Ok(()) => {
                self.late.drain(..doubtful_from - new);
                self.doubtful.drain(..writes.len() - doubtful_from);
                Ok(())
            }
            Err(error) => {
                let why = model::with_causes(&error);
                if let Some(times) = self.failures.count(&why) {
                    tracing::error!(records = new, "calls cannot be recorded: {why}{times}");
                }
                writes.truncate(new);
                self.keep(writes);
                Err(NotRecorded(error.to_string().into()))
            }
        }
    }

    /// Keeps what could not be written.
    fn keep(&mut self, writes: Vec<CallWrite>) {
        let mut lost = 0_u64;
        for write in writes {
            match write {
                CallWrite::Outcome(end) if self.late.len() < LATE => self.late.push_back(end),
                CallWrite::Outcome(_) => lost += 1,
                // Its caller is told that it was not made; whether its record is there, nobody knows.
                CallWrite::Intent(call) if self.doubtful.len() < DOUBTFUL => {
                    self.doubtful.push_back(not_made(call));
                }
                CallWrite::Intent(_) => {}
            }
        }
        if lost > 0
            && let Some(times) = self.failures.count("lost")
        {
            tracing::error!(
                calls = lost,
                "outcomes of calls are lost: their records stay open{times}"
            );
        }
    }

    /// One last time for all that is late.
    async fn finish(mut self, last: Vec<CallWrite>) {
        let ends = self.late.drain(..).chain(self.doubtful.drain(..));
        let rest: Vec<_> = last
            .into_iter()
            .chain(ends.map(CallWrite::Outcome))
            .collect();
        if !rest.is_empty() && self.writer.write(&rest).await.is_err() {
            tracing::error!(
                records = rest.len(),
                "outcomes of calls could not be recorded: they stay open"
            );
        }
    }
}

fn not_made(call: NewCall) -> CallEnd {
    CallEnd {
        id: call.id,
        status: CallStatus::Error,
        error: Some(NOT_MADE.to_owned()),
        result_digest: None,
        result: None,
        finished_at: store::now(),
        duration_us: 0,
        steps: CallSteps::default(),
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::pin::pin;
    use std::task::Poll;

    use store::{CallFilter, CallRow, Location, Page, Store};

    use super::*;

    struct Office {
        store: Store,
        audit: Audit,
        _dir: tempfile::TempDir,
    }

    impl Office {
        async fn new() -> Self {
            let dir = tempfile::tempdir().expect("a directory");
            let location = Location::Sqlite(dir.path().join("wharf.db"));
            let store = Store::open(&location).await.expect("a new database");
            Self {
                audit: Audit::new(store.call_writer()),
                store,
                _dir: dir,
            }
        }

        async fn rows(&self) -> Vec<CallRow> {
            let all = (CallFilter::default(), Page::first(1000));
            let rows = self.store.calls_list(&all.0, &all.1).await;
            rows.expect("the calls")
        }
    }

    async fn open(audit: &Audit) -> Result<Record, NotRecorded> {
        let intent = Intent {
            project: None,
            caller: "local",
            server: "one",
            tool: "echo",
            run: None,
            replay_of: None,
            arguments: b"{}",
            bodies: AuditBodies::Digests,
            redact: &str::to_owned,
        };
        audit.open(intent).await
    }

    /// A call is dropped while its intent is on the way to the table.
    #[tokio::test(flavor = "multi_thread")]
    async fn an_intent_whose_call_is_dropped_is_closed() {
        let office = Office::new().await;
        for _ in 0..400 {
            let mut opening = pin!(open(&office.audit));
            poll_fn(|cx| {
                let _ = opening.as_mut().poll(cx);
                Poll::Ready(())
            })
            .await;
        }
        let agents = NewCall {
            id: store::new_id(),
            run_id: None,
            project: None,
            caller: "agent".to_owned(),
            server: "native".to_owned(),
            tool: "show".to_owned(),
            arguments_digest: String::new(),
            arguments: None,
            started_at: store::now(),
            replay_of: None,
        };
        let mut writing = Box::pin(office.audit.write(CallWrite::Intent(agents)));
        poll_fn(|cx| {
            let _ = writing.as_mut().poll(cx);
            Poll::Ready(())
        })
        .await;
        drop(writing);
        drop(open(&office.audit).await.expect("a record"));
        office.audit.end().await;
        let rows = office.rows().await;
        assert_eq!(rows.len(), 402);
        for row in rows {
            assert_eq!(row.status, CallStatus::Cancelled, "{row:?}");
        }
    }

    /// Calls that are in flight when the product stops are dropped after the writer was told to end.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_call_that_is_dropped_at_the_end_is_closed() {
        let office = Office::new().await;
        let record = open(&office.audit).await.expect("a record");
        let mut ending = pin!(office.audit.end());
        poll_fn(|cx| {
            let _ = ending.as_mut().poll(cx);
            Poll::Ready(())
        })
        .await;
        drop(record);
        ending.await;
        assert_eq!(office.rows().await[0].status, CallStatus::Cancelled);
        assert!(open(&office.audit).await.is_err());
    }
}
