//! The parts of JSON-RPC that the echo server, the floor and the load generator need.
//!
//! A frame is parsed into an envelope that borrows from the bytes read. An id is replaced by copying the bytes around
//! it ([`with_id`]).
//!
//! Deliberately absent: batches, duplicate-key checks, depth limits. The floor only passes frames on; the cost of such
//! checks shows in the gateway's figures.

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

/// Writes `n` in decimal, without an allocation or formatting.
pub(crate) fn decimal(mut n: u64, buffer: &mut [u8; 20]) -> &[u8] {
    let mut at = buffer.len();
    loop {
        at -= 1;
        buffer[at] = b'0' + (n % 10) as u8;
        n /= 10;
        if n == 0 {
            return &buffer[at..];
        }
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

    #[test]
    fn decimal_writes_what_display_writes() {
        for n in [0, 9, 10, 12_345, u64::MAX] {
            assert_eq!(decimal(n, &mut [0; 20]), n.to_string().as_bytes());
        }
    }
}
