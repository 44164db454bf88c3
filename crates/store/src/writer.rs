//! The one connection that writes to a SQLite file, but for records of calls ([`crate::CallWriter`]), which take turns
//! with it.
//!
//! A pool of one would do, but a pool asks its connection for a sign of life each time it gets it back, from a task of
//! its own: a way to the connection's thread and back more for each statement.
//!
//! Invariant: whoever gets the connection finds no transaction on it. One that was not committed takes its connection
//! with it, for closing rolls back; the next one opens another.

use std::{
    fmt,
    ops::{Deref, DerefMut},
    sync::Arc,
};

use sqlx::{ConnectOptions as _, Connection as _, SqliteConnection, sqlite::SqliteConnectOptions};
use tokio::sync::{Mutex, OwnedMutexGuard};

use crate::open::{ACQUIRE, attach};

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
}

/// The connection, for as long as it is held.
pub(crate) struct Writing {
    slot: OwnedMutexGuard<Slot>,
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

    /// Waits until nobody else of this process writes, 2 s at most. Left to themselves, connections ask again and again for
    /// the file's lock, and whoever is unlucky gives up.
    pub(crate) async fn turn(&self) -> sqlx::Result<OwnedMutexGuard<Slot>> {
        if let Ok(turn) = self.slot.clone().try_lock_owned() {
            return Ok(turn);
        }
        let turn = tokio::time::timeout(ACQUIRE, self.slot.clone().lock_owned()).await;
        turn.map_err(|_| sqlx::Error::PoolTimedOut)
    }

    /// Waits for the connection, 2 s at most, and opens it if it is not open.
    pub(crate) async fn acquire(&self) -> sqlx::Result<Writing> {
        let acquiring = async {
            let mut slot = self.slot.clone().lock_owned().await;
            if slot.closed {
                return Err(sqlx::Error::PoolClosed);
            }
            if slot.conn.is_none() {
                let mut conn = self.options.connect().await?;
                attach(&mut conn, &self.path, false).await?;
                slot.conn = Some(conn);
            }
            Ok(Writing {
                slot,
                in_transaction: false,
            })
        };
        match tokio::time::timeout(ACQUIRE, acquiring).await {
            Ok(acquired) => acquired,
            Err(_) => Err(sqlx::Error::PoolTimedOut),
        }
    }

    /// Closes the connection when it is free; it cannot be acquired any more.
    pub(crate) async fn close(&self) {
        let mut slot = self.slot.lock().await;
        slot.closed = true;
        if let Some(conn) = slot.conn.take() {
            // What was committed is in the file or in its log; there is nothing left to do about an error.
            let _ = conn.close().await;
        }
    }
}

impl Writing {
    /// Begins a transaction that will write: one that first reads could not get the lock later.
    pub(crate) async fn begin(&mut self) -> sqlx::Result<()> {
        // First, for whoever waits for this may give it up.
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
            self.slot.conn = None;
        }
    }
}

impl Deref for Writing {
    type Target = SqliteConnection;

    fn deref(&self) -> &SqliteConnection {
        self.slot.conn.as_ref().expect("acquire has opened it")
    }
}

impl DerefMut for Writing {
    fn deref_mut(&mut self) -> &mut SqliteConnection {
        self.slot.conn.as_mut().expect("acquire has opened it")
    }
}

impl fmt::Debug for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Writer({})", self.path)
    }
}
