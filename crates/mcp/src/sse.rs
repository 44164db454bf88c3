//! Server-sent events: an incremental parser and an encoder (WHATWG HTML "Server-sent events").
//!
//! The parser holds the latest chunk and at most one event of maximum length.

use bytes::{BufMut, Bytes, BytesMut};

use crate::gather::{self, Gather};

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Event {
    /// The event type. Empty means `message`.
    pub event: String,
    pub data: Bytes,
    pub id: Option<String>,
    /// Reconnection delay in milliseconds, if the server sent one.
    pub retry: Option<u64>,
}

/// The error for an event over the parser's limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an event is longer than {0} bytes")]
pub struct TooLong(pub usize);

impl From<gather::TooLong> for TooLong {
    fn from(error: gather::TooLong) -> Self {
        Self(error.max)
    }
}

/// Bytes kept of a line that is not data. The rest is not needed.
const MAX_FIELD_BYTES: usize = 2048;

/// Reads events from chunks of a stream.
pub struct Parser {
    /// Input that was not parsed yet.
    input: Bytes,
    /// The last byte was a carriage return; a line feed after it belongs to the same line break.
    returned: bool,
    /// At the beginning of the stream, where a byte order mark may be.
    begins: bool,
    /// The beginning of the current line, unless it is data.
    line: Vec<u8>,
    /// Bytes of the current line so far.
    length: usize,
    part: Part,
    data: Gather,
    has_data: bool,
    event: String,
    id: Option<String>,
    retry: Option<u64>,
    max_event: usize,
}

/// The position in the current line.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    /// Before the colon.
    Name,
    /// Directly after the colon of `data:`.
    Space,
    /// In the value of `data`.
    Data,
    /// In the value of another field.
    Value,
}

impl Parser {
    /// `max_event`: maximum bytes of one event's data.
    #[must_use]
    pub fn new(max_event: usize) -> Self {
        Self {
            input: Bytes::new(),
            returned: false,
            begins: true,
            line: Vec::new(),
            length: 0,
            part: Part::Name,
            data: Gather::new(max_event),
            has_data: false,
            event: String::new(),
            id: None,
            retry: None,
            max_event,
        }
    }

    pub fn push(&mut self, chunk: Bytes) {
        self.input = if self.input.is_empty() {
            chunk
        } else {
            [&self.input[..], &chunk].concat().into()
        };
    }

    /// The next complete event, or `None` until more input arrives.
    ///
    /// # Errors
    /// [`TooLong`]. The stream cannot be used after it.
    pub fn next_event(&mut self) -> Result<Option<Event>, TooLong> {
        let input = std::mem::take(&mut self.input);
        let mut rest = &input[..];
        while !rest.is_empty() {
            if std::mem::take(&mut self.returned) && rest[0] == b'\n' {
                rest = &rest[1..];
                continue;
            }
            let Some(end) = memchr::memchr2(b'\n', b'\r', rest) else {
                self.read(rest)?;
                break;
            };
            self.read(&rest[..end])?;
            self.returned = rest[end] == b'\r';
            rest = &rest[end + 1..];
            if let Some(event) = self.line_ended()? {
                self.input = input.slice(input.len() - rest.len()..);
                return Ok(Some(event));
            }
        }
        Ok(None)
    }

    /// Reads a part of a line.
    fn read(&mut self, mut text: &[u8]) -> Result<(), TooLong> {
        if self.part == Part::Name && !text.is_empty() {
            let colon = memchr::memchr(b':', text);
            let (name, rest) = text.split_at(colon.map_or(text.len(), |at| at + 1));
            self.keep(name)?;
            text = rest;
            if colon.is_some() {
                self.part = if without_mark(&self.line, self.begins) == b"data:" {
                    self.data_line()?;
                    Part::Space
                } else {
                    Part::Value
                };
            }
        }
        if self.part == Part::Space && !text.is_empty() {
            text = text.strip_prefix(b" ").unwrap_or(text);
            self.part = Part::Data;
        }
        match self.part {
            Part::Data => Ok(self.data.push(text)?),
            Part::Value => self.keep(text),
            Part::Name | Part::Space => Ok(()),
        }
    }

    /// Keeps a part of a line that is not data.
    fn keep(&mut self, text: &[u8]) -> Result<(), TooLong> {
        self.length += text.len();
        let room = MAX_FIELD_BYTES - self.line.len();
        self.line.extend_from_slice(&text[..text.len().min(room)]);
        // Only a little of the line is kept, but its length is limited too.
        if self.length > self.max_event {
            return Err(TooLong(self.max_event));
        }
        Ok(())
    }

    /// Begins a data line.
    fn data_line(&mut self) -> Result<(), TooLong> {
        if std::mem::replace(&mut self.has_data, true) {
            self.data.push(b"\n")?;
        }
        Ok(())
    }

    fn line_ended(&mut self) -> Result<Option<Event>, TooLong> {
        let part = std::mem::replace(&mut self.part, Part::Name);
        let line = std::mem::take(&mut self.line);
        let text = without_mark(&line, std::mem::take(&mut self.begins));
        let mut ended = None;
        match part {
            Part::Name if text.is_empty() => ended = self.event_ended(),
            Part::Name if text == b"data" => self.data_line()?,
            Part::Name | Part::Value => self.field(text),
            Part::Space | Part::Data => {}
        }
        self.line = line;
        self.line.clear();
        self.length = 0;
        Ok(ended)
    }

    fn event_ended(&mut self) -> Option<Event> {
        let retry = self.retry.take();
        let event = std::mem::take(&mut self.event);
        if !std::mem::take(&mut self.has_data) && retry.is_none() {
            return None;
        }
        Some(Event {
            event,
            data: self.data.take(),
            id: self.id.clone(),
            retry,
        })
    }

    /// Handles a field other than data.
    fn field(&mut self, line: &[u8]) {
        let (name, value) = match memchr::memchr(b':', line) {
            Some(colon) => {
                let value = &line[colon + 1..];
                (&line[..colon], value.strip_prefix(b" ").unwrap_or(value))
            }
            None => (line, &b""[..]),
        };
        match name {
            b"event" => {
                self.event = String::from_utf8_lossy(&value[..value.len().min(256)]).into_owned()
            }
            b"id" if !value.contains(&0) => {
                self.id =
                    Some(String::from_utf8_lossy(&value[..value.len().min(1024)]).into_owned());
            }
            b"retry" => self.retry = std::str::from_utf8(value).ok().and_then(|v| v.parse().ok()),
            _ => {}
        }
    }
}

/// Removes the byte order mark from the first line of a stream.
fn without_mark(line: &[u8], begins: bool) -> &[u8] {
    match line.strip_prefix("\u{feff}".as_bytes()) {
        Some(rest) if begins => rest,
        _ => line,
    }
}

/// Encodes one event with `data` (a message on one or more lines) in wire format.
#[must_use]
pub fn encode(event: Option<&str>, id: Option<&str>, data: &Bytes) -> Bytes {
    let data = crate::json::one_line(data);
    let mut out = BytesMut::with_capacity(data.len() + 48 + id.map_or(0, str::len));
    if let Some(event) = event {
        out.put_slice(b"event: ");
        out.put_slice(event.as_bytes());
        out.put_u8(b'\n');
    }
    if let Some(id) = id {
        out.put_slice(b"id: ");
        out.put_slice(id.as_bytes());
        out.put_u8(b'\n');
    }
    out.put_slice(b"data: ");
    out.put_slice(&data);
    out.put_slice(b"\n\n");
    out.freeze()
}

/// An event that carries only the resume id and the reconnection delay in milliseconds.
#[must_use]
pub fn priming(id: &str, retry: u64) -> Bytes {
    format!("id: {id}\nretry: {retry}\ndata: \n\n").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(chunks: &[&[u8]]) -> Vec<(String, String)> {
        let mut parser = Parser::new(64);
        let mut events = Vec::new();
        for chunk in chunks {
            parser.push(Bytes::copy_from_slice(chunk));
            while let Some(event) = parser.next_event().expect("short events") {
                events.push((
                    event.event,
                    String::from_utf8_lossy(&event.data).into_owned(),
                ));
            }
        }
        events
    }

    #[test]
    fn reads_events_however_they_are_cut() {
        let text = b"\xef\xbb\xbf: hello\r\nevent: endpoint\r\ndata: /m?x=1\r\n\r\ndata:a\ndata: b\n\nid: 3\n\ndata\n\n";
        let expect = [("endpoint", "/m?x=1"), ("", "a\nb"), ("", "")]
            .map(|(e, d)| (e.to_owned(), d.to_owned()));
        assert_eq!(parse(&[text]), expect);
        for cut in 1..text.len() {
            assert_eq!(parse(&[&text[..cut], &text[cut..]]), expect, "cut at {cut}");
        }
    }

    #[test]
    fn is_bounded() {
        let mut parser = Parser::new(64);
        parser.push(vec![b'x'; 1000].into());
        assert_eq!(parser.next_event(), Err(TooLong(64)));
        for part in ["data:", "data: x\ndata:", ": ", "event: ", "other"] {
            let mut parser = Parser::new(64);
            parser.push(part.into());
            let mut length = 0;
            let error = loop {
                parser.push("y".into());
                match parser.next_event() {
                    Ok(event) => assert_eq!(event, None),
                    Err(error) => break error,
                }
                length += 1;
            };
            assert_eq!(error, TooLong(64));
            assert!((50..=64).contains(&length), "{part}: {length}");
        }
    }

    #[test]
    fn encodes_one_line() {
        assert_eq!(
            encode(Some("message"), None, &Bytes::from_static(b"{\n}")),
            "event: message\ndata: { }\n\n"
        );
    }
}
