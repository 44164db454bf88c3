//! Bytes from one stream to another and back.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

/// A connection on which nothing moves in either direction for this long is over.
const IDLE: Duration = Duration::from_secs(15 * 60);
const BUFFER: usize = 16 << 10;

/// Copies both ways until both are at their end, one of them fails, or nothing moves any more.
pub(crate) async fn pump(mut left: TcpStream, right: impl AsyncRead + AsyncWrite) {
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
    let mut buffer = vec![0; BUFFER];
    loop {
        let count = idle.read(&mut from, &mut buffer).await?;
        if count == 0 {
            return to.shutdown().await;
        }
        idle.write(&mut to, &buffer[..count]).await?;
    }
}

/// When something last moved on a connection, in either direction.
pub(crate) struct Idle {
    begun: Instant,
    /// Milliseconds after that.
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
    /// Reads what there is; fails when nothing has moved for too long.
    pub(crate) async fn read(
        &self,
        from: &mut (impl AsyncRead + Unpin),
        buffer: &mut [u8],
    ) -> io::Result<usize> {
        loop {
            if let Ok(count) = timeout(IDLE, from.read(buffer)).await {
                let now = u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX);
                self.moved.store(now, Ordering::Relaxed);
                return count;
            }
            let last = Duration::from_millis(self.moved.load(Ordering::Relaxed));
            if self.begun.elapsed().saturating_sub(last) >= IDLE {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
    }

    /// Writes all of it; fails when that takes too long.
    pub(crate) async fn write(
        &self,
        to: &mut (impl AsyncWrite + Unpin),
        bytes: &[u8],
    ) -> io::Result<()> {
        timeout(IDLE, to.write_all(bytes)).await?
    }
}
