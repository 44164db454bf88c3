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
pub(crate) async fn pump(mut left: TcpStream, mut right: TcpStream) {
    let (left_reads, left_writes) = left.split();
    let (right_reads, right_writes) = right.split();
    let begun = Instant::now();
    let moved = AtomicU64::new(0);
    let _ = tokio::try_join!(
        copy(left_reads, right_writes, begun, &moved),
        copy(right_reads, left_writes, begun, &moved),
    );
}

async fn copy(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    begun: Instant,
    moved: &AtomicU64,
) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER];
    loop {
        let count = match timeout(IDLE, from.read(&mut buffer)).await {
            Ok(count) => count?,
            Err(_) => {
                let last = Duration::from_millis(moved.load(Ordering::Relaxed));
                if begun.elapsed().saturating_sub(last) >= IDLE {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                continue;
            }
        };
        let now = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        moved.store(now, Ordering::Relaxed);
        if count == 0 {
            return to.shutdown().await;
        }
        timeout(IDLE, to.write_all(&buffer[..count])).await??;
    }
}
