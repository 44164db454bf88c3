//! Messages as lines over a byte stream, of bounded length (2026-07-28 basic/transports/stdio).

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;

/// What a reader got.
#[derive(Debug, PartialEq, Eq)]
pub enum Line {
    /// A line without its end.
    Text(Bytes),
    /// A line longer than the bound; it was thrown away while it came in.
    TooLong { bytes: u64 },
}

/// Reads lines; holds at most one line of the bound and one read.
pub struct LineReader<R> {
    inner: R,
    buffer: BytesMut,
    scanned: usize,
    skipped: u64,
    max_line: usize,
}

const READ_SIZE: usize = 16 * 1024;

impl<R: AsyncRead + Unpin> LineReader<R> {
    /// `max_line`: bytes of a line, its end not counted.
    pub fn new(inner: R, max_line: usize) -> Self {
        Self {
            inner,
            buffer: BytesMut::new(),
            scanned: 0,
            skipped: 0,
            max_line,
        }
    }

    /// The next line; `None` at the end of the stream. Empty lines are passed over.
    ///
    /// # Errors
    /// The stream's own.
    ///
    /// # Cancel safety
    /// Cancel safe: what was read stays in the reader.
    pub async fn next(&mut self) -> std::io::Result<Option<Line>> {
        loop {
            if let Some(at) = memchr::memchr(b'\n', &self.buffer[self.scanned..]) {
                let mut line = self.buffer.split_to(self.scanned + at + 1);
                self.scanned = 0;
                line.truncate(line.len() - 1);
                if line.last() == Some(&b'\r') {
                    line.truncate(line.len() - 1);
                }
                let skipped = std::mem::take(&mut self.skipped);
                if skipped > 0 || line.len() > self.max_line {
                    return Ok(Some(Line::TooLong {
                        bytes: skipped + line.len() as u64,
                    }));
                }
                if line.iter().all(u8::is_ascii_whitespace) {
                    continue;
                }
                return Ok(Some(Line::Text(line.freeze())));
            }
            self.scanned = self.buffer.len();
            if self.buffer.len() > self.max_line {
                self.skipped += self.buffer.len() as u64;
                self.buffer = BytesMut::new();
                self.scanned = 0;
            }
            self.buffer.reserve(READ_SIZE);
            if self.inner.read_buf(&mut self.buffer).await? == 0 {
                // A last line without its end was cut off in mid-writing: it is no message.
                return Ok(None);
            }
        }
    }
}

/// Writes each message of `messages` as a line, many in one write when many wait, until the channel or
/// the stream ends.
///
/// # Errors
/// The stream's own.
pub async fn write_lines<W: AsyncWrite + Unpin>(
    mut to: W,
    messages: &mut mpsc::Receiver<Bytes>,
) -> std::io::Result<()> {
    const BATCH: usize = 64;
    let mut batch = Vec::with_capacity(BATCH);
    let mut out = BytesMut::new();
    while messages.recv_many(&mut batch, BATCH).await > 0 {
        for message in batch.drain(..) {
            let line = crate::json::one_line(&message);
            out.extend_from_slice(&line);
            out.extend_from_slice(b"\n");
        }
        to.write_all(&out).await?;
        to.flush().await?;
        out.clear();
        if out.capacity() > 1 << 20 {
            out = BytesMut::new();
        }
    }
    to.shutdown().await
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn read_all(input: &[u8], max_line: usize) -> Vec<Line> {
        let mut reader = LineReader::new(input, max_line);
        let mut lines = Vec::new();
        while let Some(line) = reader.next().await.expect("a slice does not fail") {
            lines.push(line);
        }
        lines
    }

    #[tokio::test]
    async fn splits_and_bounds() {
        let text = |t: &'static str| Line::Text(Bytes::from_static(t.as_bytes()));
        assert_eq!(
            read_all(b"a\r\n\n  \nbb\ncut", 8).await,
            [text("a"), text("bb")]
        );
        assert_eq!(
            read_all(b"123456789\nok\n", 8).await,
            [Line::TooLong { bytes: 9 }, text("ok")]
        );
        let long = [vec![b'x'; 100_000], b"\nok\n".to_vec()].concat();
        assert_eq!(
            read_all(&long, 1000).await,
            [Line::TooLong { bytes: 100_000 }, text("ok")]
        );
    }
}
