//! Server-sent events: an incremental parser and an encoder (WHATWG HTML "Server-sent events").
//!
//! The parser's memory is bounded by the length of one event.

use bytes::{BufMut, Bytes, BytesMut};

/// One event.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Event {
    /// The event's type; empty means `message`.
    pub event: String,
    pub data: Bytes,
    pub id: Option<String>,
    /// Milliseconds to wait before reconnecting, if the server said so.
    pub retry: Option<u64>,
}

/// An event was longer than the parser's bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an event is longer than {0} bytes")]
pub struct TooLong(pub usize);

/// Reads events from chunks of a stream.
pub struct Parser {
    buffer: BytesMut,
    scanned: usize,
    data: BytesMut,
    has_data: bool,
    event: String,
    id: Option<String>,
    retry: Option<u64>,
    max_event: usize,
    started: bool,
}

impl Parser {
    /// `max_event`: bytes of one event's data.
    #[must_use]
    pub fn new(max_event: usize) -> Self {
        Self {
            buffer: BytesMut::new(),
            scanned: 0,
            data: BytesMut::new(),
            has_data: false,
            event: String::new(),
            id: None,
            retry: None,
            max_event,
            started: false,
        }
    }

    /// Adds what came in.
    pub fn push(&mut self, chunk: &[u8]) {
        self.buffer.extend_from_slice(chunk);
        if !self.started && self.buffer.len() >= 3 {
            self.started = true;
            if self.buffer.starts_with(b"\xef\xbb\xbf") {
                let _ = self.buffer.split_to(3);
            }
        }
    }

    /// The next whole event; `None` until more comes in.
    ///
    /// # Errors
    /// [`TooLong`]; the stream is of no use after it.
    pub fn next_event(&mut self) -> Result<Option<Event>, TooLong> {
        loop {
            let Some(at) = memchr::memchr2(b'\n', b'\r', &self.buffer[self.scanned..]) else {
                self.scanned = self.buffer.len();
                return if self.buffer.len() + self.data.len() > self.max_event + 64 {
                    Err(TooLong(self.max_event))
                } else {
                    Ok(None)
                };
            };
            let end = self.scanned + at;
            let ending = match self.buffer[end] {
                b'\n' => 1,
                // A carriage return may be the first half of a line end: its second half has to come first.
                _ if end + 1 == self.buffer.len() => {
                    self.scanned = end;
                    return Ok(None);
                }
                _ if self.buffer[end + 1] == b'\n' => 2,
                _ => 1,
            };
            let mut line = self.buffer.split_to(end + ending);
            line.truncate(end);
            self.scanned = 0;
            if line.is_empty() {
                let retry = self.retry.take();
                let event = std::mem::take(&mut self.event);
                if !std::mem::take(&mut self.has_data) && retry.is_none() {
                    self.data.clear();
                    continue;
                }
                let data = self.data.split().freeze();
                return Ok(Some(Event {
                    event,
                    data,
                    id: self.id.clone(),
                    retry,
                }));
            }
            self.field(&line);
            if self.data.len() > self.max_event {
                return Err(TooLong(self.max_event));
            }
        }
    }

    fn field(&mut self, line: &[u8]) {
        let (name, value) = match memchr::memchr(b':', line) {
            Some(0) => return,
            Some(colon) => {
                let value = &line[colon + 1..];
                (&line[..colon], value.strip_prefix(b" ").unwrap_or(value))
            }
            None => (line, &b""[..]),
        };
        match name {
            b"data" => {
                if self.has_data {
                    self.data.put_u8(b'\n');
                }
                self.has_data = true;
                self.data.extend_from_slice(value);
            }
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

/// One event with `data` (a message on one line or many) as it goes over the wire.
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

/// An event that says nothing but where the client is to take the stream up again, and after how many
/// milliseconds.
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
            parser.push(chunk);
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
        parser.push(&[b'x'; 1000]);
        assert_eq!(parser.next_event(), Err(TooLong(64)));
    }

    #[test]
    fn encodes_one_line() {
        assert_eq!(
            encode(Some("message"), None, &Bytes::from_static(b"{\n}")),
            "event: message\ndata: { }\n\n"
        );
    }
}
