//! Server-sent events (WHATWG HTML, "Server-sent events"), as model APIs send them.
//!
//! Memory is bounded by [`MAX_EVENT`]. Absent: `id` and `retry`, for no model API resumes a stream.

/// The longest event, in bytes: far beyond what one block of an answer takes.
const MAX_EVENT: usize = 16 * 1024 * 1024;

/// One event.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Event {
    /// Empty: `message`.
    pub(super) name: String,
    pub(super) data: String,
}

/// What cannot be an event stream.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Bad {
    #[error("an event is longer than {MAX_EVENT} bytes")]
    TooLong,
    #[error("an event is not UTF-8")]
    NotUtf8,
}

/// Reads events out of chunks.
#[derive(Debug, Default)]
pub(super) struct Reader {
    buffer: Vec<u8>,
    /// Bytes of `buffer` that were read.
    used: usize,
    /// Bytes of `buffer` that hold no end of a line.
    scanned: usize,
    event: Event,
    has_data: bool,
    started: bool,
}

impl Reader {
    pub(super) fn push(&mut self, chunk: &[u8]) {
        self.buffer.drain(..self.used);
        self.scanned -= self.used;
        self.used = 0;
        self.buffer.extend_from_slice(chunk);
    }

    /// The next whole event; `None` until more was pushed.
    pub(super) fn next(&mut self) -> Result<Option<Event>, Bad> {
        while let Some(line) = self.line()? {
            if line.is_empty() {
                let event = std::mem::take(&mut self.event);
                if std::mem::take(&mut self.has_data) {
                    return Ok(Some(event));
                }
                continue;
            }
            let (field, value) = line.split_once(':').unwrap_or((&line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value);
            match field {
                "event" => value.clone_into(&mut self.event.name),
                "data" => {
                    if std::mem::replace(&mut self.has_data, true) {
                        self.event.data.push('\n');
                    }
                    if self.event.data.len() + value.len() > MAX_EVENT {
                        return Err(Bad::TooLong);
                    }
                    self.event.data.push_str(value);
                }
                _ => {}
            }
        }
        Ok(None)
    }

    /// The next line without its end, which is LF, CR or both.
    fn line(&mut self) -> Result<Option<String>, Bad> {
        let unread = &self.buffer[self.scanned..];
        let Some(at) = unread.iter().position(|byte| matches!(byte, b'\n' | b'\r')) else {
            self.scanned = self.buffer.len();
            return if self.buffer.len() - self.used > MAX_EVENT {
                Err(Bad::TooLong)
            } else {
                Ok(None)
            };
        };
        let end = self.scanned + at;
        let next = match (self.buffer[end], self.buffer.get(end + 1)) {
            (b'\r', Some(b'\n')) => end + 2,
            // The LF that belongs to it may still come; until then there is no telling.
            (b'\r', None) => {
                self.scanned = end;
                return Ok(None);
            }
            _ => end + 1,
        };
        let mut line = &self.buffer[self.used..end];
        if !std::mem::replace(&mut self.started, true) {
            line = line.strip_prefix("\u{feff}".as_bytes()).unwrap_or(line);
        }
        let line = std::str::from_utf8(line)
            .map_err(|_| Bad::NotUtf8)?
            .to_owned();
        (self.used, self.scanned) = (next, next);
        Ok(Some(line))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(input: &str, expect: &[(&str, &str)]) {
        for size in [1, 2, 3, 7, input.len().max(1)] {
            let (mut reader, mut events) = (Reader::default(), Vec::new());
            for chunk in input.as_bytes().chunks(size) {
                reader.push(chunk);
                while let Some(event) = reader.next().expect("events") {
                    events.push((event.name, event.data));
                }
            }
            let got: Vec<_> = events.iter().map(|(n, d)| (&**n, &**d)).collect();
            assert_eq!(got, expect, "{input:?} in chunks of {size}");
        }
    }

    #[test]
    fn events_however_they_are_cut() {
        check("event: a\ndata: {\"é\":1}\n\n", &[("a", "{\"é\":1}")]);
        check(
            "data:x\ndata:  y\n\ndata: z\n\n",
            &[("", "x\n y"), ("", "z")],
        );
        check(
            "\u{feff}data: x\r\n\r\ndata: y\r\n\r\n",
            &[("", "x"), ("", "y")],
        );
        check(
            ": ping\n\nevent: only\n\ndata: x\n\ndata: unfinished",
            &[("", "x")],
        );
        check(
            "data\n\nid: 7\nretry: 1\ndata: x\n\n",
            &[("", ""), ("", "x")],
        );
    }

    #[test]
    fn what_is_no_stream_is_refused() {
        let mut reader = Reader::default();
        reader.push(b"data: \xff\n\n");
        assert_eq!(reader.next(), Err(Bad::NotUtf8));
        let mut reader = Reader::default();
        reader.push(&vec![b'x'; MAX_EVENT + 1]);
        assert_eq!(reader.next(), Err(Bad::TooLong));
    }
}
