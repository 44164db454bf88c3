//! The audit log of tool calls (P09). The intent is durable before the server receives a call, the outcome before the
//! caller does.
//!
//! One thread writes in batches: records that arrive while a batch is being written form the next one. Waiting callers
//! get an error as soon as a write fails. Outcomes that could not be written are kept, up to a limit, and written
//! later. No call is ever repeated. Deliberately absent: the table's contents and retention.
//!
//! Every intent handed to the writer gets an outcome, wherever the call is dropped: the outcome's place in the queue is
//! reserved before the intent is queued ([`Pending`]).

use std::{borrow::Cow, collections::VecDeque, sync::Arc, time::Duration};

use model::{AuditBodies, ProjectId};
use runtime::Repeats;
use store::{CallEnd, CallStatus, CallSteps, CallWrite, CallWriter, NewCall};
use tokio::{
    sync::{
        mpsc::{self, OwnedPermit, error::TrySendError},
        oneshot,
    },
    time::Instant,
};

/// Capacity for waiting records, including reserved places for the outcomes of calls in flight.
const QUEUE_CAPACITY: usize = 32_768;
/// Records per batch: the intents and the outcomes of as many calls as are usually in flight.
const RECORDS_PER_BATCH: usize = 256;
/// Maximum number of outcomes kept while they cannot be written.
const MAX_LATE_OUTCOMES: usize = 65_536;
/// Intents kept because the database did not confirm them. They are closed later, if they were written. Beyond this
/// number they are dropped: after so many failures, later ones are unlikely to have been written.
const MAX_DOUBTFUL_INTENTS: usize = 4_096;
/// Time that the writer waits at shutdown for outcomes of calls that are being dropped.
const SHUTDOWN_WAIT: Duration = Duration::from_secs(1);
/// Delay between attempts to write late records.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// Time that a call waits for its record.
const WRITE_TIMEOUT: Duration = Duration::from_secs(8);
const STOPPING: &str = "the gateway is stopping";
const TOO_MANY: &str = "too many records are waiting to be written";
const NOT_MADE: &str = "the call was not made: the database did not confirm its record in time";
/// Limit of a recorded error text.
const MAX_ERROR_BYTES: usize = 1_024;

/// Why a call was not recorded.
#[derive(Debug, Clone, thiserror::Error)]
#[error("the call could not be recorded: {0}")]
pub struct NotRecorded(Arc<str>);

/// The parts of a record in addition to digests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Detail {
    pub bodies: AuditBodies,
    /// True: error texts are recorded.
    pub errors: bool,
}

/// The part of an error text that is recorded: its first kilobyte, without secrets. Secrets are removed before the text
/// is cut, because a part of a secret would not be recognised.
#[must_use]
pub fn recorded_error(text: &str, redact: impl Fn(&str) -> String) -> String {
    let mut text = redact(text);
    text.truncate(text.floor_char_boundary(MAX_ERROR_BYTES));
    text
}

type Done = oneshot::Sender<Result<(), NotRecorded>>;

/// Records calls. Cheap to clone. The writer thread ends with the last clone or with [`Audit::end`].
#[derive(Clone)]
pub struct Audit {
    records: mpsc::Sender<Entry>,
}

/// An entry for the writer thread.
struct Entry {
    /// `None` ends the writer.
    write: Option<CallWrite>,
    done: Option<Done>,
}

/// The caller and the tool that it calls.
pub struct Intent<'a> {
    /// When the request was received. The call may have waited for its turn since then.
    pub began: Instant,
    pub project: Option<&'a ProjectId>,
    pub caller: &'a str,
    pub server: &'a str,
    pub tool: &'a str,
    /// The agent run that the call belongs to.
    pub run: Option<&'a str>,
    /// The recorded call that this one repeats.
    pub replay_of: Option<&'a str>,
    /// JSON text.
    pub arguments: &'a [u8],
    pub detail: Detail,
    /// Removes secrets.
    pub redact: &'a (dyn Fn(&str) -> String + Sync),
}

pub struct Outcome<'a> {
    pub status: CallStatus,
    /// The message of a JSON-RPC error, or the text of a tool's own error.
    pub error: Option<Cow<'a, str>>,
    /// JSON text.
    pub result: Option<&'a [u8]>,
    pub steps: CallSteps,
}

/// An open record. If it is dropped without an outcome, the call counts as cancelled.
pub struct Record {
    pending: Pending,
    detail: Detail,
}

/// A call whose intent was handed to the writer, but whose outcome was not yet. If dropped, the call counts as
/// cancelled.
struct Pending {
    /// The reserved place of the outcome in the queue. `None` once it is used or not needed.
    place: Option<OwnedPermit<Entry>>,
    id: String,
    began: Instant,
}

impl Audit {
    /// Starts the writer thread.
    ///
    /// # Panics
    /// If no thread can be started, or outside of a runtime.
    pub fn new(writer: CallWriter) -> Self {
        let (records, queue) = mpsc::channel(QUEUE_CAPACITY);
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
    /// [`NotRecorded`]: the call must not be made.
    pub async fn open(&self, intent: Intent<'_>) -> Result<Record, NotRecorded> {
        let id = store::new_id();
        let waited = intent.began.elapsed();
        // Times in the database have microseconds.
        let waited = waited - Duration::from_nanos(u64::from(waited.subsec_nanos() % 1_000));
        let arguments = (intent.detail.bodies == AuditBodies::Full)
            .then(|| (intent.redact)(&String::from_utf8_lossy(intent.arguments)));
        let call = NewCall {
            id: id.clone(),
            run_id: intent.run.map(str::to_owned),
            project: intent.project.cloned(),
            caller: intent.caller.to_owned(),
            server: intent.server.to_owned(),
            tool: intent.tool.to_owned(),
            arguments_digest: model::sha256_hex(intent.arguments),
            arguments,
            started_at: store::now() - waited,
            replay_of: intent.replay_of.map(str::to_owned),
        };
        Ok(Record {
            pending: self.intend(call, intent.began).await?,
            detail: intent.detail,
        })
    }

    /// Writes an intent. If this future is dropped, or the result is unknown, the intent still gets an outcome.
    async fn intend(&self, call: NewCall, began: Instant) -> Result<Pending, NotRecorded> {
        let place = self
            .records
            .clone()
            .try_reserve_owned()
            .map_err(not_taken)?;
        let mut pending = Pending {
            place: Some(place),
            id: call.id.clone(),
            began,
        };
        let written = match self.send(Some(CallWrite::Intent(call))) {
            Ok(written) => written,
            Err(why) => {
                pending.place = None;
                return Err(why);
            }
        };
        match tokio::time::timeout(WRITE_TIMEOUT, written).await {
            Ok(Ok(Ok(()))) => Ok(pending),
            // The writer keeps an intent whose write is in doubt, and closes it later.
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

    /// Waits until all earlier records are written or have failed. Nothing is recorded afterwards.
    pub async fn end(&self) {
        let (done, ended) = oneshot::channel();
        let entry = Entry {
            write: None,
            done: Some(done),
        };
        if self.records.send(entry).await.is_ok() {
            let _ = ended.await;
        }
    }

    /// Writes a record that does not belong to a server's call.
    pub async fn write(&self, write: CallWrite) -> Result<(), NotRecorded> {
        match write {
            CallWrite::Intent(call) => {
                let mut pending = self.intend(call, Instant::now()).await?;
                // The caller records the outcome in a separate call.
                pending.place = None;
                Ok(())
            }
            outcome @ CallWrite::Outcome(_) => answered(self.send(Some(outcome))?).await,
        }
    }

    /// Queues an entry. The receiver gets the result of the write.
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
    match tokio::time::timeout(WRITE_TIMEOUT, written).await {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(_)) => Err(NotRecorded(STOPPING.into())),
        Err(_) => Err(overdue()),
    }
}

impl Record {
    /// Records the outcome of the call.
    ///
    /// # Errors
    /// [`NotRecorded`]: the write is retried later, but the outcome must not be passed to the caller.
    pub async fn close(
        mut self,
        outcome: Outcome<'_>,
        redact: &(dyn Fn(&str) -> String + Sync),
    ) -> Result<(), NotRecorded> {
        let result = outcome
            .result
            .filter(|_| self.detail.bodies == AuditBodies::Full)
            .map(|text| redact(&String::from_utf8_lossy(text)));
        let error = outcome.error.filter(|_| self.detail.errors);
        let error = error.map(|text| recorded_error(&text, redact));
        let pending = &mut self.pending;
        let end = CallEnd {
            steps: outcome.steps,
            ..pending.end(
                outcome.status,
                error,
                outcome.result.map(model::sha256_hex),
                result,
            )
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

    /// Gives the outcome to the writer. Later outcomes are ignored.
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

async fn write(writer: CallWriter, mut queue: mpsc::Receiver<Entry>) {
    let mut book = Book::new(writer);
    let mut batch = Vec::with_capacity(RECORDS_PER_BATCH);
    let mut ending = None;
    while ending.is_none() {
        let received = if book.is_clear() {
            queue.recv_many(&mut batch, RECORDS_PER_BATCH).await
        } else {
            // Waiting callers go first. Late records are retried along with them.
            tokio::time::timeout(RETRY_DELAY, queue.recv_many(&mut batch, RECORDS_PER_BATCH))
                .await
                .unwrap_or(usize::MAX)
        };
        if received == 0 {
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
    // Calls dropped at shutdown still have reserved places. New calls get none.
    queue.close();
    let mut last = Vec::new();
    let until = Instant::now() + SHUTDOWN_WAIT;
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

/// The writer's backlog: records that could not be written yet.
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

    /// Writes these records and some of the late ones.
    async fn enter(&mut self, mut writes: Vec<CallWrite>) -> Result<(), NotRecorded> {
        let new = writes.len();
        let late = self.late.iter().take(RECORDS_PER_BATCH);
        writes.extend(late.cloned().map(CallWrite::Outcome));
        let doubtful_from = writes.len();
        let doubtful = self.doubtful.iter().take(RECORDS_PER_BATCH);
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

    /// Keeps records that could not be written.
    fn keep(&mut self, writes: Vec<CallWrite>) {
        let mut lost = 0_u64;
        for write in writes {
            match write {
                CallWrite::Outcome(end) if self.late.len() < MAX_LATE_OUTCOMES => {
                    self.late.push_back(end)
                }
                CallWrite::Outcome(_) => lost += 1,
                // The caller learns that the call was not made. It is unknown whether the record was written.
                CallWrite::Intent(call) if self.doubtful.len() < MAX_DOUBTFUL_INTENTS => {
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
                "call outcomes were lost, so their records stay open{times}"
            );
        }
    }

    /// A last attempt for all late records.
    async fn finish(mut self, last: Vec<CallWrite>) {
        let ends = self.late.drain(..).chain(self.doubtful.drain(..));
        let rest: Vec<_> = last
            .into_iter()
            .chain(ends.map(CallWrite::Outcome))
            .collect();
        if !rest.is_empty() && self.writer.write(&rest).await.is_err() {
            tracing::error!(
                records = rest.len(),
                "call outcomes could not be recorded, so their records stay open"
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
        open_at(audit, Instant::now()).await
    }

    async fn open_at(audit: &Audit, began: Instant) -> Result<Record, NotRecorded> {
        let intent = Intent {
            began,
            project: None,
            caller: "local",
            server: "one",
            tool: "echo",
            run: None,
            replay_of: None,
            arguments: b"{}",
            detail: Detail {
                bodies: AuditBodies::Digests,
                errors: true,
            },
            redact: &str::to_owned,
        };
        audit.open(intent).await
    }

    /// A record begins when the request was received, as its steps do, not when the call has its turn.
    #[tokio::test(flavor = "multi_thread")]
    async fn c05_a_duration_includes_the_wait_for_the_turn() {
        let office = Office::new().await;
        let waited = Duration::from_secs(5);
        let record = open_at(&office.audit, Instant::now() - waited).await;
        let outcome = Outcome {
            status: CallStatus::Ok,
            error: None,
            result: None,
            steps: CallSteps::default(),
        };
        let closed = record.expect("a record").close(outcome, &str::to_owned);
        closed.await.expect("recorded");
        let call = office.rows().await.remove(0);
        assert!(call.duration_us >= Some(5_000_000), "{call:?}");
        let age = store::now() - call.started_at;
        assert!(age.num_seconds() >= 5, "{call:?}");
    }

    /// Calls are dropped while their intents are being written.
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

    /// Calls in flight at shutdown are dropped after the writer was asked to end.
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

    /// The text is cut after its secrets are removed, at a character boundary.
    #[test]
    fn no_part_of_a_secret_is_left_at_the_end_of_an_error_text() {
        let redact = |text: &str| text.replace("canary-secret", "[secret]");
        let text = format!("{}canary-secret", "x".repeat(MAX_ERROR_BYTES - 6));
        let kept = recorded_error(&text, redact);
        assert_eq!(kept.len(), MAX_ERROR_BYTES);
        assert!(kept.ends_with("x[secre"), "{kept}");
        let wide = recorded_error(&"ü".repeat(MAX_ERROR_BYTES), redact);
        assert_eq!(wide.len(), MAX_ERROR_BYTES);
        let odd = recorded_error(&format!("x{}", "ü".repeat(MAX_ERROR_BYTES)), redact);
        assert_eq!(odd.len(), MAX_ERROR_BYTES - 1);
    }
}
