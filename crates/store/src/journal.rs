//! The journal of tool calls: how they are recorded beside a SQLite database.
//!
//! Each call waits for two records to become durable. A transaction for each would cost several times as much as the
//! records. So each process appends records to its own file, with one write and one wait for the disk for each batch
//! ([`Segment`]). A thread enters them into the table of calls, many at a time and mostly a call with its outcome
//! ([`Indexer`]).
//!
//! Invariants:
//! - A record is in the journal and on the disk before [`Journal::append`] returns. Normally one task
//!   appends; another one at the same time begins another journal.
//! - The table contains all records up to the position that `toolwharf_journals` has for their journal, because both change
//!   in one transaction. If the process dies, the next start enters the records after that position.
//! - Reading calls waits until what was recorded before is in the table, or until [`SETTLE_TIMEOUT`] has passed.
//! - Records that are not in the table yet need at most [`MAX_WAITING_BYTES`]. Then no call is recorded, nor made.
//!
//! Journals are kept as long as the calls that they contain. [`record`] describes their format. Deliberately absent:
//! Postgres, where records are rows at once, since a lost machine must not lose them.

mod index;
mod record;
mod segment;
#[cfg(test)]
mod tests;

use std::{
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
        mpsc::{self, Receiver, RecvTimeoutError, Sender},
    },
    thread,
    time::{Duration, SystemTime},
};

use rusqlite::Connection;
use tokio::{sync::oneshot, time::Instant};

use self::{
    index::{Durable, Lines, STEP_BYTES},
    record::Position,
    segment::Segment,
};
use crate::{
    CallWrite,
    connect::DISK_TIMEOUT,
    error::{Error, Result},
    writer::Writer,
};

pub(crate) use index::complete;
pub(crate) use segment::folder;

/// Time after which a record is entered into the table.
const DELAY: Duration = Duration::from_millis(50);
/// Time between attempts while the database cannot be written.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// Maximum size of the records that are not in the table yet.
const MAX_WAITING_BYTES: usize = 64 << 20;
/// Time that a reader waits for records to be entered.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(2);

/// The journal of this process for a database. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Journal(Arc<Shared>);

struct Shared {
    database: Writer,
    /// The file that this process appends to. `None` until the first record, and while records are appended.
    segment: Mutex<Option<Segment>>,
    indexer: Mutex<Thread>,
    backlog: Arc<Backlog>,
}

#[derive(Default)]
enum Thread {
    #[default]
    NotStarted,
    Running(Sender<Task>),
    Closed,
}

/// The records that are in the journal, but not in the table.
#[derive(Default)]
struct Backlog {
    bytes: AtomicUsize,
    /// Why the last attempt to enter records failed.
    failure: Mutex<Option<String>>,
}

/// Work for the thread that enters records.
enum Task {
    /// A journal was created.
    Begin(Arc<str>, oneshot::Sender<Result<Predecessor>>),
    /// Records were appended.
    Enter(Lines),
    /// This journal is complete.
    End(Arc<str>, Position),
    /// Enter everything now.
    Settle(Reply),
    /// Enter the records of processes that died.
    Recover(Reply),
    Prune(SystemTime, Reply),
    /// Enter everything and stop.
    Close(Reply),
}

type Reply = oneshot::Sender<Result<()>>;
/// A journal, and the hash of its last line.
type Predecessor = Option<(String, String)>;

impl fmt::Debug for Journal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Journal({:?})", self.0.database)
    }
}

impl Journal {
    pub(crate) fn new(database: Writer) -> Self {
        Self(Arc::new(Shared {
            database,
            segment: Mutex::default(),
            indexer: Mutex::default(),
            backlog: Arc::default(),
        }))
    }

    /// Appends records and waits for the disk, which blocks.
    ///
    /// # Errors
    /// The records do not count.
    pub(crate) async fn append(&self, writes: &[CallWrite]) -> Result<()> {
        let shared = &*self.0;
        if shared.backlog.bytes.load(Ordering::Acquire) >= MAX_WAITING_BYTES {
            let failure = lock(&shared.backlog.failure);
            return Err(Error::behind(
                failure.as_deref().unwrap_or("the disk is slow"),
            ));
        }
        let current = lock(&shared.segment).take();
        let mut segment = match current {
            Some(segment) if !segment.is_full() => segment,
            previous => self.next_segment(previous).await?,
        };
        let appended = segment.append(writes).map_err(Error::journal);
        let (file, at) = (segment.name.clone(), segment.position());
        let other = lock(&shared.segment).replace(segment);
        if let Some(other) = other {
            shared.end(other);
        }
        let lines = appended?;
        let bytes = &shared.backlog.bytes;
        bytes.fetch_add(lines.len(), Ordering::AcqRel);
        self.0.send(Task::Enter(Lines { file, lines, at }))
    }

    /// Begins a journal, which continues the previous one if there is one.
    async fn next_segment(&self, previous: Option<Segment>) -> Result<Segment> {
        let folder = folder(self.0.database.path());
        let begun = async {
            let mut segment = Segment::create(&folder).map_err(Error::journal)?;
            let begun = self.begin(&mut segment, previous.as_ref()).await;
            if begun.is_err() {
                let _ = std::fs::remove_file(folder.join(&*segment.name));
            }
            begun.map(|()| segment)
        };
        match begun.await {
            Ok(segment) => {
                if let Some(previous) = previous {
                    self.0.end(previous);
                }
                Ok(segment)
            }
            Err(error) => {
                *lock(&self.0.segment) = previous;
                Err(error)
            }
        }
    }

    /// Registers a journal and writes its first line.
    async fn begin(&self, segment: &mut Segment, previous: Option<&Segment>) -> Result<()> {
        let (reply, answer) = oneshot::channel();
        self.0.send(Task::Begin(segment.name.clone(), reply))?;
        let newest = answer.await.unwrap_or_else(|_| Err(Error::closed()))?;
        let newest = newest.as_ref().map(|(file, hash)| (&**file, &**hash));
        // The database does not have the last lines of the previous journal yet.
        let hash = previous.map(|previous| previous.position().hash);
        let previous = previous.zip(hash.as_ref());
        let previous = previous.map(|(previous, hash)| (&*previous.name, hash.as_str()));
        segment.begin(previous.or(newest)).map_err(Error::journal)
    }

    /// Waits until what was recorded is in the table. If the database cannot be written, readers get what it has.
    pub(crate) async fn settle(&self) {
        if self.0.backlog.bytes.load(Ordering::Acquire) > 0 {
            let settled = self.ask(Task::Settle);
            // The thread has logged an error.
            let _ = tokio::time::timeout(SETTLE_TIMEOUT, settled).await;
        }
    }

    /// Enters what processes that died have left.
    pub(crate) async fn recover(&self) -> Result<()> {
        self.ask(Task::Recover).await
    }

    /// Removes finished journals that were last written before this time.
    pub(crate) async fn prune(&self, before: SystemTime) -> Result<()> {
        self.ask(|reply| Task::Prune(before, reply)).await
    }

    /// Enters all records, and finishes the journal. Nothing can be recorded afterwards.
    pub(crate) async fn close(&self) {
        self.0.end_segment();
        if matches!(&*lock(&self.0.indexer), Thread::Running(_)) {
            let closed = self.ask(Task::Close);
            // The next start enters the records that are not in the table now.
            let _ = tokio::time::timeout(DISK_TIMEOUT, closed).await;
        }
        *lock(&self.0.indexer) = Thread::Closed;
    }

    async fn ask(&self, task: impl FnOnce(Reply) -> Task) -> Result<()> {
        let (reply, answer) = oneshot::channel();
        self.0.send(task(reply))?;
        answer.await.unwrap_or_else(|_| Err(Error::closed()))
    }
}

impl Shared {
    /// Gives the thread a task, and starts it if necessary. It ends with the last clone of the journal.
    fn send(&self, task: Task) -> Result<()> {
        let mut indexer = lock(&self.indexer);
        if let Thread::NotStarted = *indexer {
            let (sender, tasks) = mpsc::channel();
            let run = Indexer::new(self.database.clone(), self.backlog.clone());
            let builder = thread::Builder::new().name("call-index".to_owned());
            let started = builder.spawn(move || run.run(&tasks));
            started.map_err(Error::journal)?;
            *indexer = Thread::Running(sender);
        }
        match &*indexer {
            Thread::Running(sender) => sender.send(task).map_err(|_| Error::closed()),
            _ => Err(Error::closed()),
        }
    }

    fn end_segment(&self) {
        let segment = lock(&self.segment).take();
        if let Some(segment) = segment {
            self.end(segment);
        }
    }

    fn end(&self, segment: Segment) {
        // If the thread has ended, the next start finishes the journal.
        let _ = self.send(Task::End(segment.name.clone(), segment.position()));
        segment.end();
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.end_segment();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Enters records into the table, on its own thread.
struct Indexer {
    database: Writer,
    backlog: Arc<Backlog>,
    conn: Option<Connection>,
    batches: Vec<Lines>,
    /// Journals that are finished as soon as the batches are entered.
    ended: Vec<(Arc<str>, Position)>,
    /// When the batches are entered. `None`: there is nothing to do.
    due: Option<Instant>,
}

impl Indexer {
    fn new(database: Writer, backlog: Arc<Backlog>) -> Self {
        Self {
            database,
            backlog,
            conn: None,
            batches: Vec::new(),
            ended: Vec::new(),
            due: None,
        }
    }

    fn run(mut self, tasks: &Receiver<Task>) {
        loop {
            let now = Instant::now();
            if self.due.is_some_and(|due| due <= now) {
                let _ = self.fill();
            }
            let task = match self.due {
                None => tasks.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(due) => tasks.recv_timeout(due.saturating_duration_since(now)),
            };
            match task {
                Ok(Task::Close(reply)) => {
                    let filled = self.fill();
                    // The connection is closed before the answer, so that SQLite's log can be removed.
                    drop(self);
                    let _ = reply.send(filled);
                    return;
                }
                Ok(task) => self.take(task),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    let _ = self.fill();
                    return;
                }
            }
        }
    }

    fn take(&mut self, task: Task) {
        let now = Instant::now();
        match task {
            Task::Enter(batch) => {
                self.batches.push(batch);
                self.due.get_or_insert(now + DELAY);
            }
            Task::End(file, at) => {
                self.ended.push((file, at));
                self.due.get_or_insert(now + DELAY);
            }
            Task::Begin(file, reply) => {
                let begun = self.with_turn(|conn, _| index::begin(conn, &file));
                let _ = reply.send(begun);
            }
            Task::Settle(reply) => {
                let filled = self.fill();
                let _ = reply.send(filled);
            }
            Task::Recover(reply) => {
                let recovered = self.with_turn(index::recover);
                let _ = reply.send(recovered);
            }
            Task::Prune(before, reply) => {
                let pruned = self.with_turn(|conn, folder| index::prune(conn, folder, before));
                let _ = reply.send(pruned);
            }
            Task::Close(_) => unreachable!("it ends the loop"),
        }
    }

    /// Enters all batches. Batches that remain after an error are entered later.
    fn fill(&mut self) -> Result<()> {
        self.due = None;
        while !(self.batches.is_empty() && self.ended.is_empty()) {
            if let Err(error) = self.step() {
                self.due = Some(Instant::now() + RETRY_DELAY);
                let why = model::with_causes(&error);
                let failure = lock(&self.backlog.failure).replace(why.clone());
                if failure.as_ref() != Some(&why) {
                    tracing::error!("records of calls stay in their journal for now: {why}");
                }
                return Err(error);
            }
        }
        *lock(&self.backlog.failure) = None;
        Ok(())
    }

    /// Enters the first batches.
    fn step(&mut self) -> Result<()> {
        let mut bytes = 0;
        let fits = |batch: &&Lines| {
            bytes += batch.lines.len();
            bytes <= STEP_BYTES
        };
        let count = self.batches.iter().take_while(fits).count().max(1);
        let rest = self.batches.split_off(count.min(self.batches.len()));
        let mut batches = std::mem::replace(&mut self.batches, rest);
        let ended = match self.batches.is_empty() {
            true => std::mem::take(&mut self.ended),
            false => Vec::new(),
        };
        let durable = match ended.is_empty() {
            true => Durable::Later,
            false => Durable::Now,
        };
        let entered = self.with_turn(|conn, _| index::enter(conn, durable, &batches, &ended));
        if entered.is_ok() {
            let bytes = batches.iter().map(|batch| batch.lines.len()).sum();
            self.backlog.bytes.fetch_sub(bytes, Ordering::AcqRel);
        } else {
            batches.append(&mut self.batches);
            self.batches = batches;
            self.ended.extend(ended);
        }
        entered
    }

    /// Runs something that writes to the database, in turn with all other writers.
    fn with_turn<T>(
        &mut self,
        run: impl FnOnce(&mut Connection, &std::path::Path) -> Result<T>,
    ) -> Result<T> {
        let _turn = self.database.turn_blocking()?;
        let path = self.database.path();
        let conn = match &mut self.conn {
            Some(conn) => conn,
            none => none.insert(index::open(path)?),
        };
        run(conn, &folder(path))
    }
}
