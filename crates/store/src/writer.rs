//! The only connection that writes to a SQLite file, apart from the one for call records ([`crate::CallWriter`]), which
//! takes turns with it.
//!
//! This is not an sqlx pool with one connection, because a pool pings its connection from a separate task after each
//! use. That costs one more round trip to the connection's thread for each statement.
//!
//! Invariant: a checked-out connection never has an open transaction. If a transaction is not committed, its connection
//! is closed, which rolls the transaction back. The next user opens a new connection.

use std::{
    fmt,
    ops::{Deref, DerefMut},
    sync::Arc,
};

use sqlx::{ConnectOptions as _, Connection as _, SqliteConnection, sqlite::SqliteConnectOptions};
use tokio::sync::{Mutex, OwnedMutexGuard};

use crate::{
    connect::{DISK_TIMEOUT, attach},
    error::{Error, Result},
};

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

/// Exclusive access to the connection.
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

    /// Waits up to [`DISK_TIMEOUT`] until no other task of this process writes. If connections only polled for the file
    /// lock, one of them might never get it in time.
    pub(crate) async fn turn(&self) -> Result<OwnedMutexGuard<Slot>> {
        if let Ok(turn) = self.slot.clone().try_lock_owned() {
            return Ok(turn);
        }
        let turn = tokio::time::timeout(DISK_TIMEOUT, self.slot.clone().lock_owned()).await;
        turn.map_err(|_| Error::disk_too_slow())
    }

    /// Waits up to [`DISK_TIMEOUT`] for the connection, and opens it if it is not open.
    pub(crate) async fn acquire(&self) -> Result<Writing> {
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
