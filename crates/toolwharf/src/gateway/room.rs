//! Memory for the bodies of requests, over all connections.
//!
//! A body that comes in more than one piece is counted, until nobody needs its text any more. What finds no room is refused with
//! 503. A quarter of the room is for small bodies, so that large ones cannot take it all.

use std::{
    error::Error,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use bytes::Bytes;

/// A body of more bytes is large.
const SMALL: usize = 64 << 10;

/// All bodies.
#[derive(Debug, Default)]
pub(crate) struct Room {
    held: AtomicUsize,
}

/// There is no room for a body.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NoRoom;

impl fmt::Display for NoRoom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "the requests that are being read take all the memory that they may (`max_bodies_bytes`)",
        )
    }
}

impl Error for NoRoom {}

impl NoRoom {
    /// Whether this is why a body could not be read.
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

/// What one body takes.
#[derive(Debug)]
pub(crate) struct Held {
    room: Arc<Room>,
    /// Bytes of the room.
    limit: usize,
    /// Bytes of the longest body there may be.
    longest: usize,
    bytes: usize,
}

impl Held {
    /// Takes nothing yet of a room of `limit` bytes.
    pub(crate) fn new(room: Arc<Room>, limit: usize, longest: usize) -> Self {
        Self {
            room,
            limit,
            longest,
            bytes: 0,
        }
    }

    /// Takes more of the room; a single body of up to `longest` bytes fits in any case.
    pub(crate) fn grow(&mut self, bytes: usize) -> Result<(), NoRoom> {
        let limit = self.limit.max(self.longest);
        let limit = if self.bytes + bytes > SMALL {
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

    /// The text, which takes its room until nothing refers to it.
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
        small.grow(SMALL).expect("room");
        small.grow(1).expect_err("it is large now");
        drop(bodies);
        small.grow(MIB).expect("room again");
        // It is held as long as a part of its text is.
        let text = small.with(Bytes::from_static(b"some text"));
        let part = text.slice(5..);
        drop(text);
        assert_eq!(room.held.load(Ordering::Relaxed), MIB + SMALL);
        assert_eq!(part, &b"text"[..]);
        drop(part);
        assert_eq!(room.held.load(Ordering::Relaxed), 0);
        // One body that is as long as a body may be fits even into too small a room.
        let mut longest = Held::new(room.clone(), 1, 4 * MIB);
        longest.grow(4 * MIB).expect("it fits");
    }
}
