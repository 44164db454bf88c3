//! What the relay inside of a container and its gateway say to each other, over the relay's standard streams.
//!
//! A frame is a head of four bytes: its kind, the number of a connection, and a value of 16 bits, little endian. After
//! that of [`DATA`] come as many bytes as its value says.
//!
//! # Invariants
//!
//! - The gateway numbers connections. It uses a number again only after [`CLOSED`], which is the last word on it.
//! - In each direction of a connection at most [`WINDOW`] bytes are under way. [`CREDIT`] tells how many of them have
//!   been passed on. So neither side ever has to wait before it reads.
//!
//! What a gate and a watch are told (`gate.rs`) has its bounds here as well.
//!
//! Read by two programs: `docker::relay` and `relay/main.rs`.

pub(crate) const HEAD: usize = 4;
pub(crate) const CONNECTIONS: usize = 128;
pub(crate) const WINDOW: usize = 64 << 10;
/// Most bytes of one [`DATA`].
pub(crate) const BODY: usize = 16 << 10;

/// From the gateway: connect to the port that is the value.
pub(crate) const OPEN: u8 = b'O';
pub(crate) const DATA: u8 = b'D';
/// So many bytes were passed on.
pub(crate) const CREDIT: u8 = b'C';
/// There will be no more data in this direction.
pub(crate) const END: u8 = b'E';
/// From the gateway: nobody wants the connection any more.
pub(crate) const RESET: u8 = b'R';
/// From the relay: the connection is over, or was refused.
pub(crate) const CLOSED: u8 = b'X';

/// Most bytes of an order to a gate.
pub(crate) const ORDER: usize = 1 << 20;
/// What a gate tells in return, and the most bytes of one of them.
pub(crate) const SECTIONS: usize = 5;
pub(crate) const SECTION: usize = 16 << 10;
/// Of the key that a gateway gives to its watch, and of each answer.
pub(crate) const KEY: usize = 16;
pub(crate) const ANSWER: usize = 8;
/// Seconds after which a watch that hears nothing ends everything.
pub(crate) const SILENCE: usize = 8;

pub(crate) fn head(kind: u8, connection: u8, value: u16) -> [u8; HEAD] {
    let [low, high] = value.to_le_bytes();
    [kind, connection, low, high]
}

/// What a watch answers to its word of this number. Whoever has seen earlier answers and does not have the key does not know the
/// next one.
#[expect(
    deprecated,
    reason = "SipHash-2-4, the one hash with a key that `core` has; its successors take none"
)]
pub(crate) fn answer(key: &[u8; KEY], number: u64) -> [u8; ANSWER] {
    use core::hash::{Hasher as _, SipHasher};
    let half = |at: usize| {
        let bytes = key[at..].first_chunk().copied();
        u64::from_le_bytes(bytes.unwrap_or_default())
    };
    let mut hasher = SipHasher::new_with_keys(half(0), half(8));
    hasher.write(&number.to_le_bytes());
    hasher.finish().to_le_bytes()
}
