//! Lines of bounded length from an untrusted stream.

use tokio::io::{AsyncRead, AsyncReadExt as _};

const CHUNK_BYTES: usize = 64 << 10;

pub(super) struct Lines<R> {
    reader: R,
    buffer: Vec<u8>,
    /// Bytes at the beginning of the buffer that were returned already.
    taken: usize,
    /// Bytes at the beginning of the buffer that were returned, or contain no line end.
    searched: usize,
    max: usize,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Without its end.
    Line(Vec<u8>),
    TooLong,
    /// The stream ended, or failed. An unfinished line is dropped.
    End,
}

impl<R: AsyncRead + Unpin> Lines<R> {
    pub(super) fn new(reader: R, max: usize) -> Self {
        Self {
            reader,
            buffer: Vec::new(),
            taken: 0,
            searched: 0,
            max,
        }
    }

    /// # Cancel safety
    /// No bytes are lost if the future is dropped.
    pub(super) async fn next(&mut self) -> Next {
        loop {
            let rest = &self.buffer[self.searched..];
            if let Some(at) = rest.iter().position(|&byte| byte == b'\n') {
                let end = self.searched + at;
                let line = self.buffer[self.taken..end].to_vec();
                (self.taken, self.searched) = (end + 1, end + 1);
                return if line.len() > self.max {
                    Next::TooLong
                } else {
                    Next::Line(line)
                };
            }
            self.buffer.drain(..self.taken);
            self.taken = 0;
            self.searched = self.buffer.len();
            if self.buffer.len() > self.max {
                return Next::TooLong;
            }
            self.buffer.reserve(CHUNK_BYTES);
            match self.reader.read_buf(&mut self.buffer).await {
                Ok(0) | Err(_) => return Next::End,
                Ok(_) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn all(text: &[u8], max: usize) -> Vec<Next> {
        let mut lines = Lines::new(text, max);
        let mut found = Vec::new();
        loop {
            let next = lines.next().await;
            let is_last = !matches!(next, Next::Line(_));
            found.push(next);
            if is_last {
                return found;
            }
        }
    }

    #[tokio::test]
    async fn lines_are_bounded() {
        let line = |text: &str| Next::Line(text.as_bytes().to_vec());
        for (text, expected) in [
            ("", vec![Next::End]),
            (
                "a\n\nbc\n",
                vec![line("a"), line(""), line("bc"), Next::End],
            ),
            ("a\nb", vec![line("a"), Next::End]),
            ("1234\n12345\n", vec![line("1234"), Next::TooLong]),
            ("12345", vec![Next::TooLong]),
        ] {
            assert_eq!(all(text.as_bytes(), 4).await, expected, "{text:?}");
        }
    }
}
