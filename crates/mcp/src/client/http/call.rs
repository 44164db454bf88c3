//! One request over streamable HTTP, with its response or response stream.
//!
//! If a refusal names a lost session, the link is unusable. After other refusals that may concern the whole connection,
//! [`Core::check`] sends a ping; if the server refuses the ping as well, the link is also unusable. Only the caller
//! repeats the request, and only if no handler can have seen it, or if it is a list or a ping.
//!
//! A legacy stream that breaks off before the response is resumed if its events had ids (2025-11-25 basic/transports
//! "Resumability and Redelivery"). Modern streams are not resumed.

use std::{
    future::poll_fn,
    pin::Pin,
    sync::{Arc, atomic::Ordering},
    task::Poll,
    time::Duration,
};

use bytes::Bytes;
use http::{
    HeaderValue, Method, Response, StatusCode, Uri,
    header::{CONTENT_ENCODING, CONTENT_TYPE},
    response::Parts,
};
use http_body_util::BodyExt;
use tokio::time::{Sleep, sleep};

use super::{
    super::{CallError, CallerId, Event, Outgoing, slot::Slot},
    body::{Media, decoded, media, redirect, status_hint},
    endpoint::SESSION_ID,
    link::{Core, HttpLink, MAX_ERROR_BODY_BYTES, MCP_METHOD, method_header},
    pool::{Answering, Body},
    refusal,
    refusal::{Doubt, means_wait},
};
use crate::{
    Era, Frame, Kind, RpcError,
    gather::{Unread, Whole},
    lenient,
    protocol::method,
    sse::{self, Parser},
};
use http_client::cause;

/// Names the setting for the message limit in error texts.
const LIMIT_HINT: &str = " (`max_line_bytes`)";
const MAX_SESSION_ID_BYTES: usize = 1024;
/// Maximum consecutive failed attempts to resume a stream.
const MAX_RESUME_FAILURES: u32 = 5;
/// Maximum consecutive resumed streams without a new event.
const MAX_EMPTY_STREAMS: u32 = 100;
/// Delay before resuming a stream if the server did not specify one.
const DEFAULT_RETRY_DELAY: Duration = Duration::from_secs(1);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(3600);
const MAX_BACKOFF: Duration = Duration::from_secs(30);
/// Delay of a response while log messages may still arrive on the session's own stream. Servers write both at about the
/// same time; the delay makes up for the difference between the two streams.
const LOG_LINGER: Duration = Duration::from_millis(100);

/// A request in flight over streamable HTTP. Nothing is sent until [`HttpCall::next`] is polled.
pub struct HttpCall {
    link: HttpLink,
    exchange: Exchange,
    /// Events of this call that arrive on the session's own stream.
    elsewhere: Arc<Slot>,
    /// The outcome, held back until earlier events are delivered.
    end: Option<Result<Event, CallError>>,
    linger: Linger,
    checking: Option<Checking>,
}

/// A check in progress, and whether the call is safe to repeat if the check fails.
type Checking = (Pin<Box<dyn Future<Output = bool> + Send>>, bool);

pub(super) struct Exchange {
    id: u64,
    stage: Stage,
    sent: bool,
    /// Set for `initialize`, which is never cancelled (2025-11-25 basic/utilities/cancellation), and for requests that
    /// check the server. Their refusals do not lead to a check.
    pub(super) handshake: bool,
    /// True for lists and pings, which may be repeated.
    is_safe: bool,
    doubt: Option<Doubt>,
    pub(super) status: u16,
    content_type: Option<HeaderValue>,
    encoding: Option<HeaderValue>,
    session: Option<HeaderValue>,
    moved: Option<Uri>,
    unreachable: bool,
    /// True while the rest of a stream is requested.
    resuming: bool,
    last_event: Option<String>,
    retry: Option<Duration>,
    failures: u32,
    empty: u32,
}

/// State of holding a response back for log messages on the session's own stream.
enum Linger {
    No,
    /// The response will be held back.
    Asked,
    /// The response is held back until the timer fires. The flag says whether any log message arrived.
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
        is_safe: bool,
    ) -> Self {
        Self {
            elsewhere: link.core().enter(id, caller),
            end: None,
            linger: Linger::No,
            checking: None,
            link,
            exchange: Exchange::new(id, asking, is_safe),
        }
    }

    /// Marks the call as the handshake: its response may start a session, and it is never cancelled.
    pub(super) fn handshake(mut self) -> Self {
        self.exchange.handshake = true;
        self
    }

    /// Holds the response back briefly for log messages on the session's own stream.
    pub(super) fn lingering(mut self) -> Self {
        self.linger = Linger::Asked;
        self
    }

    /// The status of the response, or 0 before the response arrives.
    pub(super) fn status(&self) -> u16 {
        self.exchange.status
    }

    /// The session that the response started.
    pub(super) fn session(&self) -> Option<&HeaderValue> {
        self.exchange.session.as_ref()
    }

    /// The URL at the same origin that the server redirected to.
    pub(super) fn moved(&self) -> Option<&Uri> {
        self.exchange.moved.as_ref()
    }

    /// Returns true if connecting failed.
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
            match self.exchange.doubt.take() {
                Some(doubt) => {
                    let repeatable = doubt.names_session || self.exchange.is_safe;
                    self.checking = Some((core.clone().check(doubt), repeatable));
                }
                None if event.is_ok() && !self.exchange.is_safe => {
                    core.has_answered.store(true, Ordering::Relaxed);
                }
                None => {}
            }
            self.linger = match self.linger {
                Linger::Asked if event.is_ok() && core.stream.may_log() => {
                    Linger::Now(Box::pin(sleep(LOG_LINGER)), false)
                }
                _ => Linger::No,
            };
            self.end = Some(event);
        }
        if let Some((check, repeatable)) = &mut self.checking {
            let is_refused = check.await;
            if is_refused && *repeatable {
                self.end = Some(Err(CallError::SessionExpired));
            }
            self.checking = None;
        }
        if let Some(event) = self.late_event().await {
            return Ok(event);
        }
        self.link.core().leave(self.exchange.id);
        self.elsewhere.close();
        // Events that were queued before the call was deregistered come before its end.
        if let Some(event) = self.elsewhere.take() {
            return Ok(event);
        }
        self.end
            .take()
            .unwrap_or_else(|| Err(CallError::Closed("the call has ended".into())))
    }

    /// The next event from the session's own stream, for a response that is held back.
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
        // Hand-written instead of `select!`, because it is polled at every step of every call.
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
        // Server requests that arrived too late for this call still need a response.
        while let Some(event) = self.elsewhere.take() {
            if let Event::Request(question) = event {
                self.link.core().refuse(&question);
            }
        }
        let unfinished = exchange.sent && !matches!(exchange.stage, Stage::Over);
        // A modern server sees the closed stream as a cancellation (2026-07-28 streamable-http "Cancellation").
        if unfinished && !exchange.handshake && self.link.core().era == Era::Legacy {
            let params = format!("{{\"requestId\":{}}}", exchange.id);
            let cancelled = Frame::notification(method::CANCELLED, Some(params.as_bytes()));
            self.link.send_behind(cancelled);
        }
    }
}

impl Exchange {
    pub(super) fn new(id: u64, asking: Answering, is_safe: bool) -> Self {
        Self {
            id,
            stage: Stage::Asking(asking),
            sent: false,
            handshake: false,
            is_safe,
            doubt: None,
            status: 0,
            content_type: None,
            encoding: None,
            session: None,
            moved: None,
            unreachable: false,
            resuming: false,
            last_event: None,
            retry: None,
            failures: 0,
            empty: 0,
        }
    }

    pub(super) async fn next(&mut self, core: &Arc<Core>) -> Result<Event, CallError> {
        self.sent = true;
        loop {
            if let Some(event) = self.step(core).await? {
                return Ok(event);
            }
        }
    }

    /// Ends the call. The stream's connection is kept if the stream ends soon.
    fn finish(&mut self, core: &Core) {
        if let Stage::Events(body, _) = std::mem::replace(&mut self.stage, Stage::Over) {
            core.drain(body);
        }
    }

    /// Returns one event, or advances by one stage. Cancel safe: every stage keeps its state.
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
                let text = decoded(self.encoding.as_ref(), text, core.max_message)
                    .map_err(|why| CallError::Refused(format!("{why}{LIMIT_HINT}").into()))?;
                return self.whole(core, text).map(Some);
            }
            Stage::Failing(parts, body) => {
                let text = match body.read().await {
                    Ok(text) => text,
                    Err(_) => body.so_far(),
                };
                let encoding = parts.headers.get(CONTENT_ENCODING);
                let text = decoded(encoding, text, core.max_message).unwrap_or_default();
                let (status, uri) = (parts.status, &core.endpoint.uri);
                let hint = status_hint(status, &parts.headers, uri);
                if self.resuming {
                    self.stage = self.not_resumed(core, status, &text)?;
                } else {
                    return self.failed(core, status, hint, &text).map(Some);
                }
            }
            Stage::Events(body, parser) => loop {
                let event = parser
                    .next_event()
                    .map_err(|error| CallError::Refused(format!("{error}{LIMIT_HINT}").into()))?;
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
            Stage::Over => return Err(CallError::Closed("the call has ended".into())),
        }
        Ok(None)
    }

    /// Handles the response head.
    fn answered(&mut self, core: &Core, response: Response<Body>) -> Result<Stage, CallError> {
        let status = response.status();
        self.status = status.as_u16();
        if !status.is_success() {
            if self.handshake {
                self.moved = redirect(status, response.headers(), &core.endpoint.uri);
            }
            return Ok(failing(core, response));
        }
        if self.handshake && core.era == Era::Legacy {
            self.session = session(response.headers())?;
        }
        let media = media(response.headers());
        if matches!(status, StatusCode::ACCEPTED | StatusCode::NO_CONTENT) && media != Media::Events
        {
            let text = format!("HTTP {} instead of a response", status.as_u16());
            return Err(CallError::Refused(text.into()));
        }
        if media == Media::Events {
            return events(core, response);
        }
        // JSON is accepted under any other content type.
        self.content_type = response.headers().get(CONTENT_TYPE).cloned();
        self.encoding = response.headers().get(CONTENT_ENCODING).cloned();
        let body = Whole::new(response.into_body(), core.max_message);
        Ok(Stage::Json(body.in_one_place()))
    }

    /// Handles a complete JSON response.
    fn whole(&mut self, core: &Core, text: Bytes) -> Result<Event, CallError> {
        let frame = match lenient::parse(text.clone(), core.max_depth, Some(self.id)) {
            Ok(frame) => frame,
            Err(_) if text.is_empty() => return Err(self.unacceptable(core, "it is empty", &text)),
            Err(invalid) => {
                let is_json = matches!(text.trim_ascii_start().first(), Some(b'{' | b'['));
                let why = match is_json {
                    true => invalid.to_string(),
                    false => "it is neither JSON nor an event stream".to_owned(),
                };
                return Err(self.unacceptable(core, &why, &text));
            }
        };
        if !frame.is_response() {
            return Err(self.unacceptable(core, "it is not a response", &text));
        }
        match self.ours(frame, false) {
            Ok(frame) => self.response(core, frame),
            Err(frame) => {
                core.stray("a response with another id");
                let id = String::from_utf8_lossy(&frame.id()[..frame.id().len().min(40)]);
                let why = format!("it carries the id {id} instead of {}", self.id);
                Err(self.unacceptable(core, &why, &text))
            }
        }
    }

    /// The error for a response that has a success status and answers nothing.
    fn unacceptable(&self, core: &Core, why: &str, text: &[u8]) -> CallError {
        let media = match &self.content_type {
            Some(media) => {
                let media = String::from_utf8_lossy(media.as_bytes());
                format!("`{}`", media.chars().take(80).collect::<String>())
            }
            None => "no content type".to_owned(),
        };
        let (status, detail) = (self.status, core.endpoint.detail(text));
        CallError::Refused(format!("{why} (HTTP {status}, {media}){detail}").into())
    }

    /// Handles the response to this call with a success status.
    fn response(&mut self, core: &Core, frame: Frame) -> Result<Event, CallError> {
        // A modern server has no session that it could lose.
        if frame.kind() == Kind::Error && core.has_session() {
            let error = RpcError::from_json(frame.body());
            if !refusal::is_of_handler(&error) {
                let why = core.endpoint.excerpt(error.message.as_bytes());
                let doubt = Doubt {
                    names_session: refusal::is_lost_session(&error),
                    error: Some(error),
                };
                self.judge(core, doubt, &why)?;
            }
        }
        Ok(Event::Response(frame))
    }

    /// Handles a response with an error status.
    fn failed(
        &mut self,
        core: &Core,
        status: StatusCode,
        hint: Option<String>,
        text: &Bytes,
    ) -> Result<Event, CallError> {
        let frame = refusal::error_of(text, core.max_depth);
        let error = frame
            .as_ref()
            .map(|frame| RpcError::from_json(frame.body()));
        let detail = hint.unwrap_or_else(|| match &error {
            Some(error) => core.endpoint.detail(error.message.as_bytes()),
            None => core.endpoint.detail(text),
        });
        let code = status.as_u16();
        if core.is_misdirected(status) {
            return Err(core.expired(&format!("HTTP {code}")));
        }
        let names_session = core.has_session() && refusal::names_lost_session(status, text);
        let is_of_handler = error.as_ref().is_some_and(refusal::is_of_handler);
        // A modern server reports its own errors with an error status.
        let is_of_handler = is_of_handler || (core.era == Era::Modern && error.is_some());
        if names_session || !(is_of_handler || means_wait(status)) {
            let doubt = Doubt {
                names_session,
                error: None,
            };
            self.judge(core, doubt, &format!("HTTP {code}{detail}"))?;
        }
        if let Some(frame) = frame
            && status != StatusCode::UNAUTHORIZED
            && let Ok(frame) = self.ours(frame, true)
        {
            return Ok(Event::Response(frame));
        }
        let (status, detail) = (code, detail.into());
        Err(CallError::Http { status, detail })
    }

    /// Decides what a refusal means for the session.
    ///
    /// A refusal that names a lost session opens one new session. If it comes again there, it may mean something else,
    /// and is checked like any other.
    ///
    /// # Errors
    /// [`CallError::SessionExpired`]
    fn judge(&mut self, core: &Core, doubt: Doubt, why: &str) -> Result<(), CallError> {
        // Another gateway says so by itself if it does not know a session.
        if self.handshake || core.endpoint.sign.is_some() {
            return Ok(());
        }
        if doubt.names_session && (self.is_safe || !core.is_new()) {
            return Err(core.expired(why));
        }
        self.doubt = Some(doubt);
        Ok(())
    }

    /// Returns the frame if it answers this call, otherwise returns it as the error.
    ///
    /// An error with no id or a null id counts as the answer to this request. With `any_string` (error statuses), so
    /// does one with a string id: the gateway never uses such ids, but some servers send them.
    fn ours(&self, frame: Frame, any_string: bool) -> Result<Frame, Box<Frame>> {
        if frame.numeric_id() == Some(self.id) {
            return Ok(frame);
        }
        let counts_as_ours = match frame.id() {
            b"" | b"null" => true,
            [b'"', ..] => any_string,
            _ => false,
        };
        if frame.kind() != Kind::Error || !counts_as_ours {
            return Err(Box::new(frame));
        }
        Ok(frame.answering(self.id))
    }

    /// Handles one stream event.
    fn event(&mut self, core: &Arc<Core>, event: sse::Event) -> Result<Option<Event>, CallError> {
        if core.era == Era::Legacy {
            if event.id.is_some() && event.id != self.last_event {
                self.last_event = event.id;
                self.empty = 0;
            }
            if let Some(retry) = event.retry {
                self.retry = Some(Duration::from_millis(retry).min(MAX_RETRY_DELAY));
            }
        }
        if event.data.is_empty() || !matches!(&*event.event, "" | "message") {
            return Ok(None);
        }
        let frame = match lenient::parse(event.data, core.max_depth, Some(self.id)) {
            Ok(frame) => frame,
            Err(invalid) => {
                let ours = self.id.to_string();
                if invalid.response && invalid.id.as_deref() == Some(ours.as_bytes()) {
                    return Err(CallError::Refused(invalid.to_string().into()));
                }
                core.stray("an event that is not a message");
                return Ok(None);
            }
        };
        match frame.kind() {
            Kind::Notification => return Ok(Some(Event::Notification(frame))),
            Kind::Request if frame.method() == method::PING => core.answer_ping(&frame),
            Kind::Request if core.era == Era::Legacy => return Ok(Some(Event::Request(frame))),
            // 2026-07-28 streamable-http "Receiving Messages": this era has no server requests.
            Kind::Request => core.stray("a request, which this protocol version does not allow"),
            Kind::Result | Kind::Error => match self.ours(frame, false) {
                Ok(frame) => return self.response(core, frame).map(Some),
                Err(_) => core.stray("a response with another id"),
            },
        }
        Ok(None)
    }

    /// Handles a stream that ended before the response.
    fn broke_off(&mut self, core: &Core, why: Option<String>) -> Result<Stage, CallError> {
        self.empty += 1;
        let resumable = core.era == Era::Legacy && self.last_event.is_some();
        if !resumable || self.failures > MAX_RESUME_FAILURES || self.empty > MAX_EMPTY_STREAMS {
            let why = why.map(|why| format!(": {why}")).unwrap_or_default();
            return Err(CallError::Closed(
                format!("the response stream ended early{why}").into(),
            ));
        }
        let retry = self.retry.unwrap_or(DEFAULT_RETRY_DELAY);
        let backoff = retry * 2u32.pow(self.failures.min(8));
        let pause = if self.failures == 0 {
            retry
        } else {
            backoff.clamp(retry, MAX_BACKOFF.max(retry))
        };
        Ok(Stage::Pausing(Box::pin(sleep(pause))))
    }

    /// Handles the response head of an attempt to resume a stream.
    fn resumed(&mut self, core: &Core, response: Response<Body>) -> Result<Stage, CallError> {
        if response.status().is_success() && media(response.headers()) == Media::Events {
            (self.failures, self.resuming) = (0, false);
            return events(core, response);
        }
        self.resuming = true;
        Ok(failing(core, response))
    }

    /// Handles a refusal to resume a stream. Never returns [`CallError::SessionExpired`], because the caller would then
    /// repeat the call, which the server has already received.
    fn not_resumed(
        &mut self,
        core: &Core,
        status: StatusCode,
        text: &Bytes,
    ) -> Result<Stage, CallError> {
        self.resuming = false;
        let why = format!("resuming it failed with HTTP {}", status.as_u16());
        if core.has_session() && refusal::names_lost_session(status, text) {
            core.expired(&why);
        } else if status.is_server_error() || means_wait(status) {
            self.failures += 1;
            return self.broke_off(core, Some(why));
        }
        Err(CallError::Closed(
            format!("the response stream ended early: {why}").into(),
        ))
    }
}

fn events(core: &Core, response: Response<Body>) -> Result<Stage, CallError> {
    if let Some(encoding) = response.headers().get(CONTENT_ENCODING)
        && encoding != "identity"
    {
        let why = format!("its event stream is encoded with {encoding:?}, which cannot be read");
        return Err(CallError::Refused(why.into()));
    }
    let parser = Box::new(Parser::new(core.max_message));
    Ok(Stage::Events(response.into_body(), parser))
}

fn failing(core: &Core, response: Response<Body>) -> Stage {
    let (parts, body) = response.into_parts();
    let max = match media(&parts.headers) {
        Media::Json | Media::Unknown => core.max_message,
        Media::Events | Media::Other => MAX_ERROR_BODY_BYTES.min(core.max_message),
    };
    Stage::Failing(Box::new(parts), Whole::new(body, max))
}

fn unread(core: &Core, error: &Unread<hyper::Error>) -> CallError {
    match error {
        Unread::TooLong => CallError::Refused(
            format!("it is longer than {} bytes{LIMIT_HINT}", core.max_message).into(),
        ),
        Unread::Broken(error) => {
            CallError::Closed(format!("the response ended early: {}", cause(error)).into())
        }
    }
}

/// Reads `Mcp-Session-Id`: visible ASCII (2025-11-25 basic/transports "Session Management").
fn session(headers: &http::HeaderMap) -> Result<Option<HeaderValue>, CallError> {
    let Some(id) = headers.get(SESSION_ID) else {
        return Ok(None);
    };
    let visible = id.as_bytes().iter().all(u8::is_ascii_graphic);
    if id.is_empty() || id.len() > MAX_SESSION_ID_BYTES || !visible {
        return Err(CallError::Refused("its session id is invalid".into()));
    }
    let mut id = id.clone();
    id.set_sensitive(true);
    Ok(Some(id))
}

impl HttpLink {
    pub(in crate::client) fn call(
        &self,
        mut outgoing: Outgoing<'_>,
    ) -> Result<HttpCall, CallError> {
        let core = self.core();
        if core.is_dead.load(Ordering::Acquire) {
            return Err(core.dead_error());
        }
        let mut headers = core.headers.clone();
        if core.era == Era::Modern {
            headers.insert(MCP_METHOD, method_header(outgoing.frame.method())?);
            for (name, value) in std::mem::take(&mut outgoing.headers) {
                headers.append(name, value);
            }
        }
        let id = core.next_id.fetch_add(1, Ordering::Relaxed);
        let (caller, wants_logs) = (outgoing.caller, outgoing.wants_logs);
        let name = outgoing.frame.method();
        let is_safe = name.ends_with("/list") || matches!(name, method::PING | method::DISCOVER);
        let is_repeatable = is_safe || name == method::INITIALIZE;
        let text = outgoing.text(id);
        let asking = core.request(Method::POST, headers, text, is_repeatable);
        let call = HttpCall::new(self.clone(), id, caller, asking, is_safe);
        Ok(if wants_logs { call.lingering() } else { call })
    }
}
