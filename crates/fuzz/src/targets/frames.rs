//! Messages: one frame with everything that the gateway does to it, and lines from a byte stream.
//!
//! - A frame keeps its text, and parsing that again returns the same frame.
//! - An edited or translated frame is a valid frame, and differs only in the edited parts.
//! - Errors become valid messages.
//! - Lines are those of a simple reader, however the stream is cut.

use bytes::Bytes;
use futures_util::FutureExt;
use mcp::{
    Era, Frame, Kind, RpcError, Version,
    bridge::{self, ClientFace},
    elicit,
    json::{Object, Splice},
    lenient,
    lines::{Head, Line, LineReader},
    server::ClientInfo,
    uri,
};

pub(crate) const WORDS: &[&str] = &[
    "\"jsonrpc\":\"2.0\"",
    "\"id\":",
    "\"method\":",
    "\"params\":",
    "\"result\":",
    "\"error\":",
    "\"_meta\":{",
    "\"name\":",
    "\"uri\":",
    "\"arguments\":",
    "\"cursor\":",
    "\"requestState\":",
    "\"inputResponses\":{",
    "\"inputRequests\":{",
    "\"resultType\":\"input_required\"",
    "\"ttlMs\":",
    "\"cacheScope\":",
    "\"content\":[",
    "\"type\":\"resource_link\"",
    "\"type\":\"resource\",\"resource\":{",
    "\"io.modelcontextprotocol/protocolVersion\":",
    "\"io.modelcontextprotocol/clientCapabilities\":{}",
    "\"io.modelcontextprotocol/clientInfo\":{}",
    "\"io.modelcontextprotocol/logLevel\":\"info\"",
    "\"code\":-32602",
    "\"code\":-32042",
    "\"message\":",
    "\"data\":{\"elicitations\":[",
    "tools/call",
    "tools/list",
    "prompts/get",
    "resources/read",
    "initialize",
    "\"Method\":",
    "\"m\\u0065thod\":",
    ":null",
];

const MAX_DEPTH: usize = 64;
const METHODS: [&str; 6] = [
    "tools/call",
    "tools/list",
    "prompts/get",
    "resources/read",
    "skills/get",
    "resources/directory/read",
];

pub(crate) fn run(input: &[u8]) {
    let text = Bytes::copy_from_slice(input);
    match Frame::parse(text.clone(), MAX_DEPTH) {
        Ok(frame) => valid(&text, &frame),
        Err(invalid) => {
            assert_eq!(invalid.text, text);
            // The id of an unreadable response is only compared with those of calls.
            let id = invalid.id.as_deref().filter(|_| !invalid.response);
            parsed(&Frame::error(id.unwrap_or(b"null"), &invalid.to_rpc()));
        }
    }
    if let Ok(frame) = lenient::parse(text.clone(), MAX_DEPTH, Some(7)) {
        parsed(&frame);
    }
    if let Some((before, frame)) = lenient::after_other_text(&text, MAX_DEPTH) {
        assert!(text.starts_with(&before));
        parsed(&frame);
    }
    let error = RpcError::from_json(&text);
    if mcp::json::validate(&text, MAX_DEPTH).is_ok() {
        parsed(&Frame::error(b"1", &error));
    }
    head(&text);
    lines(input);
}

/// Parses the text of a frame again. The result must be the same.
fn parsed(frame: &Frame) -> Frame {
    let again = Frame::parse(frame.text().clone(), usize::MAX);
    let again = again.unwrap_or_else(|invalid| panic!("{invalid}: {:?}", frame.text()));
    let all = |frame: &Frame| {
        (
            frame.kind(),
            frame.id_span(),
            frame.method().to_owned(),
            frame.body_bytes(),
        )
    };
    assert_eq!(all(&again), all(frame));
    again
}

/// The value that serde_json reads, which cannot hold lone surrogates.
fn value(text: &[u8]) -> Option<serde_json::Value> {
    serde_json::from_slice(&mcp::json::without_lone_surrogates(text)).ok()
}

fn valid(text: &Bytes, frame: &Frame) {
    parsed(frame);
    let is_request = matches!(frame.kind(), Kind::Request | Kind::Notification);
    assert_eq!(is_request, !frame.is_response());
    let method = value(text).and_then(|value| value.get("method")?.as_str().map(str::to_owned));
    if is_request && value(text).is_some() {
        assert_eq!(method.as_deref(), Some(frame.method()));
    }
    // Another id, and nothing else.
    let rewritten = Frame::parse(frame.rewritten(b"77", Splice::new()), MAX_DEPTH);
    let rewritten = rewritten.expect("a frame with another id");
    if !frame.id().is_empty() {
        assert_eq!(rewritten.id(), b"77");
    }
    let kept = (frame.kind(), frame.method(), frame.body());
    assert_eq!(
        (rewritten.kind(), rewritten.method(), rewritten.body()),
        kept
    );
    members(frame);
    translated(frame);
    read(frame);
}

/// Each member of the body can be removed, and one can be added.
fn members(frame: &Frame) {
    let Some(body) = frame.object() else { return };
    let text = frame.text();
    let all: Vec<_> = body.members().collect();
    for member in all.iter().take(20) {
        let mut splice = Splice::new();
        splice.remove(text, &body.span(), &member.value);
        let less = Frame::parse(splice.apply(text), MAX_DEPTH).expect("a frame without a member");
        let left = less.object().map(|body| body.members().count());
        assert_eq!(left, Some(all.len() - 1));
    }
    let mut splice = Splice::new();
    splice.insert(text, &body.span(), "\"x-toolwharf-fuzz\":[1]");
    if body.find("x-toolwharf-fuzz").is_none() {
        let more = Frame::parse(splice.apply(text), MAX_DEPTH).expect("a frame with a member");
        let raw = more.object().and_then(|body| body.raw("x-toolwharf-fuzz"));
        assert_eq!(raw, Some(&b"[1]"[..]));
    }
}

/// The bridge returns valid frames, and what it adds for one era it removes for the other.
fn translated(frame: &Frame) {
    let face = ClientFace {
        info: Bytes::from_static(b"{\"name\":\"fuzz\",\"version\":\"1\"}"),
        capabilities: Bytes::from_static(b"{}"),
        log_level: Some("info"),
    };
    let eras = [Era::Legacy, Era::Modern];
    for (client, server) in eras.into_iter().flat_map(|one| eras.map(|two| (one, two))) {
        if frame.is_response() {
            for asked in METHODS {
                let mut splice = Splice::new();
                bridge::response_down(frame, client, server, asked, &mut splice);
                uri::expose_result(frame, asked, "resource://s/", &mut splice);
                let whole = frame.rewritten(b"1", splice);
                let down = Frame::parse(whole, MAX_DEPTH).expect("a translated response");
                assert_eq!(down.kind(), frame.kind());
            }
            continue;
        }
        let mut splice = Splice::new();
        bridge::request_up(frame, client, server, &face, &mut splice);
        let whole = frame.rewritten(b"1", splice);
        let up = Frame::parse(whole, usize::MAX).expect("a translated request");
        assert_eq!((up.kind(), up.method()), (frame.kind(), frame.method()));
        if (client, server) == (Era::Legacy, Era::Modern) {
            let face = bridge::modern_face(&up).expect("a modern request");
            assert_eq!(face.version, Version::LATEST.as_str());
        }
        if (client, server) == (Era::Modern, Era::Legacy) {
            assert!(bridge::modern_face(&up).is_err());
        }
    }
}

/// Everything that is read from a frame.
fn read(frame: &Frame) {
    let _ = frame.numeric_id();
    let _ = bridge::unknown_result_type(frame);
    let _ = elicit::is_declined(frame);
    if let Ok(info) = ClientInfo::from_initialize(frame) {
        assert!(Object::of(&info.info).is_some() && Object::of(&info.capabilities).is_some());
    }
    for params in elicit::required(frame) {
        let (with_id, id) = elicit::with_id(&params, "fresh");
        mcp::json::validate(&with_id, usize::MAX).expect("params with an id");
        assert_eq!(
            Object::of(&with_id)
                .and_then(|params| params.string("elicitationId"))
                .as_deref(),
            Some(&*id)
        );
    }
    let requests = bridge::input_requests(frame);
    let again = bridge::input_required(&requests, "state");
    let again = Frame::parse(
        Frame::result(b"1", again.as_bytes()).text().clone(),
        usize::MAX,
    );
    let again = again.expect("a result with the same requests");
    assert_eq!(bridge::input_requests(&again), requests);
    if let Some(result) = bridge::with_server_info(frame.body(), "{\"name\":\"s\"}") {
        mcp::json::validate(&result, usize::MAX).expect("a result with a description");
    }
    let responses = [("a \"key\"".to_owned(), Bytes::from_static(b"{}"))];
    if !frame.is_response() && frame.object().is_some() {
        bridge::retry(frame, &responses, Some("state")).expect("a frame to retry");
    }
}

/// The beginning of a message agrees with the whole.
fn head(text: &Bytes) {
    let head = Head::of(text);
    if let Ok(frame) = Frame::parse(text.clone(), MAX_DEPTH) {
        assert!(head.id.is_none_or(|id| id == frame.id()), "{head:?}");
        let has_params = text.windows(8).any(|part| part == b"\"params\"");
        assert!(
            !head.method || has_params || !frame.is_response(),
            "{head:?}"
        );
    }
}

/// Reads the input as lines of at most `MAX_LINE_BYTES`, in several cuts.
fn lines(input: &[u8]) {
    const MAX_LINE_BYTES: usize = 40;
    let mut expected = Vec::new();
    let mut rest = input;
    while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
        let line = &rest[..end];
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        rest = &rest[end + 1..];
        if line.len() > MAX_LINE_BYTES {
            expected.push(None);
        } else if !line.iter().all(u8::is_ascii_whitespace) {
            expected.push(Some(line.to_vec()));
        }
    }
    for cut in [1, 7, usize::MAX] {
        let mut reader = LineReader::new(Cut { input, size: cut }, MAX_LINE_BYTES);
        let mut found = Vec::new();
        while let Some(line) = reader
            .next()
            .now_or_never()
            .expect("input")
            .expect("no error")
        {
            found.push(match line {
                Line::Text(text) => Some(text.to_vec()),
                Line::TooLong { .. } => None,
            });
        }
        // A last line without its end is not a message, but is reported if it is too long.
        let unfinished = rest.len() > MAX_LINE_BYTES && found.len() == expected.len() + 1;
        if unfinished {
            assert_eq!(found.pop(), Some(None));
        }
        assert_eq!(found, expected, "cut: {cut}");
    }
}

/// A stream whose reads return at most `size` bytes.
struct Cut<'a> {
    input: &'a [u8],
    size: usize,
}

impl tokio::io::AsyncRead for Cut<'_> {
    fn poll_read(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
        buffer: &mut tokio::io::ReadBuf<'_>,
    ) -> std::task::Poll<std::io::Result<()>> {
        let size = self.size.min(self.input.len()).min(buffer.remaining());
        let (now, later) = self.input.split_at(size);
        buffer.put_slice(now);
        self.input = later;
        std::task::Poll::Ready(Ok(()))
    }
}
