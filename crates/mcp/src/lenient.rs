//! Messages from servers that break the rules of JSON-RPC, but whose meaning is clear.
//!
//! [`Frame::parse`] always comes first; this module handles only text that it refuses, and errors. A response is accepted
//! without `jsonrpc`, with its id as a string or as `4.0`, with `null` for absent members, after a byte order mark, or as
//! the only element of an array. A malformed error becomes a valid one that keeps the server's text.
//!
//! Requests of clients are never read this way. Deliberately absent: duplicate keys, unusual spellings of keys, text that
//! is not JSON, responses with both a result and an error. They stay refused.

use bytes::Bytes;

use crate::{
    Frame, Kind, RpcError,
    frame::{Invalid, Reason},
    json::{self, Fault, Object},
};

const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();
/// Maximum number of positions in a line at which a message may begin. Bounds the time that a hostile line can take.
const MAX_CANDIDATES: usize = 8;

/// Parses one message from a server. `asked` is the request that the text answers, if the transport shows that (an HTTP
/// response): a response without an id then answers this request.
///
/// # Errors
/// [`Invalid`] of the strict parse.
pub fn parse(text: Bytes, max_depth: usize, asked: Option<u64>) -> Result<Frame, Invalid> {
    match Frame::parse(text, max_depth) {
        Ok(frame) => Ok(with_valid_error(frame)),
        Err(invalid) => repaired(&invalid, max_depth, asked).ok_or(invalid),
    }
}

/// Finds the message at the end of a line that begins with other text. Returns that text and the message.
pub fn after_other_text(line: &Bytes, max_depth: usize) -> Option<(Bytes, Frame)> {
    memchr::memchr_iter(b'{', line)
        .filter(|at| line[at + 1..].trim_ascii_start().first() == Some(&b'"'))
        .take(MAX_CANDIDATES)
        .find_map(|at| {
            let frame = Frame::parse(line.slice(at..), max_depth).ok()?;
            Some((line.slice(..at), with_valid_error(frame)))
        })
}

fn with_valid_error(frame: Frame) -> Frame {
    if frame.kind() != Kind::Error || RpcError::is_valid(frame.body()) {
        return frame;
    }
    Frame::error(frame.id(), &RpcError::from_json(frame.body()))
}

fn repaired(invalid: &Invalid, max_depth: usize, asked: Option<u64>) -> Option<Frame> {
    let text = &invalid.text;
    match invalid.reason {
        Reason::Json(Fault::Syntax(_)) => {
            let mut rest = text.trim_ascii_start().strip_prefix(BYTE_ORDER_MARK)?;
            while let Some(more) = rest.strip_prefix(BYTE_ORDER_MARK) {
                rest = more;
            }
            parse(text.slice_ref(rest), max_depth, asked).ok()
        }
        Reason::NotAnObject => {
            let mut all = json::elements(text, json::trimmed(text));
            let (Some(only), None) = (all.next(), all.next()) else {
                return None;
            };
            let is_object = text[only.start] == b'{';
            is_object
                .then(|| parse(text.slice(only), max_depth, asked).ok())
                .flatten()
        }
        Reason::Version | Reason::Id | Reason::Shape => response(text, asked),
        _ => None,
    }
}

/// Builds a response from the members of a JSON object that has no duplicate keys.
fn response(text: &[u8], asked: Option<u64>) -> Option<Frame> {
    let object = Object::of(text)?;
    let [id, result, error] = object
        .find_all(["id", "result", "error"])
        .map(|at| at.map(|at| &text[at]));
    let is_null = |raw: Option<&[u8]>| raw.is_none_or(|raw| raw == b"null");
    let id = match id {
        Some(id) if id != b"null" => own_id(id)?,
        _ => asked?,
    };
    let id = id.to_string();
    match (result, error) {
        (Some(result), error) if is_null(error) => Some(Frame::result(id.as_bytes(), result)),
        (result, Some(error)) if is_null(result) => {
            let error = RpcError::from_json(error);
            Some(Frame::error(id.as_bytes(), &error))
        }
        _ => None,
    }
}

/// The id that the gateway assigned: a number, if need be as a string or with a fraction of zero.
fn own_id(raw: &[u8]) -> Option<u64> {
    let text = json::as_string(raw).unwrap_or_else(|| String::from_utf8_lossy(raw));
    let whole = text.trim_end_matches('0').strip_suffix('.');
    let digits = whole.unwrap_or(&text);
    let is_plain = digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse().ok().filter(|_| is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &'static str, asked: Option<u64>) -> Result<Frame, Invalid> {
        parse(Bytes::from_static(text.as_bytes()), 16, asked)
    }

    #[test]
    fn unambiguous_responses_are_accepted() {
        // Columns: the text, and what is read.
        let table = r#"
            {"id":4,"result":{"a":1}} | {"jsonrpc":"2.0","id":4,"result":{"a":1}}
            {"jsonrpc":"1.0","id":4,"result":{}} | {"jsonrpc":"2.0","id":4,"result":{}}
            {"jsonrpc":2.0,"id":4,"result":{}} | {"jsonrpc":"2.0","id":4,"result":{}}
            {"jsonrpc":"2.0","id":"4","result":{}} | {"jsonrpc":"2.0","id":"4","result":{}}
            {"jsonrpc":"2.0","id":4.0,"result":{}} | {"jsonrpc":"2.0","id":4,"result":{}}
            {"id":"4","result":{}} | {"jsonrpc":"2.0","id":4,"result":{}}
            {"jsonrpc":"2.0","id":4,"result":{"a":1},"error":null} | {"jsonrpc":"2.0","id":4,"result":{"a":1}}
            {"jsonrpc":"2.0","id":4,"result":null,"error":{"code":1,"message":"m"}} | {"jsonrpc":"2.0","id":4,"error":{"code":1,"message":"m"}}
            {"jsonrpc":"2.0","id":4,"method":null,"params":null,"result":{}} | {"jsonrpc":"2.0","id":4,"result":{}}
            [{"jsonrpc":"2.0","id":4,"result":{}}] | {"jsonrpc":"2.0","id":4,"result":{}}
            [ {"id":4,"result":{},"error":null} ] | {"jsonrpc":"2.0","id":4,"result":{}}
            {"jsonrpc":"2.0","id":4,"error":"boom"} | {"jsonrpc":"2.0","id":4,"error":{"code":-32603,"message":"boom"}}
            {"jsonrpc":"2.0","id":null,"error":"boom"} | {"jsonrpc":"2.0","id":null,"error":{"code":-32603,"message":"boom"}}
            {"jsonrpc":"2.0","id":4,"result":null,"error":null} | {"jsonrpc":"2.0","id":4,"result":null}
            \u{feff}{"jsonrpc":"2.0","id":4,"result":{}} | {"jsonrpc":"2.0","id":4,"result":{}}
        "#;
        for row in table.trim().lines() {
            let (text, expect) = row.trim().split_once(" | ").expect(row);
            let text = text.replace("\\u{feff}", "\u{feff}");
            let frame = parse(text.clone().into(), 16, None).expect(&text);
            assert_eq!(frame.text(), expect, "{text}");
            // The frame equals the one that parsing its text returns.
            let again = Frame::parse(frame.text().clone(), 16).expect(expect);
            assert_eq!((again.id(), again.body()), (frame.id(), frame.body()));
        }
    }

    #[test]
    fn the_rest_stays_refused() {
        for text in [
            r#"{"jsonrpc":"2.0","id":4,"result":{},"error":{"code":1,"message":"m"}}"#,
            r#"{"jsonrpc":"2.0","id":4,"id":4,"result":{}}"#,
            r#"{"jsonrpc":"2.0","id":4,"result":{"a":1,"a":2}}"#,
            r#"{"id":4,"Result":{},"error":null}"#,
            r#"{"jsonrpc":"2.0","id":4.5,"result":{}}"#,
            r#"{"jsonrpc":"2.0","id":4e0,"result":{}}"#,
            r#"{"jsonrpc":"2.0","id":[4],"result":{}}"#,
            r#"{"id":"+4","result":{}}"#,
            r#"{"jsonrpc":"2.0","result":{}}"#,
            r#"{"level":"error","error":"a log line"}"#,
            r#"{"id":4,"method":"ping"}"#,
            r#"{"jsonrpc":"2.0","id":4}"#,
            r#"[{"id":4,"result":{}},{"id":5,"result":{}}]"#,
            r#"[[{"jsonrpc":"2.0","id":4,"result":{}}]]"#,
            "[]",
            "[4]",
            "\u{feff}",
            "null",
        ] {
            read(text, None).expect_err(text);
        }
        let deep = format!(
            r#"[{{"id":4,"result":{}{}}}]"#,
            "[".repeat(20),
            "]".repeat(20)
        );
        parse(deep.into(), 16, None).expect_err("too deep");
    }

    #[test]
    fn a_response_to_a_known_request_needs_no_id() {
        for text in [
            r#"{"result":{}}"#,
            r#"{"jsonrpc":"2.0","result":{}}"#,
            r#"{"jsonrpc":"2.0","id":null,"result":{}}"#,
            r#"[{"result":{},"error":null}]"#,
        ] {
            let frame = read(text, Some(7)).expect(text);
            assert_eq!(frame.numeric_id(), Some(7), "{text}");
        }
        let other = read(r#"{"id":3,"result":{}}"#, Some(7)).expect("an id");
        assert_eq!(other.numeric_id(), Some(3));
        read(r#"{"id":true,"result":{}}"#, Some(7)).expect_err("not an id");
    }

    #[test]
    fn a_message_is_found_after_other_text() {
        let check = |line: &[u8], expect: Option<(&[u8], &str)>| {
            let found = after_other_text(&Bytes::copy_from_slice(line), 16);
            let found = found.map(|(text, frame)| (text.to_vec(), frame.text().to_vec()));
            let expect = expect.map(|(text, frame)| (text.to_vec(), frame.as_bytes().to_vec()));
            assert_eq!(found, expect, "{}", line.escape_ascii());
        };
        let frame = r#"{"jsonrpc":"2.0","id":4,"result":{"a":{"b":1}}}"#;
        for noise in [
            &b"loading... "[..],
            b"{\"level\":\"info\"} ",
            b"\x1b[32m{ } {x} ",
            b"\xff\xfe",
            b"a\"b",
        ] {
            check(&[noise, frame.as_bytes()].concat(), Some((noise, frame)));
        }
        check(b"loading", None);
        check(b"user said {\"a\":1}", None);
        check(b"{\"id\":4,\"result\":{}} is what I sent", None);
        // Not in a log: a message there must be complete.
        check(b"sent {\"id\":4,\"result\":{}}", None);
        check(
            &[b"{\"".repeat(MAX_CANDIDATES), frame.into()].concat(),
            None,
        );
    }
}
