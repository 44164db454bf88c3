//! The parts of JSON-RPC that the echo server, the baseline proxies and the load generator need.
//!
//! A frame is parsed into an envelope that borrows from the bytes read. An id is replaced by copying the bytes around
//! it ([`with_id`]).
//!
//! Deliberately absent: batches, duplicate-key checks, depth limits. The baseline only forwards frames; the cost of
//! these checks shows in the gateway's figures.

use serde::Deserialize;
use serde_json::value::RawValue;

/// The parts of a JSON-RPC message needed for routing, borrowed from the message.
#[derive(Debug, Deserialize)]
pub(crate) struct Envelope<'a> {
    #[serde(borrow)]
    pub(crate) id: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(crate) method: Option<&'a str>,
    #[serde(borrow)]
    pub(crate) params: Option<&'a RawValue>,
}

/// Only the id of a message.
#[derive(Debug, Deserialize)]
pub(crate) struct IdOnly<'a> {
    #[serde(borrow)]
    pub(crate) id: Option<&'a RawValue>,
}

/// Appends `frame` to `out` with the bytes of `old` replaced by `new`.
///
/// `old` must borrow from `frame`, as the fields of [`Envelope`] do. Its position is computed from its address, which
/// costs nothing and cannot match equal digits elsewhere in the frame.
pub(crate) fn with_id(out: &mut Vec<u8>, frame: &[u8], old: &RawValue, new: &[u8]) {
    let at = (old.get().as_ptr() as usize).saturating_sub(frame.as_ptr() as usize);
    let end = (at + old.get().len()).min(frame.len());
    let at = at.min(end);
    out.reserve(frame.len() + new.len() + 1);
    out.extend_from_slice(&frame[..at]);
    out.extend_from_slice(new);
    out.extend_from_slice(&frame[end..]);
}

/// Longest accepted line. All messages of the bench are much shorter.
const LINE_LIMIT: usize = 64 << 20;
const READ_SIZE: usize = 64 << 10;

/// Collects what is read from a pipe, and splits it into lines.
pub(crate) struct LineBuffer {
    input: Vec<u8>,
    filled: usize,
}

impl LineBuffer {
    pub(crate) fn new() -> Self {
        Self {
            input: vec![0; READ_SIZE],
            filled: 0,
        }
    }

    /// Returns the free part of the buffer, for the next read.
    ///
    /// # Errors
    ///
    /// A line is longer than 64 MiB.
    pub(crate) fn free(&mut self) -> anyhow::Result<&mut [u8]> {
        if self.filled == self.input.len() {
            anyhow::ensure!(
                self.filled < LINE_LIMIT,
                "a line is longer than {LINE_LIMIT} bytes"
            );
            self.input.resize(self.filled * 2, 0);
        }
        Ok(&mut self.input[self.filled..])
    }

    /// Adds the `n` bytes that were just read, and calls `each` with every line that they complete.
    pub(crate) fn take(&mut self, n: usize, mut each: impl FnMut(&[u8])) {
        // Only the new bytes can contain the end of a line.
        let searched = self.filled;
        self.filled += n;
        let mut start = 0;
        for end in memchr::memchr_iter(b'\n', &self.input[searched..self.filled]) {
            let end = searched + end;
            each(&self.input[start..end]);
            start = end + 1;
        }
        self.input.copy_within(start..self.filled, 0);
        self.filled -= start;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exchanged(frame: &str, new: &str) -> String {
        let id = serde_json::from_str::<IdOnly>(frame)
            .unwrap()
            .id
            .expect("the frame has an id");
        let mut out = Vec::new();
        with_id(&mut out, frame.as_bytes(), id, new.as_bytes());
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn an_id_is_exchanged_where_it_stands_and_nowhere_else() {
        for (frame, new, want) in [
            (r#"{"id":7,"x":7}"#, "12345", r#"{"id":12345,"x":7}"#),
            (
                r#"{"x":{"id":7}, "id" : "a\"b" }"#,
                "1",
                r#"{"x":{"id":7}, "id" : 1 }"#,
            ),
            (r#"{"id":18446744073709551616}"#, "\"s\"", r#"{"id":"s"}"#),
        ] {
            assert_eq!(exchanged(frame, new), want);
        }
    }
}
