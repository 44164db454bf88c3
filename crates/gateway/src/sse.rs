//! HTTP+SSE of 2024-11-05, for clients that support nothing newer: `GET /sse` (or `/sse/{project}/{server}`) and `POST
//! /message?sessionId=…`.

use std::sync::Arc;

use bytes::Bytes;
use engine::{Caller, Scope};
use http::{HeaderMap, Method, Response, StatusCode, request::Parts};
use mcp::{
    Frame, Kind,
    outbox::Weight,
    protocol::method,
    server::{ClientInfo, Session, SessionId},
    sse,
};

use auth::{Principal, Role};

use super::{
    Body, HttpGateway,
    guard::Refusal,
    http::{collect, empty, refusal, scope},
    idle::{Source, Takeover},
    peers::Forwarded,
    wire::Wire,
};
use crate::http::Upload;

impl HttpGateway {
    pub(super) async fn sse(
        self: Arc<Self>,
        parts: Parts,
        mut body: Upload,
        principal: Arc<Principal>,
        wire: Option<Arc<Wire>>,
    ) -> Result<Response<Body>, Refusal> {
        let path = parts.uri.path();
        match (wire, path) {
            (Some(wire), path) if path.starts_with("/sse") => {
                let scope = self.admit(&principal, scope(path, &parts.headers)?).await?;
                if self.gateway.view(&scope).is_none() {
                    return Err(refusal(StatusCode::NOT_FOUND, &scope.missing()));
                }
                let scope = self.with_values(&principal, scope, &parts.headers)?;
                self.open_sse(scope, principal, wire, &parts.headers).await
            }
            (None, "/message") if parts.method == Method::POST => {
                let query = parts.uri.query().unwrap_or_default();
                let id = query
                    .split('&')
                    .find_map(|pair| pair.strip_prefix("sessionId="))
                    .unwrap_or_default();
                let forwarded = parts.extensions.get::<Forwarded>();
                let found = self.sessions.find_any(id, &principal.id);
                let settings = self.gateway.settings();
                let max_depth = settings.limits.max_depth;
                let limit = settings.limits.max_body_bytes;
                let text = collect(&mut body, limit).await?;
                let text = body.counted(text);
                Self::check_forwarded(forwarded, &text)?;
                let head = (&parts.method, &parts.uri, &parts.headers);
                if found.is_none()
                    && forwarded.is_none()
                    && let Some(answer) = self.forward_sse(id, head, &text, &principal).await
                {
                    return Ok(answer);
                }
                let (session, scope) = found.ok_or_else(|| {
                    refusal(StatusCode::NOT_FOUND, "Session not found: open /sse again")
                })?;
                self.message(session, scope, principal, text, max_depth, &parts.headers)
                    .await
            }
            _ => Ok(empty(StatusCode::METHOD_NOT_ALLOWED)),
        }
    }

    async fn open_sse(
        &self,
        scope: Scope,
        principal: Arc<Principal>,
        wire: Arc<Wire>,
        headers: &HeaderMap,
    ) -> Result<Response<Body>, Refusal> {
        let id = match &self.peers {
            Some(peers) => self.seal.seal_sse(&principal.id, peers.address()),
            None => SessionId::random(),
        };
        let session = self.new_session(id, &principal);
        let share = self.stream_share(&principal)?;
        self.add(&session, scope, true)?;
        // A path, and not relative to this stream's: not every client resolves it against the stream.
        let (prefix, id) = (self.guard().prefix_of(headers), session.id().as_str());
        let endpoint = Bytes::from(format!("{prefix}/message?sessionId={id}"));
        let takeover = Takeover {
            stream: Source::Session(session.listen(false)),
            opening: Some(sse::encode(Some("endpoint"), None, &endpoint)),
            share,
            ends_session: true,
            headers: Vec::new(),
        };
        match wire.leave(takeover).await {}
    }

    /// Handles one message of the client. The response is sent on the stream.
    async fn message(
        self: Arc<Self>,
        session: Arc<Session>,
        scope: Scope,
        principal: Arc<Principal>,
        text: Bytes,
        max_depth: usize,
        headers: &HeaderMap,
    ) -> Result<Response<Body>, Refusal> {
        let frame = match Frame::parse(text, max_depth) {
            Ok(frame) => frame,
            Err(invalid) => {
                return Err(Refusal {
                    status: StatusCode::BAD_REQUEST,
                    error: invalid.to_rpc(),
                    challenge: None,
                });
            }
        };
        if frame.kind() != Kind::Request {
            self.take_in(session, &frame, scope, principal);
            return Ok(empty(StatusCode::ACCEPTED));
        }
        if frame.method() == method::INITIALIZE {
            let scope = self.with_values(&principal, scope, headers)?;
            let answer = match ClientInfo::from_initialize(&frame) {
                Ok(face) => {
                    let result = self
                        .gateway
                        .initialize(&scope, &face)
                        .await
                        .unwrap_or_default();
                    session.introduce(face);
                    Frame::result(frame.id(), result.as_bytes())
                }
                Err(error) => Frame::error(frame.id(), &error),
            };
            session.outbox().push(Weight::Must, answer.text().clone());
            return Ok(empty(StatusCode::ACCEPTED));
        }
        // Errors are sent on the stream: clients of this transport ignore the response to a POST.
        let scope = match self.rescoped(&principal, scope, &frame, headers).await {
            Ok(scope) => scope,
            Err(refusal) => {
                let answer = Frame::error(frame.id(), &refusal.error);
                session.outbox().push(Weight::Must, answer.text().clone());
                return Ok(empty(StatusCode::ACCEPTED));
            }
        };
        let caller = Caller {
            session: Some(session.clone()),
            may_use: principal.may(Role::Call, scope.project.as_ref()),
            ..Caller::legacy(scope, principal.id.clone(), session.outbox().clone())
        };
        let gateway = self.gateway.clone();
        // The task ends with the response, the request's deadline or the session, whichever comes first.
        self.tasks.spawn(async move {
            let answer = tokio::select! {
                answer = gateway.request(&caller, &frame) => answer,
                () = session.over().cancelled() => return,
            };
            if !answer.silent {
                session.outbox().push(Weight::Must, answer.into_text());
            }
        });
        Ok(empty(StatusCode::ACCEPTED))
    }
}
