//! What a session's event streams hold for clients that lost a connection.
//!
//! It has an end in events, bytes and time. When there is no room, streams of calls that are over are forgotten,
//! oldest first; within a stream notifications go, oldest first, and then what had to arrive: a client that
//! missed such an event is told so when it comes back. What is numbered is held as it goes over the wire: a
//! message may be a small part of the buffer that it came in.
//!
//! Absent: what waits for its first reader. That is the outbox's, with bounds of its own, until the call is over
//! and nobody reads: then all of it is held here.

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

/// Events that are held of one stream.
const HELD_EVENTS: usize = 256;
/// Bytes that are held of one stream; a single event may be longer.
pub(super) const HELD_BYTES: usize = 1 << 20;
/// Bytes that are held of all streams of a session.
pub(super) const SESSION_HELD_BYTES: usize = 8 << 20;
/// Streams of calls that nobody reads, in one session.
pub(super) const MAX_UNREAD: usize = 64;
/// How long events are held at least for whoever lost its connection, room permitting.
pub(super) const HELD_FOR: Duration = Duration::from_secs(120);
/// The number of the session's own stream.
pub(super) const OWN: u64 = 0;

/// Where an event stands: its stream, and its place there. Goes over the wire as the event's id.
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

/// All streams of a session.
#[derive(Debug)]
pub(super) struct Streams {
    pub(super) own: Stream,
    calls: BTreeMap<u64, Stream>,
    opened: u64,
    held: Held,
}

/// Bytes held, and whose they are.
#[derive(Debug)]
struct Held {
    bytes: usize,
    account: Option<Arc<Account>>,
}

impl Held {
    /// Whoever calls this holds a lock: the backlog is settled by those who put something into an outbox.
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
    /// Bytes of `sent`.
    bytes: usize,
    /// The place of the newest event.
    pub(super) last: u64,
    /// The place of the newest event that had to arrive and is not held any more.
    pub(super) lost: u64,
    /// Who may read: the reader that came last.
    pub(super) turn: u64,
    /// Since when nobody reads.
    pub(super) unread: Option<Instant>,
    pub(super) end: End,
    pub(super) reader: Option<Waker>,
    /// Who waits for the stream to be abandoned.
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
    /// The call is under way.
    Open,
    /// This comes last.
    Answer {
        text: Bytes,
        _charge: Option<Charge>,
    },
    /// Nothing more comes.
    Over,
}

impl Streams {
    pub(super) fn new(outbox: Arc<Outbox>, account: Option<Arc<Account>>) -> Self {
        Self {
            own: Stream::new(outbox),
            calls: BTreeMap::new(),
            opened: OWN,
            held: Held { bytes: 0, account },
        }
    }

    pub(super) fn get(&mut self, number: u64) -> Option<&mut Stream> {
        if number == OWN {
            Some(&mut self.own)
        } else {
            self.calls.get_mut(&number)
        }
    }

    /// Adds the stream of a call; gives its number, and its first reader's turn.
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

    /// Makes an event of a message and holds it.
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
        while stream.sent.len() > HELD_EVENTS
            || (stream.bytes > HELD_BYTES && stream.sent.len() > 1)
        {
            dropped += stream.drop_one();
        }
        self.held.add(event.len());
        self.held.sub(dropped);
        while self.held.bytes > SESSION_HELD_BYTES {
            if self.forget_oldest(Some(number)) {
                continue;
            }
            // The others are of calls under way: this one, which grew, gives way.
            match self.get(number)?.drop_one() {
                0 => break,
                dropped => self.held.sub(dropped),
            }
        }
        Some(event)
    }

    /// Forgets the oldest stream of a call that is over, if there is one that nobody reads.
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

    /// Moves all that waits, up to the answer, to what is held: the call is over, and nobody reads.
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

    /// A reader is gone, or came too late.
    pub(super) fn left(&mut self, number: u64, turn: u64) {
        let Some(stream) = self.get(number).filter(|stream| stream.turn == turn) else {
            return;
        };
        stream.unread = Some(Instant::now());
        stream.reader = None;
        if number == OWN {
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

    /// Forgets what has been held for long enough by `now`.
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

    /// Bytes held, counted anew.
    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        let bytes =
            |stream: &Stream| -> usize { stream.sent.iter().map(|sent| sent.event.len()).sum() };
        let all = self.calls.values().map(bytes).sum::<usize>() + bytes(&self.own);
        assert_eq!(all, self.held.bytes);
        all
    }

    /// The session is over.
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

    /// Drops the oldest notification, or the oldest event if all had to arrive; says how long it was.
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

    /// Drops what is held for too long; says how many bytes it was. By then it has arrived, or its connection
    /// was given up.
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

    /// The first event held after this place.
    pub(super) fn after(&self, at: u64) -> Option<&Sent> {
        if at >= self.last {
            return None;
        }
        let next = self.sent.partition_point(|sent| sent.at <= at);
        self.sent.get(next)
    }

    /// Gives the right to read to somebody else.
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
    now.saturating_duration_since(when) > HELD_FOR
}
