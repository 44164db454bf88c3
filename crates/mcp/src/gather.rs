//! Collects the text of one message as it arrives, up to a limit.
//!
//! A short text is one buffer. A long one is kept in pieces, so that nothing is copied to make room: it costs the bytes
//! received plus one piece. The pieces are joined only once the text is complete; a text that is too long is freed at
//! once. Lines, events and bodies are all read this way ([`Gather`]; [`Whole`] for bodies).

use std::sync::OnceLock;

use bytes::Bytes;
use http_body_util::BodyExt;

/// Size of a piece. The allocator can return a freed piece of this size to the operating system at once, whichever thread
/// frees it.
const PIECE_BYTES: usize = 1 << 20;
/// A buffer of this size grows to a full piece at once.
const SMALL_BYTES: usize = PIECE_BYTES / 8;
/// Freeing at least this much calls the [`on_release`] callback.
const MIN_RELEASE_BYTES: usize = 4 * PIECE_BYTES;
/// Bytes kept of a text that is too long: enough for a message's envelope.
pub(crate) const HEAD_BYTES: usize = 1024;

/// The callback set by [`on_release`].
static ON_RELEASE: OnceLock<fn()> = OnceLock::new();

/// Sets a callback to run whenever the pieces of a long text were freed. Otherwise an allocator may keep them for about
/// a second, and the next long text would need memory on top of them. Only the first callback is kept.
pub fn on_release(give_back: fn()) {
    let _ = ON_RELEASE.set(give_back);
}

/// A partially received text.
#[derive(Debug)]
pub struct Gather {
    /// Full pieces.
    pieces: Vec<Vec<u8>>,
    /// The piece that is being filled.
    last: Vec<u8>,
    length: usize,
    max: usize,
}

/// The error for a text over its limit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("longer than {max} bytes")]
pub struct TooLong {
    pub max: usize,
    /// The beginning of the text.
    pub head: Bytes,
}

impl Gather {
    /// `max`: maximum bytes of the whole text.
    #[must_use]
    pub const fn new(max: usize) -> Self {
        Self {
            pieces: Vec::new(),
            last: Vec::new(),
            length: 0,
            max,
        }
    }

    /// Bytes received so far.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.length
    }

    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Reserves memory for a text of this announced length, so that no pieces have to be joined. Reserved memory costs
    /// nothing until it is written to.
    pub fn expect(&mut self, length: usize) {
        if self.is_empty() {
            self.last.reserve_exact(length.min(self.max));
        }
    }

    /// Adds received bytes.
    ///
    /// # Errors
    /// [`TooLong`]; everything received is freed.
    pub fn push(&mut self, mut part: &[u8]) -> Result<(), TooLong> {
        if part.len() > self.max - self.length {
            return Err(self.too_long(part));
        }
        self.length += part.len();
        while !part.is_empty() {
            let size = self.last.capacity().max(PIECE_BYTES);
            if self.last.len() == size {
                let full = std::mem::replace(&mut self.last, Vec::with_capacity(PIECE_BYTES));
                self.pieces.push(full);
                continue;
            }
            let (now, then) = part.split_at(part.len().min(size - self.last.len()));
            let (length, capacity) = (self.last.len(), self.last.capacity());
            if capacity - length < now.len() {
                // Doubles a few times, then grows to a whole piece. Only the written part of a piece costs memory.
                let grown = if capacity < SMALL_BYTES {
                    2 * capacity
                } else {
                    size
                };
                let grown = grown.max(length + now.len());
                self.last.reserve_exact(grown - length);
            }
            self.last.extend_from_slice(now);
            part = then;
        }
        Ok(())
    }

    /// Takes the whole text and starts the next one.
    pub fn take(&mut self) -> Bytes {
        let length = std::mem::take(&mut self.length);
        let mut last = std::mem::take(&mut self.last);
        if self.pieces.is_empty() {
            if last.capacity() > 2 * length {
                last.shrink_to_fit();
            }
            return last.into();
        }
        let mut whole = Vec::with_capacity(length);
        for piece in &mut self.pieces {
            whole.extend_from_slice(&std::mem::take(piece));
        }
        whole.extend_from_slice(&last);
        self.last = last;
        self.release();
        whole.into()
    }

    /// A copy of the beginning.
    #[must_use]
    pub fn head(&self) -> Bytes {
        let first = self.pieces.first().unwrap_or(&self.last);
        Bytes::copy_from_slice(&first[..first.len().min(HEAD_BYTES)])
    }

    /// The last byte received.
    #[must_use]
    pub fn last(&self) -> Option<u8> {
        self.last.last().copied()
    }

    /// Frees everything received.
    pub fn clear(&mut self) {
        self.length = 0;
        self.release();
    }

    fn release(&mut self) {
        let freed = self.pieces.len() * PIECE_BYTES + self.last.capacity();
        self.pieces = Vec::new();
        self.last = Vec::new();
        if let Some(give_back) = ON_RELEASE.get().filter(|_| freed >= MIN_RELEASE_BYTES) {
            give_back();
        }
    }

    fn too_long(&mut self, part: &[u8]) -> TooLong {
        let mut head = self.head().to_vec();
        head.extend_from_slice(&part[..part.len().min(HEAD_BYTES - head.len())]);
        self.clear();
        TooLong {
            max: self.max,
            head: head.into(),
        }
    }
}

impl Drop for Gather {
    fn drop(&mut self) {
        self.release();
    }
}

/// A body as it arrives. A body of a single chunk is not copied.
pub struct Whole<B> {
    body: B,
    first: Bytes,
    /// The whole body, if it has more than one chunk.
    text: Gather,
    max: usize,
    in_one_place: bool,
}

/// Why a body could not be read.
#[derive(Debug)]
pub enum Unread<E> {
    TooLong,
    Broken(E),
}

impl<B: http_body::Body<Data = Bytes> + Unpin> Whole<B> {
    /// `max`: maximum bytes of the whole body.
    pub const fn new(body: B, max: usize) -> Self {
        Self {
            body,
            first: Bytes::new(),
            text: Gather::new(max),
            max,
            in_one_place: false,
        }
    }

    /// Reserves memory for the announced length ([`Gather::expect`]).
    #[must_use]
    pub const fn in_one_place(mut self) -> Self {
        self.in_one_place = true;
        self
    }

    /// Reads the whole body.
    ///
    /// # Errors
    /// [`Unread`].
    ///
    /// # Cancel safety
    /// Cancel safe: partial data stays in `self`.
    pub async fn read(&mut self) -> Result<Bytes, Unread<B::Error>> {
        if self.body.size_hint().lower() > self.max as u64 {
            return Err(Unread::TooLong);
        }
        while !self.body.is_end_stream() {
            let Some(frame) = self.body.frame().await else {
                break;
            };
            let Ok(data) = frame.map_err(Unread::Broken)?.into_data() else {
                continue;
            };
            if self.first.is_empty() && self.text.is_empty() && data.len() <= self.max {
                self.first = data;
                continue;
            }
            let first = std::mem::take(&mut self.first);
            if self.in_one_place {
                let left = usize::try_from(self.body.size_hint().lower()).unwrap_or(0);
                self.text.expect(first.len() + data.len() + left);
            }
            for part in [first, data] {
                if let Err(too_long) = self.text.push(&part) {
                    self.first = too_long.head;
                    return Err(Unread::TooLong);
                }
            }
        }
        Ok(self.so_far())
    }

    /// The part that was read before an error. For a body over the limit, its beginning.
    pub fn so_far(&mut self) -> Bytes {
        if self.text.is_empty() {
            std::mem::take(&mut self.first)
        } else {
            self.text.take()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_come_whole_however_they_are_cut() {
        let text: Vec<u8> = (0..3 * PIECE_BYTES + 5)
            .map(|at| (at % 251) as u8)
            .collect();
        for length in [
            0,
            1,
            PIECE_BYTES - 1,
            PIECE_BYTES,
            PIECE_BYTES + 1,
            3 * PIECE_BYTES + 5,
        ] {
            for size in [
                1000,
                PIECE_BYTES / 2,
                PIECE_BYTES,
                2 * PIECE_BYTES + 1,
                4 * PIECE_BYTES,
            ] {
                let mut gather = Gather::new(length);
                if length % 2 == 1 {
                    gather.expect(length / 2);
                }
                for part in text[..length].chunks(size) {
                    gather.push(part).expect("it fits");
                    assert!(gather.last.capacity() <= PIECE_BYTES.max(length / 2));
                }
                assert_eq!(gather.len(), length);
                assert!(gather.take() == text[..length], "{length} by {size}");
                // Nothing of this text remains when the next one is gathered.
                gather.push(&text[..length]).expect("it fits again");
                assert!(gather.take() == text[..length]);
            }
        }
    }

    #[test]
    fn what_is_too_long_is_given_back() {
        let text: Vec<u8> = (0..3 * PIECE_BYTES).map(|at| (at % 251) as u8).collect();
        for first in [0, 10, HEAD_BYTES + 1, 2 * PIECE_BYTES] {
            let mut gather = Gather::new(2 * PIECE_BYTES);
            gather.push(&text[..first]).expect("it fits");
            let error = gather.push(&text[first..]).expect_err("it does not");
            assert_eq!(error.head, text[..HEAD_BYTES]);
            assert!(gather.is_empty() && gather.pieces.is_empty());
            assert_eq!(gather.last.capacity(), 0);
            gather.push(b"next").expect("it fits");
            assert_eq!(gather.take(), "next");
        }
    }
}
