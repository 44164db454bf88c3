//! Messages as lines over a byte stream, of bounded length (2026-07-28 basic/transports/stdio).
//!
//! A line that does not fit into one read is gathered ([`Gather`]). A line over the limit is reported at once, because
//! it may never end.

use std::{io, time::Duration};

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::gather::{Gather, TooLong};

/// A line, or the report of one that is too long.
#[derive(Debug, PartialEq, Eq)]
pub enum Line {
    /// A line without its line break.
    Text(Bytes),
    /// The beginning of a line over the limit. The rest of it is discarded as it arrives.
    TooLong { head: Bytes },
}

/// Maximum duration of an overlong line. If the line is still not complete, the stream counts as broken.
const MAX_SKIP_TIME: Duration = Duration::from_secs(30);

/// Facts read from the beginning of a message: its members up to the first that is an object, an array or cut off.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Head<'a> {
    /// JSON text.
    pub id: Option<&'a [u8]>,
    /// True for a request or a notification.
    pub method: bool,
}

impl<'a> Head<'a> {
    #[must_use]
    pub fn of(head: &'a [u8]) -> Self {
        let mut found = Self::default();
        // `None` at the first member that cannot be read.
        let _ = found.read(head);
        found
    }

    fn read(&mut self, head: &'a [u8]) -> Option<()> {
        let mut rest = head.trim_ascii_start().strip_prefix(b"{")?;
        loop {
            let (key, after) = scalar(rest.trim_ascii_start())?;
            self.method |= matches!(key, b"\"method\"" | b"\"params\"");
            let after = after.trim_ascii_start().strip_prefix(b":")?;
            let (value, after) = scalar(after.trim_ascii_start())?;
            let after = after.trim_ascii_start();
            if key == b"\"id\"" {
                self.id = Some(value).filter(|_| matches!(after, [b',' | b'}', ..]));
            }
            rest = after.strip_prefix(b",")?;
        }
    }
}

/// Splits off a leading string or number. Returns it and the rest.
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

/// Reads lines. Holds at most one read and one line of maximum length.
pub struct LineReader<R> {
    inner: R,
    /// Bytes read but not used yet.
    buffer: BytesMut,
    /// Number of bytes at the beginning of `buffer` that contain no line break.
    scanned: usize,
    /// The beginning of the line that continues in `buffer`.
    line: Gather,
    /// When discarding the current line began.
    skipping: Option<Instant>,
    max_line: usize,
    on_partial: Option<OnPartial>,
    /// Bytes of the current line that `on_partial` has seen.
    partial_seen: usize,
}

/// Callback for the beginning of an unfinished line.
type OnPartial = Box<dyn Fn(&[u8]) + Send>;

/// Maximum bytes shown of an unfinished line.
const PARTIAL_BYTES: usize = 1024;

/// Size of one read: by default, and inside a long line.
const READ_BYTES: usize = 16 * 1024;
const LONG_LINE_READ_BYTES: usize = 64 * 1024;

impl<R: AsyncRead + Unpin> LineReader<R> {
    /// `max_line`: maximum bytes of a line, without its line break.
    pub fn new(inner: R, max_line: usize) -> Self {
        Self {
            inner,
            buffer: BytesMut::new(),
            scanned: 0,
            // A carriage return belongs to the line break.
            line: Gather::new(max_line.saturating_add(1)),
            skipping: None,
            max_line,
            on_partial: None,
            partial_seen: 0,
        }
    }

    /// Calls `hook` with the beginning of each line that has not ended and does not look like a message, each time it
    /// grows, and with an empty text once the line has ended.
    #[must_use]
    pub fn on_partial(mut self, hook: impl Fn(&[u8]) + Send + 'static) -> Self {
        self.on_partial = Some(Box::new(hook));
        self
    }

    /// The beginning of the current line, if it has not ended and does not look like a message.
    #[must_use]
    pub fn partial(&self) -> Option<&[u8]> {
        // The beginning of a longer line is not in the buffer any more.
        if self.skipping.is_some() || !self.line.is_empty() {
            return None;
        }
        let head = &self.buffer[..self.buffer.len().min(PARTIAL_BYTES)];
        let first = head.trim_ascii_start().first()?;
        (*first != b'{').then_some(head)
    }

    /// The next line, or `None` at the end of the stream. Skips empty lines.
    ///
    /// # Errors
    /// Errors of the stream, and [`io::ErrorKind::InvalidData`] if an overlong line does not end.
    ///
    /// # Cancel safety
    /// Cancel safe: partial data stays in `self`.
    pub async fn next(&mut self) -> io::Result<Option<Line>> {
        loop {
            if let Some(at) = memchr::memchr(b'\n', &self.buffer[self.scanned..]) {
                let mut last = self.buffer.split_to(self.scanned + at + 1);
                self.scanned = 0;
                if std::mem::take(&mut self.partial_seen) > 0
                    && let Some(hook) = &self.on_partial
                {
                    hook(b"");
                }
                if self.skipping.take().is_some() {
                    self.forget_room();
                    continue;
                }
                last.truncate(last.len() - 1);
                if let Some(line) = self.ended(last) {
                    return Ok(Some(line));
                }
                continue;
            }
            let mut room = READ_BYTES;
            if let Some(since) = self.skipping {
                if since.elapsed() > MAX_SKIP_TIME {
                    let (most, limit) = (self.max_line, MAX_SKIP_TIME.as_secs());
                    let why = format!("a line over {most} bytes did not end within {limit} s");
                    return Err(io::Error::new(io::ErrorKind::InvalidData, why));
                }
                self.buffer.clear();
                room = LONG_LINE_READ_BYTES;
            } else if self.line.len() + self.buffer.len()
                >= READ_BYTES.min(self.max_line.saturating_add(1))
            {
                let gathered = self.line.push(&self.buffer);
                self.buffer.clear();
                if let Err(too_long) = gathered {
                    self.scanned = 0;
                    self.skipping = Some(Instant::now());
                    let head = too_long.head;
                    return Ok(Some(Line::TooLong { head }));
                }
                room = LONG_LINE_READ_BYTES;
            }
            if let (Some(hook), Some(head)) = (&self.on_partial, self.partial())
                && head.len() > self.partial_seen
            {
                hook(head);
                self.partial_seen = head.len();
            }
            self.scanned = self.buffer.len();
            self.buffer.reserve(room);
            if self.inner.read_buf(&mut self.buffer).await? == 0 {
                // A last line without a line break was cut off, so it is not a message.
                return Ok(None);
            }
        }
    }

    /// Moves the bytes read past a long line to a new buffer, so that they do not keep the memory of a long read.
    fn forget_room(&mut self) {
        self.buffer = BytesMut::from(&self.buffer[..]);
    }

    /// Completes a line with its last part. `None` if the line is empty.
    fn ended(&mut self, last: BytesMut) -> Option<Line> {
        let mut line = last.freeze();
        if !self.line.is_empty() || line.len() > self.max_line {
            self.forget_room();
            match self.long(&line) {
                Ok(long) => line = long,
                Err(TooLong { head, .. }) => return Some(Line::TooLong { head }),
            }
        }
        if let Some((b'\r', rest)) = line.split_last() {
            line.truncate(rest.len());
        }
        let empty = line.iter().all(u8::is_ascii_whitespace);
        (!empty).then_some(Line::Text(line))
    }

    /// Completes a gathered line with its last part.
    fn long(&mut self, last: &[u8]) -> Result<Bytes, TooLong> {
        self.line.push(last)?;
        let returns = usize::from(self.line.last() == Some(b'\r'));
        if self.line.len() - returns > self.max_line {
            let head = self.line.head();
            self.line.clear();
            let max = self.max_line;
            return Err(TooLong { max, head });
        }
        Ok(self.line.take())
    }
}

/// Writes each message as a line, with one write for many waiting messages, until the channel or the stream ends.
///
/// # Errors
/// Errors of the stream.
pub async fn write_lines<W: AsyncWrite + Unpin>(
    mut to: W,
    messages: &mut mpsc::Receiver<Bytes>,
) -> io::Result<()> {
    const MAX_BATCH_MESSAGES: usize = 64;
    let mut batch = Vec::with_capacity(MAX_BATCH_MESSAGES);
    let mut out = BytesMut::new();
    while messages.recv_many(&mut batch, MAX_BATCH_MESSAGES).await > 0 {
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
    use std::{
        pin::Pin,
        task::{Context, Poll},
    };

    use tokio::io::ReadBuf;

    use futures_util::FutureExt;

    use super::*;
    use crate::gather::HEAD_BYTES;

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
        let too_long = |head: &[u8]| Line::TooLong {
            head: Bytes::copy_from_slice(head),
        };
        assert_eq!(
            read_all(b"123456789\nok\n", 8).await,
            [too_long(b"123456789"), text("ok")]
        );
        assert_eq!(
            read_all(b"123456789\r\n12345678\r\nok\n", 8).await,
            [too_long(b"123456789\r"), text("12345678"), text("ok")]
        );
        let long = [vec![b'x'; 1_000_000], b"\nok\n".to_vec()].concat();
        for max in [1000, READ_BYTES, READ_BYTES + 1, 999_999] {
            let expect = [too_long(&[b'x'; HEAD_BYTES]), text("ok")];
            assert_eq!(read_all(&long, max).await, expect, "{max}");
        }
        let cut = [&long[..900_000], b"\n\r\nok\n"].concat();
        let whole = Line::Text(Bytes::copy_from_slice(&long[..900_000]));
        assert_eq!(read_all(&cut, 900_000).await, [whole, text("ok")]);
        for length in (READ_BYTES - 2..READ_BYTES + 2)
            .chain(LONG_LINE_READ_BYTES + READ_BYTES - 2..LONG_LINE_READ_BYTES + READ_BYTES + 2)
        {
            let ended = [&long[..length], b"\r\nok\n"].concat();
            let whole = Line::Text(Bytes::copy_from_slice(&long[..length]));
            assert_eq!(read_all(&ended, 900_000).await, [whole, text("ok")]);
        }
    }

    /// A prompt, or a `print` without a line break, is seen while its line has not ended.
    #[tokio::test]
    async fn the_beginning_of_a_line_is_seen() {
        use std::sync::{Arc, Mutex};
        let seen = Arc::new(Mutex::new(Vec::new()));
        let seen_by_hook = seen.clone();
        let (mut writer, reader) = tokio::io::duplex(1024);
        let mut lines = LineReader::new(reader, 64).on_partial(move |head| {
            let head = String::from_utf8_lossy(head).into_owned();
            seen_by_hook.lock().expect("not poisoned").push(head);
        });
        for (written, line) in [
            ("{\"jsonrpc\":", None),
            ("\"2.0\"}\n", Some("{\"jsonrpc\":\"2.0\"}")),
            ("Passw", None),
            ("ord: ", None),
            ("{}\r\n", Some("Password: {}")),
            ("whole\n", Some("whole")),
            ("cut", None),
        ] {
            writer.write_all(written.as_bytes()).await.expect("room");
            // The duplex pipe has everything at once, so one poll reads it all.
            let next = lines.next().now_or_never();
            let found = next.map(|line| line.expect("no error").expect("not ended"));
            let line = line.map(|line| Line::Text(Bytes::from_static(line.as_bytes())));
            assert_eq!(found, line, "{written}");
        }
        assert_eq!(
            *seen.lock().expect("not poisoned"),
            ["Passw", "Password: ", "", "cut"]
        );
        drop(writer);
        assert_eq!(lines.next().await.expect("no error"), None);
        assert_eq!(lines.partial(), Some(&b"cut"[..]));
    }

    /// Always has more to read, and yields in between.
    struct Endless(bool);

    impl AsyncRead for Endless {
        fn poll_read(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            into: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            self.0 = !self.0;
            if self.0 {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            into.put_slice(&[b'x'; 1024]);
            Poll::Ready(Ok(()))
        }
    }

    /// A line that never ends is reported at once, and later breaks the stream.
    #[tokio::test(start_paused = true)]
    async fn a_line_without_an_end_is_an_error() {
        let mut reader = LineReader::new(Endless(false), 1 << 20);
        let line = reader.next().await.expect("no error yet");
        assert!(matches!(line, Some(Line::TooLong { .. })), "{line:?}");
        let (rest, ()) = tokio::join!(reader.next(), tokio::time::advance(2 * MAX_SKIP_TIME));
        let error = rest.expect_err("its end");
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn what_a_beginning_tells() {
        let check = |head: &str, id: Option<&str>, method: bool| {
            let id = id.map(str::as_bytes);
            assert_eq!(Head::of(head.as_bytes()), Head { id, method }, "{head}");
        };
        let answer = r#"{"jsonrpc":"2.0","id":17,"result":{"content"#;
        check(answer, Some("17"), false);
        let spaced = r#" { "id" : "a\"b" , "jsonrpc":"2.0","re"#;
        check(spaced, Some(r#""a\"b""#), false);
        check(r#"{"jsonrpc":"2.0","result":{"id":1,"#, None, false);
        check(r#"{"jsonrpc":"2.0","id":17"#, None, false);
        check(r#"{"jsonrpc":"2.0","id":"17"#, None, false);
        check(r#"{"id":{},"x":1"#, None, false);
        check(r#"{"id":3,"method":"roots/li"#, Some("3"), true);
        check(r#"{"jsonrpc":"2.0","params":{"x"#, None, true);
        check(r#"{"jsonrpc":"2.0","method":"a","params":{"x"#, None, true);
        check("xxxxxxxx", None, false);
        check("", None, false);
    }
}
