//! Streamable HTTP for clients of both eras, on `/mcp`, `/mcp/{project}` and `/mcp/{project}/{server}`.
//!
//! A request is answered with JSON if nothing happens before its answer, and with an event stream from the
//! first thing that does; always with a stream for a client that names it first in `Accept`. `-` stands for "no
//! project" in a path that names a server.
//!
//! A modern request ends with its connection. A legacy one whose answer has begun as a stream does not: the stream
//! is its session's ([`mcp::server::Reader`]), and a `GET` with `Last-Event-ID` takes it up again.

use std::{
    future::poll_fn,
    sync::{Arc, LazyLock},
    task::Poll,
    time::Duration,
};

use axum::BoxError;
use bytes::Bytes;
use engine::{Answer, Caller, Gateway, Scope, view::PROJECT_KEY};
use futures_util::FutureExt as _;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use mcp::{
    Era, Frame, Kind, RpcError, Version,
    backlog::{Account, Backlog, Charge},
    error,
    frame::Invalid,
    json,
    outbox::{Bounds, Outbox},
    protocol::method,
    server::{Face, Lost, Session, SessionId, modern},
};
use memchr::memmem::Finder;
use model::{ProjectId, ServerName};
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use crate::{
    auth::{Principal, Role},
    projects::Projects,
};

use super::{
    Body,
    body::{Answering, Events},
    guard::{Guard, Refusal},
    idle::{Source, Takeover},
    listen,
    room::{NoRoom, Room},
    sessions::Sessions,
    shares::{Share, Shares},
    wire::{Upload, Wire},
};

pub(super) const PROJECT_ID: HeaderName = HeaderName::from_static("x-project-id");

/// Messages of one request that may wait for its reader.
const REQUEST_BOUNDS: Bounds = Bounds {
    messages: 256,
    bytes: 8 << 20,
};
/// Bytes that may wait for one session's reader; how many messages is a setting.
const SESSION_BYTES: usize = 32 << 20;
/// How often idle sessions are looked for.
const REAP: Duration = Duration::from_secs(5);

/// The MCP surfaces over HTTP.
pub(crate) struct Front {
    pub(super) gateway: Gateway,
    projects: Arc<Projects>,
    guard: Guard,
    pub(super) sessions: Sessions,
    pub(super) tasks: TaskTracker,
    room: Arc<Room>,
    backlog: Arc<Backlog>,
    streams: Arc<Shares>,
    most_connections: usize,
    stopping: std::sync::atomic::AtomicBool,
}

impl Front {
    pub(crate) fn new(
        gateway: Gateway,
        projects: Arc<Projects>,
        guard: Guard,
        most_connections: usize,
    ) -> Arc<Self> {
        let backlog = Backlog::new(gateway.settings().limits.max_unread_bytes);
        Arc::new(Self {
            gateway,
            projects,
            guard,
            sessions: Sessions::default(),
            tasks: TaskTracker::new(),
            room: Arc::default(),
            backlog,
            streams: Arc::default(),
            most_connections,
            stopping: std::sync::atomic::AtomicBool::new(false),
        })
    }

    /// Connections at a time.
    pub(super) fn most_connections(&self) -> usize {
        self.most_connections
    }

    /// Ends the sessions and streams of keys that are revoked, for ever.
    pub(crate) async fn follow_keys(&self) {
        loop {
            for principal in self.guard.keys().revoked().await {
                self.sessions.revoke(&principal);
                self.streams.revoke(&principal);
            }
        }
    }

    /// The share of an event stream that is to be opened.
    pub(super) fn stream_share(&self, principal: &Principal) -> Result<Share, Refusal> {
        let share = self.streams.take(&principal.id, self.most_connections);
        share.ok_or_else(|| {
            let what = "this client has as many event streams open as it may (`max_connections`)";
            refusal(StatusCode::SERVICE_UNAVAILABLE, what)
        })
    }

    /// The event streams of all clients.
    pub(super) fn streams(&self) -> &Arc<Shares> {
        &self.streams
    }

    /// What waits for all clients.
    pub(crate) fn backlog(&self) -> &Arc<Backlog> {
        &self.backlog
    }

    /// The body of a request on that connection.
    pub(super) fn upload(&self, body: Incoming, wire: &Arc<Wire>) -> Upload {
        let settings = self.gateway.settings();
        Upload::new(body, wire.clone(), self.room.clone(), &settings.limits)
    }

    pub(crate) fn guard(&self) -> &Guard {
        &self.guard
    }

    /// Lets connections finish what they are at, then closes them.
    pub(crate) fn stop(&self, over: &tokio_util::sync::CancellationToken) {
        self.stopping
            .store(true, std::sync::atomic::Ordering::Release);
        over.cancel();
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(std::sync::atomic::Ordering::Acquire)
    }

    /// Legacy sessions that are open.
    pub(crate) fn session_count(&self) -> usize {
        self.sessions.len()
    }

    /// Ends idle sessions, for ever.
    pub(crate) async fn reap(&self) {
        let mut tick = tokio::time::interval(REAP);
        loop {
            tick.tick().await;
            let settings = self.gateway.settings();
            self.backlog.set_limit(settings.limits.max_unread_bytes);
            let idle = settings.limits.session_idle;
            self.sessions.reap(&self.gateway, idle).await;
        }
    }

    pub(crate) async fn end_session(&self, id: &SessionId) {
        self.sessions.end(&self.gateway, id).await;
    }

    /// Whether a path is ours.
    pub(crate) fn owns(path: &str) -> bool {
        let first = path
            .strip_prefix('/')
            .and_then(|path| path.split('/').next());
        matches!(first, Some("mcp" | "sse" | "message"))
    }

    pub(super) fn session_bounds(&self) -> Bounds {
        Bounds {
            messages: self.gateway.settings().limits.client_queue_len,
            bytes: SESSION_BYTES,
        }
    }

    /// Answers a request to one of our paths.
    pub(crate) async fn answer(
        self: Arc<Self>,
        request: Request<Upload>,
        wire: Arc<Wire>,
    ) -> Response<Body> {
        match self.answer_inner(request, wire).await {
            Ok(response) => response,
            Err(refusal) => Self::refuse(&refusal),
        }
    }

    pub(crate) fn refuse(refusal: &Refusal) -> Response<Body> {
        let mut response = json(
            refusal.status,
            Frame::error(b"", &refusal.error).text().clone(),
        );
        match refusal.status {
            StatusCode::UNAUTHORIZED => {
                response
                    .headers_mut()
                    .insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            StatusCode::SERVICE_UNAVAILABLE => {
                response
                    .headers_mut()
                    .insert(header::RETRY_AFTER, HeaderValue::from_static("5"));
            }
            _ => {}
        }
        response
    }

    async fn answer_inner(
        self: Arc<Self>,
        request: Request<Upload>,
        wire: Arc<Wire>,
    ) -> Result<Response<Body>, Refusal> {
        self.guard.check(request.headers())?;
        let principal = self.guard.principal(request.headers())?;
        let (parts, body) = request.into_parts();
        let path = parts.uri.path();
        if path == "/message" || path.starts_with("/sse") {
            let wire = (parts.method == Method::GET).then_some(wire);
            return Box::pin(self.sse(parts, body, principal, wire)).await;
        }
        let scope = self.admit(&principal, scope(path, &parts.headers)?).await?;
        match parts.method {
            Method::POST => self.post(parts.headers, body, scope, principal, wire).await,
            Method::GET => {
                let session = self.named_session(&parts.headers, &scope, &principal)?;
                let Some((session, _)) = session else {
                    return Ok(method_not_allowed());
                };
                let accept = parts
                    .headers
                    .get(header::ACCEPT)
                    .and_then(|accept| accept.to_str().ok());
                if !accept.is_some_and(|accept| {
                    accept.contains("text/event-stream") || accept.contains("*/*")
                }) {
                    let what = "a GET here opens an event stream: send `Accept: text/event-stream`";
                    return Err(refusal(StatusCode::NOT_ACCEPTABLE, what));
                }
                let share = self.stream_share(&principal)?;
                let headers = vec![(modern::SESSION_ID, session.id().as_str().to_owned())];
                let stream = match last_event(&parts.headers) {
                    None => session.listen(true),
                    Some(id) => match session.resume(id) {
                        Ok(stream) => stream,
                        // The one answer by which every official SDK stops asking, and quietly: their
                        // TypeScript client comes back even after an answer, if that was an error.
                        Err(Lost::Over) => return Ok(method_not_allowed()),
                        // Not 404, which ends the session, and no new stream, which would be taken for the
                        // one that was asked for.
                        Err(Lost::Unknown) => {
                            let what = "header Last-Event-ID names no event of this session after which \
                                        its stream can be taken up again: it is unknown, or too long ago";
                            return Err(refusal(StatusCode::BAD_REQUEST, what));
                        }
                    },
                };
                let takeover = Takeover {
                    stream: Source::Session(stream),
                    opening: None,
                    share,
                    ends_session: false,
                    headers,
                };
                match wire.leave(takeover).await {}
            }
            Method::DELETE => {
                let Some((session, _)) = self.named_session(&parts.headers, &scope, &principal)?
                else {
                    return Ok(method_not_allowed());
                };
                Box::pin(self.end_session(session.id())).await;
                Ok(empty(StatusCode::NO_CONTENT))
            }
            _ => Ok(method_not_allowed()),
        }
    }

    /// What somebody addresses, as far as it is theirs, and known to the gateway. What is not theirs looks like
    /// what there is not.
    pub(super) async fn admit(
        &self,
        principal: &Principal,
        mut scope: Scope,
    ) -> Result<Scope, Refusal> {
        match (&principal.project, &scope.project) {
            (Some(own), None) => scope.project = Some(own.clone()),
            (Some(own), Some(named)) if own != named => return Err(no_scope(&scope)),
            _ => {}
        }
        match self.projects.admit(&scope).await {
            Ok(()) => Ok(scope),
            Err(error) => {
                let what = format!("the project cannot be looked up: {error}");
                Err(refusal(StatusCode::SERVICE_UNAVAILABLE, &what))
            }
        }
    }

    /// The scope of one request, which may name a project in its `_meta` (G08).
    pub(super) async fn rescoped(
        &self,
        principal: &Principal,
        scope: Scope,
        frame: &Frame,
    ) -> Result<Scope, Refusal> {
        let Some(named) = named_project(frame)? else {
            return Ok(scope);
        };
        if scope.project.as_ref().is_some_and(|other| *other != named) {
            let what = "the request's `_meta` and its path, header, key or session name different projects";
            return Err(refusal(StatusCode::BAD_REQUEST, what));
        }
        let project = Some(named);
        let scope = Scope { project, ..scope };
        let scope = Box::pin(self.admit(principal, scope)).await?;
        match self.gateway.view(&scope) {
            Some(_) => Ok(scope),
            None => Err(no_scope(&scope)),
        }
    }

    /// The session that the headers name; `None` if they name none.
    fn named_session(
        &self,
        headers: &HeaderMap,
        scope: &Scope,
        principal: &Arc<Principal>,
    ) -> Result<Option<(Arc<Session>, Scope)>, Refusal> {
        let Some(id) = headers.get(modern::SESSION_ID) else {
            return Ok(None);
        };
        let session = id
            .to_str()
            .ok()
            .and_then(|id| self.sessions.find(id, &principal.id, scope));
        // 2025-11-25 basic/transports "Session Management": the client starts anew on 404.
        session.map(Some).ok_or_else(|| {
            refusal(
                StatusCode::NOT_FOUND,
                "Session not found: send `initialize` again",
            )
        })
    }

    async fn post(
        self: Arc<Self>,
        headers: HeaderMap,
        mut body: Upload,
        scope: Scope,
        principal: Arc<Principal>,
        wire: Arc<Wire>,
    ) -> Result<Response<Body>, Refusal> {
        if !is_json(&headers) {
            return Err(refusal(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "send `Content-Type: application/json`",
            ));
        }
        let settings = self.gateway.settings();
        let limits = &settings.limits;
        let text = collect(&mut body, &headers, limits.max_body_bytes).await?;
        let text = body.counted(text);
        if text.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'[') {
            return Box::pin(self.batch(&headers, &text, scope, principal)).await;
        }
        let frame = match Frame::parse(text, limits.max_depth) {
            Ok(frame) => frame,
            Err(invalid) => return Ok(unreadable(&invalid)),
        };
        if modern::is_modern(&headers, &frame) {
            let scope = self.rescoped(&principal, scope, &frame).await?;
            return Ok(self.modern(headers, frame, scope, principal, wire).await);
        }
        if frame.kind() == Kind::Request && frame.method() == method::INITIALIZE {
            let scope = self.rescoped(&principal, scope, &frame).await?;
            return Box::pin(self.initialize(&frame, scope, principal)).await;
        }
        let (session, scope) = self.session(&headers, &scope, &principal)?;
        let scope = self.rescoped(&principal, scope, &frame).await?;
        match frame.kind() {
            Kind::Request => {
                let streams = prefers_stream(&headers);
                let account = wire.account().clone();
                let answer = self.legacy(session, frame, scope, principal, account, streams);
                Ok(answer.await)
            }
            _ => {
                self.take_in(session, &frame, scope, principal);
                Ok(empty(StatusCode::ACCEPTED))
            }
        }
    }

    /// The session of a legacy message, and its version checked.
    pub(super) fn session(
        &self,
        headers: &HeaderMap,
        scope: &Scope,
        principal: &Arc<Principal>,
    ) -> Result<(Arc<Session>, Scope), Refusal> {
        let session = self
            .named_session(headers, scope, principal)?
            .ok_or_else(|| {
                refusal(
                    StatusCode::BAD_REQUEST,
                    "header Mcp-Session-Id is missing: send `initialize` first",
                )
            })?;
        if let Some(version) = headers.get(modern::PROTOCOL_VERSION) {
            let known = version.to_str().ok().and_then(Version::parse);
            if known.is_none_or(|version| version.era() == Era::Modern) {
                let what =
                    "header MCP-Protocol-Version names a version that this session does not speak";
                return Err(refusal(StatusCode::BAD_REQUEST, what));
            }
        }
        Ok(session)
    }

    /// A notification or a response of a legacy client.
    pub(super) fn take_in(
        &self,
        session: Arc<Session>,
        frame: &Frame,
        scope: Scope,
        principal: Arc<Principal>,
    ) {
        if frame.is_response() {
            session.answered(frame.clone());
            return;
        }
        let outbox = session.outbox().clone();
        let caller = Caller {
            era: Era::Legacy,
            scope,
            session: Some(session),
            outbox,
            principal: principal.id.clone(),
            may_use: principal.role >= Role::Call,
            modern_capabilities: None,
            headers: None,
            timeout: None,
            run: None,
        };
        self.gateway.notification(&caller, frame);
    }

    /// Opens a session (2025-11-25 basic/lifecycle "Initialization").
    async fn initialize(
        &self,
        frame: &Frame,
        scope: Scope,
        principal: Arc<Principal>,
    ) -> Result<Response<Body>, Refusal> {
        let (session, answer) = self.open(frame, scope, principal).await?;
        let mut response = json(StatusCode::OK, answer.into_text());
        if let Some(session) = session {
            let id = HeaderValue::from_str(session.id().as_str()).expect("an id is base64");
            response.headers_mut().insert(modern::SESSION_ID, id);
        }
        Ok(response)
    }

    /// Adds a session. The one that has to go for it does so on its own time.
    pub(super) fn add(&self, session: &Arc<Session>, scope: Scope) -> Result<(), Refusal> {
        let limit = self.gateway.settings().limits.max_sessions;
        let Some(ended) = self.sessions.add(&self.gateway, session, scope, limit) else {
            let what = format!("{limit} client sessions are open already (`max_sessions`)");
            return Err(refusal(StatusCode::SERVICE_UNAVAILABLE, &what));
        };
        if let Some(ended) = ended {
            let gateway = self.gateway.clone();
            self.tasks.spawn(async move { ended.end(&gateway).await });
        }
        Ok(())
    }

    /// Makes a session for `initialize`, and its answer.
    pub(super) async fn open(
        &self,
        frame: &Frame,
        scope: Scope,
        principal: Arc<Principal>,
    ) -> Result<(Option<Arc<Session>>, Answer), Refusal> {
        let face = match Face::from_initialize(frame) {
            Ok(face) => face,
            Err(error) => return Ok((None, Answer::error(frame, &error))),
        };
        let result = self
            .gateway
            .initialize(&scope, &face)
            .await
            .ok_or_else(|| no_scope(&scope))?;
        let session = Session::charged(principal.id.clone(), self.session_bounds(), &self.backlog);
        session.introduce(face);
        self.add(&session, scope)?;
        Ok((Some(session), Answer::result(frame, result.as_bytes())))
    }

    async fn legacy(
        &self,
        session: Arc<Session>,
        frame: Frame,
        scope: Scope,
        principal: Arc<Principal>,
        account: Arc<Account>,
        streams: bool,
    ) -> Response<Body> {
        let outbox = Outbox::charged(REQUEST_BOUNDS, account);
        let caller = Caller {
            era: Era::Legacy,
            scope,
            session: Some(session.clone()),
            outbox: outbox.clone(),
            principal: principal.id.clone(),
            may_use: principal.role >= Role::Call,
            modern_capabilities: None,
            headers: None,
            timeout: None,
            run: None,
        };
        let gateway = self.gateway.clone();
        let mut answering: Answering =
            Box::pin(async move { gateway.request(&caller, &frame).await });
        // Who can come back is given what it takes at once.
        let first = if streams && session.is_primed() {
            answering.as_mut().now_or_never().map(First::Answer)
        } else {
            Some(first(&outbox, &mut answering).await)
        };
        let (answerer, reader) = match first {
            Some(First::Answer(answer))
                if outbox.is_empty() && (!streams || answer.code.is_some()) =>
            {
                let status = answer.status.unwrap_or(StatusCode::OK);
                return json_body(status, Body::answer(answer));
            }
            Some(First::Answer(answer)) => {
                let (answerer, reader) = session.open_stream(outbox);
                answerer.answer(text(answer));
                return event_stream(Events::of_session(reader));
            }
            Some(First::Message) | None => session.open_stream(outbox),
        };
        // Ends with its answer, its deadline, its session, or when nobody comes back for it.
        self.tasks.spawn(async move {
            let answer = tokio::select! {
                answer = answering => answer,
                () = answerer.abandoned() => return,
            };
            answerer.answer(text(answer));
        });
        event_stream(Events::of_session(reader))
    }

    async fn modern(
        &self,
        headers: HeaderMap,
        frame: Frame,
        scope: Scope,
        principal: Arc<Principal>,
        wire: Arc<Wire>,
    ) -> Response<Body> {
        let face = match modern::check(&headers, &frame) {
            Ok(face) => face,
            Err(error) => {
                return json(
                    StatusCode::BAD_REQUEST,
                    Frame::error(frame.id(), &error).text().clone(),
                );
            }
        };
        match frame.kind() {
            Kind::Request => {}
            // A closed stream is the cancellation; no other notification of a client has a meaning here.
            Kind::Notification => return empty(StatusCode::ACCEPTED),
            Kind::Result | Kind::Error => {
                let error = RpcError::new(
                    error::INVALID_REQUEST,
                    "Invalid request: responses are not accepted",
                );
                return json(
                    StatusCode::BAD_REQUEST,
                    Frame::error(b"", &error).text().clone(),
                );
            }
        }
        let streams = prefers_stream(&headers);
        let capabilities = face.map(|face| Bytes::copy_from_slice(face.capabilities));
        let (share, frame, forwarded) = if frame.method() == method::LISTEN {
            match self.stream_share(&principal) {
                // What lasts for hours keeps nothing of hyper's buffers, which the headers are parts of, too.
                Ok(share) => (Some(share), listen::detached(frame), None),
                Err(refusal) => return Self::refuse(&refusal),
            }
        } else {
            (None, frame, Some(headers))
        };
        let outbox = Outbox::charged(REQUEST_BOUNDS, wire.account().clone());
        let caller = Caller {
            era: Era::Modern,
            scope,
            session: None,
            outbox: outbox.clone(),
            principal: principal.id.clone(),
            may_use: principal.role >= Role::Call,
            modern_capabilities: capabilities,
            headers: forwarded,
            timeout: None,
            run: None,
        };
        let gateway = self.gateway.clone();
        let mut answering: Answering =
            Box::pin(async move { gateway.request(&caller, &frame).await });
        let events = match first(&outbox, &mut answering).await {
            First::Answer(answer) if outbox.is_empty() && (!streams || answer.code.is_some()) => {
                let status = modern_status(&answer);
                return json_body(status, Body::answer(answer));
            }
            First::Answer(answer) => Events::of_request(outbox, None, Some((text(answer), None))),
            First::Message => {
                // A task of its own from here on: a client that does not read stops its connection, and must
                // not stop the call with it, which holds a place at its server.
                let account = wire.account().clone();
                let answering = AbortOnDropHandle::new(self.tasks.spawn(async move {
                    let answer = text(answering.await);
                    let length = answer.as_ref().map_or(0, Bytes::len);
                    let charge = Charge::new(&account, length);
                    account.backlog().settle();
                    (answer, Some(charge))
                }));
                if let Some(share) = share {
                    match wire.leave(listen::takeover(outbox, answering, share)).await {}
                }
                let share = self.streams.join(&principal.id);
                Events::of_request(outbox, Some(answering), None).until(share)
            }
        };
        event_stream(events)
    }
}

/// Made once: they cost as much as a search.
static STREAM: LazyLock<Finder<'_>> = LazyLock::new(|| Finder::new("text/event-stream"));
static JSON: LazyLock<Finder<'_>> = LazyLock::new(|| Finder::new("application/json"));

/// Whether a client would rather have a stream than JSON: it names that first, or that alone.
pub(crate) fn prefers_stream(headers: &HeaderMap) -> bool {
    let accept = headers
        .get(header::ACCEPT)
        .map_or(&b""[..], HeaderValue::as_bytes);
    let Some(stream) = STREAM.find(accept) else {
        return false;
    };
    let json = JSON
        .find(accept)
        .or_else(|| memchr::memmem::find(accept, b"*/*"));
    json.is_none_or(|json| stream < json)
}

/// What happens first to a request: the answer alone is JSON, anything before it opens a stream.
enum First {
    Answer(Answer),
    /// It is in the outbox.
    Message,
}

async fn first(outbox: &Outbox, answering: &mut Answering) -> First {
    poll_fn(|cx| match answering.as_mut().poll(cx) {
        Poll::Ready(answer) => Poll::Ready(First::Answer(answer)),
        Poll::Pending => outbox.poll_filled(cx).map(|()| First::Message),
    })
    .await
}

/// What a stream ends with.
fn text(answer: Answer) -> Option<Bytes> {
    (!answer.silent).then(|| answer.into_text())
}

fn event_stream(events: Events) -> Response<Body> {
    let mut response = Response::new(Body::Events(Box::new(events)));
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("text/event-stream"),
    );
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// The event after which a client wants to take a stream up again.
fn last_event(headers: &HeaderMap) -> Option<&str> {
    let id = headers.get("last-event-id")?;
    // What is no text is no id of ours.
    Some(id.to_str().unwrap_or("?")).filter(|id| !id.is_empty())
}

/// The status that a modern answer has besides its error code (2026-07-28 basic/transports/streamable-http).
fn modern_status(answer: &Answer) -> StatusCode {
    if let Some(status) = answer.status {
        return status;
    }
    match answer.code {
        Some(error::METHOD_NOT_FOUND) => StatusCode::NOT_FOUND,
        Some(
            error::PARSE_ERROR
            | error::INVALID_REQUEST
            | error::HEADER_MISMATCH
            | error::MISSING_CAPABILITY
            | error::UNSUPPORTED_VERSION,
        ) => StatusCode::BAD_REQUEST,
        _ => StatusCode::OK,
    }
}

/// What a path and the project header address.
pub(super) fn scope(path: &str, headers: &HeaderMap) -> Result<Scope, Refusal> {
    let not_found = || {
        refusal(
            StatusCode::NOT_FOUND,
            "MCP is at /mcp, /mcp/{project} and /mcp/{project}/{server}",
        )
    };
    let mut parts = path.trim_end_matches('/').split('/').skip(2);
    let (project, server) = (parts.next(), parts.next());
    if parts.next().is_some() {
        return Err(not_found());
    }
    let header = headers
        .get(PROJECT_ID)
        .map(|value| value.to_str().unwrap_or_default());
    let project = match (project.filter(|project| *project != "-"), header) {
        (Some(path), Some(header)) if path != header => {
            return Err(refusal(
                StatusCode::BAD_REQUEST,
                "the path and header X-Project-Id name different projects",
            ));
        }
        (path, header) => path.or(header),
    };
    let project = project
        .map(ProjectId::parse)
        .transpose()
        .map_err(|_| not_found())?;
    let server = server
        .map(percent_decode)
        .map(|name| ServerName::parse(&name))
        .transpose()
        .map_err(|_| not_found())?;
    Ok(Scope { project, server })
}

/// The project that a request names in its `_meta`.
fn named_project(frame: &Frame) -> Result<Option<ProjectId>, Refusal> {
    let Some(meta) = frame.meta() else {
        return Ok(None);
    };
    let mut project = None;
    for span in meta
        .find_all([PROJECT_KEY, "projectId"])
        .into_iter()
        .flatten()
    {
        let id = json::as_string(&frame.text()[span]).and_then(|id| ProjectId::parse(&id).ok());
        let Some(id) = id else {
            let what = "the project in `_meta` is no id: letters, digits, `_` and `-`, at most 64";
            return Err(refusal(StatusCode::BAD_REQUEST, what));
        };
        if project.is_some_and(|other| other != id) {
            let what = "the request's `_meta` names two projects";
            return Err(refusal(StatusCode::BAD_REQUEST, what));
        }
        project = Some(id);
    }
    Ok(project)
}

/// `%41` → `A`; what is no escape stays.
fn percent_decode(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let digits = (bytes[at] == b'%')
            .then(|| text.get(at + 1..at + 3))
            .flatten();
        match digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                out.push(byte);
                at += 3;
            }
            None => {
                out.push(bytes[at]);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

fn no_scope(scope: &Scope) -> Refusal {
    refusal(StatusCode::NOT_FOUND, &scope.missing())
}

pub(super) fn refusal(status: StatusCode, what: &str) -> Refusal {
    Refusal {
        status,
        error: RpcError::new(error::INVALID_REQUEST, what),
    }
}

fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers
        .get(header::CONTENT_TYPE)
        .and_then(|kind| kind.to_str().ok())
        .unwrap_or_default();
    kind.split(';')
        .next()
        .is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json"))
}

/// Reads a body of at most `limit` bytes.
pub(crate) async fn collect<B>(
    mut body: B,
    headers: &HeaderMap,
    limit: usize,
) -> Result<Bytes, Refusal>
where
    B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Unpin,
{
    let too_large = || {
        let what = format!("the body is larger than {limit} bytes (`max_body_bytes`)");
        refusal(StatusCode::PAYLOAD_TOO_LARGE, &what)
    };
    let announced = headers
        .get(header::CONTENT_LENGTH)
        .and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
    if announced.is_some_and(|length| length > limit) {
        return Err(too_large());
    }
    let mut first: Option<Bytes> = None;
    let mut rest: Option<Vec<u8>> = None;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| broken(&*error.into()))?;
        let Ok(data) = frame.into_data() else {
            continue;
        };
        match (&first, &mut rest) {
            // The usual case is one piece: it is taken as it is.
            (None, _) => first = Some(data),
            (Some(one), None) => {
                let mut all = Vec::new();
                append(&mut all, one, announced);
                append(&mut all, &data, announced);
                rest = Some(all);
            }
            (Some(_), Some(all)) => append(all, &data, announced),
        }
        if rest
            .as_ref()
            .map_or_else(|| first.as_ref().map_or(0, Bytes::len), Vec::len)
            > limit
        {
            return Err(too_large());
        }
    }
    Ok(rest.map(Bytes::from).or(first).unwrap_or_default())
}

/// Adds a piece; the buffer is doubled when it is full, but never longer than was announced.
fn append(all: &mut Vec<u8>, data: &[u8], announced: Option<usize>) {
    let length = all.len() + data.len();
    if length > all.capacity() {
        let wanted = (length * 2)
            .min(announced.unwrap_or(usize::MAX))
            .max(length);
        all.reserve_exact(wanted - all.len());
    }
    all.extend_from_slice(data);
}

fn broken(error: &(dyn std::error::Error + 'static)) -> Refusal {
    if NoRoom::caused(error) {
        return refusal(StatusCode::SERVICE_UNAVAILABLE, &NoRoom.to_string());
    }
    refusal(StatusCode::BAD_REQUEST, "the body broke off")
}

pub(super) fn unreadable(invalid: &Invalid) -> Response<Body> {
    let id = if invalid.response {
        Bytes::new()
    } else {
        invalid.id.clone().unwrap_or_default()
    };
    json(
        StatusCode::BAD_REQUEST,
        Frame::error(&id, &invalid.to_rpc()).text().clone(),
    )
}

pub(super) fn json(status: StatusCode, text: Bytes) -> Response<Body> {
    json_body(status, Body::text(text))
}

pub(crate) fn json_body(status: StatusCode, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    );
    response
}

pub(super) fn empty(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(Body::Text(None));
    *response.status_mut() = status;
    response
}

fn method_not_allowed() -> Response<Body> {
    let mut response = empty(StatusCode::METHOD_NOT_ALLOWED);
    response
        .headers_mut()
        .insert(header::ALLOW, HeaderValue::from_static("POST"));
    response
}
