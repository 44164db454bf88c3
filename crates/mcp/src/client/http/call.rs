//! One request over streamable HTTP: its response, or the stream that brings it.
//!
//! A legacy stream that breaks off before the response is taken up again where its events had ids
//! (2025-11-25 basic/transports "Resumability and Redelivery"); a modern one is not.

use std::{future::poll_fn, pin::Pin, sync::Arc, task::Poll, time::Duration};

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, response::Parts};
use http_body_util::BodyExt;
use tokio::time::{Sleep, sleep};

use super::{
    super::{CallError, CallerId, Event, slot::Slot},
    body::{Media, media, status_hint},
    endpoint::SESSION_ID,
    link::{Core, HttpLink, cause},
    pool::{Answering, Body},
};
use crate::{
    Era, Frame, Kind, RpcError,
    frame::Invalid,
    gather::{Unread, Whole},
    json::{self, Splice},
    protocol::method,
    sse::{self, Parser},
};

/// Bytes that are read of an error that is no JSON.
const MAX_ERROR: usize = 16 * 1024;
/// What the bound of a message is called in the settings.
const BOUND: &str = " (`max_line_bytes`)";
/// Bytes of a session id.
const MAX_SESSION: usize = 1024;
/// Attempts in a row to take a stream up again that failed.
const MAX_FAILURES: u32 = 5;
/// Streams in a row, taken up again, that brought nothing.
const MAX_EMPTY: u32 = 100;
/// Wait before a stream is taken up again, where the server says none.
const RETRY: Duration = Duration::from_secs(1);
const MAX_RETRY: Duration = Duration::from_secs(3600);
const MAX_BACKOFF: Duration = Duration::from_secs(30);
/// How long an answer waits for log messages that its server sends beside it. Both are written at about the same time;
/// this is what the two streams may be apart.
const LINGER: Duration = Duration::from_millis(100);

/// A request in flight over streamable HTTP. Nothing is sent before [`HttpCall::next`] is polled.
pub struct HttpCall {
    link: HttpLink,
    exchange: Exchange,
    /// What belongs to the call and comes on the stream of the session.
    elsewhere: Arc<Slot>,
    /// How it ended, while something before that is still to be told.
    end: Option<Result<Event, CallError>>,
    linger: Linger,
}

struct Exchange {
    id: u64,
    stage: Stage,
    sent: bool,
    /// Of `initialize`, which is never cancelled (2025-11-25 basic/utilities/cancellation).
    handshake: bool,
    status: u16,
    session: Option<HeaderValue>,
    unreachable: bool,
    last_event: Option<String>,
    retry: Option<Duration>,
    failures: u32,
    empty: u32,
}

/// Whether an answer waits for log messages that come beside it.
enum Linger {
    No,
    /// It will.
    Asked,
    /// It does; and whether something came.
    Now(Pin<Box<Sleep>>, bool),
}

enum Stage {
    Asking(Answering),
    Json(Whole<Body>),
    Failing(Box<Parts>, Whole<Body>),
    Events(Body, Box<Parser>),
    Pausing(Pin<Box<Sleep>>),
    Resuming(Answering),
    Over,
}

impl HttpCall {
    pub(super) fn new(
        link: HttpLink,
        id: u64,
        caller: Option<CallerId>,
        asking: Answering,
    ) -> Self {
        Self {
            elsewhere: link.core().enter(id, caller),
            end: None,
            linger: Linger::No,
            link,
            exchange: Exchange {
                id,
                stage: Stage::Asking(asking),
                sent: false,
                handshake: false,
                status: 0,
                session: None,
                unreachable: false,
                last_event: None,
                retry: None,
                failures: 0,
                empty: 0,
            },
        }
    }

    /// Marks the call as the handshake: its answer may begin a session, and it is not cancelled.
    pub(super) fn handshake(mut self) -> Self {
        self.exchange.handshake = true;
        self
    }

    /// Has the answer wait a moment for log messages that may come beside it.
    pub(super) fn lingering(mut self) -> Self {
        self.linger = Linger::Asked;
        self
    }

    /// The status of the answer; 0 where there was none.
    pub(super) fn status(&self) -> u16 {
        self.exchange.status
    }

    /// The session that the answer began.
    pub(super) fn session(&self) -> Option<&HeaderValue> {
        self.exchange.session.as_ref()
    }

    /// Whether not even a connection could be made.
    pub(super) fn unreachable(&self) -> bool {
        self.exchange.unreachable
    }

    pub(in crate::client) fn id(&self) -> u64 {
        self.exchange.id
    }

    pub(in crate::client) async fn next(&mut self) -> Result<Event, CallError> {
        if self.end.is_none() {
            let event = self.advance().await;
            if matches!(event, Ok(Event::Notification(_) | Event::Request(_))) {
                return event;
            }
            let core = self.link.core();
            self.exchange.finish(core);
            self.linger = match self.linger {
                Linger::Asked if event.is_ok() && core.stream.may_log() => {
                    Linger::Now(Box::pin(sleep(LINGER)), false)
                }
                _ => Linger::No,
            };
            self.end = Some(event);
        }
        if let Some(event) = self.late_event().await {
            return Ok(event);
        }
        self.link.core().leave(self.exchange.id);
        self.elsewhere.close();
        // What was given to the call before it left goes before its end.
        if let Some(event) = self.elsewhere.take() {
            return Ok(event);
        }
        self.end
            .take()
            .unwrap_or_else(|| Err(CallError::Closed("the call is over".into())))
    }

    /// What comes beside the answer, as long as that waits for it.
    async fn late_event(&mut self) -> Option<Event> {
        let Linger::Now(pause, came) = &mut self.linger else {
            return None;
        };
        let elsewhere = &self.elsewhere;
        let event = poll_fn(|cx| match elsewhere.poll(cx) {
            Poll::Ready(event) => Poll::Ready(event.ok()),
            Poll::Pending => pause.as_mut().poll(cx).map(|()| None),
        })
        .await;
        *came |= event.is_some();
        if event.is_none() {
            if !*came {
                self.link.core().stream.was_silent();
            }
            self.linger = Linger::No;
        }
        event
    }

    async fn advance(&mut self) -> Result<Event, CallError> {
        let Self {
            link,
            exchange,
            elsewhere,
            ..
        } = self;
        let core = link.core();
        let mut next = std::pin::pin!(exchange.next(core));
        // By hand instead of `select!`: this is polled at every step of every call.
        poll_fn(|cx| match elsewhere.poll(cx) {
            Poll::Ready(event) => Poll::Ready(event),
            Poll::Pending => next.as_mut().poll(cx),
        })
        .await
    }
}

impl Drop for HttpCall {
    fn drop(&mut self) {
        let exchange = &self.exchange;
        self.link.core().leave(exchange.id);
        self.elsewhere.close();
        // Questions that came too late for this call still want an answer.
        while let Some(event) = self.elsewhere.take() {
            if let Event::Request(question) = event {
                self.link.core().refuse(&question);
            }
        }
        let unfinished = exchange.sent && !matches!(exchange.stage, Stage::Over);
        // To a modern server the closed stream says it (2026-07-28 streamable-http "Cancellation").
        if unfinished && !exchange.handshake && self.link.core().era == Era::Legacy {
            let params = format!("{{\"requestId\":{}}}", exchange.id);
            let cancelled = Frame::notification(method::CANCELLED, Some(params.as_bytes()));
            self.link.send_behind(cancelled);
        }
    }
}

impl Exchange {
    async fn next(&mut self, core: &Arc<Core>) -> Result<Event, CallError> {
        self.sent = true;
        loop {
            if let Some(event) = self.step(core).await? {
                return Ok(event);
            }
        }
    }

    /// Ends the call. A stream's connection is kept if its end is near.
    fn finish(&mut self, core: &Core) {
        if let Stage::Events(body, _) = std::mem::replace(&mut self.stage, Stage::Over) {
            core.drain(body);
        }
    }

    /// One event, or one stage further. Cancel safe: every stage keeps what it has.
    async fn step(&mut self, core: &Arc<Core>) -> Result<Option<Event>, CallError> {
        match &mut self.stage {
            Stage::Asking(answer) => match answer.await {
                Ok(response) => self.stage = self.answered(core, response)?,
                Err(error) => {
                    self.unreachable = error.is_connect();
                    return Err(core.broken(&error));
                }
            },
            Stage::Json(body) => {
                let text = body.read().await.map_err(|error| unread(core, &error))?;
                return self.whole(core, text).map(Some);
            }
            Stage::Failing(parts, body) => {
                let text = match body.read().await {
                    Ok(text) => text,
                    Err(_) => body.so_far(),
                };
                let (status, hint) = (parts.status, status_hint(parts.status, &parts.headers));
                return self.failed(core, status, hint, &text).map(Some);
            }
            Stage::Events(body, parser) => loop {
                let event = parser
                    .next_event()
                    .map_err(|error| CallError::Refused(format!("{error}{BOUND}").into()))?;
                if let Some(event) = event {
                    let event = self.event(core, event)?;
                    return Ok(event);
                }
                match body.frame().await {
                    Some(Ok(frame)) => {
                        if let Some(data) = frame.data_ref() {
                            parser.push(data.clone());
                        }
                    }
                    None => {
                        self.stage = self.broke_off(core, None)?;
                        break;
                    }
                    Some(Err(error)) => {
                        self.stage = self.broke_off(core, Some(cause(&error)))?;
                        break;
                    }
                }
            },
            Stage::Pausing(pause) => {
                pause.await;
                self.stage = Stage::Resuming(core.stream(self.last_event.as_deref()));
            }
            Stage::Resuming(answer) => {
                self.stage = match answer.await {
                    Ok(response) => self.resumed(core, response)?,
                    Err(error) => {
                        self.failures += 1;
                        self.broke_off(core, Some(cause(&error)))?
                    }
                };
            }
            Stage::Over => return Err(CallError::Closed("the call is over".into())),
        }
        Ok(None)
    }

    /// The head of the answer is here.
    fn answered(&mut self, core: &Core, response: Response<Body>) -> Result<Stage, CallError> {
        let status = response.status();
        self.status = status.as_u16();
        if !status.is_success() {
            let (parts, body) = response.into_parts();
            let max = match media(&parts.headers) {
                Media::Json | Media::Unknown => core.max_message,
                Media::Events | Media::Other => MAX_ERROR.min(core.max_message),
            };
            return Ok(Stage::Failing(Box::new(parts), Whole::new(body, max)));
        }
        if self.handshake && core.era == Era::Legacy {
            self.session = session(response.headers())?;
        }
        let media = media(response.headers());
        if matches!(status, StatusCode::ACCEPTED | StatusCode::NO_CONTENT) && media != Media::Events
        {
            let text = format!("HTTP {} instead of an answer", status.as_u16());
            return Err(CallError::Refused(text.into()));
        }
        match media {
            Media::Json | Media::Unknown => Ok(Stage::Json(
                Whole::new(response.into_body(), core.max_message).in_one_place(),
            )),
            Media::Events => Ok(events(core, response.into_body())),
            Media::Other => Err(CallError::Refused(
                "it is neither JSON nor an event stream".into(),
            )),
        }
    }

    /// A whole JSON answer.
    fn whole(&self, core: &Core, text: Bytes) -> Result<Event, CallError> {
        if text.is_empty() {
            return Err(CallError::Refused("it is empty".into()));
        }
        let frame = Frame::parse(text, core.max_depth).map_err(|invalid| refused(&invalid))?;
        if !frame.is_response() {
            return Err(CallError::Refused("it is no response".into()));
        }
        match self.ours(core, frame, false) {
            Ok(frame) => Ok(Event::Response(frame)),
            Err(frame) => {
                core.stray("an answer with another id");
                let id = String::from_utf8_lossy(&frame.id()[..frame.id().len().min(40)]);
                let text = format!("it carries the id {id} instead of {}", self.id);
                Err(CallError::Refused(text.into()))
            }
        }
    }

    /// An answer with a status that says no.
    fn failed(
        &self,
        core: &Core,
        status: StatusCode,
        hint: Option<String>,
        text: &Bytes,
    ) -> Result<Event, CallError> {
        let looks_json = text.trim_ascii_start().first() == Some(&b'{');
        let frame = looks_json
            .then(|| Frame::parse(text.clone(), core.max_depth).ok())
            .flatten()
            .filter(|frame| frame.kind() == Kind::Error);
        let error = frame
            .as_ref()
            .map(|frame| RpcError::from_json(frame.body()));
        if core.is_misdirected(status) {
            return Err(core.expired());
        }
        if core.has_session() && forgot_session(status, error.as_ref()) {
            return Err(core.expired());
        }
        if let Some(frame) = frame
            && status != StatusCode::UNAUTHORIZED
            && let Ok(frame) = self.ours(core, frame, true)
        {
            return Ok(Event::Response(frame));
        }
        let detail = hint.unwrap_or_else(|| {
            let text = match &error {
                Some(error) => core.endpoint.excerpt(error.message.as_bytes()),
                None => core.endpoint.excerpt(text),
            };
            if text.is_empty() {
                text
            } else {
                format!(": {text}")
            }
        });
        Err(CallError::Http {
            status: status.as_u16(),
            detail: detail.into(),
        })
    }

    /// The response under our id, or what came if it is none of ours.
    ///
    /// An error without an id, or with a null one, answers what it came back for. So does one with a string
    /// for an id (`any_string`) where the status says no: we never give such ids, and servers send them.
    fn ours(&self, core: &Core, frame: Frame, any_string: bool) -> Result<Frame, Box<Frame>> {
        if frame.numeric_id() == Some(self.id) {
            return Ok(frame);
        }
        let nobodys = match frame.id() {
            b"" | b"null" => true,
            [b'"', ..] => any_string,
            _ => false,
        };
        if frame.kind() != Kind::Error || !nobodys {
            return Err(Box::new(frame));
        }
        let text = if frame.id().is_empty() {
            let object = json::trimmed(frame.text());
            let mut splice = Splice::new();
            splice.insert(
                frame.text(),
                &object,
                format!("\"id\":{}", self.id).as_bytes(),
            );
            splice.apply(frame.text())
        } else {
            frame.rewritten(self.id.to_string().as_bytes(), Splice::new())
        };
        Frame::parse(text, core.max_depth).map_err(|_| Box::new(frame))
    }

    /// One event of a stream.
    fn event(&mut self, core: &Arc<Core>, event: sse::Event) -> Result<Option<Event>, CallError> {
        if core.era == Era::Legacy {
            if event.id.is_some() && event.id != self.last_event {
                self.last_event = event.id;
                self.empty = 0;
            }
            if let Some(retry) = event.retry {
                self.retry = Some(Duration::from_millis(retry).min(MAX_RETRY));
            }
        }
        if event.data.is_empty() || !matches!(&*event.event, "" | "message") {
            return Ok(None);
        }
        let frame = match Frame::parse(event.data, core.max_depth) {
            Ok(frame) => frame,
            Err(invalid) => {
                let ours = self.id.to_string();
                if invalid.response && invalid.id.as_deref() == Some(ours.as_bytes()) {
                    return Err(refused(&invalid));
                }
                core.stray("an event that is no message");
                return Ok(None);
            }
        };
        match frame.kind() {
            Kind::Notification => return Ok(Some(Event::Notification(frame))),
            Kind::Request if frame.method() == method::PING => core.answer_ping(&frame),
            Kind::Request if core.era == Era::Legacy => return Ok(Some(Event::Request(frame))),
            // 2026-07-28 streamable-http "Receiving Messages": there are none in this era.
            Kind::Request => core.stray("a request, which this protocol version has not"),
            Kind::Result | Kind::Error => match self.ours(core, frame, false) {
                Ok(frame) => return Ok(Some(Event::Response(frame))),
                Err(_) => core.stray("an answer with another id"),
            },
        }
        Ok(None)
    }

    /// The stream ended before the response.
    fn broke_off(&mut self, core: &Core, why: Option<String>) -> Result<Stage, CallError> {
        self.empty += 1;
        let resumable = core.era == Era::Legacy && self.last_event.is_some();
        if !resumable || self.failures > MAX_FAILURES || self.empty > MAX_EMPTY {
            let why = why.map(|why| format!(": {why}")).unwrap_or_default();
            return Err(CallError::Closed(
                format!("the response stream ended early{why}").into(),
            ));
        }
        let retry = self.retry.unwrap_or(RETRY);
        let backoff = retry * 2u32.pow(self.failures.min(8));
        let pause = if self.failures == 0 {
            retry
        } else {
            backoff.clamp(retry, MAX_BACKOFF.max(retry))
        };
        Ok(Stage::Pausing(Box::pin(sleep(pause))))
    }

    /// The head of the answer to taking a stream up again.
    fn resumed(&mut self, core: &Core, response: Response<Body>) -> Result<Stage, CallError> {
        let status = response.status();
        if status.is_success() && media(response.headers()) == Media::Events {
            self.failures = 0;
            return Ok(events(core, response.into_body()));
        }
        let why = format!("taking it up again was answered HTTP {}", status.as_u16());
        if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS {
            self.failures += 1;
            return self.broke_off(core, Some(why));
        }
        if status == StatusCode::NOT_FOUND && core.has_session() {
            // The request did reach the server: whoever called must not take this for a safe retry.
            core.expired();
        }
        Err(CallError::Closed(
            format!("the response stream ended early: {why}").into(),
        ))
    }
}

fn events(core: &Core, body: Body) -> Stage {
    Stage::Events(body, Box::new(Parser::new(core.max_message)))
}

fn refused(invalid: &Invalid) -> CallError {
    CallError::Refused(invalid.to_string().into())
}

fn unread(core: &Core, error: &Unread<hyper::Error>) -> CallError {
    match error {
        Unread::TooLong => CallError::Refused(
            format!("it is longer than {} bytes{BOUND}", core.max_message).into(),
        ),
        Unread::Broken(error) => {
            CallError::Closed(format!("the answer broke off: {}", cause(error)).into())
        }
    }
}

/// `Mcp-Session-Id`: visible ASCII (2025-11-25 basic/transports "Session Management").
fn session(headers: &http::HeaderMap) -> Result<Option<HeaderValue>, CallError> {
    let Some(id) = headers.get(SESSION_ID) else {
        return Ok(None);
    };
    let visible = id.as_bytes().iter().all(u8::is_ascii_graphic);
    if id.is_empty() || id.len() > MAX_SESSION || !visible {
        return Err(CallError::Refused(
            "its session id is not acceptable".into(),
        ));
    }
    let mut id = id.clone();
    id.set_sensitive(true);
    Ok(Some(id))
}

/// Whether an answer means that the session is no longer known.
///
/// 404 says so by the specification, unless it says that the method is unknown. Servers built on a widespread
/// example say it with 400 and a message about a session id.
fn forgot_session(status: StatusCode, error: Option<&RpcError>) -> bool {
    match (status, error) {
        (StatusCode::NOT_FOUND, Some(error)) => error.code != crate::error::METHOD_NOT_FOUND,
        (StatusCode::NOT_FOUND, None) => true,
        (StatusCode::BAD_REQUEST, Some(error)) => {
            error.code == -32000 && error.message.to_ascii_lowercase().contains("session id")
        }
        _ => false,
    }
}
