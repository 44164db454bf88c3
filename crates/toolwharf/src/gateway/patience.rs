//! How long a connection may take: for a request that is being read, and between requests.
//!
//! A pure state with no timer of its own: the connection's one timer asks [`Patience::verdict`], which also says when to
//! ask again. While an answer is made or sent there is no limit here: calls have deadlines of their own, and unread
//! answers are bounded by the [backlog](mcp::backlog). Event streams of a session have left HTTP and this module.

use std::time::Duration;

use tokio::time::Instant;

/// A request that is being read may go without a byte for less than ten seconds …
const STALLED: Duration = Duration::from_secs(9);
/// … and take less than a minute from its first byte to its last.
const SLOW: Duration = Duration::from_secs(58);
/// A connection beyond the cap has this long to show that it is an administrator's.
const RESERVED: Duration = Duration::from_secs(2);
/// How long a connection may be kept between requests, and how long if there are many.
const UNUSED: Duration = Duration::from_secs(10 * 60);
const UNUSED_IN_A_CROWD: Duration = Duration::from_secs(10);
/// How often a connection is looked at that reads no request.
const LOOK: Duration = Duration::from_secs(15);

/// What a connection is at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Part of a request has come, or it is the first one.
    Reading,
    /// A request is being answered.
    Busy,
    /// Between requests.
    Idle,
}

/// What is known of a connection at one moment.
#[derive(Debug, Clone, Copy)]
pub(super) struct Progress {
    pub(super) phase: Phase,
    /// Which request this is, counted from 1.
    pub(super) request: u64,
    /// Bytes read so far.
    pub(super) read: u64,
}

impl Progress {
    /// Whether nothing has come yet.
    pub(super) fn is_new(self) -> bool {
        self.phase == Phase::Reading && self.request == 1 && self.read == 0
    }
}

/// Why a connection is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Spent {
    Stalled,
    Slow,
    Unused,
}

#[derive(Debug)]
pub(super) struct Patience {
    stalled: Duration,
    reading: bool,
    /// The request that is or was being read.
    request: u64,
    /// When its first byte came.
    since: Instant,
    read: u64,
    /// When the latest byte came.
    moved: Instant,
    /// The request that was waited for at the last look, and since when.
    awaited: u64,
    idle: Instant,
    /// When the timer goes off.
    alarm: Instant,
}

impl Patience {
    /// A connection that was opened just now; `reserved`: beyond the cap.
    pub(super) fn new(now: Instant, reserved: bool) -> Self {
        let stalled = if reserved { RESERVED } else { STALLED };
        Self {
            stalled,
            reading: true,
            request: 1,
            since: now,
            read: 0,
            moved: now,
            awaited: 0,
            idle: now,
            alarm: now + stalled,
        }
    }

    /// When the timer has to go off.
    pub(super) fn alarm(&self) -> Instant {
        self.alarm
    }

    /// Takes in what happened; whether the timer has to be set anew. Looks at the clock only while a request comes in
    /// pieces.
    pub(super) fn note(&mut self, progress: Progress, now: impl Fn() -> Instant) -> bool {
        if progress.phase != Phase::Reading {
            self.reading = false;
            return false;
        }
        if self.request != progress.request {
            self.request = progress.request;
            self.since = now();
            self.moved = self.since;
            self.read = progress.read;
        } else if self.read != progress.read || !self.reading {
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
        (self.moved + self.stalled).min(self.since + SLOW)
    }

    /// Whether the connection is to be closed; sets the next [`alarm`](Self::alarm) if not. `crowded`: few more would be
    /// let in.
    pub(super) fn verdict(
        &mut self,
        progress: Progress,
        now: Instant,
        crowded: bool,
    ) -> Option<Spent> {
        self.note(progress, || now);
        match progress.phase {
            Phase::Reading => {
                if now >= self.since + SLOW {
                    return Some(Spent::Slow);
                }
                if now >= self.moved + self.stalled {
                    return Some(Spent::Stalled);
                }
                self.alarm = self.due();
            }
            Phase::Busy => self.alarm = now + LOOK,
            Phase::Idle => {
                if self.awaited != progress.request {
                    self.awaited = progress.request;
                    self.idle = now;
                }
                let most = if crowded { UNUSED_IN_A_CROWD } else { UNUSED };
                if now >= self.idle + most {
                    return Some(Spent::Unused);
                }
                self.alarm = now + LOOK;
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

    /// Lets a connection do something every second, for so many; says when it was closed, in seconds, and why.
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
    async fn a_request_has_ten_seconds_without_a_byte_and_a_minute_in_all() {
        use Phase::{Busy, Idle, Reading};
        // Silent from the start.
        let silent = closed(100, false, false, |_| at(Reading, 1, 0));
        assert_eq!(silent, Some((9, Spent::Stalled)));
        let reserved = closed(100, true, false, |_| at(Reading, 1, 0));
        assert_eq!(reserved, Some((2, Spent::Stalled)));
        // A byte a second, for ever; a byte every eight seconds.
        let drip = closed(100, false, false, |second| at(Reading, 1, second));
        assert_eq!(drip, Some((58, Spent::Slow)));
        let slow = closed(100, false, false, |second| at(Reading, 1, second / 8));
        assert_eq!(slow, Some((58, Spent::Slow)));
        // Half a head, then nothing; half a body after an answered request.
        let half = closed(100, false, false, |second| at(Reading, 1, second.min(3)));
        assert_eq!(half, Some((12, Spent::Stalled)));
        let second = closed(200, false, false, |second| match second {
            0 => at(Busy, 1, 100),
            1..120 => at(Idle, 2, 100),
            _ => at(Reading, 2, 110),
        });
        assert_eq!(second, Some((129, Spent::Stalled)));
        // An answer takes as long as it takes, and then the body goes on.
        let busy = closed(1000, false, false, |second| match second {
            0..5 => at(Reading, 1, second),
            _ => at(Busy, 1, 5),
        });
        assert_eq!(busy, None);
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
        // A request now and then is enough.
        let used = |second: u64| at(Phase::Idle, 1 + second / 300, second / 300 * 100);
        assert_eq!(closed(5000, false, false, used), None);
    }
}
