//! The protocol between a relay in a container and the gateway, over the relay's standard streams.
//!
//! A frame starts with a header of four bytes: its kind, the number of a connection, and a 16-bit little-endian value.
//! The header of a [`DATA`] frame is followed by as many bytes as its value says.
//!
//! # Invariants
//!
//! - The gateway numbers the connections. It reuses a number only after [`CLOSED`], the last frame of a connection.
//! - At most [`WINDOW_BYTES`] bytes are in flight in each direction of a connection. [`CREDIT`] says how many of them
//!   were passed on. So neither side ever has to stop reading.
//!
//! The limits of the gate and watch protocol (`gate.rs`) are also here.
//!
//! Compiled into two programs, as a module of `docker::relay` and of `relay/main.rs`.

pub(crate) const HEAD_BYTES: usize = 4;
pub(crate) const MAX_CONNECTIONS: usize = 128;
pub(crate) const WINDOW_BYTES: usize = 64 << 10;
/// Maximum length of the data in a [`DATA`] frame, in bytes.
pub(crate) const MAX_BODY_BYTES: usize = 16 << 10;

/// From the gateway: connect to the port in the value.
pub(crate) const OPEN: u8 = b'O';
pub(crate) const DATA: u8 = b'D';
/// The value is the number of bytes that were passed on.
pub(crate) const CREDIT: u8 = b'C';
/// No more data will follow in this direction.
pub(crate) const END: u8 = b'E';
/// From the gateway: abort the connection.
pub(crate) const RESET: u8 = b'R';
/// From the relay: the connection has ended, or was refused.
pub(crate) const CLOSED: u8 = b'X';

/// Maximum length of an order to a gate, in bytes.
pub(crate) const MAX_ORDER_BYTES: usize = 1 << 20;
/// Number of sections in a gate's report, and the maximum length of a section in bytes.
pub(crate) const SECTION_COUNT: usize = 5;
pub(crate) const MAX_SECTION_BYTES: usize = 16 << 10;
/// Length of the key of a watch and of each reply, in bytes.
pub(crate) const KEY_BYTES: usize = 16;
pub(crate) const ANSWER_BYTES: usize = 8;
/// Seconds without a ping after which a watch kills everything in its container.
pub(crate) const SILENCE_SECS: usize = 8;

pub(crate) fn head(kind: u8, connection: u8, value: u16) -> [u8; HEAD_BYTES] {
    let [low, high] = value.to_le_bytes();
    [kind, connection, low, high]
}

/// A watch's reply to the ping with this number. Earlier replies do not reveal the next one without the key.
#[expect(
    deprecated,
    reason = "SipHash-2-4 is the only keyed hash in `core`; its successors take no key"
)]
pub(crate) fn answer(key: &[u8; KEY_BYTES], number: u64) -> [u8; ANSWER_BYTES] {
    use core::hash::{Hasher as _, SipHasher};
    let half = |at: usize| {
        let bytes = key[at..].first_chunk().copied();
        u64::from_le_bytes(bytes.unwrap_or_default())
    };
    let mut hasher = SipHasher::new_with_keys(half(0), half(8));
    hasher.write(&number.to_le_bytes());
    hasher.finish().to_le_bytes()
}
