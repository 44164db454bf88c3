//! Headers: values that are mirrored from a request's body, the checks of a modern request, and challenges.
//!
//! The first line of an input is a header value, then come lines of headers. The parts after lines of `--` are a tool,
//! the arguments of a call, and a request.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use mcp::{
    Frame,
    headers::{self, ParamHeaders},
    json,
    server::modern,
};
use model::{CallerValues, never_passed};
use oauth::Challenge;

use crate::pieces;

pub(crate) const WORDS: &[&str] = &[
    "=?base64?",
    "?=",
    "SGVsbG8=",
    "x-mcp-header",
    "\"inputSchema\":{",
    "\"properties\":{",
    "\"type\":\"string\"",
    "\"type\":\"integer\"",
    "\"type\":[\"string\",\"null\"]",
    "\"$defs\":{",
    "\"items\":[",
    "mcp-protocol-version: 2026-07-28\n",
    "mcp-method: tools/call\n",
    "mcp-name: ",
    "mcp-param-",
    "mcp-session-id: ",
    "Bearer ",
    "DPoP ",
    "resource_metadata=\"",
    "scope=",
    "9007199254740991",
    "42.0",
    "4.2e1",
    "true",
];

const MAX_DEPTH: usize = 64;

pub(crate) fn run(input: &[u8]) {
    let [head, tool, arguments, request] = pieces::parts(input);
    let head = pieces::text(head);
    let (first, lines) = head.split_once('\n').unwrap_or((&head, ""));
    value(first);
    challenge(first);
    let headers = map(lines);
    annotations(tool, arguments, &headers);
    if let Ok(frame) = Frame::parse(Bytes::copy_from_slice(request), MAX_DEPTH) {
        checked(&frame, &headers);
    }
    let values: CallerValues = headers
        .iter()
        .filter_map(|(name, value)| {
            Some((name.as_str().to_owned(), value.to_str().ok()?.to_owned()))
        })
        .filter(|(name, _)| never_passed(name).is_none())
        .collect();
    assert!(
        values
            .iter()
            .all(|(name, value)| !name.starts_with("mcp-") && !value.is_empty())
    );
}

/// The lines `name: value` that can be headers.
fn map(lines: &str) -> HeaderMap {
    let lines = lines.lines().filter_map(|line| {
        let (name, value) = line.split_once(':')?;
        let name = HeaderName::from_bytes(name.trim().as_bytes()).ok()?;
        Some((name, HeaderValue::from_bytes(value.trim().as_bytes()).ok()?))
    });
    let mut map = HeaderMap::new();
    for (name, value) in lines.take(100) {
        map.append(name, value);
    }
    map
}

/// Every text can be sent and comes back.
fn value(text: &str) {
    let encoded = headers::encode_header(text);
    assert!(encoded.to_str().is_ok(), "{encoded:?}");
    assert_eq!(headers::decode_header(&encoded).as_deref(), Some(text));
    if let Ok(given) = HeaderValue::from_bytes(text.as_bytes())
        && let Some(decoded) = headers::decode_header(&given)
    {
        let again = headers::encode_header(&decoded);
        assert_eq!(headers::decode_header(&again).as_deref(), Some(&*decoded));
    }
}

fn challenge(text: &str) {
    let challenge = Challenge::parse(text);
    for value in [
        &challenge.resource_metadata,
        &challenge.scope,
        &challenge.error,
    ]
    .into_iter()
    .flatten()
    {
        assert!(value.len() <= 4096);
    }
    assert!(
        challenge
            .scopes()
            .all(|scope| !scope.contains(char::is_whitespace))
    );
    let has_params = challenge.resource_metadata.is_some()
        || challenge.scope.is_some()
        || challenge.error.is_some();
    let lower = text.to_ascii_lowercase();
    assert!(!has_params || lower.contains("bearer") || lower.contains("dpop"));
    // Quoted, the values are read again.
    if let Some(scope) = &challenge.scope {
        let quoted = scope.replace('\\', "\\\\").replace('"', "\\\"");
        let again = Challenge::parse(&format!("Bearer a=\"b\", scope=\"{quoted}\""));
        assert_eq!(again.scope.as_ref(), Some(scope));
    }
}

/// The headers of a call match its arguments, and a tool without its invalid annotations is valid.
fn annotations(tool: &[u8], arguments: &[u8], given: &HeaderMap) {
    if json::validate(tool, MAX_DEPTH).is_err() {
        return;
    }
    let tool = Bytes::copy_from_slice(tool);
    let Ok(params) = ParamHeaders::from_tool(&tool) else {
        if let Some(valid) = headers::without_invalid_annotations(&tool) {
            json::validate(&valid, MAX_DEPTH).expect("a tool without annotations");
            ParamHeaders::from_tool(&valid).expect("no invalid annotation");
        }
        return;
    };
    assert!(headers::without_invalid_annotations(&tool).is_none());
    let arguments = json::validate(arguments, MAX_DEPTH)
        .ok()
        .map(|()| arguments);
    let _ = params.validate(arguments, given);
    let sent = params.extract(arguments);
    let mut map = HeaderMap::new();
    for (name, value) in &sent {
        assert!(name.as_str().starts_with("mcp-param-"));
        assert!(map.insert(name, value.clone()).is_none(), "{name} twice");
    }
    // A value that cannot be a header, such as an object, has none, which `validate` reports as missing.
    if let Err(why) = params.validate(arguments, &map) {
        assert!(why.ends_with("is missing"), "{why}");
    }
    for (name, _) in headers::undeclared_params(given, Some(&params)) {
        assert!(!map.contains_key(&name));
    }
}

fn checked(frame: &Frame, headers: &HeaderMap) {
    let is_modern = modern::is_modern(headers, frame);
    match modern::check(headers, frame) {
        Ok(face) => {
            let version = face.map(|face| face.version.into_owned());
            assert!(is_modern || version.is_none(), "{version:?}");
            assert_eq!(
                headers[modern::METHOD].as_bytes(),
                frame.method().as_bytes()
            );
        }
        Err(error) => {
            Frame::parse(Frame::error(b"1", &error).text().clone(), MAX_DEPTH).expect("an error");
        }
    }
}
