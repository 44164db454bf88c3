//! One JSON-RPC message: its text, and the spans of the envelope in it.

use std::ops::Range;

use bytes::Bytes;

use crate::{
    error::{self, RpcError},
    json::{self, Fault, Object, Span, Splice},
};

/// Message kinds (JSON-RPC 2.0; 2026-07-28 basic "Messages").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Request,
    Notification,
    /// A response with `result`.
    Result,
    /// A response with `error`.
    Error,
}

/// Keys of the envelope. Other spellings of these keys are refused, because parsers disagree about them.
const ENVELOPE: [&str; 6] = ["jsonrpc", "id", "method", "params", "result", "error"];
/// Keys of `params` that routing or the bridge use, in the order of [`Param`]. Other spellings are refused.
const ROUTED: [&str; 8] = [
    "name",
    "uri",
    "_meta",
    "arguments",
    "cursor",
    "requestId",
    "requestState",
    "inputResponses",
];

/// Keys of a result that the bridge uses, in the order of [`Part`].
const BRIDGED: [&str; 3] = ["resultType", "ttlMs", "cacheScope"];

/// A member of a result that the bridge uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    ResultType,
    TtlMs,
    CacheScope,
}

/// A member of `params` that routing or the bridge use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Param {
    Name,
    Uri,
    Meta,
    Arguments,
    Cursor,
    RequestId,
    RequestState,
    InputResponses,
}

/// A validated JSON-RPC message.
///
/// Cheap to clone: the text is shared.
#[derive(Debug, Clone)]
pub struct Frame {
    text: Bytes,
    kind: Kind,
    id: Span,
    method: Method,
    body: Span,
    /// Spans of the values of [`ROUTED`] in `params`, or of [`BRIDGED`] in a result. 0..0 if missing.
    routed: [(u32, u32); ROUTED.len()],
}

#[derive(Debug, Clone)]
enum Method {
    /// The usual case: the name appears in the text without escapes.
    Plain(Span),
    /// Written with escapes (`"tools\/call"`).
    Escaped(Box<str>),
}

/// A text that was refused as a message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Invalid {
    pub reason: Reason,
    /// The message's id, if it could be read: JSON text.
    pub id: Option<Bytes>,
    /// True for a response.
    pub response: bool,
    /// The text that was refused.
    pub text: Bytes,
}

/// The fault in a message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    #[error("{0}")]
    Json(#[from] Fault),
    #[error("a JSON-RPC message must be an object")]
    NotAnObject,
    #[error("key {found:?} must be written {expected:?}")]
    FoldedKey {
        found: String,
        expected: &'static str,
    },
    #[error("`jsonrpc` must be \"2.0\"")]
    Version,
    #[error("`id` must be a string or an integer")]
    Id,
    #[error("`method` must be a string")]
    Method,
    #[error("`params` must be an object")]
    Params,
    #[error("a message needs `method`, or `id` with `result` or `error`")]
    Shape,
}

impl Invalid {
    /// The JSON-RPC error to send back.
    #[must_use]
    pub fn to_rpc(&self) -> RpcError {
        let code = match &self.reason {
            Reason::Json(Fault::Utf8(_) | Fault::Syntax(_)) => error::PARSE_ERROR,
            _ => error::INVALID_REQUEST,
        };
        let what = if code == error::PARSE_ERROR {
            "Parse error"
        } else {
            "Invalid request"
        };
        RpcError::new(code, format!("{what}: {}", self.reason))
    }
}

impl Frame {
    /// Parses one message.
    ///
    /// # Errors
    /// [`Invalid`], with the message's id if the envelope could be read.
    pub fn parse(text: Bytes, max_depth: usize) -> Result<Self, Invalid> {
        let mut found = Found::default();
        let valid = json::outline(&text, max_depth, |parent, key, value| {
            found.take(parent, key, value);
        });
        let fault = match valid {
            Ok(()) => None,
            Err(fault @ Fault::DuplicateKey(_)) => Some(fault),
            Err(fault) => {
                // A request that cannot be parsed is answered with the id null (JSON-RPC 2.0 section 5). A response
                // ends the call that it answers.
                let id = answered(&text).map(|id| text.slice(id));
                return Err(Invalid {
                    reason: fault.into(),
                    response: id.is_some(),
                    id,
                    text,
                });
            }
        };
        if text.trim_ascii_start().first() != Some(&b'{') {
            return Err(Invalid {
                reason: Reason::NotAnObject,
                id: None,
                response: false,
                text,
            });
        }
        let reason = fault.map(Reason::Json).or(found.folded);
        let [version, id, method, params, result, error] = found.envelope;
        let response = method.is_none() && (result.is_some() || error.is_some());
        let invalid = |reason| {
            let id = id
                .clone()
                .filter(|id| is_id(&text[id.clone()]))
                .map(|id| text.slice(id));
            Err(Invalid {
                reason,
                id,
                response,
                text: text.clone(),
            })
        };
        if let Some(reason) = reason {
            return invalid(reason);
        }
        if version.and_then(|at| json::as_string(&text[at])).as_deref() != Some("2.0") {
            return invalid(Reason::Version);
        }
        // An error in response to something unreadable has a null id or none.
        let id_ok = match &id {
            Some(id) => {
                is_id(&text[id.clone()]) || (error.is_some() && &text[id.clone()] == b"null")
            }
            None => true,
        };
        if !id_ok {
            return invalid(Reason::Id);
        }
        let (kind, body) = match (&method, &id, &result, &error) {
            (Some(_), Some(_), None, None) => (Kind::Request, params),
            (Some(_), None, None, None) => (Kind::Notification, params),
            (None, Some(_), Some(_), None) => (Kind::Result, result.clone()),
            (None, _, None, Some(_)) => (Kind::Error, error.clone()),
            _ => return invalid(Reason::Shape),
        };
        let mut name = Method::Plain(0..0);
        let mut routed = [(0, 0); ROUTED.len()];
        if let Some(at) = method {
            let raw = &text[at.clone()];
            if raw.first() != Some(&b'"') {
                return invalid(Reason::Method);
            }
            name = if memchr::memchr(b'\\', raw).is_some() {
                let Some(name) = json::as_string(raw) else {
                    return invalid(Reason::Method);
                };
                Method::Escaped(name.into())
            } else {
                Method::Plain(at.start + 1..at.end - 1)
            };
            if let Some(body) = &body {
                if text[body.clone()] == *b"null" {
                    // Counts as absent. It is removed, so that the next reader agrees.
                    let mut splice = Splice::new();
                    splice.remove(&text, &json::trimmed(&text), body);
                    return Self::parse(splice.apply(&text), max_depth);
                }
                if text[body.start] != b'{' {
                    return invalid(Reason::Params);
                }
                if let Some(reason) = found.folded_param {
                    return invalid(reason);
                }
                routed = found.routed;
            }
        } else if kind == Kind::Result {
            routed[..BRIDGED.len()].copy_from_slice(&found.bridged);
        }
        let id = id.unwrap_or(0..0);
        let body = body.unwrap_or(0..0);
        Ok(Self {
            kind,
            id,
            method: name,
            body,
            routed,
            text,
        })
    }

    /// Builds a request. `params` is JSON text.
    #[must_use]
    pub fn request(id: &str, method: &str, params: Option<&[u8]>) -> Self {
        Self::assemble(Kind::Request, Some(id.as_bytes()), method, params)
    }

    /// Builds a notification. `params` is JSON text.
    #[must_use]
    pub fn notification(method: &str, params: Option<&[u8]>) -> Self {
        Self::assemble(Kind::Notification, None, method, params)
    }

    /// Builds a response. `id` and `result` are JSON text.
    #[must_use]
    pub fn result(id: &[u8], result: &[u8]) -> Self {
        Self::answer(Kind::Result, id, b"result", result)
    }

    /// Builds an error response. `id` is JSON text; an empty one is omitted.
    #[must_use]
    pub fn error(id: &[u8], error: &RpcError) -> Self {
        Self::answer(Kind::Error, id, b"error", &error.to_json())
    }

    fn assemble(kind: Kind, id: Option<&[u8]>, method: &str, params: Option<&[u8]>) -> Self {
        let mut out = Vec::with_capacity(64 + method.len() + params.map_or(0, <[u8]>::len));
        out.extend_from_slice(b"{\"jsonrpc\":\"2.0\"");
        let mut id_at = 0..0;
        if let Some(id) = id {
            out.extend_from_slice(b",\"id\":");
            id_at = append(&mut out, id);
        }
        out.extend_from_slice(b",\"method\":\"");
        let method = Method::Plain(append(&mut out, method.as_bytes()));
        out.push(b'"');
        let mut body = 0..0;
        if let Some(params) = params {
            out.extend_from_slice(b",\"params\":");
            body = append(&mut out, params);
        }
        out.push(b'}');
        let text = Bytes::from(out);
        let mut found = Found::default();
        found.walk(b"params", &text, body.clone());
        Self {
            routed: found.routed,
            text,
            kind,
            id: id_at,
            method,
            body,
        }
    }

    /// The same result or error as the response to the request `id`, without other members.
    #[must_use]
    pub(crate) fn answering(&self, id: u64) -> Self {
        let key: &[u8] = match self.kind {
            Kind::Error => b"error",
            _ => b"result",
        };
        Self::answer(self.kind, id.to_string().as_bytes(), key, self.body())
    }

    fn answer(kind: Kind, id: &[u8], key: &[u8], value: &[u8]) -> Self {
        let mut out = Vec::with_capacity(40 + id.len() + value.len());
        out.extend_from_slice(b"{\"jsonrpc\":\"2.0\"");
        let mut id_at = 0..0;
        if !id.is_empty() {
            out.extend_from_slice(b",\"id\":");
            id_at = append(&mut out, id);
        }
        out.extend_from_slice(b",\"");
        out.extend_from_slice(key);
        out.extend_from_slice(b"\":");
        let body = append(&mut out, value);
        out.push(b'}');
        let mut found = Found::default();
        if kind == Kind::Result {
            found.walk(b"result", &out, body.clone());
        }
        let mut routed = [(0, 0); ROUTED.len()];
        routed[..BRIDGED.len()].copy_from_slice(&found.bridged);
        Self {
            text: out.into(),
            kind,
            id: id_at,
            method: Method::Plain(0..0),
            body,
            routed,
        }
    }

    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    #[must_use]
    pub fn is_response(&self) -> bool {
        matches!(self.kind, Kind::Result | Kind::Error)
    }

    /// The whole message.
    #[must_use]
    pub fn text(&self) -> &Bytes {
        &self.text
    }

    /// The id as JSON text, empty if missing.
    #[must_use]
    pub fn id(&self) -> &[u8] {
        &self.text[self.id.clone()]
    }

    /// The id, if it is an integer that the gateway may have assigned. Some peers return it as a string.
    #[must_use]
    pub fn numeric_id(&self) -> Option<u64> {
        let id = self.id();
        let quoted = id.strip_prefix(b"\"");
        let digits = quoted.and_then(|id| id.strip_suffix(b"\"")).unwrap_or(id);
        if digits.first() == Some(&b'+') {
            return None;
        }
        if digits.len() > 1 && digits[0] == b'0' {
            return None;
        }
        std::str::from_utf8(digits).ok()?.parse().ok()
    }

    #[must_use]
    pub fn id_span(&self) -> Span {
        self.id.clone()
    }

    /// The method, empty for a response.
    #[must_use]
    pub fn method(&self) -> &str {
        match &self.method {
            Method::Plain(span) => {
                std::str::from_utf8(&self.text[span.clone()]).unwrap_or_default()
            }
            Method::Escaped(name) => name,
        }
    }

    /// `params`, `result` or `error` as JSON text, empty if missing.
    #[must_use]
    pub fn body(&self) -> &[u8] {
        &self.text[self.body.clone()]
    }

    /// `params`, `result` or `error` without a copy.
    #[must_use]
    pub fn body_bytes(&self) -> Bytes {
        self.text.slice(self.body.clone())
    }

    /// `params`, `result` or `error`, if it is an object. Spans found in it are spans of [`Frame::text`].
    #[must_use]
    pub fn object(&self) -> Option<Object<'_>> {
        if self.body.is_empty() {
            None
        } else {
            Object::at(&self.text, self.body.clone())
        }
    }

    /// The object of `params._meta` or `result._meta`.
    #[must_use]
    pub fn meta(&self) -> Option<Object<'_>> {
        if self.is_response() {
            return self.object().and_then(|body| body.object("_meta"));
        }
        self.param(Param::Meta)
            .and_then(|span| Object::at(&self.text, span))
    }

    /// The span of a member of `params` that routing uses.
    #[must_use]
    pub fn param(&self, param: Param) -> Option<Span> {
        if self.is_response() {
            return None;
        }
        self.routed_at(param as usize)
    }

    /// The span of a member of a result that the bridge uses.
    #[must_use]
    pub fn part(&self, part: Part) -> Option<Span> {
        if self.kind != Kind::Result {
            return None;
        }
        self.routed_at(part as usize)
    }

    fn routed_at(&self, at: usize) -> Option<Span> {
        let (start, end) = self.routed[at];
        (end > 0).then_some(start as usize..end as usize)
    }

    /// A member of `params` that routing uses, if it is a string.
    #[must_use]
    pub fn param_string(&self, param: Param) -> Option<std::borrow::Cow<'_, str>> {
        self.param(param)
            .and_then(|span| json::as_string(&self.text[span]))
    }

    /// The message with another id and the changes of `splice` (spans of [`Frame::text`]).
    #[must_use]
    pub fn rewritten<'a>(&self, id: &'a [u8], mut splice: Splice<'a>) -> Bytes {
        if !self.id.is_empty() {
            splice.replace(self.id.clone(), id);
        }
        splice.apply(&self.text)
    }
}

/// The members of a message collected while it is scanned.
#[derive(Default)]
struct Found {
    /// The values of [`ENVELOPE`].
    envelope: [Option<Span>; ENVELOPE.len()],
    /// The first key that is another spelling of an [`ENVELOPE`] key.
    folded: Option<Reason>,
    /// The values of [`ROUTED`] in `params`.
    routed: [(u32, u32); ROUTED.len()],
    folded_param: Option<Reason>,
    /// The values of [`BRIDGED`] in `result`.
    bridged: [(u32, u32); BRIDGED.len()],
}

impl Found {
    /// Records a member of the message, or of an object in it (`parent`).
    fn take(&mut self, parent: Option<&[u8]>, key: &[u8], value: Span) {
        let place = |names: &[&str]| names.iter().position(|name| json::key_is(key, name));
        // Offsets fit, because `validate` refuses longer texts.
        let offset = |at| u32::try_from(at).unwrap_or_default();
        let span = (offset(value.start), offset(value.end));
        match parent {
            None => match place(&ENVELOPE) {
                Some(at) => self.envelope[at] = Some(value),
                None if self.folded.is_none() => self.folded = folded(key, &ENVELOPE),
                None => {}
            },
            Some(parent) if json::key_is(parent, "params") => match place(&ROUTED) {
                Some(at) => self.routed[at] = span,
                None if self.folded_param.is_none() => self.folded_param = folded(key, &ROUTED),
                None => {}
            },
            Some(parent) if json::key_is(parent, "result") => {
                if let Some(at) = place(&BRIDGED) {
                    self.bridged[at] = span;
                }
            }
            Some(_) => {}
        }
    }

    /// Records the members of the object at `object`, the value of the key `parent`.
    fn walk(&mut self, parent: &[u8], text: &[u8], object: Span) {
        if object.is_empty() {
            return;
        }
        for member in json::members(text, object) {
            self.take(Some(parent), &text[member.key], member.value);
        }
    }
}

/// The id of a response that cannot be parsed as a whole. Its content may have bad UTF-8, bad syntax or too much depth.
fn answered(text: &[u8]) -> Option<Span> {
    let start = text.len() - text.trim_ascii_start().len();
    let mut id = None;
    let mut response = false;
    for member in json::members(text, start..text.len()) {
        let key = &text[member.key];
        if json::key_is(key, "method") || (id.is_some() && json::key_is(key, "id")) {
            return None;
        }
        response |= json::key_is(key, "result") || json::key_is(key, "error");
        if json::key_is(key, "id") {
            id = Some(member.value);
        }
    }
    id.filter(|id| response && is_id(&text[id.clone()]))
}

/// Returns true if `raw` is an id: a string or an integer (2026-07-28 basic "Requests").
fn is_id(raw: &[u8]) -> bool {
    match raw {
        [b'"', ..] => true,
        [b'-' | b'0'..=b'9', rest @ ..] => rest.iter().all(u8::is_ascii_digit),
        _ => false,
    }
}

fn append(out: &mut Vec<u8>, piece: &[u8]) -> Range<usize> {
    let start = out.len();
    out.extend_from_slice(piece);
    start..out.len()
}

/// Finds a key that equals one of `names` except for case. Some parsers treat it as the same key.
fn folded(key: &[u8], names: &[&'static str]) -> Option<Reason> {
    if names.iter().any(|name| name.as_bytes() == key) {
        return None;
    }
    let plain = key.is_ascii() && !key.contains(&b'\\');
    if plain && !names.iter().any(|name| name.len() == key.len()) {
        return None;
    }
    let found = json::unescape(key);
    // Two letters outside ASCII also fold into A-Z: ſ (long s) and the Kelvin sign.
    let fold = |c: char| match c {
        '\u{17f}' => 's',
        '\u{212a}' => 'k',
        other => other.to_ascii_lowercase(),
    };
    let expected = names
        .iter()
        .find(|name| **name != found && found.chars().map(fold).eq(name.chars().map(fold)))?;
    Some(Reason::FoldedKey {
        found: found.chars().take(80).collect(),
        expected,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &'static str) -> Result<Frame, Invalid> {
        Frame::parse(Bytes::from_static(text.as_bytes()), 64)
    }

    #[test]
    fn reads_the_envelope_in_any_order() {
        let frame = parse(r#" {"params":{"name":"x"},"method":"tools\/call", "id" : "é1","jsonrpc":"2.0","x":[1]} "#)
            .expect("a request");
        assert_eq!(
            (frame.kind(), frame.method(), frame.id()),
            (Kind::Request, "tools/call", "\"é1\"".as_bytes())
        );
        assert_eq!(
            frame.object().and_then(|p| p.string("name")).as_deref(),
            Some("x")
        );
        let text = frame.rewritten(b"7", Splice::new());
        assert_eq!(
            text,
            r#" {"params":{"name":"x"},"method":"tools\/call", "id" : 7,"jsonrpc":"2.0","x":[1]} "#
        );
    }

    #[test]
    fn tells_the_kinds_apart() {
        for (text, kind) in [
            (r#"{"jsonrpc":"2.0","id":1,"method":"a"}"#, Kind::Request),
            (r#"{"jsonrpc":"2.0","method":"a"}"#, Kind::Notification),
            (r#"{"jsonrpc":"2.0","id":1,"result":null}"#, Kind::Result),
            (r#"{"jsonrpc":"2.0","id":null,"error":{}}"#, Kind::Error),
        ] {
            assert_eq!(parse(text).expect(text).kind(), kind);
        }
    }

    /// It is removed, so that a server that refuses null does not get it either.
    #[test]
    fn params_that_are_null_count_as_absent() {
        for (text, expect) in [
            (
                r#"{"jsonrpc":"2.0","id":1,"method":"a","params":null}"#,
                r#"{"jsonrpc":"2.0","id":1,"method":"a"}"#,
            ),
            (
                r#" {"params" : null, "method":"a","jsonrpc":"2.0"}"#,
                r#" {"method":"a","jsonrpc":"2.0"}"#,
            ),
        ] {
            let frame = parse(text).expect(text);
            assert_eq!((frame.text(), frame.body()), (&expect.into(), &b""[..]));
        }
        parse(r#"{"jsonrpc":"2.0","id":1,"method":"a","params":null,"params":null}"#)
            .expect_err("duplicate keys");
    }

    #[test]
    fn numbers_that_were_assigned_are_recognised() {
        for (id, expect) in [
            ("7", Some(7)),
            ("\"7\"", Some(7)),
            ("\"\"", None),
            ("\"+7\"", None),
            ("\"07\"", None),
            ("\"7 \"", None),
            ("-7", None),
        ] {
            let frame = Frame::result(id.as_bytes(), b"{}");
            assert_eq!(frame.numeric_id(), expect, "{id}");
        }
    }

    #[test]
    fn refuses_with_the_reason_and_the_id() {
        // Columns: id, reason, message.
        let table = r#"
            - | a JSON-RPC message must be an object | []
            4 | duplicate key "result" | {"jsonrpc":"2.0","id":4,"result":{},"result":{}}
            4 | key "Method" must be written "method" | {"jsonrpc":"2.0","id":4,"method":"a","Method":"b"}
            4 | key "paramſ" must be written "params" | {"jsonrpc":"2.0","id":4,"method":"a","paramſ":{}}
            4 | key "Name" must be written "name" | {"jsonrpc":"2.0","id":4,"method":"a","params":{"Name":"b"}}
            4 | `jsonrpc` must be "2.0" | {"jsonrpc":"1.0","id":4,"method":"a"}
            - | `id` must be a string or an integer | {"jsonrpc":"2.0","id":1.5,"method":"a"}
            - | `id` must be a string or an integer | {"jsonrpc":"2.0","id":1e3,"method":"a"}
            4 | `method` must be a string | {"jsonrpc":"2.0","id":4,"method":"\ud83d"}
            1 | `params` must be an object | {"jsonrpc":"2.0","id":1,"method":"a","params":[]}
            1 | a message needs `method`, or `id` with `result` or `error` | {"jsonrpc":"2.0","id":1}
        "#;
        for row in table.trim().lines() {
            let columns: Vec<&str> = row.trim().split(" | ").collect();
            let [id, reason, text] = columns[..] else {
                panic!("{row}");
            };
            let invalid = parse(text).expect_err(text);
            assert_eq!(invalid.reason.to_string(), reason, "{text}");
            let id = (id != "-").then_some(id.as_bytes());
            assert_eq!(invalid.id.as_deref(), id, "{text}");
        }
    }

    #[test]
    fn the_id_of_an_unreadable_response_is_told() {
        let check = |text: &[u8], id: Option<&'static [u8]>| {
            let invalid = Frame::parse(Bytes::copy_from_slice(text), 64).expect_err("unreadable");
            let told = (invalid.id.as_deref(), invalid.response);
            assert_eq!(told, (id, id.is_some()), "{}", text.escape_ascii());
        };
        check(b"{\"id\":4,\"result\":\"\xff\"}", Some(b"4"));
        check(b" {\"result\":\"a\0b\",\"id\":4}", Some(b"4"));
        check(b"{\"id\":4,\"error\":{\"x\":tru}}", Some(b"4"));
        let deep = format!(
            "{{\"result\":{}{},\"id\":4}}",
            "[".repeat(99),
            "]".repeat(99)
        );
        check(deep.as_bytes(), Some(b"4"));
        // Requests, truncated texts and contradictory texts have no usable id.
        check(b"{\"id\":4,\"method\":\"\xff\"}", None);
        check(b"{\"id\":4,\"result\":\"\xff\",\"method\":\"a\"}", None);
        check(b"{\"id\":4,\"id\":5,\"result\":\"\xff\"}", None);
        check(b"{\"id\":[4],\"result\":\"\xff\"}", None);
        check(b"{\"id\":4,\"res", None);
        check(b"{\"id\":4,\"result\"", None);
        check(b"\xff", None);
        check(b"", None);
        check(b"[{\"id\":4,\"result\":\"\xff\"}]", None);
    }

    #[test]
    fn builds_what_it_reads() {
        for frame in [
            Frame::request("3", "ping", None),
            Frame::notification("a/b", Some(b"{\"x\":1}")),
            Frame::result(b"\"q\"", b"{}"),
            Frame::error(b"9", &RpcError::new(-1, "no \"way\"")),
        ] {
            let read = Frame::parse(frame.text().clone(), 64).expect("our own frame");
            assert_eq!(
                (read.kind(), read.method(), read.id(), read.body()),
                (frame.kind(), frame.method(), frame.id(), frame.body())
            );
        }
    }
}
