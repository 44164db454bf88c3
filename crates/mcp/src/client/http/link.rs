//! The shared state and background tasks of one MCP connection over streamable HTTP.

use http_client::cause;
use std::{
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures_util::{StreamExt, stream::FuturesUnordered};
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode,
    header::{ACCEPT, CONTENT_TYPE, HOST},
};
use http_body::Body as _;
use http_body_util::BodyExt;
use tokio::{
    runtime::Handle,
    sync::{Semaphore, mpsc},
    time::{Instant, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    super::{
        CallError, CallerId, Event, Options,
        slot::Slot,
        whose::{Whose, newest_of_each, too_many, whose},
    },
    Pool,
    body::status_hint,
    endpoint::{Endpoint, PROTOCOL_VERSION, SESSION_ID},
    pool::{self, Answering, Body, Repeatable},
    refusal,
};
use crate::{Era, Frame, Version, client::handshake::modern_meta, gather::Whole, protocol::method};

pub(super) const MCP_METHOD: HeaderName = HeaderName::from_static("mcp-method");
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
const JSON: HeaderValue = HeaderValue::from_static("application/json");
const EVENTS: HeaderValue = HeaderValue::from_static("text/event-stream");
const BOTH: HeaderValue = HeaderValue::from_static("application/json, text/event-stream");

/// Maximum background messages (cancellations, ping responses) in flight in addition to the calls. Further ones are
/// dropped.
const MAX_BACKGROUND_MESSAGES: usize = 64;
/// Timeout for a message without a response.
const SEND_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum bytes read of an error body that is not JSON.
pub(super) const MAX_ERROR_BODY_BYTES: usize = 16 * 1024;
/// A session is new for this long, unless a call was answered in it.
const NEW_SESSION_TIME: Duration = Duration::from_secs(5);
/// After this many consecutive calls without a log message, the server is assumed to send none on its own stream.
const MAX_SILENT_CALLS: u32 = 8;
/// Limits for reading finished streams to their end so that their connections can be reused: number, time and bytes.
/// Beyond them, the connection is closed.
const MAX_DRAINS: usize = 64;
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);
const MAX_DRAIN_BYTES: usize = 64 * 1024;

/// A connection to one server. Cheap to clone. Dropping the last clone ends the background tasks.
#[derive(Clone)]
pub(crate) struct HttpLink {
    owner: Arc<Owner>,
}

struct Owner {
    core: Arc<Core>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.core.over.cancel();
    }
}

/// State of a legacy server's own stream, which carries messages that belong to no call.
#[derive(Default)]
pub(super) struct Beside {
    pub(super) is_open: AtomicBool,
    /// Consecutive calls that waited for log messages on it and received none.
    in_vain: AtomicU32,
}

impl Beside {
    /// Returns true if a call's log messages may arrive on this stream after its response.
    pub(super) fn may_log(&self) -> bool {
        self.is_open.load(Ordering::Relaxed)
            && self.in_vain.load(Ordering::Relaxed) < MAX_SILENT_CALLS
    }

    pub(super) fn has_logged(&self) {
        self.in_vain.store(0, Ordering::Relaxed);
    }

    /// Records a call that waited for log messages and received none.
    pub(super) fn was_silent(&self) {
        self.in_vain.fetch_add(1, Ordering::Relaxed);
    }
}

/// The era, version and session in the headers of requests.
pub(super) enum Mode {
    Modern,
    /// Before the response to `initialize`: no version, no session.
    Handshake,
    Legacy {
        version: Version,
        session: Option<HeaderValue>,
    },
}

/// A call in flight: id, caller, and the slot for events that arrive elsewhere.
type InFlight = (u64, Option<CallerId>, Arc<Slot>);

pub(super) struct Core {
    pub(super) label: Arc<str>,
    pub(super) max_message: usize,
    pub(super) max_depth: usize,
    pub(super) era: Era,
    pub(super) endpoint: Endpoint,
    pool: Pool,
    /// Headers of every POST.
    pub headers: HeaderMap,
    session: Option<HeaderValue>,
    pub next_id: AtomicU64,
    stray: AtomicU64,
    /// Calls in flight. Used to assign messages on the server's own stream, and to end the calls when the link closes.
    calls: Mutex<Vec<InFlight>>,
    /// The legacy server's own stream.
    pub(super) stream: Beside,
    /// Explicitly closed: everything stops.
    pub(super) over: CancellationToken,
    /// Closed, or known to be unusable.
    dead: CancellationToken,
    pub is_dead: AtomicBool,
    end: OnceLock<End>,
    opened: Instant,
    /// True if a call was answered. Lists and pings do not count.
    pub(super) has_answered: AtomicBool,
    /// True while a check is running ([`Core::check`]).
    pub(super) is_checking: AtomicBool,
    /// `params` of the request that checks whether the server refuses everything.
    pub(super) check_params: Box<str>,
    tasks: TaskTracker,
    runtime: Handle,
    background: Arc<Semaphore>,
    drains: mpsc::Sender<Body>,
}

/// Why a link is unusable.
struct End {
    why: Arc<str>,
    /// True if the server has refused a request. A new session may be accepted.
    is_refused: bool,
}

impl HttpLink {
    pub(super) fn new(pool: &Pool, endpoint: &Endpoint, mode: &Mode, options: &Options) -> Self {
        let mut headers = endpoint.headers.clone();
        headers.reserve(6);
        headers.insert(ACCEPT, BOTH);
        headers.insert(CONTENT_TYPE, JSON);
        // HTTP/2 (used only over TLS here) has `:authority` instead.
        if !endpoint.origin.tls
            && let Some(host) = &endpoint.origin.host
        {
            headers.entry(HOST).or_insert_with(|| host.clone());
        }
        let (era, version, session) = match mode {
            Mode::Modern => (Era::Modern, Some(Version::LATEST), None),
            Mode::Handshake => (Era::Legacy, None, None),
            // The version header exists since 2025-06-18.
            Mode::Legacy { version, session } => {
                let version = Some(*version).filter(|version| *version >= Version::V2025_06_18);
                (Era::Legacy, version, session.clone())
            }
        };
        if let Some(version) = version {
            headers.insert(PROTOCOL_VERSION, HeaderValue::from_static(version.as_str()));
        }
        if let Some(session) = &session {
            headers.insert(SESSION_ID, session.clone());
        }
        if era == Era::Modern {
            // A placeholder that each request replaces.
            headers.insert(MCP_METHOD, HeaderValue::from_static(method::TOOLS_CALL));
        }
        let (drains, bodies) = mpsc::channel(MAX_DRAINS);
        let core = Core {
            label: options.label.clone(),
            max_message: options.max_message,
            max_depth: options.max_depth,
            era,
            endpoint: endpoint.clone(),
            pool: pool.clone(),
            headers,
            session,
            next_id: AtomicU64::new(1),
            stray: AtomicU64::new(0),
            calls: Mutex::default(),
            stream: Beside::default(),
            over: CancellationToken::new(),
            dead: CancellationToken::new(),
            is_dead: AtomicBool::new(false),
            end: OnceLock::new(),
            opened: Instant::now(),
            has_answered: AtomicBool::new(false),
            is_checking: AtomicBool::new(false),
            check_params: match era {
                Era::Legacy => "{}".into(),
                Era::Modern => format!("{{\"_meta\":{}}}", modern_meta(options)).into(),
            },
            tasks: TaskTracker::new(),
            runtime: Handle::current(),
            background: Arc::new(Semaphore::new(MAX_BACKGROUND_MESSAGES)),
            drains,
        };
        let link = Self {
            owner: Arc::new(Owner {
                core: Arc::new(core),
            }),
        };
        link.spawn(drain(bodies));
        link
    }

    pub(super) fn core(&self) -> &Arc<Core> {
        &self.owner.core
    }

    pub(super) fn pool(&self) -> &Pool {
        &self.core().pool
    }

    /// Runs a task until the link closes.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let core = self.core();
        let over = core.over.clone();
        let task = async move {
            tokio::select! {
                () = over.cancelled() => {}
                () = task => {}
            }
        };
        core.tasks.spawn_on(task, &core.runtime);
    }

    pub(in crate::client) async fn send(&self, frame: &Frame) -> Result<(), CallError> {
        let core = self.core();
        if core.is_dead.load(Ordering::Acquire) {
            return Err(core.dead_error());
        }
        if core.era == Era::Modern && frame.is_response() {
            let why = "this protocol version has no responses to the server";
            return Err(CallError::Unsendable(why.into()));
        }
        tokio::select! {
            biased;
            sent = core.post(frame) => sent,
            () = core.over.cancelled() => Err(core.dead_error()),
        }
    }

    pub(in crate::client) fn is_closed(&self) -> bool {
        self.core().is_dead()
    }

    pub(in crate::client) async fn closed(&self) -> Arc<str> {
        let core = self.core();
        core.dead.cancelled().await;
        core.why()
    }

    pub(in crate::client) async fn close(&self, grace: Duration) {
        let core = self.core();
        if core.over.is_cancelled() {
            return;
        }
        core.die("closed by the gateway", false);
        core.over.cancel();
        if core.end.get().is_some_and(|end| end.is_refused) {
            // The server rejected one call. Calls sent before it may still be executed and must not look safe to retry,
            // so each ends with its own response.
            core.tasks.close();
            return;
        }
        let calls = std::mem::take(&mut *core.calls());
        for (_, _, slot) in calls {
            slot.end(Err(core.dead_error()));
        }
        core.tasks.close();
        let Some(session) = &core.session else {
            return;
        };
        let mut headers = core.headers.clone();
        headers.remove(CONTENT_TYPE);
        headers.insert(SESSION_ID, session.clone());
        // Best effort, because the server may refuse the request (405), or may no longer run.
        let _ = timeout(
            grace,
            core.request(Method::DELETE, headers, Bytes::new(), true),
        )
        .await;
    }

    /// Returns true if the server's own stream is open.
    pub(in crate::client) fn has_stream(&self) -> bool {
        self.core().stream.is_open.load(Ordering::Relaxed)
    }

    pub(in crate::client) fn stray_answers(&self) -> u64 {
        self.core().stray.load(Ordering::Relaxed)
    }

    /// Sends a message in the background unless too many are in flight.
    pub(in crate::client) fn send_behind(&self, frame: Frame) {
        self.core().send_behind(frame);
    }
}

impl Core {
    /// Returns true if the link is unusable.
    pub(super) fn is_dead(&self) -> bool {
        self.is_dead.load(Ordering::Acquire)
    }

    /// `is_repeatable`: the request may be sent again if its connection turns out to be closed.
    pub(super) fn request(
        &self,
        method: Method,
        headers: HeaderMap,
        body: Bytes,
        is_repeatable: bool,
    ) -> Answering {
        let mut request = Request::new(body);
        if is_repeatable {
            request.extensions_mut().insert(Repeatable);
        }
        *request.method_mut() = method;
        *request.headers_mut() = headers;
        self.pool.send(&self.endpoint, request)
    }

    /// GET for a stream: the server's own, or with `last_event` the rest of an interrupted one.
    pub(super) fn stream(&self, last_event: Option<&str>) -> Answering {
        let mut headers = self.headers.clone();
        headers.remove(CONTENT_TYPE);
        headers.insert(ACCEPT, EVENTS);
        if let Some(id) = last_event.and_then(|id| HeaderValue::from_bytes(id.as_bytes()).ok()) {
            headers.insert(LAST_EVENT_ID, id);
        }
        self.request(Method::GET, headers, Bytes::new(), true)
    }

    /// POSTs a message that has no response.
    async fn post(&self, frame: &Frame) -> Result<(), CallError> {
        let mut headers = self.headers.clone();
        if self.era == Era::Modern {
            headers.insert(MCP_METHOD, method_header(frame.method())?);
        }
        let response = self.request(Method::POST, headers, frame.text().clone(), false);
        let response = timeout(SEND_TIMEOUT, response)
            .await
            .map_err(|_| {
                let seconds = SEND_TIMEOUT.as_secs();
                let peer = &self.endpoint.peer;
                CallError::Closed(format!("no answer from {peer} within {seconds} s").into())
            })?
            .map_err(|error| self.broken(&error))?;
        let status = response.status();
        if status.is_success() {
            self.drain(response.into_body());
            return Ok(());
        }
        let hint = status_hint(status, response.headers(), &self.endpoint.uri);
        let text = self.error_text(response).await;
        let detail: Arc<str> = hint.unwrap_or_else(|| self.endpoint.detail(&text)).into();
        if self.has_session() && refusal::names_lost_session(status, &text) {
            return Err(self.expired(&format!("HTTP {}{detail}", status.as_u16())));
        }
        let status = status.as_u16();
        Err(CallError::Http { status, detail })
    }

    /// The beginning of an error response.
    pub(super) async fn error_text(&self, response: Response<Body>) -> Bytes {
        let max = MAX_ERROR_BODY_BYTES.min(self.max_message);
        let mut body = Whole::new(response.into_body(), max);
        match timeout(SEND_TIMEOUT, body.read()).await {
            Ok(Ok(text)) => text,
            _ => body.so_far(),
        }
    }

    pub(super) fn send_behind(self: &Arc<Self>, frame: Frame) {
        if self.over.is_cancelled() {
            return;
        }
        let Ok(permit) = self.background.clone().try_acquire_owned() else {
            tracing::debug!(server = %self.label, method = frame.method(), "dropped a message: too many are in flight");
            return;
        };
        let core = self.clone();
        let task = async move {
            let _permit = permit;
            let sent = tokio::select! {
                sent = core.post(&frame) => sent,
                () = core.over.cancelled() => return,
            };
            if let Err(error) = sent {
                tracing::debug!(server = %core.label, method = frame.method(), %error, "the server did not accept a message");
            }
        };
        self.tasks.spawn_on(task, &self.runtime);
    }

    pub(super) fn answer_ping(self: &Arc<Self>, ping: &Frame) {
        self.send_behind(Frame::result(ping.id(), b"{}"));
    }

    /// Reads a finished stream to its end, so that its connection can be reused.
    pub(super) fn drain(&self, body: Body) {
        if !body.is_end_stream() {
            // If the queue is full, the connection is closed instead.
            let _ = self.drains.try_send(body);
        }
    }

    pub(super) fn has_session(&self) -> bool {
        self.session.is_some()
    }

    /// Returns true if the session was opened just now and no call was answered in it yet.
    pub(super) fn is_new(&self) -> bool {
        !self.has_answered.load(Ordering::Relaxed) && self.opened.elapsed() < NEW_SESSION_TIME
    }

    /// Records that the server has forgotten the session, with the server's words. The link is unusable from then on.
    pub(super) fn expired(&self, refusal: &str) -> CallError {
        self.die(&format!("{}: {refusal}", CallError::SessionExpired), true);
        CallError::SessionExpired
    }

    /// Records that the server refuses every request, with its words. The link is unusable from then on.
    pub(super) fn refused(&self, refusal: &str) {
        self.die(&format!("it refuses every request: {refusal}"), true);
    }

    fn die(&self, why: &str, is_refused: bool) {
        let why = why.into();
        self.end.get_or_init(|| End { why, is_refused });
        self.is_dead.store(true, Ordering::Release);
        self.dead.cancel();
    }

    fn why(&self) -> Arc<str> {
        self.end
            .get()
            .map_or_else(Arc::default, |end| end.why.clone())
    }

    pub(super) fn dead_error(&self) -> CallError {
        match self.end.get() {
            Some(end) if end.is_refused => CallError::SessionExpired,
            Some(end) => CallError::Closed(end.why.clone()),
            None => CallError::Closed("closed by the gateway".into()),
        }
    }

    fn calls(&self) -> MutexGuard<'_, Vec<InFlight>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a call. The slot receives its events from other streams (legacy era only) and the end of the link.
    pub(super) fn enter(&self, id: u64, caller: Option<CallerId>) -> Arc<Slot> {
        let slot = Slot::new();
        self.calls().push((id, caller, slot.clone()));
        // Checked after the push: `close` ends all calls that it finds, so either this check or `close` sees the call.
        if self.is_dead() && self.over.is_cancelled() {
            slot.end(Err(self.dead_error()));
        }
        slot
    }

    pub(super) fn leave(&self, id: u64) {
        let mut calls = self.calls();
        if let Some(at) = calls.iter().position(|(known, ..)| *known == id) {
            calls.swap_remove(at);
        }
    }

    /// Finds a call by id.
    pub(super) fn in_flight(&self, id: u64) -> Option<Arc<Slot>> {
        let calls = self.calls();
        let call = calls.iter().find(|(known, ..)| *known == id);
        call.map(|(_, _, slot)| slot.clone())
    }

    /// Determines the call that a message without a call id belongs to.
    pub(super) fn whose(&self) -> Whose {
        whose(
            self.calls()
                .iter()
                .map(|(id, caller, slot)| (*id, *caller, slot)),
        )
    }

    /// Passes a log message to each caller with calls in flight.
    pub(super) fn to_each_caller(&self, notification: &Frame) {
        let slots = {
            let calls = self.calls();
            newest_of_each(calls.iter().map(|(id, caller, slot)| (*id, *caller, slot)))
        };
        for slot in slots {
            let _ = slot.push(Event::Notification(notification.clone()));
        }
    }

    /// Refuses a server request that no client can answer.
    pub(super) fn refuse(self: &Arc<Self>, question: &Frame) {
        self.send_behind(too_many(question));
    }

    /// Counts and logs a message that matches no pending call.
    pub(super) fn stray(&self, what: &str) {
        let count = self.stray.fetch_add(1, Ordering::Relaxed) + 1;
        if count.is_power_of_two() {
            tracing::warn!(server = %self.label, count, "ignored an unexpected message: {what}");
        }
    }

    /// Returns true if the request reached a gateway other than the intended one, which ignored it.
    pub(super) fn is_misdirected(&self, status: StatusCode) -> bool {
        self.endpoint.sign.is_some() && status == StatusCode::MISDIRECTED_REQUEST
    }

    /// The error for a request without any response.
    pub(super) fn broken(&self, error: &pool::Error) -> CallError {
        let peer = &self.endpoint.peer;
        if let pool::Error::SignIn(sign_in) = error {
            return CallError::SignIn(sign_in.clone());
        }
        // The endpoint is another gateway. If that gateway cannot be reached, a third gateway may have its sessions
        // now.
        if error.is_connect() && self.endpoint.sign.is_some() {
            return self.expired(&cause(error));
        }
        let why = cause(error);
        let text = if error.is_connect() {
            format!("cannot connect to {peer}: {why}")
        } else {
            format!("the connection to {peer} broke: {why}")
        };
        CallError::Closed(text.into())
    }
}

/// The value of `Mcp-Method`.
pub(super) fn method_header(name: &str) -> Result<HeaderValue, CallError> {
    Ok(match name {
        method::TOOLS_CALL => HeaderValue::from_static(method::TOOLS_CALL),
        method::RESOURCES_READ => HeaderValue::from_static(method::RESOURCES_READ),
        method::PROMPTS_GET => HeaderValue::from_static(method::PROMPTS_GET),
        other => HeaderValue::from_str(other).map_err(|_| {
            CallError::Unsendable(format!("method {other:?} is not a valid header value").into())
        })?,
    })
}

/// Reads response bodies to their end.
async fn drain(mut bodies: mpsc::Receiver<Body>) {
    let mut draining = FuturesUnordered::new();
    loop {
        tokio::select! {
            body = bodies.recv(), if draining.len() < MAX_DRAINS => match body {
                Some(body) => draining.push(timeout(DRAIN_TIMEOUT, drain_one(body))),
                None => return,
            },
            Some(_) = draining.next() => {}
        }
    }
}

async fn drain_one(mut body: Body) {
    let mut left = MAX_DRAIN_BYTES;
    while let Some(Ok(frame)) = body.frame().await {
        let Some(rest) = left.checked_sub(frame.data_ref().map_or(0, Bytes::len)) else {
            return;
        };
        left = rest;
    }
}

/// Passes an event to the ambient queue.
pub(super) fn ambient(core: &Arc<Core>, to: &mpsc::Sender<Event>, event: Event) {
    let Err(refused) = to.try_send(event) else {
        return;
    };
    match refused.into_inner() {
        Event::Request(question) | Event::Unclear(question) => core.refuse(&question),
        _ => tracing::debug!(server = %core.label, "dropped a notification: too many are queued"),
    }
}
