//! Connects a pipe to the endpoint of the running gateway.
//!
//! Frames pass unchanged in both directions, with the ids of their senders. Each message shows its era: a legacy client
//! has one session, whose stream is kept open; a modern request is self-contained, and parts of it are mirrored into
//! headers. A cancelled request is cancelled at the gateway and gets no response.
//!
//! When the gateway is lost, each request in flight gets an error, since its outcome is unknown. Later requests wait a
//! while for the gateway to return. The end of the pipe ends the session and the requests in flight.
//!
//! There are limits for the number of requests in flight, the size of each message, and the queue of messages that the
//! client has not read ([`gateway::stdio::CLIENT_QUEUE_BOUNDS`]). Deliberately absent: an order between concurrent
//! requests, since each uses its own connection. Notifications and responses are sent in order, each one before the
//! next is read.

use crate::stdio::params::modern_headers;
use std::{future::Future, pin::pin, sync::Arc, time::Duration};

use bytes::Bytes;
use mcp::{
    Frame, Kind, RpcError, bridge,
    client::http::{HeaderList, Passage, PassageError, Reply},
    error,
    frame::Param,
    json,
    lines::{Head, Line, LineReader},
    outbox::Outbox,
    protocol::{meta, method},
};
use parking_lot::Mutex;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    link::{Finder, Life, Link, MAX_DEPTH, message, said},
    params::Params,
};
use gateway::stdio::{CLIENT_QUEUE_BOUNDS, DRAIN_TIMEOUT, write};

/// Maximum requests in flight. Each may use the memory of one message.
const MAX_IN_FLIGHT: usize = 256;
/// Delay before a request that was not sent is retried.
const RETRY_DELAY: Duration = Duration::from_millis(100);
/// Timeout for the end of a stream after its response. Reaching the end allows the connection to be reused.
const STREAM_END_TIMEOUT: Duration = Duration::from_secs(1);

/// Forwards messages until the client closes its end or stops reading, or until `ended`.
///
/// # Errors
/// If the gateway does not have the requested project or server.
pub(super) async fn run<T>(
    finder: Finder,
    passage: Passage,
    ended: impl Future<Output = T>,
) -> anyhow::Result<()> {
    let max_message = finder.max_message;
    let outbox = Outbox::new(CLIENT_QUEUE_BOUNDS);
    let link = Arc::new(Link::new(finder, passage, outbox.clone()));
    link.check().await?;
    tracing::info!("connected to the running gateway");
    let mut pipe = Pipe {
        shared: Arc::new(Shared {
            link: link.clone(),
            params: Params::default(),
            flights: Mutex::default(),
        }),
        requests: JoinSet::new(),
    };
    let reading = async {
        pipe.read(tokio::io::stdin(), max_message).await;
        let finished = async { while pipe.requests.join_next().await.is_some() {} };
        let _ = timeout(DRAIN_TIMEOUT, finished).await;
        pipe.requests.abort_all();
        link.end().await;
        outbox.close();
        // The writer ends once everything is written. If the client reads nothing, the writer never ends, so this wait
        // is limited.
        sleep(DRAIN_TIMEOUT).await;
    };
    tokio::select! {
        () = write(&outbox, tokio::io::stdout()) => {}
        () = reading => return Ok(()),
        () = link.keep() => {}
        () = link.listen() => {}
        // The writer waits for the client indefinitely.
        () = link.stuck.cancelled() => tracing::error!("the client has stopped reading: ending the session"),
        _ = ended => {}
    }
    link.end().await;
    Ok(())
}

struct Shared {
    link: Arc<Link>,
    params: Params,
    flights: Mutex<Vec<Flight>>,
}

struct Flight {
    /// The request's id, as JSON text.
    id: Bytes,
    is_modern: bool,
    /// Set when the request was cancelled and must not be answered any more.
    muted: CancellationToken,
    /// Set once the gateway knows of the cancellation, or the request has ended.
    over: CancellationToken,
}

struct Pipe {
    shared: Arc<Shared>,
    requests: JoinSet<()>,
}

impl Pipe {
    async fn read(&mut self, input: impl tokio::io::AsyncRead + Unpin, max_message: usize) {
        let mut lines = LineReader::new(input, max_message);
        loop {
            let text = tokio::select! {
                line = lines.next() => match line {
                    Ok(Some(Line::Text(text))) => text,
                    Ok(Some(Line::TooLong { head })) => {
                        let what = format!(
                            "the message is larger than {max_message} bytes (`[limits] max_body_bytes`)"
                        );
                        let error = RpcError::new(error::INVALID_REQUEST, what);
                        self.shared.refuse(Head::of(&head).id.unwrap_or_default(), &error);
                        continue;
                    }
                    Ok(None) | Err(_) => return,
                },
                Some(_) = self.requests.join_next(), if !self.requests.is_empty() => continue,
            };
            match Frame::parse(text, MAX_DEPTH) {
                Ok(frame) => self.take(frame).await,
                Err(invalid) if invalid.response => {}
                Err(invalid) => {
                    let id = invalid.id.clone().unwrap_or_default();
                    self.shared.refuse(&id, &invalid.to_rpc());
                }
            }
        }
    }

    async fn take(&mut self, frame: Frame) {
        let shared = &self.shared;
        let is_modern = frame
            .meta()
            .is_some_and(|own| own.find(meta::PROTOCOL_VERSION).is_some());
        match frame.kind() {
            Kind::Notification if frame.method() == method::CANCELLED => {
                shared.cancel(&frame).await;
            }
            Kind::Notification if is_modern => {
                if let Ok(headers) = modern_headers(&frame) {
                    shared.link.tell(headers, &frame, false).await;
                }
            }
            Kind::Notification | Kind::Result | Kind::Error => {
                shared.link.tell(HeaderList::new(), &frame, true).await;
            }
            Kind::Request if is_modern => self.start(frame, true),
            Kind::Request if frame.method() == method::INITIALIZE => {
                match shared.link.initialize(&frame).await {
                    Ok(answer) => shared.answer(&frame, &answer),
                    Err(why) => shared.refuse(frame.id(), &RpcError::internal(why)),
                }
            }
            Kind::Request if frame.method() == method::DISCOVER => {
                // A `server/discover` without `_meta` is malformed, not a legacy request.
                if let Err(error) = bridge::modern_face(&frame) {
                    shared.refuse(frame.id(), &error);
                }
            }
            Kind::Request => {
                let is_new = shared.link.now().is_some_and(|life| !life.has_session());
                if is_new && frame.method() == method::PING {
                    // A ping is allowed before the handshake, when no session exists yet.
                    shared.link.deliver(&Frame::result(frame.id(), b"{}"));
                    return;
                }
                shared.link.remember(&frame);
                self.start(frame, false);
            }
        }
    }

    fn start(&mut self, frame: Frame, is_modern: bool) {
        let (muted, over) = (CancellationToken::new(), CancellationToken::new());
        let is_full = {
            let mut flights = self.shared.flights.lock();
            let is_full = flights.len() >= MAX_IN_FLIGHT;
            if !is_full {
                flights.push(Flight {
                    id: Bytes::copy_from_slice(frame.id()),
                    is_modern,
                    muted: muted.clone(),
                    over: over.clone(),
                });
            }
            is_full
        };
        if is_full {
            let what = format!(
                "{MAX_IN_FLIGHT} requests of this client are already in flight: wait for one to end"
            );
            self.shared.refuse(frame.id(), &RpcError::internal(what));
            return;
        }
        let landing = Landing {
            shared: self.shared.clone(),
            muted,
            over: over.clone(),
        };
        self.requests.spawn(async move {
            let mut request = pin!(landing.shared.request(&frame, is_modern));
            tokio::select! {
                biased;
                () = landing.muted.cancelled() => {}
                () = &mut request => return,
            }
            // The response is no longer needed. Dropping the request midway closes its connection.
            over.cancelled().await;
        });
    }
}

/// Removes a request from the list of those in flight, however it ends.
struct Landing {
    shared: Arc<Shared>,
    muted: CancellationToken,
    over: CancellationToken,
}

impl Drop for Landing {
    fn drop(&mut self) {
        self.over.cancel();
        let mut flights = self.shared.flights.lock();
        flights.retain(|flight| !flight.over.is_cancelled());
    }
}

/// The outcome of sending a request.
enum Sent {
    Answered,
    /// The gateway did not receive it.
    Not(String),
    /// The gateway may have received it.
    Lost(String),
    /// Headers are missing that only the tool's definition names.
    Headers(Frame),
}

impl Shared {
    fn refuse(&self, id: &[u8], error: &RpcError) {
        self.link.deliver(&Frame::error(id, error));
    }

    /// Sends the client the response to its request. An error that the gateway sent before it knew the id gets the
    /// request's id.
    fn answer(&self, request: &Frame, answer: &Frame) {
        if matches!(answer.id(), b"" | b"null") {
            self.refuse(request.id(), &RpcError::from_json(answer.body()));
        } else {
            self.link.deliver(answer);
        }
    }

    /// Cancels a request at the gateway: by a notification in the legacy era, by closing its connection in the modern
    /// one (2026-07-28 basic/transports/streamable-http "Cancellation").
    async fn cancel(&self, frame: &Frame) {
        let Some(id) = frame.param(Param::RequestId) else {
            return;
        };
        let id = &frame.text()[id];
        let (is_legacy, over) = {
            let flights = self.flights.lock();
            let own = flights.iter().filter(|flight| flight.id == id);
            let over: Vec<_> = own.clone().map(|own| own.over.clone()).collect();
            own.clone().for_each(|own| own.muted.cancel());
            (own.clone().any(|own| !own.is_modern), over)
        };
        if is_legacy {
            self.link.tell(HeaderList::new(), frame, true).await;
        }
        for over in over {
            over.cancel();
        }
    }

    /// Handles a request until its response.
    async fn request(&self, frame: &Frame, is_modern: bool) {
        let until = Link::patience();
        let mut has_learnt = false;
        let why = loop {
            let life = match self.link.up(until).await {
                Ok(life) => life,
                Err(why) => break format!("the gateway is unavailable: {why}"),
            };
            match self.send(&life, frame, is_modern).await {
                Sent::Answered => return,
                Sent::Not(why) => {
                    self.link.lose(&life, &why);
                    if Instant::now() >= until {
                        break format!("the gateway is unavailable: {why}");
                    }
                    sleep(RETRY_DELAY).await;
                }
                Sent::Lost(why) => {
                    break format!(
                        "the gateway did not respond, and the outcome of the request is unknown: {why}"
                    );
                }
                Sent::Headers(refusal) => {
                    if has_learnt || !self.params.learn(&life, frame).await {
                        return self.answer(frame, &refusal);
                    }
                    has_learnt = true;
                }
            }
        };
        self.refuse(frame.id(), &RpcError::internal(why));
    }

    async fn send(&self, life: &Arc<Life>, frame: &Frame, is_modern: bool) -> Sent {
        let mut headers = HeaderList::new();
        if is_modern {
            match modern_headers(frame) {
                Ok(own) => headers = own,
                Err(error) => {
                    self.refuse(frame.id(), &error);
                    return Sent::Answered;
                }
            }
            if frame.method() == method::TOOLS_CALL {
                headers.extend(self.params.of(frame));
            }
        }
        match life.post(headers, frame.text().clone(), !is_modern).await {
            Ok(reply) if reply.is_stream() => self.stream(frame, reply).await,
            Ok(reply) => self.whole(life, frame, is_modern, reply).await,
            Err(PassageError::NotSent(why)) => Sent::Not(why),
            Err(error) => Sent::Lost(error.to_string()),
        }
    }

    /// Forwards the messages of the request, then its response.
    async fn stream(&self, frame: &Frame, mut reply: Reply) -> Sent {
        loop {
            match reply.event().await {
                Ok(Some(event)) => {
                    let Some(message) = message(&event) else {
                        continue;
                    };
                    if message.is_response() && same_id(message.id(), frame.id()) {
                        self.link.deliver(&message);
                        let _ = timeout(STREAM_END_TIMEOUT, reply.event()).await;
                        return Sent::Answered;
                    }
                    self.link.deliver(&message);
                }
                Ok(None) => return Sent::Lost("the gateway's response ended early".to_owned()),
                Err(error @ PassageError::TooLong(_)) => {
                    self.refuse(frame.id(), &RpcError::internal(error.to_string()));
                    return Sent::Answered;
                }
                Err(error) => return Sent::Lost(error.to_string()),
            }
        }
    }

    async fn whole(&self, life: &Arc<Life>, frame: &Frame, is_modern: bool, reply: Reply) -> Sent {
        let status = reply.status;
        let text = match reply.whole().await {
            Ok(text) => text,
            Err(error @ PassageError::TooLong(_)) => {
                self.refuse(frame.id(), &RpcError::internal(error.to_string()));
                return Sent::Answered;
            }
            Err(error) => return Sent::Lost(error.to_string()),
        };
        let answer = Frame::parse(text.clone(), MAX_DEPTH).ok();
        let answer = answer.filter(Frame::is_response);
        let has_id = answer
            .as_ref()
            .is_some_and(|answer| !answer.id().is_empty());
        if !is_modern && life.has_session() && status == http::StatusCode::NOT_FOUND && !has_id {
            return Sent::Not("the gateway no longer knows this session".to_owned());
        }
        match answer {
            Some(answer) => {
                let is_refused = is_modern
                    && frame.method() == method::TOOLS_CALL
                    && answer.kind() == Kind::Error
                    && RpcError::from_json(answer.body()).code == error::HEADER_MISMATCH;
                if is_refused {
                    return Sent::Headers(answer);
                }
                self.answer(frame, &answer);
            }
            None => self.refuse(frame.id(), &RpcError::internal(said(status, &text))),
        }
        Sent::Answered
    }
}

/// Returns true if two JSON texts are the same id.
fn same_id(one: &[u8], other: &[u8]) -> bool {
    one == other
        || json::as_string(one)
            .zip(json::as_string(other))
            .is_some_and(|(one, other)| one == other)
}
