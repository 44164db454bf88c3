//! Recognises refusals that mean a lost session.
//!
//! By the specification, an unknown session gets 404 (2025-11-25 basic/transports "Session Management"). Real servers
//! also answer 400, 401, 410, 5xx, or status 200 with a JSON-RPC error, and say why in words. A handler that failed
//! because of a session of its own ("browser session not found") must not be mistaken for that, because a request that
//! names a lost session is sent again.

use bytes::Bytes;
use http::StatusCode;

use crate::{
    Frame, Kind, RpcError,
    error::{INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, RESOURCE_NOT_FOUND, URL_REQUIRED},
    lenient,
};

/// Bytes of a response that are searched.
const MAX_SEARCHED_BYTES: usize = 4096;
/// Nesting of an error response.
const MAX_DEPTH: usize = 64;
/// Generic codes with which servers report an unknown session under status 200.
const SESSION_CODES: [i64; 3] = [-32001, -32000, INVALID_REQUEST];
/// Codes of errors that only a handler sends.
const HANDLER_CODES: [i64; 4] = [
    METHOD_NOT_FOUND,
    INVALID_PARAMS,
    RESOURCE_NOT_FOUND,
    URL_REQUIRED,
];

/// Returns true if a response with an error status says that the session is unknown or that `initialize` is missing.
pub(in crate::client) fn names_lost_session(status: StatusCode, body: &Bytes) -> bool {
    let error = error_of(body, MAX_DEPTH).map(|frame| RpcError::from_json(frame.body()));
    let text = String::from_utf8_lossy(&body[..body.len().min(MAX_SEARCHED_BYTES)]);
    is_lost(status, error.as_ref().map(|error| error.code), &text)
}

/// Returns true if an error response with a success status says so.
pub(super) fn is_lost_session(error: &RpcError) -> bool {
    is_lost(StatusCode::OK, Some(error.code), &error.message)
}

/// Returns true if only a handler sends such an error, so that the session is known.
pub(super) fn is_of_handler(error: &RpcError) -> bool {
    HANDLER_CODES.contains(&error.code)
}

/// The JSON-RPC error response in a body.
pub(super) fn error_of(body: &Bytes, max_depth: usize) -> Option<Frame> {
    let looks_json = body.trim_ascii_start().first() == Some(&b'{');
    let frame = looks_json.then(|| lenient::parse(body.clone(), max_depth, None).ok());
    frame.flatten().filter(|frame| frame.kind() == Kind::Error)
}

/// A refusal that may mean a lost session.
#[derive(Default)]
pub(super) struct Doubt {
    /// True if the refusal itself names a lost session, so that no handler saw the request.
    pub(super) names_session: bool,
    /// The JSON-RPC error, if the status was a success.
    pub(super) error: Option<RpcError>,
}

/// Returns true if the status only asks the client to wait.
pub(in crate::client) fn means_wait(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS
    )
}

/// `code`: the code of the JSON-RPC error in the response. `text`: its message, or the whole response.
fn is_lost(status: StatusCode, code: Option<i64>, text: &str) -> bool {
    match (status, code) {
        (_, Some(METHOD_NOT_FOUND)) => false,
        (StatusCode::NOT_FOUND, _) => true,
        (status, Some(code)) if status.is_success() => {
            SESSION_CODES.contains(&code) && speaks_of_lost_session(text)
        }
        (_, Some(code)) if HANDLER_CODES.contains(&code) => false,
        _ => speaks_of_lost_session(text),
    }
}

/// Words before "session" if it is the protocol's. Any other noun there means another kind of session.
const QUALIFIERS: [&str; 39] = [
    "a",
    "active",
    "an",
    "bad",
    "by",
    "client",
    "current",
    "existing",
    "expired",
    "find",
    "for",
    "given",
    "header",
    "http",
    "id",
    "in",
    "invalid",
    "mcp",
    "missing",
    "no",
    "of",
    "old",
    "or",
    "provided",
    "server",
    "sse",
    "stale",
    "such",
    "terminated",
    "that",
    "the",
    "this",
    "transport",
    "unknown",
    "unrecognized",
    "valid",
    "with",
    "without",
    "your",
];
/// Words about a lost session, before and after the word `session`.
const BEFORE: [&str; 16] = [
    "invalid",
    "unknown",
    "expired",
    "no",
    "missing",
    "unrecognized",
    "unrecognised",
    "stale",
    "without",
    "terminated",
    "bad",
    "not find",
    "cannot find",
    "not valid",
    "nonexistent",
    "unable to find",
];
const AFTER: [&str; 18] = [
    "not found",
    "unknown",
    "invalid",
    "expired",
    "terminated",
    "not exist",
    "doesnt exist",
    "no longer",
    "missing",
    "required",
    "not recognized",
    "not recognised",
    "not valid",
    "not active",
    "inactive",
    "not known",
    "not initialized",
    "not initialised",
];
/// Words between them and "session".
const MAX_BEFORE: usize = 4;
const MAX_AFTER: usize = 12;
/// Phrases about a missing `initialize`.
const INITIALIZE: [&str; 7] = [
    "before initialize",
    "before initialization",
    "before initialisation",
    "initialize first",
    "send initialize",
    "initialize required",
    "initialization required",
];
const NOT_INITIALIZED: [&str; 7] = [
    "not initialized",
    "not initialised",
    "not been initialized",
    "not been initialised",
    "not yet initialized",
    "not yet initialised",
    "uninitialized",
];
/// The possible subjects of "not initialized". Any other subject belongs to the handler.
const INITIALIZED: [&str; 7] = [
    "server",
    "mcp",
    "session",
    "connection",
    "transport",
    "protocol",
    "you",
];
/// Stand for the end of a sentence and for a lesser break.
const STOP: &str = ".";
const BREAK: &str = ":";

fn speaks_of_lost_session(text: &str) -> bool {
    let words = words(text);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    words
        .split(|word| *word == STOP)
        .any(|sentence| names_session(sentence) || names_initialize(sentence))
}

fn names_session(sentence: &[&str]) -> bool {
    (0..sentence.len()).any(|at| {
        if !matches!(sentence[at], "session" | "sessionid") {
            return false;
        }
        let mut clauses = sentence[..at].rsplit(|word| *word == BREAK);
        let before = clauses.next().unwrap_or_default();
        if before.last().is_some_and(|word| !QUALIFIERS.contains(word)) {
            return false;
        }
        let before = &before[before.len().saturating_sub(MAX_BEFORE)..];
        let after = &sentence[at + 1..sentence.len().min(at + 1 + MAX_AFTER)];
        BEFORE.iter().any(|said| find(before, said).is_some())
            || AFTER.iter().any(|said| find(after, said).is_some())
    })
}

fn names_initialize(sentence: &[&str]) -> bool {
    let is_of_protocol = |at: usize| {
        let mut before = sentence[..at].iter().rev();
        let subject = before.find(|word| !matches!(**word, "is" | "was" | "has" | "have"));
        subject.is_none_or(|word| *word == BREAK || INITIALIZED.contains(word))
    };
    INITIALIZE.iter().any(|said| find(sentence, said).is_some())
        || NOT_INITIALIZED
            .iter()
            .any(|said| find(sentence, said).is_some_and(is_of_protocol))
}

/// The position of a phrase.
fn find(words: &[&str], phrase: &str) -> Option<usize> {
    let phrase: Vec<&str> = phrase.split(' ').collect();
    let mut windows = words.windows(phrase.len());
    windows.position(|window| window == phrase)
}

/// Splits a text into lower-case words, [`STOP`]s and [`BREAK`]s. `sessionId`, `session_id` and `Session-Id` are two
/// words.
fn words(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut was_lower = false;
    for c in text.chars() {
        let splits = !c.is_alphanumeric() || (c.is_uppercase() && was_lower);
        was_lower = c.is_lowercase();
        // `doesn't`
        if c == '\'' && !word.is_empty() {
            continue;
        }
        if splits && !word.is_empty() {
            words.push(std::mem::take(&mut word));
        }
        match c {
            '.' | '!' | '?' | ';' | '\n' => words.push(STOP.to_owned()),
            ':' | ',' | '(' | ')' | '{' | '}' | '[' | ']' => words.push(BREAK.to_owned()),
            c if c.is_alphanumeric() => word.extend(c.to_lowercase()),
            _ => {}
        }
    }
    if !word.is_empty() {
        words.push(word);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn u09_refusals_that_mean_a_lost_session() {
        for (status, code, text) in [
            (404, None, "Not Found"),
            (404, None, ""),
            (404, Some(-32001), "Session not found"),
            (
                400,
                Some(-32000),
                "Bad Request: No valid session ID provided",
            ),
            (400, Some(-32000), "Bad Request: Server not initialized"),
            (400, None, "Bad Request: No valid session ID provided"),
            (400, None, "Invalid or missing session ID"),
            (400, None, "No transport found for sessionId"),
            (400, Some(-32600), "Session not found"),
            (400, None, r#"{"error": "Invalid or expired session"}"#),
            (400, None, r#"{"error":"session_not_found"}"#),
            (400, None, r#"{"code":"SessionNotFound"}"#),
            (400, None, "Mcp-Session-Id header is required"),
            (400, None, "Missing Mcp-Session-Id header"),
            (400, None, "Session 'b7c1-22' not found"),
            (400, None, "Session ID: b7c1-22 does not exist"),
            (401, Some(-32001), "Session not found"),
            (403, None, "session doesn't exist"),
            (410, Some(-32001), "Session terminated"),
            (
                422,
                None,
                "Received request before initialization was complete",
            ),
            (500, Some(-32603), "Internal error: session does not exist"),
            (503, Some(-32001), "MCP session is unknown on this instance"),
            (200, Some(-32001), "Session not found"),
            (200, Some(-32000), "Server is not initialized"),
            (200, Some(-32600), "Invalid session"),
            (200, Some(-32000), "Your session has expired"),
            (200, Some(-32000), "Not initialized: call initialize first"),
        ] {
            let status = StatusCode::from_u16(status).expect("a status");
            assert!(is_lost(status, code, text), "{status} {code:?} {text}");
        }
    }

    #[test]
    fn refusals_that_do_not() {
        for (status, code, text) in [
            (404, Some(-32601), "Method not found"),
            (400, Some(-32602), "Invalid arguments: session is required"),
            (400, Some(-32000), "Too many sessions"),
            (500, None, "Internal Server Error"),
            (500, Some(-32603), "the browser session was not found"),
            (500, Some(-32000), "Browser session not found"),
            (500, None, "Playwright client not initialized"),
            (503, None, "try later"),
            (502, None, "<html><body>Bad Gateway</body></html>"),
            (200, Some(-32603), "Session not found"),
            (200, Some(-32602), "Unknown session"),
            (200, Some(-32000), "the database is not initialized"),
            (200, Some(-32000), "Tool not found in this session"),
            (200, Some(-32000), "No chat session is open"),
            (200, Some(1), "Session not found"),
        ] {
            let status = StatusCode::from_u16(status).expect("a status");
            assert!(!is_lost(status, code, text), "{status} {code:?} {text}");
        }
    }

    #[test]
    fn a_whole_body_is_searched() {
        let named = |body: &'static str| {
            names_lost_session(
                StatusCode::BAD_REQUEST,
                &Bytes::from_static(body.as_bytes()),
            )
        };
        assert!(named(
            r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"Bad Request","data":"Unknown session"}}"#
        ));
        assert!(!named(
            r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32602,"message":"Unknown session"}}"#
        ));
        assert!(!named(""));
    }
}
