//! A parser for server-sent events as defined in section 9.2 of the HTML standard, from raw bytes.

use serde_json::Value;

/// One event of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Event {
    /// The `event:` field; `None` means `message`.
    pub event: Option<String>,
    /// The `id:` field of this event.
    pub id: Option<String>,
    /// The `retry:` field, in milliseconds.
    pub retry: Option<u64>,
    /// The `data:` lines, joined by newlines.
    pub data: String,
}

impl Event {
    /// The data as JSON; `None` for an event without JSON data, such as a priming event.
    pub fn json(&self) -> Option<Value> {
        serde_json::from_str(&self.data).ok()
    }
}

/// Turns chunks of bytes into events. Unlike a browser it also returns events with empty data, because tests need to
/// see priming events.
#[derive(Debug, Default)]
pub struct EventParser {
    pending: Vec<u8>,
    current: Event,
    has_fields: bool,
}

impl EventParser {
    /// Adds the next bytes of the stream and returns the events that they complete.
    pub fn push(&mut self, chunk: &[u8]) -> Vec<Event> {
        self.pending.extend_from_slice(chunk);
        let mut events = Vec::new();
        let mut start = 0;
        while let Some(end) = self.pending[start..].iter().position(|&b| b == b'\n') {
            let line = &self.pending[start..start + end];
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            let line = String::from_utf8_lossy(line).into_owned();
            start += end + 1;
            if line.is_empty() {
                if std::mem::take(&mut self.has_fields) {
                    events.push(std::mem::take(&mut self.current));
                }
            } else {
                self.field(&line);
            }
        }
        self.pending.drain(..start);
        events
    }

    fn field(&mut self, line: &str) {
        let (name, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match name {
            "event" => self.current.event = Some(value.to_owned()),
            "id" => self.current.id = Some(value.to_owned()),
            "retry" => self.current.retry = value.parse().ok(),
            "data" => {
                if !self.current.data.is_empty() {
                    self.current.data.push('\n');
                }
                self.current.data.push_str(value);
            }
            // A comment (an empty name) or an unknown field.
            _ => return,
        }
        self.has_fields = true;
    }
}
