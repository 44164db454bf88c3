//! The text of one message as it comes in, up to a bound.
//!
//! A short text is one buffer. A long one is kept in pieces, so that nothing is copied to make room: it costs what came
//! of it and one piece. Only a text that is whole is put together; one that is too long is given back at once. Lines,
//! events and bodies are all read so ([`Gather`]; [`Whole`] for bodies).

use std::sync::OnceLock;

use bytes::Bytes;
use http_body_util::BodyExt;

/// The size of a piece. The allocator gives one that is freed back as a whole, whichever thread frees it.
const PIECE: usize = 1 << 20;
/// A text of more is given a piece at once.
const SMALL: usize = PIECE / 8;
/// Of a text that took so much, what was freed is given back at once.
const LONG: usize = 4 * PIECE;
/// How much of a text that is too long is kept: enough for the envelope of a message.
pub(crate) const HEAD: usize = 1024;

/// What [`on_release`] was given.
static GIVE_BACK: OnceLock<fn()> = OnceLock::new();

/// Has this called whenever the pieces of a long text were freed. An allocator may keep them for a second or so, and the
/// next long text would come on top of them.
pub fn on_release(give_back: fn()) {
    // The first one stays.
    let _ = GIVE_BACK.set(give_back);
}

/// A text of which not all has come.
#[derive(Debug)]
pub struct Gather {
    /// Full ones.
    pieces: Vec<Vec<u8>>,
    /// The one that is being filled.
    last: Vec<u8>,
    length: usize,
    max: usize,
}

/// A text is longer than it may be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("longer than {max} bytes")]
pub struct TooLong {
    pub max: usize,
    /// Its beginning.
    pub head: Bytes,
}

impl Gather {
    /// `max`: bytes of the whole text.
    #[must_use]
    pub const fn new(max: usize) -> Self {
        Self {
            pieces: Vec::new(),
            last: Vec::new(),
            length: 0,
            max,
        }
    }

    /// Bytes that have come.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.length
    }

    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Has a text of this length put where it can stay: one that is announced need not be put together. Memory that
    /// nothing was written to yet costs nothing.
    pub fn expect(&mut self, length: usize) {
        if self.is_empty() {
            self.last.reserve_exact(length.min(self.max));
        }
    }

    /// Adds what came.
    ///
    /// # Errors
    /// [`TooLong`]; what had come is given back.
    pub fn push(&mut self, mut part: &[u8]) -> Result<(), TooLong> {
        if part.len() > self.max - self.length {
            return Err(self.too_long(part));
        }
        self.length += part.len();
        while !part.is_empty() {
            let size = self.last.capacity().max(PIECE);
            if self.last.len() == size {
                let full = std::mem::replace(&mut self.last, Vec::with_capacity(PIECE));
                self.pieces.push(full);
                continue;
            }
            let (now, then) = part.split_at(part.len().min(size - self.last.len()));
            let (length, capacity) = (self.last.len(), self.last.capacity());
            if capacity - length < now.len() {
                // Doubles a few times, then is a piece, of which only what is written to costs memory.
                let grown = if capacity < SMALL { 2 * capacity } else { size };
                let grown = grown.max(length + now.len());
                self.last.reserve_exact(grown - length);
            }
            self.last.extend_from_slice(now);
            part = then;
        }
        Ok(())
    }

    /// The whole text; the next one begins.
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

    /// A copy of its beginning.
    #[must_use]
    pub fn head(&self) -> Bytes {
        let first = self.pieces.first().unwrap_or(&self.last);
        Bytes::copy_from_slice(&first[..first.len().min(HEAD)])
    }

    /// What came last.
    #[must_use]
    pub fn last(&self) -> Option<u8> {
        self.last.last().copied()
    }

    /// Forgets what had come.
    pub fn clear(&mut self) {
        self.length = 0;
        self.release();
    }

    fn release(&mut self) {
        let freed = self.pieces.len() * PIECE + self.last.capacity();
        self.pieces = Vec::new();
        self.last = Vec::new();
        if let Some(give_back) = GIVE_BACK.get().filter(|_| freed >= LONG) {
            give_back();
        }
    }

    fn too_long(&mut self, part: &[u8]) -> TooLong {
        let mut head = self.head().to_vec();
        head.extend_from_slice(&part[..part.len().min(HEAD - head.len())]);
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

/// A body as it comes in. One that comes at once is not copied.
pub struct Whole<B> {
    body: B,
    first: Bytes,
    /// All of it, once more than one piece came.
    text: Gather,
    max: usize,
    in_one_place: bool,
}

/// Why there is no whole body.
#[derive(Debug)]
pub enum Unread<E> {
    TooLong,
    Broken(E),
}

impl<B: http_body::Body<Data = Bytes> + Unpin> Whole<B> {
    /// `max`: bytes of the whole body.
    pub const fn new(body: B, max: usize) -> Self {
        Self {
            body,
            first: Bytes::new(),
            text: Gather::new(max),
            max,
            in_one_place: false,
        }
    }

    /// Trusts a length that was announced ([`Gather::expect`]).
    #[must_use]
    pub const fn in_one_place(mut self) -> Self {
        self.in_one_place = true;
        self
    }

    /// The whole body.
    ///
    /// # Errors
    /// Why there is none.
    ///
    /// # Cancel safety
    /// Cancel safe: what was read stays here.
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

    /// What came before it broke off; of what is too long, the beginning.
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
        let text: Vec<u8> = (0..3 * PIECE + 5).map(|at| (at % 251) as u8).collect();
        for length in [0, 1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE + 5] {
            for size in [1000, PIECE / 2, PIECE, 2 * PIECE + 1, 4 * PIECE] {
                let mut gather = Gather::new(length);
                if length % 2 == 1 {
                    gather.expect(length / 2);
                }
                for part in text[..length].chunks(size) {
                    gather.push(part).expect("it fits");
                    assert!(gather.last.capacity() <= PIECE.max(length / 2));
                }
                assert_eq!(gather.len(), length);
                assert!(gather.take() == text[..length], "{length} by {size}");
                // Nothing is left of it for the next one.
                gather.push(&text[..length]).expect("it fits again");
                assert!(gather.take() == text[..length]);
            }
        }
    }

    #[test]
    fn what_is_too_long_is_given_back() {
        let text: Vec<u8> = (0..3 * PIECE).map(|at| (at % 251) as u8).collect();
        for first in [0, 10, HEAD + 1, 2 * PIECE] {
            let mut gather = Gather::new(2 * PIECE);
            gather.push(&text[..first]).expect("it fits");
            let error = gather.push(&text[first..]).expect_err("it does not");
            assert_eq!(error.head, text[..HEAD]);
            assert!(gather.is_empty() && gather.pieces.is_empty());
            assert_eq!(gather.last.capacity(), 0);
            gather.push(b"next").expect("it fits");
            assert_eq!(gather.take(), "next");
        }
    }
}
