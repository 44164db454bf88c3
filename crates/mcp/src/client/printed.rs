//! The last few lines of a server that were not messages, for the error of a call that timed out.

use std::collections::VecDeque;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::json::excerpt;

/// Lines kept. An older one is dropped.
const MAX_LINES: usize = 5;

#[derive(Default)]
pub(crate) struct Printed(Mutex<Lines>);

#[derive(Default)]
struct Lines {
    ended: VecDeque<(Instant, String)>,
    /// The beginning of a line whose end has not arrived.
    unfinished: Option<(Instant, String)>,
}

impl Printed {
    pub(crate) fn add(&self, line: &[u8]) {
        let line = (Instant::now(), excerpt(line));
        let mut lines = self.0.lock();
        if lines.ended.len() >= MAX_LINES {
            lines.ended.pop_front();
        }
        lines.ended.push_back(line);
    }

    /// Sets the unfinished line, or clears it if `head` is empty.
    pub(crate) fn set_unfinished(&self, head: &[u8]) {
        let line = (!head.is_empty()).then(|| (Instant::now(), excerpt(head)));
        self.0.lock().unfinished = line;
    }

    /// The lines written at `start` or later, each in backticks. `None` without any.
    pub(crate) fn since(&self, start: Instant) -> Option<String> {
        let lines = self.0.lock();
        let all = lines.ended.iter().chain(&lines.unfinished);
        let shown: Vec<String> = all
            .filter(|(at, line)| *at >= start && !line.is_empty())
            .map(|(_, line)| format!("`{line}`"))
            .collect();
        (!shown.is_empty()).then(|| shown.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_was_written_since_then() {
        let printed = Printed::default();
        printed.add(b"before");
        tokio::time::advance(Duration::from_secs(1)).await;
        let start = Instant::now();
        assert_eq!(printed.since(start), None);
        printed.add(b"one\r");
        printed.add(b" ");
        printed.set_unfinished(b"two? ");
        assert_eq!(printed.since(start).as_deref(), Some("`one`, `two?`"));
        printed.set_unfinished(b"");
        for line in 0..9 {
            printed.add(line.to_string().as_bytes());
        }
        assert_eq!(
            printed.since(start).as_deref(),
            Some("`4`, `5`, `6`, `7`, `8`")
        );
    }
}
