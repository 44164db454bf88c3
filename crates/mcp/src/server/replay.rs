//! The replay buffer of a session's event streams, for clients that reconnect.
//!
//! It is bounded in events, bytes and time. When it is full, finished calls' streams are dropped, oldest first. Within
//! a stream, notifications are dropped first, oldest first, then other events; a client that missed one of these other
//! events gets an error when it resumes. Numbered events are kept in wire format, because a message may be a small
//! slice of a large read buffer.
//!
//! Deliberately absent: messages that wait for their first reader. They stay in the outbox, with its limits, until the
//! call is over and has no reader. Then all of them are moved here.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt, mem,
    sync::Arc,
    task::Waker,
    time::Duration,
};

use bytes::Bytes;
use tokio::time::Instant;

use crate::{
    backlog::{Account, Charge},
    outbox::{Outbox, Weight},
    sse,
};

const MAX_HELD_EVENTS: usize = 256;
/// Maximum bytes held per stream. A single event may be longer.
pub(super) const MAX_HELD_BYTES: usize = 1 << 20;
/// Maximum bytes held for all streams of a session.
pub(super) const MAX_SESSION_HELD_BYTES: usize = 8 << 20;
/// Maximum call streams without a reader per session.
pub(super) const MAX_UNREAD: usize = 64;
/// Maximum time that events are held for a client that lost its connection, if there is room.
pub(super) const MAX_HOLD_TIME: Duration = Duration::from_secs(120);
/// Number of the session's own stream.
pub(super) const OWN_STREAM: u64 = 0;

/// The position of an event: its stream and its number there. Sent as the event's id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct EventId {
    pub(super) stream: u64,
    pub(super) at: u64,
}

impl EventId {
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (stream, at) = text.split_once('-')?;
        Some(Self {
            stream: stream.parse().ok()?,
            at: at.parse().ok()?,
        })
    }
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.stream, self.at)
    }
}

#[derive(Debug)]
pub(super) struct Streams {
    pub(super) own: Stream,
    calls: BTreeMap<u64, Stream>,
    opened: u64,
    held: Held,
}

/// Counts the bytes held, and charges them to the session's account.
#[derive(Debug)]
struct Held {
    bytes: usize,
    account: Option<Arc<Account>>,
}

impl Held {
    /// Called with a lock held, so it does not settle the backlog. The code that adds to an outbox settles it.
    fn add(&mut self, bytes: usize) {
        self.bytes += bytes;
        if let Some(account) = &self.account {
            let _ = account.add(bytes);
        }
    }

    fn sub(&mut self, bytes: usize) {
        self.bytes -= bytes;
        if let Some(account) = &self.account {
            account.sub(bytes);
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.sub(self.bytes);
    }
}

#[derive(Debug)]
pub(super) struct Stream {
    pub(super) outbox: Arc<Outbox>,
    sent: VecDeque<Sent>,
    /// Bytes in `sent`.
    bytes: usize,
    /// Number of the newest event.
    pub(super) last: u64,
    /// Number of the newest [`Weight::Must`] event that is no longer held.
    pub(super) lost: u64,
    /// The turn of the newest reader, which alone may read.
    pub(super) turn: u64,
    /// When the stream lost its last reader.
    pub(super) unread: Option<Instant>,
    pub(super) end: End,
    pub(super) reader: Option<Waker>,
    /// Task that waits for the stream to be abandoned.
    pub(super) answerer: Option<Waker>,
}

#[derive(Debug)]
pub(super) struct Sent {
    pub(super) at: u64,
    weight: Weight,
    when: Instant,
    pub(super) event: Bytes,
}

#[derive(Debug)]
pub(super) enum End {
    /// The call is running.
    Open,
    /// The last message.
    Answer {
        text: Bytes,
        _charge: Option<Charge>,
    },
    /// Nothing more will come.
    Over,
}

impl Streams {
    pub(super) fn new(outbox: Arc<Outbox>, account: Option<Arc<Account>>) -> Self {
        Self {
            own: Stream::new(outbox),
            calls: BTreeMap::new(),
            opened: OWN_STREAM,
            held: Held { bytes: 0, account },
        }
    }

    pub(super) fn get(&mut self, number: u64) -> Option<&mut Stream> {
        if number == OWN_STREAM {
            Some(&mut self.own)
        } else {
            self.calls.get_mut(&number)
        }
    }

    /// Adds the stream of a call. Returns its number and the turn of its first reader.
    pub(super) fn open(&mut self, outbox: Arc<Outbox>) -> (u64, u64) {
        self.opened += 1;
        let mut stream = Stream::new(outbox);
        let turn = stream.pass_on();
        self.calls.insert(self.opened, stream);
        (self.opened, turn)
    }

    pub(super) fn forget(&mut self, number: u64) {
        if let Some(stream) = self.calls.remove(&number) {
            self.held.sub(stream.bytes);
            stream.wake();
        }
    }

    /// Turns a message into a numbered event and holds it.
    pub(super) fn number(&mut self, number: u64, weight: Weight, message: &Bytes) -> Option<Bytes> {
        let stream = self.get(number)?;
        stream.last += 1;
        let at = stream.last;
        let id = EventId { stream: number, at };
        let event = sse::encode(Some("message"), Some(&id.to_string()), message);
        stream.bytes += event.len();
        stream.sent.push_back(Sent {
            at,
            weight,
            when: Instant::now(),
            event: event.clone(),
        });
        let mut dropped = 0;
        while stream.sent.len() > MAX_HELD_EVENTS
            || (stream.bytes > MAX_HELD_BYTES && stream.sent.len() > 1)
        {
            dropped += stream.drop_one();
        }
        self.held.add(event.len());
        self.held.sub(dropped);
        while self.held.bytes > MAX_SESSION_HELD_BYTES {
            if self.forget_oldest(Some(number)) {
                continue;
            }
            // The other streams belong to running calls, so the stream that grew loses events.
            match self.get(number)?.drop_one() {
                0 => break,
                dropped => self.held.sub(dropped),
            }
        }
        Some(event)
    }

    /// Drops the oldest finished call's stream without a reader, except `but`. Returns false if there was no such
    /// stream.
    fn forget_oldest(&mut self, but: Option<u64>) -> bool {
        let oldest = self.calls.iter().find(|(number, stream)| {
            stream.unread.is_some() && matches!(stream.end, End::Over) && but != Some(**number)
        });
        let oldest = oldest.map(|(number, _)| *number);
        if let Some(oldest) = oldest {
            self.forget(oldest);
        }
        oldest.is_some()
    }

    /// Moves all queued messages, up to the response, into the replay buffer. Called when the call is over and has no
    /// reader.
    pub(super) fn settle(&mut self, number: u64) {
        while let Some(stream) = self.get(number) {
            let message = stream.outbox.take();
            let message = message.or_else(|| match mem::replace(&mut stream.end, End::Over) {
                End::Answer { text, .. } => Some((Weight::Must, text)),
                End::Open | End::Over => None,
            });
            let Some((weight, message)) = message else {
                return;
            };
            let _ = self.number(number, weight, &message);
        }
    }

    /// Records that a reader left. Ignored unless that reader was the newest one.
    pub(super) fn left(&mut self, number: u64, turn: u64) {
        let Some(stream) = self.get(number).filter(|stream| stream.turn == turn) else {
            return;
        };
        stream.unread = Some(Instant::now());
        stream.reader = None;
        if number == OWN_STREAM {
            return;
        }
        if let Some(answerer) = stream.answerer.take() {
            answerer.wake();
        }
        if !matches!(stream.end, End::Open) {
            self.settle(number);
        }
        let unread = |streams: &Self| {
            let unread = streams
                .calls
                .values()
                .filter(|stream| stream.unread.is_some());
            unread.count()
        };
        while unread(self) > MAX_UNREAD {
            if !self.forget_oldest(None) {
                self.forget(number);
            }
        }
    }

    /// Drops events that were held for long enough by `now`.
    pub(super) fn prune(&mut self, now: Instant) {
        self.held.sub(self.own.expire(now));
        let held = &mut self.held;
        self.calls.retain(|_, stream| {
            held.sub(stream.expire(now));
            let over = matches!(stream.end, End::Over)
                && stream.unread.is_some_and(|since| is_old(since, now));
            if over {
                held.sub(stream.bytes);
            }
            !over
        });
    }

    /// Bytes held, recounted.
    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        let bytes =
            |stream: &Stream| -> usize { stream.sent.iter().map(|sent| sent.event.len()).sum() };
        let all = self.calls.values().map(bytes).sum::<usize>() + bytes(&self.own);
        assert_eq!(all, self.held.bytes);
        all
    }

    /// Drops everything at the end of the session.
    pub(super) fn end(&mut self) {
        for (_, stream) in mem::take(&mut self.calls) {
            stream.wake();
        }
        self.own.sent = VecDeque::new();
        self.own.bytes = 0;
        self.held.sub(self.held.bytes);
    }
}

impl Stream {
    fn new(outbox: Arc<Outbox>) -> Self {
        Self {
            outbox,
            sent: VecDeque::new(),
            bytes: 0,
            last: 0,
            lost: 0,
            turn: 0,
            unread: None,
            end: End::Open,
            reader: None,
            answerer: None,
        }
    }

    /// Drops the oldest notification, or the oldest event if there are only [`Weight::Must`] events. Returns its
    /// length.
    fn drop_one(&mut self) -> usize {
        let notification = self
            .sent
            .iter()
            .position(|sent| sent.weight != Weight::Must);
        let Some(dropped) = self.sent.remove(notification.unwrap_or(0)) else {
            return 0;
        };
        if dropped.weight == Weight::Must {
            self.lost = dropped.at;
        }
        self.bytes -= dropped.event.len();
        dropped.event.len()
    }

    /// Drops events that are too old. Returns their bytes. Events of that age have arrived, or the client has given up
    /// the connection.
    fn expire(&mut self, now: Instant) -> usize {
        let before = self.bytes;
        while let Some(sent) = self.sent.pop_front_if(|sent| is_old(sent.when, now)) {
            self.bytes -= sent.event.len();
            if sent.weight == Weight::Must {
                self.lost = sent.at;
            }
        }
        if self.sent.is_empty() {
            // An idle stream keeps no memory.
            self.sent = VecDeque::new();
        }
        before - self.bytes
    }

    /// The first held event after number `at`.
    pub(super) fn after(&self, at: u64) -> Option<&Sent> {
        if at >= self.last {
            return None;
        }
        let next = self.sent.partition_point(|sent| sent.at <= at);
        self.sent.get(next)
    }

    /// Passes the right to read to a new reader. Returns its turn.
    pub(super) fn pass_on(&mut self) -> u64 {
        self.turn += 1;
        self.unread = None;
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
        self.turn
    }

    fn wake(self) {
        for waker in [self.reader, self.answerer].into_iter().flatten() {
            waker.wake();
        }
    }
}

fn is_old(when: Instant, now: Instant) -> bool {
    now.saturating_duration_since(when) > MAX_HOLD_TIME
}
