//! Event streams: the parser finds the events of a simple reader, however the stream is cut, and encoded events come
//! back.

use bytes::Bytes;
use mcp::sse::{Event, Parser, encode};

use crate::pieces;

pub(crate) const WORDS: &[&str] = &[
    "data:",
    "data: ",
    "data",
    "event: message\n",
    "id: 1\n",
    "id:\0\n",
    "retry: 10\n",
    ": comment\n",
    "\n\n",
    "\r\r",
    "\r\n\r\n",
    "\u{feff}",
];

/// Small, so that inputs reach it.
const MAX_EVENT_BYTES: usize = 300;

pub(crate) fn run(input: &[u8]) {
    let whole = events(&[input]);
    for cut in [1, 2, 3, 5, 64] {
        let parts: Vec<&[u8]> = input.chunks(cut).collect();
        assert_eq!(events(&parts), whole, "cut: {cut}");
    }
    let (found, is_too_long) = whole;
    if !is_too_long {
        assert_eq!(found, simple(input));
    }
    for event in found {
        if let Some(id) = &event.id {
            assert!(!id.contains(['\n', '\r', '\0']));
        }
        assert!(!event.event.contains(['\n', '\r']));
        assert!(event.data.len() <= MAX_EVENT_BYTES);
    }
    encoded(input);
}

/// All events, and whether the stream ended with one that is too long.
fn events(parts: &[&[u8]]) -> (Vec<Event>, bool) {
    let mut parser = Parser::new(MAX_EVENT_BYTES);
    let mut events = Vec::new();
    for part in parts {
        parser.push(Bytes::copy_from_slice(part));
        loop {
            match parser.next_event() {
                Ok(Some(event)) => events.push(event),
                Ok(None) => break,
                Err(_) => return (events, true),
            }
        }
    }
    (events, false)
}

/// WHATWG HTML, "Interpreting an event stream", with our rules for what an event is: it has data or a delay.
fn simple(input: &[u8]) -> Vec<Event> {
    let input = input.strip_prefix("\u{feff}".as_bytes()).unwrap_or(input);
    let mut events = Vec::new();
    let mut event = Event::default();
    let mut data: Vec<&[u8]> = Vec::new();
    let mut rest = input;
    while let Some(end) = rest.iter().position(|byte| matches!(byte, b'\n' | b'\r')) {
        let line = &rest[..end];
        let size = if rest[end..].starts_with(b"\r\n") {
            2
        } else {
            1
        };
        rest = &rest[end + size..];
        if line.is_empty() {
            let next = Event {
                id: event.id.clone(),
                ..Event::default()
            };
            event.data = data.join(&b'\n').into();
            if !data.is_empty() || event.retry.is_some() {
                events.push(event);
            }
            data.clear();
            event = next;
            continue;
        }
        let colon = line.iter().position(|byte| *byte == b':');
        let (name, value) = line.split_at(colon.unwrap_or(line.len()));
        let value = value.strip_prefix(b":").unwrap_or(value);
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match name {
            b"data" => data.push(value),
            b"event" => event.event = pieces::text(&value[..value.len().min(256)]),
            b"id" if !value.contains(&0) => event.id = Some(pieces::text(value)),
            b"retry" => event.retry = pieces::text(value).parse().ok(),
            _ => {}
        }
    }
    events
}

/// A JSON text is the data of one event, whatever its id and type.
fn encoded(input: &[u8]) {
    if mcp::json::validate(input, 64).is_err() || input.len() > MAX_EVENT_BYTES {
        return;
    }
    let data = Bytes::copy_from_slice(input);
    let text = encode(Some("message"), Some("7"), &data);
    let (events, _) = events(&[&text]);
    let expected = Event {
        event: "message".to_owned(),
        data: mcp::json::one_line(&data),
        id: Some("7".to_owned()),
        retry: None,
    };
    assert_eq!(events, [expected]);
}
