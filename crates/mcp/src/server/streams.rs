//! A session's event streams, which outlive the connections that carry them (2025-11-25 basic/transports "Resumability
//! and Redelivery").
//!
//! A session has one stream of its own, and one per request whose response is an event stream. A [`Reader`] is a
//! connection's right to read one of them; a connection that resumes a stream takes this right from the previous
//! reader. An event gets its number when a reader fetches it, and is then held for a while ([`super::replay`]), because
//! data written to a connection may never have arrived. A call whose stream has no reader is abandoned after
//! [`ABANDON_GRACE`] ([`Answerer::abandoned`]): in no version is a broken stream a cancellation (2025-03-26 basic/transports "Sending
//! Messages to the Server").
//!
//! The session's own stream can always be resumed, if necessary with a gap. Otherwise the client would receive nothing.
//!
//! Deliberately absent: the streams of modern clients, which cannot be resumed.

use std::{
    future::poll_fn,
    mem,
    pin::pin,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use tokio::time::{Instant, sleep};

use super::{
    Session,
    replay::{End, EventId, OWN_STREAM},
};
use crate::{
    Version,
    backlog::Charge,
    outbox::{Outbox, Weight},
    sse,
};

/// The time for which a call continues while its stream has no reader.
const ABANDON_GRACE: Duration = Duration::from_secs(30);
/// Milliseconds that a client should wait before it reconnects.
const RETRY_MS: u64 = 1000;

/// Why a stream cannot be resumed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lost {
    /// The id does not belong to this session, or later events are no longer held.
    Unknown,
    /// The stream has ended, and nothing followed the event with this id.
    Over,
}

/// Format of a session's streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// Events have no ids (HTTP+SSE).
    Bare,
    /// Events have ids. For clients that cannot handle an event without data.
    Numbered,
    /// Each connection begins with an event that has an id, no data, and the reconnection delay.
    ///
    /// This happens on every connection, not only on the first of a stream, because the official TypeScript client
    /// forgets the last id when it loses a connection.
    Primed,
}

impl Session {
    fn form(&self) -> Form {
        if self.is_primed() {
            Form::Primed
        } else {
            Form::Numbered
        }
    }

    /// Returns true if the client expects streams to begin with an event without data.
    #[must_use]
    pub fn is_primed(&self) -> bool {
        self.face()
            .is_some_and(|face| face.version >= Version::V2025_11_25)
    }

    /// Takes over the session's own stream. The previous reader ends, so a client that lost its connection need not
    /// wait until the gateway has noticed. `resumable`: events have ids.
    #[must_use]
    pub fn listen(self: &Arc<Self>, resumable: bool) -> Reader {
        let form = if resumable { self.form() } else { Form::Bare };
        let mut streams = self.streams.lock();
        let last = streams.own.last;
        let turn = streams.own.pass_on();
        drop(streams);
        Reader::new(self, OWN_STREAM, turn, last, form)
    }

    /// Opens the stream of a request whose messages come through `outbox`.
    #[must_use]
    pub fn open_stream(self: &Arc<Self>, outbox: Arc<Outbox>) -> (Answerer, Reader) {
        let (number, turn) = self.streams.lock().open(outbox);
        let answerer = Answerer {
            session: self.clone(),
            number,
        };
        (answerer, Reader::new(self, number, turn, 0, self.form()))
    }

    /// Resumes a stream after the event with this id.
    ///
    /// # Errors
    /// [`Lost`].
    pub fn resume(self: &Arc<Self>, last_event: &str) -> Result<Reader, Lost> {
        let id = EventId::parse(last_event).ok_or(Lost::Unknown)?;
        let mut streams = self.streams.lock();
        let stream = streams.get(id.stream).ok_or(Lost::Unknown)?;
        let is_gap = id.at < stream.lost && id.stream != OWN_STREAM;
        if id.at > stream.last || is_gap {
            return Err(Lost::Unknown);
        }
        if matches!(stream.end, End::Over) && stream.after(id.at).is_none() {
            return Err(Lost::Over);
        }
        let turn = stream.pass_on();
        drop(streams);
        Ok(Reader::new(self, id.stream, turn, id.at, self.form()))
    }

    /// Drops events held for clients that did not resume in time.
    pub fn prune(&self) {
        self.streams.lock().prune(Instant::now());
    }
}

/// A connection's right to read a stream.
#[derive(Debug)]
pub struct Reader {
    session: Arc<Session>,
    number: u64,
    turn: u64,
    /// Number of the last event that was read.
    last: u64,
    form: Form,
    priming: bool,
}

impl Reader {
    fn new(session: &Arc<Session>, number: u64, turn: u64, last: u64, form: Form) -> Self {
        session.readers.fetch_add(1, Ordering::Relaxed);
        Self {
            session: session.clone(),
            number,
            turn,
            last,
            form,
            priming: form == Form::Primed,
        }
    }

    /// The next event in wire format, or `None` once the stream has ended or has another reader.
    pub fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if mem::take(&mut self.priming) {
            let id = EventId {
                stream: self.number,
                at: self.last,
            };
            return Poll::Ready(Some(sse::priming(&id.to_string(), RETRY_MS)));
        }
        let mut streams = self.session.streams.lock();
        let stream = streams.get(self.number);
        let Some(stream) = stream.filter(|stream| stream.turn == self.turn) else {
            return Poll::Ready(None);
        };
        if let Some(sent) = stream.after(self.last) {
            self.last = sent.at;
            return Poll::Ready(Some(sent.event.clone()));
        }
        let message = match stream.outbox.poll_next(cx) {
            Poll::Ready(Some(message)) => Some(message),
            Poll::Ready(None) if self.number == OWN_STREAM => return Poll::Ready(None),
            Poll::Ready(None) | Poll::Pending => match mem::replace(&mut stream.end, End::Over) {
                End::Open => {
                    stream.end = End::Open;
                    stream.reader = Some(cx.waker().clone());
                    return Poll::Pending;
                }
                End::Answer { text, .. } => Some((Weight::Must, text)),
                End::Over => None,
            },
        };
        let Some((weight, message)) = message else {
            return Poll::Ready(None);
        };
        if self.form == Form::Bare {
            drop(streams);
            return Poll::Ready(Some(sse::encode(Some("message"), None, &message)));
        }
        self.last = stream.last + 1;
        Poll::Ready(streams.number(self.number, weight, &message))
    }

    /// The next event in wire format, or `None` once the stream has ended or has another reader.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn next(&mut self) -> Option<Bytes> {
        poll_fn(|cx| self.poll_event(cx)).await
    }

    #[must_use]
    pub fn session(&self) -> &Arc<Session> {
        &self.session
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.session.streams.lock().left(self.number, self.turn);
        self.session.readers.fetch_sub(1, Ordering::Relaxed);
        self.session.touch();
    }
}

/// The sending side of a request's stream. Dropping it ends the stream without a response.
pub struct Answerer {
    session: Arc<Session>,
    number: u64,
}

impl Answerer {
    /// Ends the stream, with or without a response.
    pub fn answer(self, answer: Option<Bytes>) {
        self.end(answer);
    }

    fn end(&self, answer: Option<Bytes>) {
        let mut streams = self.session.streams.lock();
        let Some(stream) = streams.get(self.number) else {
            return;
        };
        if !matches!(stream.end, End::Open) {
            return;
        }
        stream.end = match answer {
            Some(text) => {
                let account = self.session.account();
                End::Answer {
                    _charge: account.map(|account| Charge::new(account, text.len())),
                    text,
                }
            }
            None => End::Over,
        };
        stream.answerer = None;
        if let Some(reader) = stream.reader.take() {
            reader.wake();
        }
        if stream.unread.is_some() {
            streams.settle(self.number);
        }
        drop(streams);
        if let Some(account) = self.session.account() {
            account.backlog().settle();
        }
    }

    /// Waits until the stream has had no reader for longer than the grace period.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn abandoned(&self) {
        let mut over = pin!(sleep(ABANDON_GRACE));
        let mut armed = None;
        poll_fn(|cx| {
            let since = {
                let mut streams = self.session.streams.lock();
                let Some(stream) = streams.get(self.number) else {
                    return Poll::Ready(());
                };
                stream.answerer = Some(cx.waker().clone());
                stream.unread
            };
            let Some(since) = since else {
                return Poll::Pending;
            };
            if armed.replace(since) != Some(since) {
                over.as_mut().reset(since + ABANDON_GRACE);
            }
            ready!(over.as_mut().poll(cx));
            let mut streams = self.session.streams.lock();
            let unread = streams.get(self.number).and_then(|stream| stream.unread);
            if unread == Some(since) {
                streams.forget(self.number);
            } else {
                // A reader resumed at the last moment.
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            Poll::Ready(())
        })
        .await;
    }
}

impl Drop for Answerer {
    fn drop(&mut self) {
        self.end(None);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;
    use crate::{
        outbox::Bounds,
        server::{
            ClientInfo,
            replay::{MAX_HELD_BYTES, MAX_HOLD_TIME, MAX_SESSION_HELD_BYTES, MAX_UNREAD},
        },
    };

    const BOUNDS: Bounds = Bounds {
        messages: 1000,
        bytes: 64 << 20,
    };

    fn session(version: Version) -> Arc<Session> {
        let session = Session::new("somebody".into(), BOUNDS);
        session.introduce(ClientInfo {
            version,
            info: Bytes::new(),
            capabilities: Bytes::new(),
            is_gateway: false,
        });
        session
    }

    /// A call's stream with its outbox, after its priming event was read.
    fn stream(session: &Arc<Session>) -> (Arc<Outbox>, Answerer, Reader) {
        let outbox = Outbox::new(BOUNDS);
        let (answerer, mut reader) = session.open_stream(outbox.clone());
        assert!(read(&mut reader)[0].contains("retry: "));
        (outbox, answerer, reader)
    }

    /// The events that can be read without waiting.
    fn read(reader: &mut Reader) -> Vec<String> {
        std::iter::from_fn(|| reader.next().now_or_never().flatten())
            .map(|event| String::from_utf8_lossy(&event).into_owned())
            .collect()
    }

    fn long(length: usize) -> Bytes {
        "x".repeat(length).into()
    }

    fn held(session: &Session) -> usize {
        session.streams.lock().held()
    }

    /// Notifications are dropped first. Only a client that missed a [`Weight::Must`] event gets an error.
    #[tokio::test]
    async fn a_client_is_told_of_what_had_to_arrive_and_did_not() {
        let session = session(Version::V2025_11_25);
        let (outbox, answerer, mut reader) = stream(&session);
        outbox.push(Weight::Notification, long(MAX_HELD_BYTES / 2));
        outbox.push(Weight::Must, long(MAX_HELD_BYTES / 3));
        outbox.push(Weight::Notification, long(MAX_HELD_BYTES / 3));
        outbox.push(Weight::Must, long(MAX_HELD_BYTES / 3));
        assert_eq!(read(&mut reader).len(), 4);
        let mut again = session.resume("1-0").expect("held");
        let events = read(&mut again);
        let ids: Vec<&str> = events
            .iter()
            .filter_map(|event| event.split('\n').nth(1))
            .collect();
        assert_eq!(ids[1..], ["id: 1-2", "id: 1-4"]);
        outbox.push(Weight::Must, long(MAX_HELD_BYTES / 2));
        assert_eq!(read(&mut again).len(), 1);
        assert_eq!(session.resume("1-1").err(), Some(Lost::Unknown));
        assert_eq!(read(&mut session.resume("1-2").expect("held")).len(), 3);
        answerer.answer(None);
    }

    /// One event may exceed the limit of a stream, but not the limit of the session.
    #[tokio::test]
    async fn a_session_holds_no_more_than_it_may() {
        let session = session(Version::V2025_11_25);
        let mut calls = Vec::new();
        for _ in 0..12 {
            let (outbox, answerer, mut reader) = stream(&session);
            outbox.push(Weight::Must, long(MAX_HELD_BYTES - 100));
            assert_eq!(read(&mut reader).len(), 1);
            assert!(held(&session) <= MAX_SESSION_HELD_BYTES);
            calls.push((answerer, reader));
        }
        // The first streams belong to running calls, so their events are kept, and the latest stream lost its events.
        assert!(session.resume("1-0").is_ok());
        assert_eq!(session.resume("12-0").err(), Some(Lost::Unknown));
        for (answerer, reader) in calls {
            answerer.answer(Some(long(10)));
            drop(reader);
        }
        let (outbox, _answerer, mut reader) = stream(&session);
        outbox.push(Weight::Must, long(MAX_SESSION_HELD_BYTES / 2));
        assert_eq!(read(&mut reader).len(), 1);
        assert!(held(&session) <= MAX_SESSION_HELD_BYTES);
        assert!(session.resume("13-0").is_ok());
        assert_eq!(session.resume("2-0").err(), Some(Lost::Unknown));
        session.end();
        assert_eq!(held(&session), 0);
    }

    /// Held events are dropped when they expire.
    #[tokio::test]
    async fn what_is_held_has_its_time() {
        let session = session(Version::V2025_11_25);
        let mut own = session.listen(true);
        session.outbox().push(Weight::Signal, long(10));
        assert_eq!(read(&mut own).len(), 2);
        let (_outbox, answerer, reader) = stream(&session);
        drop(reader);
        answerer.answer(Some(long(10)));
        let now = Instant::now();
        session.streams.lock().prune(now);
        assert!(held(&session) > 20);
        assert!(session.resume("1-0").is_ok());
        session
            .streams
            .lock()
            .prune(now + MAX_HOLD_TIME + Duration::from_secs(1));
        assert_eq!(held(&session), 0);
        assert_eq!(session.resume("1-0").err(), Some(Lost::Unknown));
        assert!(session.resume("0-0").is_ok(), "it would be deaf");
    }

    /// The number of calls that wait for one client is limited.
    #[tokio::test]
    async fn few_calls_wait_for_a_client_that_is_away() {
        let session = session(Version::V2025_11_25);
        let mut calls = Vec::new();
        for _ in 0..=MAX_UNREAD {
            let (_outbox, answerer, reader) = stream(&session);
            drop(reader);
            calls.push(answerer);
        }
        let last = calls.pop().expect("some");
        assert!(last.abandoned().now_or_never().is_some());
        for call in calls {
            assert!(call.abandoned().now_or_never().is_none());
        }
    }
}
