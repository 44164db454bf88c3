//! The only connection that writes to a SQLite file, apart from the one for call records ([`crate::journal`]), which takes
//! turns with it.
//!
//! Two processes write during an upgrade, and a standalone `stdio` writes beside a gateway. They take turns with the locks
//! of two files next to the database. SQLite would only poll for its own lock, mostly ten times per second, and a process
//! that writes all the time releases it too briefly to be noticed.
//!
//! This is not an sqlx pool with one connection, because a pool pings its connection from a separate task after each
//! use. That costs one more round trip to the connection's thread for each statement.
//!
//! Invariant: a checked-out connection never has an open transaction. If a transaction is not committed, its connection
//! is closed, which rolls the transaction back. The next user opens a new connection.

use std::{
    fmt,
    fs::{File, OpenOptions, TryLockError},
    io,
    ops::{Deref, DerefMut},
    os::unix::fs::OpenOptionsExt as _,
    sync::Arc,
    time::Duration,
};

use sqlx::{ConnectOptions as _, Connection as _, SqliteConnection, sqlite::SqliteConnectOptions};
use tokio::{
    sync::{Mutex, OwnedMutexGuard},
    time::Instant,
};

use crate::{
    connect::{DISK_TIMEOUT, attach},
    error::{Error, Result},
};

/// Time between two attempts to take the turn from another process.
const TURN_PAUSE: Duration = Duration::from_millis(1);

#[derive(Clone)]
pub(crate) struct Writer {
    options: Arc<SqliteConnectOptions>,
    path: Arc<str>,
    slot: Arc<Mutex<Slot>>,
}

#[derive(Default)]
pub(crate) struct Slot {
    conn: Option<SqliteConnection>,
    closed: bool,
    /// `None`: the files are not open, or cannot be opened. Then only SQLite's own lock keeps processes apart.
    locks: Option<Locks>,
}

/// The locks with which processes take turns.
struct Locks {
    /// Held by the process that writes next. Others cannot overtake it.
    next: File,
    /// Held by the process that writes.
    now: File,
}

impl Locks {
    fn open(database: &str) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(0o600);
        let open = |end: &str| options.open(format!("{database}-{end}"));
        Ok(Self {
            next: open("next")?,
            now: open("turn")?,
        })
    }

    /// Waits until this process may write.
    async fn take(&self) {
        take(&self.next).await;
        take(&self.now).await;
        let _ = self.next.unlock();
    }
}

/// Waits up to [`DISK_TIMEOUT`] for a lock, and blocks. On a file system without locks, returns immediately.
fn take_blocking(file: &File) -> Result<()> {
    let since = Instant::now();
    while let Err(TryLockError::WouldBlock) = file.try_lock() {
        if since.elapsed() > DISK_TIMEOUT {
            return Err(Error::disk_too_slow());
        }
        std::thread::sleep(TURN_PAUSE);
    }
    Ok(())
}

/// Waits for a lock. On a file system without locks, returns immediately.
async fn take(file: &File) {
    while let Err(TryLockError::WouldBlock) = file.try_lock() {
        tokio::time::sleep(TURN_PAUSE).await;
    }
}

/// The right to write, among all tasks and processes. Dropping it passes it on.
pub(crate) struct Turn(OwnedMutexGuard<Slot>);

impl Turn {
    fn open_locks(&mut self, database: &str) {
        if self.0.locks.is_none() {
            self.0.locks = Locks::open(database).ok();
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(locks) = &self.0.locks {
            let _ = (locks.next.unlock(), locks.now.unlock());
        }
    }
}

/// Exclusive access to the connection.
pub(crate) struct Writing {
    turn: Turn,
    in_transaction: bool,
}

impl Writer {
    pub(crate) fn new(options: SqliteConnectOptions, path: &str) -> Self {
        Self {
            options: Arc::new(options),
            path: path.into(),
            slot: Arc::default(),
        }
    }

    pub(crate) fn path(&self) -> &Arc<str> {
        &self.path
    }

    /// Waits until no other task or process writes, and blocks the thread. If connections only polled for SQLite's lock,
    /// one of them might never get it in time.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if another process writes for longer than [`DISK_TIMEOUT`].
    pub(crate) fn turn_blocking(&self) -> Result<Turn> {
        let mut turn = Turn(self.slot.clone().blocking_lock_owned());
        turn.open_locks(&self.path);
        if let Some(locks) = &turn.0.locks {
            take_blocking(&locks.next)?;
            take_blocking(&locks.now)?;
            let _ = locks.next.unlock();
        }
        Ok(turn)
    }

    /// Waits up to [`DISK_TIMEOUT`] until no other task or process writes.
    #[cfg(test)]
    pub(crate) async fn turn(&self) -> Result<Turn> {
        let turn = tokio::time::timeout(DISK_TIMEOUT, self.next_turn()).await;
        turn.map_err(|_| Error::disk_too_slow())
    }

    async fn next_turn(&self) -> Turn {
        let mut turn = Turn(self.slot.clone().lock_owned().await);
        turn.open_locks(&self.path);
        if let Some(locks) = &turn.0.locks {
            locks.take().await;
        }
        turn
    }

    /// Waits up to [`DISK_TIMEOUT`] for the connection, and opens it if it is not open.
    pub(crate) async fn acquire(&self) -> Result<Writing> {
        let acquiring = async {
            let mut turn = self.next_turn().await;
            let slot = &mut *turn.0;
            if slot.closed {
                return Err(sqlx::Error::PoolClosed);
            }
            if slot.conn.is_none() {
                let mut conn = self.options.connect().await?;
                attach(&mut conn, &self.path, false).await?;
                slot.conn = Some(conn);
            }
            Ok(Writing {
                turn,
                in_transaction: false,
            })
        };
        match tokio::time::timeout(DISK_TIMEOUT, acquiring).await {
            Ok(acquired) => acquired.map_err(Error::from),
            Err(_) => Err(Error::disk_too_slow()),
        }
    }

    /// Waits until the connection is free and closes it. After that, the connection cannot be acquired.
    pub(crate) async fn close(&self) {
        let mut slot = self.slot.lock().await;
        slot.closed = true;
        if let Some(conn) = slot.conn.take() {
            // Committed data is in the file or in its log, so the error can be ignored.
            let _ = conn.close().await;
        }
    }
}

impl Writing {
    /// Begins a transaction that will write. A transaction that reads first might fail to get the lock later.
    pub(crate) async fn begin(&mut self) -> sqlx::Result<()> {
        // Set the flag before the statement, because the caller may cancel this future.
        self.in_transaction = true;
        sqlx::query("BEGIN IMMEDIATE").execute(&mut **self).await?;
        Ok(())
    }

    pub(crate) async fn commit(mut self) -> sqlx::Result<()> {
        sqlx::query("COMMIT").execute(&mut *self).await?;
        self.in_transaction = false;
        Ok(())
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        if self.in_transaction {
            self.turn.0.conn = None;
        }
    }
}

impl Deref for Writing {
    type Target = SqliteConnection;

    fn deref(&self) -> &SqliteConnection {
        self.turn.0.conn.as_ref().expect("acquire has opened it")
    }
}

impl DerefMut for Writing {
    fn deref_mut(&mut self) -> &mut SqliteConnection {
        self.turn.0.conn.as_mut().expect("acquire has opened it")
    }
}

impl fmt::Debug for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Writer({})", self.path)
    }
}

#[cfg(test)]
mod tests {
    use crate::{Location, Store, sql::Pool};

    use super::*;

    fn writer(store: &Store) -> &Writer {
        match &store.pool {
            Pool::Sqlite { write, .. } => write,
            Pool::Postgres(_) => panic!("it is a file"),
        }
    }

    /// As in two processes, each store has its own lock of the file.
    #[tokio::test]
    async fn o06_processes_take_turns() {
        let dir = tempfile::tempdir().expect("a folder");
        let location = Location::Sqlite(dir.path().join("wharf.db"));
        let old = Store::open(&location).await.expect("a new database");
        let new = Store::open(&location).await.expect("the same database");
        let writing = writer(&old).acquire().await.expect("the connection");
        let mut next = std::pin::pin!(writer(&new).acquire());
        tokio::time::pause();
        for _ in 0..10 {
            tokio::time::advance(Duration::from_secs(1)).await;
            tokio::select! {
                biased;
                _ = &mut next => panic!("it did not wait"),
                () = std::future::ready(()) => {}
            }
        }
        tokio::time::resume();
        drop(writing);
        drop(next.await.expect("its turn"));
        drop(writer(&old).turn().await.expect("its turn"));
    }

    /// A process that writes all the time lets others write.
    #[tokio::test]
    async fn o06_a_busy_process_cannot_be_the_only_one() {
        let dir = tempfile::tempdir().expect("a folder");
        let location = Location::Sqlite(dir.path().join("wharf.db"));
        let busy = Store::open(&location).await.expect("a new database");
        let other = Store::open(&location).await.expect("the same database");
        let turn = writer(&busy).turn().await.expect("its turn");
        let mut next = std::pin::pin!(writer(&other).turn());
        assert!(futures_util::poll!(&mut next).is_pending());
        // It writes again immediately, and must wait for the other process.
        drop(turn);
        let mut again = std::pin::pin!(writer(&busy).turn());
        assert!(futures_util::poll!(&mut again).is_pending());
        let turn = next.await.expect("its turn");
        assert!(futures_util::poll!(&mut again).is_pending());
        drop(turn);
        drop(again.await.expect("its turn"));
    }
}
