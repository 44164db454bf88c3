//! The stderr of an instance: keeps the end of it, and offers all of it to followers.
//!
//! # Invariants
//!
//! - A pipe is always read to its end, and no reader of the log can block the reading.
//! - A flood costs little processor time: an instance that writes more than [`MAX_BYTES_PER_SECOND`] waits.
//! - Bounded: `TAIL_BYTES` bytes and `TAIL_LINES` lines for the tail, `MAX_LAGGING_LINES` lines for followers, `MAX_LINE_BYTES` bytes per line.
//!   The time of a line takes 8 bytes more.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::{Instant, sleep_until};

const TAIL_BYTES: usize = 64 << 10;
/// The tail is also limited in lines, because short lines need more memory than their bytes.
const TAIL_LINES: usize = 2048;
const MAX_LINE_BYTES: usize = 8 << 10;
const MAX_LAGGING_LINES: usize = 256;
const CHUNK_BYTES: usize = 16 << 10;
/// How fast stderr is read. Neither a verbose server nor a crash dump comes near this. Reading a flood as fast as it comes
/// would take a whole processor, whatever the limits of the instance are.
const MAX_BYTES_PER_SECOND: u64 = 64 << 20;
/// Each line counts for this many bytes more.
const LINE_COST: u64 = 64;
/// Output that would take this long at [`MAX_BYTES_PER_SECOND`] is read at once.
const BURST: Duration = Duration::from_millis(20);
/// What runtimes write when they exit because they cannot have more memory: Node.js, Go, Java, .NET.
const OUT_OF_MEMORY: [&str; 5] = [
    "JavaScript heap out of memory",
    "fatal error: runtime: out of memory",
    "java.lang.OutOfMemoryError",
    "insufficient memory for the Java Runtime Environment",
    "System.OutOfMemoryException",
];
const CUT_MARK: &str = " …[cut]";

/// A line that an instance wrote, without its line end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// When it arrived, in milliseconds since 1970.
    pub at_ms: u64,
    pub text: Arc<str>,
}

/// The end of a stderr.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tail(pub Vec<Line>);

impl Tail {
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        for line in &self.0 {
            text.push_str(&line.text);
            text.push('\n');
        }
        text
    }

    /// Replaces the text, for instance to remove secrets. A secret may extend over several lines: if the number of
    /// lines changes, all of them get the time of the last one.
    #[must_use]
    pub fn replaced(&self, replace: impl FnOnce(&str) -> String) -> Self {
        let text = replace(&self.text());
        let times = self.0.iter().map(|line| line.at_ms);
        let last = self.0.last().map_or(0, |line| line.at_ms);
        let is_same_length = text.lines().count() == self.0.len();
        let times = times
            .filter(|_| is_same_length)
            .chain(std::iter::repeat(last));
        let lines = text.lines().zip(times).map(|(text, at_ms)| Line {
            at_ms,
            text: text.into(),
        });
        Self(lines.collect())
    }
}

/// The shared state of writer and readers.
pub struct Log(Mutex<State>);

struct State {
    tail: VecDeque<Line>,
    /// Bytes in the tail, including line ends.
    bytes: usize,
    /// `None` without followers, because the buffer immediately allocates [`MAX_LAGGING_LINES`] lines.
    followers: Option<broadcast::Sender<Line>>,
    /// True after the instance has ended.
    is_closed: bool,
    last_output: Option<Instant>,
}

impl Log {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(State {
            tail: VecDeque::new(),
            bytes: 0,
            followers: None,
            is_closed: false,
            last_output: None,
        }))
    }

    pub(crate) fn tail(&self) -> Tail {
        self.0.lock().tail()
    }

    /// Returns whether a runtime wrote that it ran out of memory.
    pub(crate) fn says_out_of_memory(&self) -> bool {
        let state = self.0.lock();
        let says = |line: &Line| OUT_OF_MEMORY.iter().any(|words| line.text.contains(words));
        state.tail.iter().any(says)
    }

    /// When the last output arrived, including incomplete lines such as a progress bar.
    pub(crate) fn last_output(&self) -> Option<Instant> {
        self.0.lock().last_output
    }

    /// Returns the tail and a reader for later lines.
    pub(crate) fn follow(&self) -> (Tail, Lines) {
        let mut state = self.0.lock();
        let lines = match state.is_closed {
            false => {
                let followers = &mut state.followers;
                followers
                    .get_or_insert_with(|| broadcast::Sender::new(MAX_LAGGING_LINES))
                    .subscribe()
            }
            true => broadcast::Sender::new(1).subscribe(),
        };
        (state.tail(), Lines(lines))
    }

    /// Ends the log. Followers still get earlier lines.
    pub fn close(&self) {
        let mut state = self.0.lock();
        state.followers = None;
        state.is_closed = true;
    }

    /// Reads until the end of the pipe. An error counts as the end.
    ///
    /// # Cancel safety
    ///
    /// Everything read is in the log, except an incomplete last line.
    pub async fn fill(&self, mut pipe: impl AsyncRead + Unpin) {
        let mut chunk = vec![0; CHUNK_BYTES];
        let mut splitter = Splitter::default();
        let mut lines = Vec::new();
        let mut pace = Pace(Instant::now());
        while let Ok(count @ 1..) = pipe.read(&mut chunk).await {
            splitter.push(&chunk[..count], |line| lines.push(line));
            let cost = count as u64 + lines.len() as u64 * LINE_COST;
            self.extend(lines.drain(..));
            if let Some(until) = pace.spend(cost, Instant::now()) {
                sleep_until(until).await;
            }
        }
        splitter.finish(|line| self.push(line));
    }

    /// Adds a line that the instance did not write.
    pub fn note(&self, line: &str) {
        let mut splitter = Splitter::default();
        splitter.push(line.as_bytes(), |line| self.push(line));
        splitter.finish(|line| self.push(line));
    }

    pub fn push(&self, line: Arc<str>) {
        self.extend([line]);
    }

    /// Adds lines that arrived together, or none if only part of a line arrived.
    fn extend(&self, lines: impl IntoIterator<Item = Arc<str>>) {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH);
        let at_ms = since_1970.map_or(0, |time| {
            u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
        });
        let mut state = self.0.lock();
        state.last_output = Some(Instant::now());
        for text in lines {
            state.add(Line { at_ms, text });
        }
    }
}

/// Limits the speed of reading. The time is when everything that was read would have arrived at
/// [`MAX_BYTES_PER_SECOND`].
struct Pace(Instant);

impl Pace {
    /// Counts what was read. Returns the time at which to read more, if that is later than `now`.
    fn spend(&mut self, cost: u64, now: Instant) -> Option<Instant> {
        let takes = Duration::from_nanos(cost * 1_000_000_000 / MAX_BYTES_PER_SECOND);
        self.0 = self.0.max(now) + takes;
        (self.0 > now + BURST).then_some(self.0)
    }
}

impl State {
    fn tail(&self) -> Tail {
        Tail(self.tail.iter().cloned().collect())
    }

    fn add(&mut self, line: Line) {
        self.bytes += line.text.len() + 1;
        self.tail.push_back(line.clone());
        while self.bytes > TAIL_BYTES || self.tail.len() > TAIL_LINES {
            let Some(oldest) = self.tail.pop_front() else {
                break;
            };
            self.bytes -= oldest.text.len() + 1;
        }
        if let Some(followers) = &self.followers
            && followers.send(line).is_err()
        {
            // No follower is left.
            self.followers = None;
        }
    }
}

/// The stderr lines of an instance from now on.
pub struct Lines(broadcast::Receiver<Line>);

/// Number of lines lost because the reader was too slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Missed(pub u64);

impl Lines {
    /// Returns the next line, or the number of lines missed before it. `None` when the instance has ended.
    ///
    /// Bytes that are not UTF-8 are replaced. A line longer than 8 KiB is cut.
    ///
    /// # Cancel safety
    ///
    /// No line is lost.
    pub async fn next(&mut self) -> Option<Result<Line, Missed>> {
        match self.0.recv().await {
            Ok(line) => Some(Ok(line)),
            Err(RecvError::Lagged(count)) => Some(Err(Missed(count))),
            Err(RecvError::Closed) => None,
        }
    }
}

/// Splits chunks into lines.
#[derive(Default)]
pub struct Splitter {
    line: Vec<u8>,
    cut: bool,
}

impl Splitter {
    pub fn push(&mut self, mut bytes: &[u8], mut emit: impl FnMut(Arc<str>)) {
        while let Some(end) = memchr::memchr(b'\n', bytes) {
            self.extend(&bytes[..end]);
            emit(self.take());
            bytes = &bytes[end + 1..];
        }
        self.extend(bytes);
    }

    pub fn finish(&mut self, mut emit: impl FnMut(Arc<str>)) {
        if !self.line.is_empty() {
            emit(self.take());
        }
    }

    fn extend(&mut self, bytes: &[u8]) {
        let room = MAX_LINE_BYTES - self.line.len();
        self.cut |= bytes.len() > room;
        self.line.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }

    fn take(&mut self) -> Arc<str> {
        if !self.cut && self.line.last() == Some(&b'\r') {
            self.line.pop();
        }
        let text = String::from_utf8_lossy(&self.line);
        let text = if self.cut {
            Arc::from(format!("{text}{CUT_MARK}"))
        } else {
            Arc::from(text)
        };
        self.line.clear();
        self.cut = false;
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(chunks: &[&[u8]], expected: &[&str]) {
        let mut lines = Vec::new();
        let mut splitter = Splitter::default();
        for chunk in chunks {
            splitter.push(chunk, |line| lines.push(line));
        }
        splitter.finish(|line| lines.push(line));
        let lines: Vec<&str> = lines.iter().map(AsRef::as_ref).collect();
        assert_eq!(lines, expected);
    }

    #[test]
    fn chunks_become_lines() {
        check(&[], &[]);
        check(&[b"a\nb\n"], &["a", "b"]);
        check(&[b"a", b"b\r\n", b"\n", b"c"], &["ab", "", "c"]);
        check(&[b"\xff\n"], &["\u{fffd}"]);
        let long = vec![b'x'; MAX_LINE_BYTES];
        let whole = "x".repeat(MAX_LINE_BYTES);
        check(&[&long, b"\nz"], &[&whole, "z"]);
        check(
            &[&long, b"yyy", b"y\nz"],
            &[&format!("{whole}{CUT_MARK}"), "z"],
        );
    }

    #[test]
    fn the_tail_is_bounded_by_bytes_and_by_lines() {
        let log = Log::new();
        for _ in 0..100_000 {
            log.push("".into());
        }
        assert_eq!(log.tail().0.len(), TAIL_LINES);
        let line: Arc<str> = "x".repeat(MAX_LINE_BYTES).into();
        for _ in 0..100 {
            log.push(Arc::clone(&line));
        }
        let tail = log.tail().text();
        assert!(tail.len() <= TAIL_BYTES && tail.len() > TAIL_BYTES - 2 * MAX_LINE_BYTES);
        assert!(tail.lines().all(|kept| kept == &*line));
    }

    /// Progress bars end with a carriage return.
    #[tokio::test(start_paused = true)]
    async fn half_a_line_is_output() {
        let log = Log::new();
        assert_eq!(log.last_output(), None);
        log.fill(&b"10 %\r"[..]).await;
        assert_eq!(log.last_output(), Some(Instant::now()));
    }

    /// The time in which a flood of this many bytes is read.
    async fn time_of(flood: u8, bytes: usize) -> Duration {
        let (log, began) = (Log::new(), Instant::now());
        let pipe = tokio::io::repeat(flood);
        log.fill(pipe.take(bytes as u64)).await;
        began.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_waits_and_nothing_else_does() {
        assert_eq!(time_of(b'x', 1 << 20).await, Duration::ZERO);
        for (flood, bytes) in [(b'x', 128 << 20), (b'\n', (128 << 20) / 65)] {
            let took = time_of(flood, bytes).await.as_secs_f64();
            assert!((1.8..2.1).contains(&took), "{flood} took {took} s");
        }
    }

    #[tokio::test]
    async fn who_lags_is_told_how_much() {
        let log = Log::new();
        let (_, mut lines) = log.follow();
        for number in 0..MAX_LAGGING_LINES + 10 {
            log.push(number.to_string().into());
        }
        assert_eq!(lines.next().await, Some(Err(Missed(10))));
        let next = lines.next().await.unwrap().unwrap();
        assert_eq!(&*next.text, "10");
        log.close();
        let (tail, mut late) = log.follow();
        assert_eq!(tail.0.len(), MAX_LAGGING_LINES + 10);
        assert_eq!(late.next().await, None);
        for number in 11..MAX_LAGGING_LINES + 10 {
            let next = lines.next().await.unwrap().unwrap();
            assert_eq!(*next.text, number.to_string());
        }
        assert_eq!(lines.next().await, None);
    }

    #[test]
    fn lines_keep_the_time_at_which_they_arrived() {
        let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let log = Log::new();
        let before = now().as_millis();
        log.push("one".into());
        log.push("two".into());
        let after = now().as_millis();
        let tail = log.tail();
        let times: Vec<u128> = tail.0.iter().map(|line| line.at_ms.into()).collect();
        assert!(
            times.is_sorted() && times[0] >= before && times[1] <= after,
            "{times:?}"
        );
        assert_eq!(tail.text(), "one\ntwo\n");
        // A replacement keeps the times, or uses the last one if lines are gone.
        let line = |at_ms: u64, text: &str| Line {
            at_ms,
            text: text.into(),
        };
        let tail = Tail(vec![line(1, "a key"), line(2, "b")]);
        let check = |text: &str, expected: &[Line]| {
            assert_eq!(tail.replaced(|_| text.to_owned()).0, expected);
        };
        check("a ***\nb\n", &[line(1, "a ***"), line(2, "b")]);
        check("***\n", &[line(2, "***")]);
    }
}
