//! Copies bytes between two streams in both directions.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

/// A connection without traffic in either direction for this long is closed.
const IDLE_TIMEOUT: Duration = Duration::from_secs(15 * 60);
const BUFFER_BYTES: usize = 16 << 10;

/// Copies in both directions until both ends are reached, one of them fails, or the connection is idle for too long.
pub async fn pump(mut left: TcpStream, right: impl AsyncRead + AsyncWrite) {
    let (left_reads, left_writes) = left.split();
    let (right_reads, right_writes) = tokio::io::split(right);
    let idle = Idle::default();
    let _ = tokio::try_join!(
        copy(left_reads, right_writes, &idle),
        copy(right_reads, left_writes, &idle),
    );
}

async fn copy(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    idle: &Idle,
) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let count = idle.read(&mut from, &mut buffer).await?;
        if count == 0 {
            return to.shutdown().await;
        }
        idle.write(&mut to, &buffer[..count]).await?;
    }
}

/// The time of the last traffic on a connection, in either direction.
pub struct Idle {
    begun: Instant,
    /// Milliseconds since `begun`.
    moved: AtomicU64,
}

impl Default for Idle {
    fn default() -> Self {
        Self {
            begun: Instant::now(),
            moved: AtomicU64::new(0),
        }
    }
}

impl Idle {
    /// Reads available data. Fails when the connection has been idle for too long.
    pub async fn read(
        &self,
        from: &mut (impl AsyncRead + Unpin),
        buffer: &mut [u8],
    ) -> io::Result<usize> {
        loop {
            if let Ok(count) = timeout(IDLE_TIMEOUT, from.read(buffer)).await {
                let now = u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX);
                self.moved.store(now, Ordering::Relaxed);
                return count;
            }
            let last = Duration::from_millis(self.moved.load(Ordering::Relaxed));
            if self.begun.elapsed().saturating_sub(last) >= IDLE_TIMEOUT {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
    }

    /// Writes all data. Fails if this takes longer than `IDLE_TIMEOUT`.
    pub async fn write(&self, to: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> io::Result<()> {
        timeout(IDLE_TIMEOUT, to.write_all(bytes)).await?
    }
}
