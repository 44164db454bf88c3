//! Time limits of a connection, while a request is read and between requests.
//!
//! A pure state machine. The connection's only timer calls [`Patience::verdict`], which also sets the next alarm.
//! Computing and sending a response is not limited here: tool calls have their own deadlines, and the
//! [backlog](mcp::backlog) limits unread responses. Event streams of a session no longer use hyper, and are not covered
//! here.

use std::time::Duration;

use tokio::time::Instant;

/// Maximum time without progress while a request is read. With the timer's delay, this stays below ten seconds.
const MAX_READ_GAP: Duration = Duration::from_secs(9);
/// Bytes that count as progress. A client that sends fewer in [`MAX_READ_GAP`] has to complete its request in that time.
/// Even a bad mobile connection is faster: at this rate, a body of 1 MB takes half an hour.
const MIN_PROGRESS_BYTES: u64 = 4 << 10;
/// The [`MAX_READ_GAP`] of a connection above the connection limit. Such a connection must send an administrator's key.
const RESERVED_READ_GAP: Duration = Duration::from_secs(2);
/// Maximum idle time between requests, normally and when few more connections are allowed.
const MAX_IDLE: Duration = Duration::from_secs(10 * 60);
const MAX_IDLE_CROWDED: Duration = Duration::from_secs(10);
/// Interval between checks of a connection that reads no request.
const CHECK_INTERVAL: Duration = Duration::from_secs(15);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Part of a request has arrived, or the first one is awaited.
    Reading,
    /// A request is being answered.
    Busy,
    /// Between requests.
    Idle,
}

/// The state of a connection at one moment.
#[derive(Debug, Clone, Copy)]
pub(super) struct Progress {
    pub(super) phase: Phase,
    /// Number of the request, starting at 1.
    pub(super) request: u64,
    /// Bytes read so far.
    pub(super) read: u64,
}

impl Progress {
    /// Returns true if nothing has been received yet.
    pub(super) fn is_new(self) -> bool {
        self.phase == Phase::Reading && self.request == 1 && self.read == 0
    }
}

/// Why a connection is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Spent {
    Stalled,
    Unused,
}

#[derive(Debug)]
pub(super) struct Patience {
    stalled: Duration,
    reading: bool,
    /// The request that is being read, or was read last.
    request: u64,
    /// Bytes read at the last progress, and its time. The first byte of a request is progress too.
    read: u64,
    moved: Instant,
    /// The request that was awaited at the last check, and since when.
    awaited: u64,
    idle: Instant,
    /// When the timer fires.
    alarm: Instant,
}

impl Patience {
    /// State of a connection opened at `now`. `reserved`: the connection is above the connection limit.
    pub(super) fn new(now: Instant, reserved: bool) -> Self {
        let stalled = if reserved {
            RESERVED_READ_GAP
        } else {
            MAX_READ_GAP
        };
        Self {
            stalled,
            reading: true,
            request: 1,
            read: 0,
            moved: now,
            awaited: 0,
            idle: now,
            alarm: now + stalled,
        }
    }

    /// When the timer must fire next.
    pub(super) fn alarm(&self) -> Instant {
        self.alarm
    }

    /// Records progress and returns whether the timer must be reset. Reads the clock only when there was progress while
    /// a request arrives in pieces.
    pub(super) fn note(&mut self, progress: Progress, now: impl Fn() -> Instant) -> bool {
        if progress.phase != Phase::Reading {
            self.reading = false;
            return false;
        }
        let is_new = self.request != progress.request || !self.reading;
        let is_first = self.read == 0 && progress.read > 0;
        if is_new || is_first || progress.read >= self.read + MIN_PROGRESS_BYTES {
            self.request = progress.request;
            self.read = progress.read;
            self.moved = now();
        }
        self.reading = true;
        let due = self.due();
        let sooner = due < self.alarm;
        if sooner {
            self.alarm = due;
        }
        sooner
    }

    fn due(&self) -> Instant {
        self.moved + self.stalled
    }

    /// Returns why the connection must be closed, or sets the next [`alarm`](Self::alarm). `crowded`: most of the
    /// allowed connections are in use.
    pub(super) fn verdict(
        &mut self,
        progress: Progress,
        now: Instant,
        crowded: bool,
    ) -> Option<Spent> {
        self.note(progress, || now);
        match progress.phase {
            Phase::Reading => {
                if now >= self.due() {
                    return Some(Spent::Stalled);
                }
                self.alarm = self.due();
            }
            Phase::Busy => self.alarm = now + CHECK_INTERVAL,
            Phase::Idle => {
                if self.awaited != progress.request {
                    self.awaited = progress.request;
                    self.idle = now;
                }
                let most = if crowded { MAX_IDLE_CROWDED } else { MAX_IDLE };
                if now >= self.idle + most {
                    return Some(Spent::Unused);
                }
                self.alarm = now + CHECK_INTERVAL;
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(phase: Phase, request: u64, read: u64) -> Progress {
        Progress {
            phase,
            request,
            read,
        }
    }

    /// Simulates a connection that reports its progress every second; returns the second in which it was closed, and
    /// why.
    fn closed(
        seconds: u64,
        reserved: bool,
        crowded: bool,
        does: impl Fn(u64) -> Progress,
    ) -> Option<(u64, Spent)> {
        let start = Instant::now();
        let mut patience = Patience::new(start, reserved);
        for second in 0..seconds {
            let now = start + Duration::from_secs(second);
            let progress = does(second);
            patience.note(progress, || now);
            if now >= patience.alarm()
                && let Some(spent) = patience.verdict(progress, now, crowded)
            {
                return Some((second, spent));
            }
        }
        None
    }

    #[tokio::test]
    async fn a_request_has_ten_seconds_without_progress() {
        use Phase::{Busy, Idle, Reading};
        // This connection is silent from the start.
        let silent = closed(100, false, false, |_| at(Reading, 1, 0));
        assert_eq!(silent, Some((9, Spent::Stalled)));
        let reserved = closed(100, true, false, |_| at(Reading, 1, 0));
        assert_eq!(reserved, Some((2, Spent::Stalled)));
        // These clients send one byte per second without end, one byte every eight seconds, and half a head.
        for (interval, most, first) in [(1, 100, 1), (8, 100, 8), (1, 3, 1)] {
            let drip = closed(100, false, false, |second| {
                at(Reading, 1, (second / interval).min(most))
            });
            assert_eq!(drip, Some((first + 9, Spent::Stalled)));
        }
        // This client sends a part of the body after an answered request, and then drips.
        let second = closed(200, false, false, |second| match second {
            0 => at(Busy, 1, 100),
            1..120 => at(Idle, 2, 100),
            _ => at(Reading, 2, 100 + (second - 119) * 10),
        });
        assert_eq!(second, Some((129, Spent::Stalled)));
        // The time counts from the last progress.
        let stops = closed(200, false, false, |second| {
            at(Reading, 1, second.min(50) * 2000 + second)
        });
        let (second, spent) = stops.expect("closed");
        assert_eq!(spent, Spent::Stalled);
        assert!((50..=59).contains(&second), "{second}");
        // A response has no time limit. The rest of the request body arrives after it.
        let busy = closed(1000, false, false, |second| match second {
            0..5 => at(Reading, 1, second),
            _ => at(Busy, 1, 5),
        });
        assert_eq!(busy, None);
    }

    /// A phone on a bad line: 1 MB at 1 to 20 kB per second, with gaps of up to five seconds.
    #[tokio::test]
    async fn a_slow_upload_is_completed() {
        for rate in [1000, 2000, 20_000] {
            for gap in [1, 3, 5] {
                let sent = |second: u64| second / gap * gap * rate;
                let upload = closed(2000, false, false, |second| match sent(second) {
                    read @ ..1_000_000 => at(Phase::Reading, 1, read),
                    _ => at(Phase::Busy, 1, 1_000_000),
                });
                assert_eq!(upload, None, "{rate} B/s in steps of {gap} s");
            }
        }
    }

    #[tokio::test]
    async fn between_requests_there_is_more_time_unless_there_is_a_crowd() {
        let idle = |second: u64| match second {
            0 => at(Phase::Busy, 1, 100),
            _ => at(Phase::Idle, 2, 100),
        };
        let (second, spent) = closed(2000, false, false, idle).expect("closed");
        assert_eq!(spent, Spent::Unused);
        assert!((600..=640).contains(&second), "{second}");
        let (second, spent) = closed(2000, false, true, idle).expect("closed");
        assert_eq!(spent, Spent::Unused);
        assert!((10..=40).contains(&second), "{second}");
        // An occasional request keeps the connection open.
        let used = |second: u64| at(Phase::Idle, 1 + second / 300, second / 300 * 100);
        assert_eq!(closed(5000, false, false, used), None);
    }
}
