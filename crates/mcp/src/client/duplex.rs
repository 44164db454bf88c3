//! A link with one channel for everything: stdio, and HTTP+SSE.
//!
//! The owner of the channel passes incoming messages to [`Duplex::deliver`] and drains the outbound queue. Calls wait
//! in a table by id. A server request or log message goes to the only caller with calls in flight; with several callers
//! it goes to [`super::Ambient`].
//!
//! Invariant: every request from the server reaches a caller that answers it, or is answered by this module.

use std::{
    collections::HashMap,
    future::poll_fn,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::mpsc::{self, error::TrySendError};
use tokio_util::sync::CancellationToken;

use super::{
    CallError, CallerId, Event, Outgoing,
    printed::Printed,
    slot::Slot,
    whose::{Whose, newest_of_each, too_many, whose},
};
use crate::{
    Frame, Kind,
    frame::{Invalid, Reason},
    json::excerpt,
    lenient,
    lines::Head,
    protocol::{meta, method},
};

/// The first ids of a link are those of the handshake: `initialize`, then `server/discover`.
const HANDSHAKE_REQUESTS: u64 = 2;
/// Capacity of the outbound queue. Senders wait when it is full.
const MAX_OUTBOUND_MESSAGES: usize = 1024;

#[derive(Clone)]
pub(crate) struct Duplex {
    shared: Arc<Shared>,
}

struct Shared {
    calls: Mutex<HashMap<u64, Entry>>,
    next_id: AtomicU64,
    outbound: mpsc::Sender<Bytes>,
    ambient: mpsc::Sender<Event>,
    stray: AtomicU64,
    over: CancellationToken,
    why: OnceLock<Arc<str>>,
    max_depth: usize,
    label: Arc<str>,
    printed: Printed,
}

struct Entry {
    slot: Arc<Slot>,
    caller: Option<CallerId>,
}

impl Duplex {
    /// Creates a channel, and the queue that its owner has to write out.
    pub(crate) fn new(
        label: Arc<str>,
        max_depth: usize,
        ambient: mpsc::Sender<Event>,
    ) -> (Self, mpsc::Receiver<Bytes>) {
        let (outbound, queue) = mpsc::channel(MAX_OUTBOUND_MESSAGES);
        let shared = Shared {
            calls: Mutex::default(),
            next_id: AtomicU64::new(1),
            outbound,
            ambient,
            stray: AtomicU64::new(0),
            over: CancellationToken::new(),
            why: OnceLock::new(),
            max_depth,
            label,
            printed: Printed::default(),
        };
        (
            Self {
                shared: Arc::new(shared),
            },
            queue,
        )
    }

    pub(crate) async fn call(&self, outgoing: Outgoing<'_>) -> Result<DuplexCall, CallError> {
        let id = self.shared.next_id.fetch_add(1, Ordering::Relaxed);
        let slot = Slot::new();
        let caller = outgoing.caller;
        self.shared.calls.lock().insert(
            id,
            Entry {
                slot: slot.clone(),
                caller,
            },
        );
        // Checked after the insert: `close` ends all calls that it finds in the table, so either this check or `close`
        // sees the call.
        let mut call = DuplexCall {
            link: self.clone(),
            id,
            slot,
            sent: false,
            over: false,
        };
        if self.shared.over.is_cancelled() {
            return Err(self.closed_error());
        }
        self.send(outgoing.text(id)).await?;
        call.sent = true;
        Ok(call)
    }

    pub(crate) async fn send(&self, text: Bytes) -> Result<(), CallError> {
        match self.shared.outbound.try_send(text) {
            Ok(()) => Ok(()),
            Err(TrySendError::Closed(_)) => Err(self.closed_error()),
            // Boxed, so that the usual case (room in the queue) does not carry this future's size.
            Err(TrySendError::Full(text)) => Box::pin(self.send_in_turn(text)).await,
        }
    }

    async fn send_in_turn(&self, text: Bytes) -> Result<(), CallError> {
        tokio::select! {
            biased;
            sent = self.shared.outbound.send(text) => sent.map_err(|_| self.closed_error()),
            () = self.shared.over.cancelled() => Err(self.closed_error()),
        }
    }

    /// Sends a message if the queue has room, without waiting. If the server does not read, the message is lost.
    pub(crate) fn send_behind(&self, frame: &Frame) {
        let _ = self.shared.outbound.try_send(frame.text().clone());
    }

    /// Handles one message from the server. Returns the part of the text that is no message and belongs to no call.
    pub(crate) fn deliver(&self, text: Bytes) -> Option<Bytes> {
        let max_depth = self.shared.max_depth;
        let invalid = match lenient::parse(text, max_depth, None) {
            Ok(frame) => {
                self.dispatch(frame);
                return None;
            }
            Err(invalid) => invalid,
        };
        if !invalid.response
            && let Some((before, frame)) = lenient::after_other_text(&invalid.text, max_depth)
        {
            self.garbage("text before a message on the same line", &before);
            self.dispatch(frame);
            return Some(before);
        }
        (!self.refuse(&invalid)).then_some(invalid.text)
    }

    /// Text other than messages that the server wrote.
    pub(crate) fn printed(&self) -> &Printed {
        &self.shared.printed
    }

    fn dispatch(&self, frame: Frame) {
        match frame.kind() {
            Kind::Result | Kind::Error => {
                let without_id = matches!(frame.id(), b"" | b"null");
                let id = match without_id {
                    true => self.only(),
                    false => frame.numeric_id(),
                };
                let entry = id.and_then(|id| Some((id, self.shared.calls.lock().remove(&id)?)));
                match entry {
                    Some((id, entry)) if without_id => entry.slot.end(Ok(frame.answering(id))),
                    Some((_, entry)) => entry.slot.end(Ok(frame)),
                    None => self.stray(&frame),
                }
            }
            Kind::Request if frame.method() == method::PING => {
                self.send_behind(&Frame::result(frame.id(), b"{}"));
            }
            Kind::Request => self.to_call_or_ambient(Event::Request(frame)),
            Kind::Notification => self.notification(frame),
        }
    }

    fn notification(&self, frame: Frame) {
        let token = match frame.method() {
            method::PROGRESS => frame
                .object()
                .and_then(|params| params.raw(meta::PROGRESS_TOKEN)),
            _ => frame
                .meta()
                .and_then(|meta| meta.raw(meta::SUBSCRIPTION_ID)),
        };
        if let Some(token) = token {
            let id = std::str::from_utf8(token)
                .ok()
                .and_then(|token| token.trim_matches('"').parse().ok());
            let slot = id.and_then(|id: u64| {
                self.shared
                    .calls
                    .lock()
                    .get(&id)
                    .map(|entry| entry.slot.clone())
            });
            if let Some(slot) = slot {
                // If the call is already over, the notification is dropped.
                let _ = slot.push(Event::Notification(frame));
            }
            return;
        }
        match frame.method() {
            method::MESSAGE | method::CANCELLED => {
                self.to_call_or_ambient(Event::Notification(frame))
            }
            _ => self.ambient(Event::Notification(frame)),
        }
    }

    /// Passes an event to a call if only one caller has calls in flight. Otherwise it is ambient.
    fn to_call_or_ambient(&self, event: Event) {
        let whose = {
            let calls = self.shared.calls.lock();
            whose(
                calls
                    .iter()
                    .map(|(id, entry)| (*id, entry.caller, &entry.slot)),
            )
        };
        match (whose, event) {
            (Whose::One(slot), event) => {
                if let Some(event) = slot.push(event) {
                    self.ambient(event);
                }
            }
            (Whose::Unclear, Event::Request(frame)) => self.ambient(Event::Unclear(frame)),
            (Whose::Unclear, Event::Notification(frame)) => self.to_each_caller(&frame),
            (_, event) => self.ambient(event),
        }
    }

    fn to_each_caller(&self, notification: &Frame) {
        let slots = {
            let calls = self.shared.calls.lock();
            newest_of_each(
                calls
                    .iter()
                    .map(|(id, entry)| (*id, entry.caller, &entry.slot)),
            )
        };
        for slot in slots {
            // If the call is already over, the notification is dropped.
            let _ = slot.push(Event::Notification(notification.clone()));
        }
    }

    fn ambient(&self, event: Event) {
        let Err(refused) = self.shared.ambient.try_send(event) else {
            return;
        };
        match refused.into_inner() {
            Event::Request(question) | Event::Unclear(question) => {
                self.send_behind(&too_many(&question));
            }
            _ => {
                tracing::debug!(server = %self.shared.label, "dropped a notification: too many are queued");
            }
        }
    }

    fn stray(&self, frame: &Frame) {
        self.shared.stray.fetch_add(1, Ordering::Relaxed);
        let id = String::from_utf8_lossy(&frame.id()[..frame.id().len().min(40)]).into_owned();
        let used = 1..self.shared.next_id.load(Ordering::Relaxed);
        if frame.numeric_id().is_none_or(|id| !used.contains(&id)) {
            // Not a late response, so it may be what a pending call waits for.
            self.shared.printed.add(frame.text());
        }
        tracing::debug!(server = %self.shared.label, id, "dropped a response that matches no pending call");
    }

    /// Handles text that is not a valid message. It ends the call whose id it carries, or the only call in flight if it
    /// is a response without a readable id. Returns false if it ends none.
    fn refuse(&self, invalid: &Invalid) -> bool {
        let what = format!("{invalid}: {}", excerpt(&invalid.text));
        let id = match &invalid.id {
            Some(id) => std::str::from_utf8(id).ok().and_then(|id| id.parse().ok()),
            // Without `jsonrpc`, it may be a line of a log in JSON.
            None if invalid.reason == Reason::Version => None,
            None => self.only(),
        };
        // A message with neither a method nor an outcome is a response too.
        let is_response = invalid.response || invalid.reason == Reason::Shape;
        let entry = match id {
            Some(id) if is_response => self.shared.calls.lock().remove(&id),
            _ => None,
        };
        let ends_one = entry.is_some();
        match entry {
            Some(entry) => entry.slot.end(Err(CallError::Refused(what.into()))),
            None => self.garbage(&invalid.to_string(), &invalid.text),
        }
        ends_one
    }

    /// Handles a message over the size limit. It ends the call that it answers: the one whose id is in the head, or the
    /// only call in flight if the head has no id.
    pub(crate) fn too_long(&self, max: usize, text: &[u8]) {
        let what = format!("it is longer than {max} bytes (`max_line_bytes`)");
        let id = match Head::of(text) {
            Head { method: true, .. } => None,
            Head { id: Some(id), .. } => {
                std::str::from_utf8(id).ok().and_then(|id| id.parse().ok())
            }
            Head { id: None, .. } => self.only(),
        };
        match id.and_then(|id: u64| self.shared.calls.lock().remove(&id)) {
            Some(entry) => entry.slot.end(Err(CallError::Refused(what.into()))),
            None => self.garbage(&what, text),
        }
    }

    /// The call in flight, if there is exactly one. Of the gateway's own requests, only those of the handshake count:
    /// others, such as subscription streams, are always in flight.
    fn only(&self) -> Option<u64> {
        let calls = self.shared.calls.lock();
        let of_callers = calls.iter().filter(|(_, entry)| entry.caller.is_some());
        let mut ids = of_callers.map(|(id, _)| *id);
        match (ids.next(), ids.next()) {
            (None, _) if calls.len() == 1 => {
                let first = calls.keys().next().copied();
                first.filter(|id| *id <= HANDSHAKE_REQUESTS)
            }
            (only, None) => only,
            _ => None,
        }
    }

    /// Counts and logs output that is not a message.
    fn garbage(&self, what: &str, text: &[u8]) {
        self.shared.printed.add(text);
        let count = self.shared.stray.fetch_add(1, Ordering::Relaxed);
        if count.is_power_of_two() || count == 0 {
            tracing::warn!(server = %self.shared.label, count = count + 1, "ignored output that is not a message: {what}");
        }
    }

    /// Ends a call that the server turned away because it no longer knows the session.
    pub(crate) fn turned_away(&self, id: u64) {
        if let Some(entry) = self.shared.calls.lock().remove(&id) {
            entry.slot.end(Err(CallError::SessionExpired));
        }
    }

    /// Closes the link: every call in flight fails with `why`. Later reasons are ignored.
    pub(crate) fn close(&self, why: &str) {
        let (why, interrupted) = self.shut(why);
        interrupted.end(why);
    }

    /// Closes the link for new calls. Returns the reason, and the calls in flight, which the caller has to end.
    pub(crate) fn shut(&self, why: &str) -> (Arc<str>, Interrupted) {
        let why = self.shared.why.get_or_init(|| why.into()).clone();
        self.shared.over.cancel();
        let mut calls = self.shared.calls.lock();
        let slots = calls.drain().map(|(_, entry)| entry.slot).collect();
        (why, Interrupted(slots))
    }

    pub(crate) async fn closed(&self) -> Arc<str> {
        self.shared.over.cancelled().await;
        self.shared.why.get().cloned().unwrap_or_default()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.shared.over.is_cancelled()
    }

    fn closed_error(&self) -> CallError {
        CallError::Closed(
            self.shared
                .why
                .get()
                .cloned()
                .unwrap_or_else(|| "the server is gone".into()),
        )
    }

    pub(crate) fn stray_answers(&self) -> u64 {
        self.shared.stray.load(Ordering::Relaxed)
    }
}

/// Calls that were in flight when their link was closed.
#[must_use]
pub(crate) struct Interrupted(Vec<Arc<Slot>>);

impl Interrupted {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn end(self, why: Arc<str>) {
        for slot in self.0 {
            slot.end(Err(CallError::Closed(why.clone())));
        }
    }
}

/// A request in flight on a [`Duplex`].
pub struct DuplexCall {
    link: Duplex,
    id: u64,
    slot: Arc<Slot>,
    sent: bool,
    over: bool,
}

impl DuplexCall {
    pub(super) fn id(&self) -> u64 {
        self.id
    }

    pub(super) async fn next(&mut self) -> Result<Event, CallError> {
        let event = poll_fn(|cx| self.slot.poll(cx)).await;
        self.over = matches!(event, Ok(Event::Response(_)) | Err(_));
        event
    }
}

impl Drop for DuplexCall {
    fn drop(&mut self) {
        if self.over {
            return;
        }
        let waiting = self.link.shared.calls.lock().remove(&self.id).is_some();
        // Server requests that arrived too late for this call still need a response.
        self.slot.close();
        while let Some(event) = self.slot.take() {
            if let Event::Request(_) = event {
                self.link.ambient(event);
            }
        }
        if waiting && self.sent {
            let params = format!("{{\"requestId\":{}}}", self.id);
            let cancelled = Frame::notification(method::CANCELLED, Some(params.as_bytes()));
            // A full queue means that the server does not read, so it would not see the cancellation either.
            let _ = self.link.shared.outbound.try_send(cancelled.text().clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use tokio::time::Instant;

    use super::*;

    const ASKED: &[u8] = br#"{"jsonrpc":"2.0","id":"q","method":"roots/list"}"#;

    struct World {
        link: Duplex,
        outbound: mpsc::Receiver<Bytes>,
        ambient: mpsc::Receiver<Event>,
    }

    fn world() -> World {
        let (to_ambient, ambient) = mpsc::channel(1);
        let (link, outbound) = Duplex::new("test".into(), 64, to_ambient);
        World {
            link,
            outbound,
            ambient,
        }
    }

    impl World {
        async fn call(&self, caller: Option<CallerId>) -> DuplexCall {
            let frame = Frame::request("0", "tools/call", None);
            let mut outgoing = Outgoing::new(&frame);
            outgoing.caller = caller;
            self.link.call(outgoing).await.expect("it is open")
        }
    }

    #[tokio::test]
    async fn a_question_goes_to_the_only_caller() {
        let [one, two] = [(); 2].map(|()| Some(CallerId::unique()));
        let same = || Some(CallerId::of("same"));
        for (callers, expect) in [
            (vec![], "nobody"),
            (vec![None], "nobody"),
            (vec![one], "the newest"),
            (vec![one, one, None], "the newest"),
            (vec![same(), same()], "the newest"),
            (vec![one, two], "unclear"),
            (vec![same(), one, one], "unclear"),
        ] {
            let mut world = world();
            let mut calls = Vec::new();
            for caller in &callers {
                calls.push(world.call(*caller).await);
            }
            world.link.deliver(Bytes::from_static(ASKED));
            let newest = callers.iter().rposition(Option::is_some);
            let asked = newest.and_then(|at| calls[at].next().now_or_never());
            let found = match (asked, world.ambient.try_recv()) {
                (Some(Ok(Event::Request(_))), Err(_)) => "the newest",
                (None, Ok(Event::Request(_))) => "nobody",
                (None, Ok(Event::Unclear(_))) => "unclear",
                other => panic!("{callers:?}: {other:?}"),
            };
            assert_eq!(found, expect, "{callers:?}");
        }
    }

    /// Delivers `text` while calls with the given callers are in flight, the first of them with the id 1. Returns what
    /// the last call got, and the text that belongs to no message.
    async fn delivered(callers: &[Option<CallerId>], text: &'static str) -> (String, String) {
        let world = world();
        let mut calls = Vec::new();
        for caller in callers {
            calls.push(world.call(*caller).await);
        }
        let other = world.link.deliver(Bytes::from_static(text.as_bytes()));
        let last = calls.last_mut().expect("a call");
        let got = match last.next().now_or_never() {
            Some(Ok(Event::Response(frame))) => String::from_utf8_lossy(frame.text()).into_owned(),
            Some(Err(error)) => error.to_string(),
            None => "nothing".to_owned(),
            Some(other) => panic!("{other:?}"),
        };
        let other = String::from_utf8_lossy(&other.unwrap_or_default()).into_owned();
        (got, other)
    }

    #[tokio::test]
    async fn responses_that_break_rules_reach_their_call() {
        let [one, two] = [(); 2].map(|()| Some(CallerId::unique()));
        let no = r#"{"jsonrpc":"2.0","id":1,"error":{"code":-1,"message":"no"}}"#;
        for (callers, text, expect, other) in [
            (
                &[one][..],
                r#"{"jsonrpc":"2.0","id":"1","result":{}}"#,
                r#"{"jsonrpc":"2.0","id":"1","result":{}}"#,
                "",
            ),
            (
                &[one],
                r#"{"id":1,"result":{}}"#,
                r#"{"jsonrpc":"2.0","id":1,"result":{}}"#,
                "",
            ),
            (
                &[one],
                r#"Hi! {"jsonrpc":"2.0","id":1,"result":{}}"#,
                r#"{"jsonrpc":"2.0","id":1,"result":{}}"#,
                "Hi! ",
            ),
            (
                &[one],
                r#"{"jsonrpc":"2.0","id":null,"error":{"code":-1,"message":"no"}}"#,
                no,
                "",
            ),
            (
                &[one],
                r#"{"jsonrpc":"2.0","error":{"code":-1,"message":"no"}}"#,
                no,
                "",
            ),
            // The handshake has no caller.
            (
                &[None],
                r#"{"jsonrpc":"2.0","error":{"code":-1,"message":"no"}}"#,
                no,
                "",
            ),
            (
                &[None, None],
                r#"{"jsonrpc":"2.0","error":{"code":-1,"message":"no"}}"#,
                "nothing",
                "",
            ),
            (
                &[one, two],
                r#"{"jsonrpc":"2.0","error":{"code":-1,"message":"no"}}"#,
                "nothing",
                "",
            ),
            // Refused at once, with what was received.
            (
                &[one],
                r#"{"jsonrpc":"2.0","id":1}"#,
                r#"the server's answer is invalid: a message needs `method`, or `id` with `result` or `error`: {"jsonrpc":"2.0","id":1}"#,
                "",
            ),
            (
                &[one],
                r#"{"jsonrpc":"2.0","result":{}}"#,
                r#"the server's answer is invalid: a message needs `method`, or `id` with `result` or `error`: {"jsonrpc":"2.0","result":{}}"#,
                "",
            ),
            (
                &[one],
                r#"{"jsonrpc":"2.0","id":[1],"result":{}}"#,
                r#"the server's answer is invalid: `id` must be a string or an integer: {"jsonrpc":"2.0","id":[1],"result":{}}"#,
                "",
            ),
            // Lines of a log.
            (
                &[one],
                r#"{"level":"error","error":"x"}"#,
                "nothing",
                r#"{"level":"error","error":"x"}"#,
            ),
            (&[one], "loading", "nothing", "loading"),
        ] {
            let found = delivered(callers, text).await;
            assert_eq!(found, (expect.to_owned(), other.to_owned()), "{text}");
        }
    }

    /// What could have been the response is named in the error of a call that times out.
    #[tokio::test]
    async fn what_else_was_written_is_kept() {
        let world = world();
        let start = Instant::now();
        let _calls = [
            world.call(Some(CallerId::unique())).await,
            world.call(Some(CallerId::unique())).await,
        ];
        for text in [
            r#"{"jsonrpc":"2.0","id":0,"result":{}}"#,
            r#"{"jsonrpc":"2.0","id":null,"error":{"code":1,"message":"x"}}"#,
            "loading",
        ] {
            world.link.deliver(Bytes::from_static(text.as_bytes()));
        }
        let expect = r#"`{"jsonrpc":"2.0","id":0,"result":{}}`, `{"jsonrpc":"2.0","id":null,"error":{"code":1,"message":"x"}}`, `loading`"#;
        assert_eq!(world.link.printed().since(start).as_deref(), Some(expect));
        // A late response says nothing about other calls.
        let call = world.call(Some(CallerId::unique())).await;
        let late = format!(r#"{{"jsonrpc":"2.0","id":{},"result":{{}}}}"#, call.id());
        drop(call);
        world.link.deliver(late.into());
        assert_eq!(world.link.printed().since(start).as_deref(), Some(expect));
    }

    /// A log message that could belong to several callers is sent to each of them once.
    #[tokio::test]
    async fn a_log_message_goes_to_each_caller() {
        let mut world = world();
        let [one, two] = [(); 2].map(|()| Some(CallerId::unique()));
        let mut calls = Vec::new();
        for caller in [one, two, two, None] {
            calls.push(world.call(caller).await);
        }
        let message = br#"{"jsonrpc":"2.0","method":"notifications/message","params":{}}"#;
        world.link.deliver(Bytes::from_static(message));
        let told: Vec<bool> = calls
            .iter_mut()
            .map(|call| call.next().now_or_never().is_some())
            .collect();
        assert_eq!(told, [true, false, true, false]);
        assert!(world.ambient.try_recv().is_err());
    }

    #[tokio::test]
    async fn every_question_gets_to_somebody() {
        let mut world = world();
        let call = world.call(Some(CallerId::unique())).await;
        world.link.deliver(Bytes::from_static(ASKED));
        drop(call);
        assert!(matches!(world.ambient.try_recv(), Ok(Event::Request(_))));
        // This drains the request and its cancellation.
        while world.outbound.try_recv().is_ok() {}
        // The second server request does not fit into the ambient queue and is refused by the link.
        world.link.deliver(Bytes::from_static(ASKED));
        world.link.deliver(Bytes::from_static(ASKED));
        let refusal = world.outbound.try_recv().expect("an answer");
        let refusal = Frame::parse(refusal, 64).expect("a frame");
        assert_eq!((refusal.kind(), refusal.id()), (Kind::Error, &b"\"q\""[..]));
    }
}
