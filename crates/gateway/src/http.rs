//! Streamable HTTP for clients of both eras, on `/mcp`, `/mcp/{project}` and `/mcp/{project}/{server}`.
//!
//! The response is JSON if the request produces no other message before it. Otherwise, or if the client lists it first
//! in `Accept`, the response is an event stream. In a path that names a server, `-` means "no project".
//!
//! A modern request is cancelled when its connection closes. A legacy request whose response has started to stream is
//! not: the stream belongs to its session ([`mcp::server::Reader`]), and a `GET` with `Last-Event-ID` resumes it.

mod collect;
mod legacy;
mod modern;
mod reply;
mod scope;
mod streams;
mod upload;

pub use self::upload::Upload;
use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use engine::{Gateway, Scope};
use http::{HeaderValue, Method, Request, Response, StatusCode, header, request::Parts};
use hyper::body::Incoming;
use mcp::{
    Frame, Kind,
    backlog::Backlog,
    outbox::Bounds,
    protocol::method,
    server::{self, SessionId},
};
use tokio_util::task::{TaskTracker, task_tracker::TaskTrackerToken};

use self::collect::is_json;
use super::{
    Body,
    guard::{Guard, Refusal, RequestInfo, challenge},
    peers::{Forwarded, Peers},
    room::{Held, Room},
    seal::Seal,
    sessions::Sessions,
    shares::{Share, Shares},
    socket::Heir,
    tls::Tls,
    wire::Wire,
};
use auth::Principal;
use backend::projects::Projects;

pub use self::{collect::collect, reply::json_body, streams::prefers_stream};
pub(super) use self::{
    reply::{empty, json, method_not_allowed, refusal, unreadable},
    scope::scope,
};

/// Limits of the queue of unread messages of one request.
pub(super) const REQUEST_BOUNDS: Bounds = Bounds {
    messages: 256,
    bytes: 8 << 20,
};

/// Interval between checks for idle sessions.
const REAP_INTERVAL: Duration = Duration::from_secs(5);

pub struct HttpGateway {
    pub(super) gateway: Gateway,
    pub(super) projects: Arc<Projects>,
    guard: Guard,
    pub(super) seal: Seal,
    /// The other replicas, if this gateway may have any.
    pub(super) peers: Option<Arc<Peers>>,
    pub(super) sessions: Sessions,
    pub(super) tasks: TaskTracker,
    room: Arc<Room>,
    backlog: Arc<Backlog>,
    streams: Arc<Shares>,
    most_connections: usize,
    /// TLS of the listener for clients. `None`: plain HTTP.
    tls: Option<Arc<Tls>>,
    stopping: std::sync::atomic::AtomicBool,
    /// Set when the gateway stops and another process takes its connections over.
    heir: std::sync::OnceLock<Heir>,
    /// Requests of other replicas in progress.
    forwarded: TaskTracker,
    /// Set when other replicas must send their requests elsewhere.
    leaving: std::sync::atomic::AtomicBool,
}

impl HttpGateway {
    pub fn new(
        gateway: Gateway,
        projects: Arc<Projects>,
        guard: Guard,
        seal: Seal,
        peers: Option<Arc<Peers>>,
        most_connections: usize,
        tls: Option<Arc<Tls>>,
    ) -> Arc<Self> {
        let backlog = Backlog::new(gateway.settings().limits.max_unread_bytes);
        Arc::new(Self {
            gateway,
            projects,
            guard,
            seal,
            peers,
            sessions: Sessions::default(),
            tasks: TaskTracker::new(),
            room: Arc::default(),
            backlog,
            streams: Arc::default(),
            most_connections,
            tls,
            stopping: std::sync::atomic::AtomicBool::new(false),
            heir: std::sync::OnceLock::new(),
            forwarded: TaskTracker::new(),
            leaving: std::sync::atomic::AtomicBool::new(false),
        })
    }

    pub fn gateway(&self) -> &Gateway {
        &self.gateway
    }

    /// TLS of the listener for clients, if it has a certificate.
    pub fn tls(&self) -> Option<&Arc<Tls>> {
        self.tls.as_ref()
    }

    /// The connection limit.
    pub(super) fn most_connections(&self) -> usize {
        self.most_connections
    }

    /// Permanently ends the sessions and streams of revoked keys, and of users whose tokens have expired.
    pub async fn follow_keys(&self) {
        loop {
            for principal in self.guard.identities().ended().await {
                self.sessions.revoke(&principal);
                self.streams.revoke(&principal);
            }
        }
    }

    /// Reserves a share for a new event stream.
    pub(super) fn stream_share(&self, principal: &Principal) -> Result<Share, Refusal> {
        let share = self.streams.take(&principal.id, self.most_connections);
        share.ok_or_else(|| {
            let what =
                "this client has too many open event streams: close one, or raise `max_connections`";
            refusal(StatusCode::SERVICE_UNAVAILABLE, what)
        })
    }

    pub(super) fn streams(&self) -> &Arc<Shares> {
        &self.streams
    }

    /// The unread messages of all clients.
    pub fn backlog(&self) -> &Arc<Backlog> {
        &self.backlog
    }

    /// Wraps the body of a request on that connection.
    pub(super) fn upload(self: &Arc<Self>, body: Incoming, wire: &Arc<Wire>) -> Upload {
        Upload::new(body, wire.clone(), self.clone())
    }

    /// A memory reservation for a body that arrives in pieces.
    pub(super) fn hold(&self) -> Held {
        let limits = &self.gateway.settings().limits;
        Held::new(
            self.room.clone(),
            limits.max_bodies_bytes,
            limits.max_body_bytes,
        )
    }

    pub fn guard(&self) -> &Guard {
        &self.guard
    }

    /// Lets connections finish their current request, then closes them.
    pub fn stop(&self, over: &tokio_util::sync::CancellationToken) {
        self.stopping
            .store(true, std::sync::atomic::Ordering::Release);
        over.cancel();
    }

    /// Like [`Self::stop`], but passes the clients' connections to another process, each one between two requests. Event
    /// streams end.
    pub fn hand_over(&self, heir: Heir, over: &tokio_util::sync::CancellationToken) {
        let _ = self.heir.set(heir);
        self.stop(over);
    }

    pub(super) fn heir(&self) -> Option<&Heir> {
        self.heir.get()
    }

    /// Refuses new requests of other replicas, and waits until their requests in progress are answered.
    pub async fn leave(&self) {
        self.leaving
            .store(true, std::sync::atomic::Ordering::Release);
        self.forwarded.close();
        self.forwarded.wait().await;
    }

    pub(super) fn is_leaving(&self) -> bool {
        self.leaving.load(std::sync::atomic::Ordering::Acquire)
    }

    /// Counts a request of another replica for the lifetime of the token.
    pub(super) fn counted(&self) -> TaskTrackerToken {
        self.forwarded.token()
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(std::sync::atomic::Ordering::Acquire)
    }

    /// The number of open legacy sessions.
    pub fn session_count(&self) -> usize {
        self.sessions.len()
    }

    /// Ends idle sessions in a loop.
    pub async fn reap(&self) {
        let mut tick = tokio::time::interval(REAP_INTERVAL);
        loop {
            tick.tick().await;
            let settings = self.gateway.settings();
            self.backlog.set_limit(settings.limits.max_unread_bytes);
            let idle = settings.limits.session_idle;
            Box::pin(self.sessions.reap(&self.gateway, idle)).await;
        }
    }

    pub(crate) async fn end_session(&self, id: &SessionId) {
        self.sessions.end(&self.gateway, id).await;
    }

    /// Returns true for MCP paths.
    pub(crate) fn owns(path: &str) -> bool {
        let first = path
            .strip_prefix('/')
            .and_then(|path| path.split('/').next());
        matches!(first, Some("mcp" | "sse" | "message"))
    }

    /// Answers a request to an MCP path.
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
        if let Some(challenge) = challenge(refusal.status, refusal.challenge.as_ref()) {
            let headers = response.headers_mut();
            headers.insert(header::WWW_AUTHENTICATE, challenge);
        }
        if refusal.status == StatusCode::SERVICE_UNAVAILABLE {
            let headers = response.headers_mut();
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static("5"));
        }
        response
    }

    async fn answer_inner(
        self: Arc<Self>,
        request: Request<Upload>,
        wire: Arc<Wire>,
    ) -> Result<Response<Body>, Refusal> {
        let forwarded = request.extensions().get::<Forwarded>().cloned();
        if forwarded.is_none() {
            // For a forwarded request, the replica that received it has already checked `Host` and `Origin`.
            self.guard.check(request.headers())?;
        }
        let principal = self.guard.principal(RequestInfo::of(&request)).await?;
        let (parts, body) = request.into_parts();
        let path = parts.uri.path();
        if path == "/message" || path.starts_with("/sse") {
            let wire = (parts.method == Method::GET).then_some(wire);
            return Box::pin(self.sse(parts, body, principal, wire)).await;
        }
        let scope = self.admit(&principal, scope(path, &parts.headers)?).await?;
        if parts.method == Method::POST {
            return self
                .post(Box::new(parts), body, scope, principal, wire)
                .await;
        }
        let head = (&parts.method, &parts.uri, &parts.headers);
        let none = Bytes::new();
        if let Some(answering) = self.forward(head, &none, &principal, forwarded.is_some())
            && let Some(answer) = answering.await
        {
            return Ok(answer);
        }
        match parts.method {
            Method::GET => self.stream(&parts.headers, &scope, &principal, &wire).await,
            Method::DELETE => {
                let Some((session, _)) = self
                    .named_session(&parts.headers, &scope, &principal)
                    .await?
                else {
                    return Ok(method_not_allowed());
                };
                Box::pin(self.end_session(session.id())).await;
                Ok(empty(StatusCode::NO_CONTENT))
            }
            _ => Ok(method_not_allowed()),
        }
    }

    async fn post(
        self: Arc<Self>,
        mut parts: Box<Parts>,
        mut body: Upload,
        scope: Scope,
        principal: Arc<Principal>,
        wire: Arc<Wire>,
    ) -> Result<Response<Body>, Refusal> {
        let forwarded = parts.extensions.get::<Forwarded>().cloned();
        let is_forwarded = forwarded.is_some();
        let head = (&parts.method, &parts.uri, &parts.headers);
        if !is_json(&parts.headers) {
            return Err(refusal(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "send `Content-Type: application/json`",
            ));
        }
        let settings = self.gateway.settings();
        let limits = &settings.limits;
        let text = collect(&mut body, limits.max_body_bytes).await?;
        let text = body.counted(text);
        Self::check_forwarded(forwarded.as_ref(), &text)?;
        if text.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'[') {
            if let Some(answering) = self.forward(head, &text, &principal, is_forwarded)
                && let Some(answer) = answering.await
            {
                return Ok(answer);
            }
            let account = wire.account().clone();
            return Box::pin(self.batch(&parts.headers, &text, scope, principal, account)).await;
        }
        let frame = match Frame::parse(text, limits.max_depth) {
            Ok(frame) => frame,
            Err(invalid) => return Ok(unreadable(&invalid)),
        };
        if server::modern::is_modern(&parts.headers, &frame) {
            if let Some(answering) = self.forward_return(head, &frame, &principal, is_forwarded)
                && let Some(answer) = answering.await
            {
                return Ok(answer);
            }
            let scope = self
                .rescoped(&principal, scope, &frame, &parts.headers)
                .await?;
            return Ok(self
                .modern(
                    std::mem::take(&mut parts.headers),
                    frame,
                    scope,
                    principal,
                    wire,
                )
                .await);
        }
        if frame.kind() == Kind::Request && frame.method() == method::INITIALIZE {
            let scope = self
                .rescoped(&principal, scope, &frame, &parts.headers)
                .await?;
            return Box::pin(self.initialize(&frame, scope, principal)).await;
        }
        if let Some(answering) = self.forward(head, frame.text(), &principal, is_forwarded)
            && let Some(answer) = answering.await
        {
            return Ok(answer);
        }
        let (session, scope) = self.session(&parts.headers, &scope, &principal).await?;
        let scope = self
            .rescoped(&principal, scope, &frame, &parts.headers)
            .await?;
        match frame.kind() {
            Kind::Request => {
                let streams = prefers_stream(&parts.headers);
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
}
