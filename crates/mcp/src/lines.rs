//! Messages as lines over a byte stream, of bounded length (2026-07-28 basic/transports/stdio).

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;

/// What a reader got.
#[derive(Debug, PartialEq, Eq)]
pub enum Line {
    /// A line without its end.
    Text(Bytes),
    /// A line longer than the bound; it was thrown away while it came in, but for its beginning.
    TooLong { bytes: u64, head: Bytes },
}

/// How much of a line that is too long is kept: enough for the envelope of a message.
const HEAD: usize = 256;

/// The id of a message of which only the beginning is known: JSON text. `None` if it does not come before the
/// first member that is an object or an array.
#[must_use]
pub fn id_in_head(head: &[u8]) -> Option<&[u8]> {
    let mut rest = head.trim_ascii_start().strip_prefix(b"{")?;
    loop {
        let (key, after) = scalar(rest.trim_ascii_start())?;
        let after = after.trim_ascii_start().strip_prefix(b":")?;
        let (value, after) = scalar(after.trim_ascii_start())?;
        if key == b"\"id\"" {
            let ended = matches!(after.trim_ascii_start(), [b',' | b'}', ..]);
            return Some(value).filter(|_| ended);
        }
        rest = after.trim_ascii_start().strip_prefix(b",")?;
    }
}

/// A string or number at the beginning, and what comes after it.
fn scalar(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = if text.first() == Some(&b'"') {
        let mut escaped = false;
        let closing = text[1..].iter().position(|byte| {
            let closes = *byte == b'"' && !escaped;
            escaped = *byte == b'\\' && !escaped;
            closes
        });
        closing? + 2
    } else {
        let number = |byte: &u8| matches!(byte, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E');
        text.iter().position(|byte| !number(byte))?
    };
    (end > 0).then(|| text.split_at(end))
}

/// Reads lines; holds at most one line of the bound and one read.
pub struct LineReader<R> {
    inner: R,
    buffer: BytesMut,
    scanned: usize,
    skipped: u64,
    head: Bytes,
    max_line: usize,
}

const READ_SIZE: usize = 16 * 1024;
/// After a longer line the buffer begins anew.
const LONG: usize = 256 * 1024;

impl<R: AsyncRead + Unpin> LineReader<R> {
    /// `max_line`: bytes of a line, its end not counted.
    pub fn new(inner: R, max_line: usize) -> Self {
        Self {
            inner,
            buffer: BytesMut::new(),
            scanned: 0,
            skipped: 0,
            head: Bytes::new(),
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
                if line.len() > LONG {
                    // The buffer would be as long for ever, and what comes next would keep this line.
                    self.buffer = BytesMut::from(&self.buffer[..]);
                }
                line.truncate(line.len() - 1);
                if line.last() == Some(&b'\r') {
                    line.truncate(line.len() - 1);
                }
                let skipped = std::mem::take(&mut self.skipped);
                if skipped > 0 || line.len() > self.max_line {
                    let head = match std::mem::take(&mut self.head) {
                        none if none.is_empty() => beginning(&line),
                        head => head,
                    };
                    return Ok(Some(Line::TooLong {
                        bytes: skipped + line.len() as u64,
                        head,
                    }));
                }
                if line.iter().all(u8::is_ascii_whitespace) {
                    continue;
                }
                return Ok(Some(Line::Text(line.freeze())));
            }
            self.scanned = self.buffer.len();
            if self.buffer.len() > self.max_line {
                if self.skipped == 0 {
                    self.head = beginning(&self.buffer);
                }
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

/// A copy, so that the rest is not kept with it.
fn beginning(line: &[u8]) -> Bytes {
    Bytes::copy_from_slice(&line[..line.len().min(HEAD)])
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
        let too_long = |bytes, head: &[u8]| Line::TooLong {
            bytes,
            head: Bytes::copy_from_slice(head),
        };
        assert_eq!(
            read_all(b"123456789\nok\n", 8).await,
            [too_long(9, b"123456789"), text("ok")]
        );
        let long = [vec![b'x'; 100_000], b"\nok\n".to_vec()].concat();
        assert_eq!(
            read_all(&long, 1000).await,
            [too_long(100_000, &[b'x'; HEAD]), text("ok")]
        );
    }

    #[test]
    fn the_id_is_found_where_it_comes_first() {
        let check = |head: &str, id: Option<&str>| {
            assert_eq!(id_in_head(head.as_bytes()), id.map(str::as_bytes), "{head}");
        };
        check(r#"{"jsonrpc":"2.0","id":17,"result":{"content"#, Some("17"));
        check(
            r#" { "id" : "a\"b" , "jsonrpc":"2.0","re"#,
            Some(r#""a\"b""#),
        );
        check(r#"{"jsonrpc":"2.0","result":{"id":1,"#, None);
        check(r#"{"jsonrpc":"2.0","id":17"#, None);
        check(r#"{"jsonrpc":"2.0","id":"17"#, None);
        check(r#"{"id":{},"x":1"#, None);
        check("xxxxxxxx", None);
        check("", None);
    }
}
