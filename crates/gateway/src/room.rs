//! A memory budget for request bodies, shared by all connections.
//!
//! Bodies that arrive in more than one chunk count against the budget until they are dropped. When it is exhausted, new
//! bodies get 503. Large bodies may use at most 75 % of it, so that there is always room for small ones.

use std::{
    error::Error,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use bytes::Bytes;

/// Bodies with more bytes than this count as large.
const MAX_SMALL_BYTES: usize = 64 << 10;

#[derive(Debug, Default)]
pub(crate) struct Room {
    held: AtomicUsize,
}

/// The budget for request bodies is exhausted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NoRoom;

impl fmt::Display for NoRoom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the memory for request bodies is exhausted (`max_bodies_bytes`); try again")
    }
}

impl Error for NoRoom {}

impl NoRoom {
    /// Returns true if this caused an error that occurred while reading a body.
    pub(crate) fn caused(error: &(dyn Error + 'static)) -> bool {
        let mut cause = Some(error);
        while let Some(error) = cause {
            if error.is::<Self>() {
                return true;
            }
            cause = error.source();
        }
        false
    }
}

/// The reservation of one body.
#[derive(Debug)]
pub(crate) struct Held {
    room: Arc<Room>,
    /// The whole budget, in bytes.
    limit: usize,
    /// Maximum bytes of one body.
    longest: usize,
    bytes: usize,
}

impl Held {
    /// An empty reservation in a budget of `limit` bytes.
    pub(crate) fn new(room: Arc<Room>, limit: usize, longest: usize) -> Self {
        Self {
            room,
            limit,
            longest,
            bytes: 0,
        }
    }

    /// Reserves more bytes. A single body of up to `longest` bytes always fits.
    pub(crate) fn grow(&mut self, bytes: usize) -> Result<(), NoRoom> {
        let limit = self.limit.max(self.longest);
        let limit = if self.bytes + bytes > MAX_SMALL_BYTES {
            (limit / 4 * 3).max(self.longest)
        } else {
            limit
        };
        let fits = |held: usize| held.checked_add(bytes).filter(|held| *held <= limit);
        self.room
            .held
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits)
            .map_err(|_| NoRoom)?;
        self.bytes += bytes;
        Ok(())
    }

    /// Returns the text, which keeps the reservation until its last reference is dropped.
    pub(crate) fn with(self, text: Bytes) -> Bytes {
        Bytes::from_owner(Text { text, _held: self })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.room.held.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

struct Text {
    text: Bytes,
    _held: Held,
}

impl AsRef<[u8]> for Text {
    fn as_ref(&self) -> &[u8] {
        &self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_bodies_leave_room_for_small_ones() {
        const MIB: usize = 1 << 20;
        let room = Arc::<Room>::default();
        let held = || Held::new(room.clone(), 16 * MIB, 4 * MIB);
        let mut bodies = Vec::new();
        loop {
            let mut body = held();
            if body.grow(MIB).is_err() {
                break;
            }
            bodies.push(body);
        }
        assert_eq!(bodies.len(), 12);
        let mut small = held();
        small.grow(MAX_SMALL_BYTES).expect("room");
        small.grow(1).expect_err("it is large now");
        drop(bodies);
        small.grow(MIB).expect("room again");
        // The reservation lasts as long as any slice of the text.
        let text = small.with(Bytes::from_static(b"some text"));
        let part = text.slice(5..);
        drop(text);
        assert_eq!(room.held.load(Ordering::Relaxed), MIB + MAX_SMALL_BYTES);
        assert_eq!(part, &b"text"[..]);
        drop(part);
        assert_eq!(room.held.load(Ordering::Relaxed), 0);
        // One body of the maximum size fits even if the budget is smaller.
        let mut longest = Held::new(room.clone(), 1, 4 * MIB);
        longest.grow(4 * MIB).expect("it fits");
    }
}
