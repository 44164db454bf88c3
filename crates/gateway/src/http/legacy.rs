//! Legacy requests: opening and finding sessions, and the messages sent in them.

use std::sync::Arc;

use engine::{Answer, Caller, Scope};
use futures_util::FutureExt as _;
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use mcp::{
    Era, Frame, Version,
    backlog::Account,
    outbox::{Bounds, Outbox, Weight},
    protocol::method,
    server::{ClientInfo, Session, SessionId, modern},
};

use super::{
    HttpGateway, REQUEST_BOUNDS,
    reply::{empty, json, json_body, refusal},
    scope::no_scope,
    streams::{First, event_stream, first, text},
};
use crate::{
    Body,
    body::{Answering, Events},
    guard::Refusal,
};
use auth::{Principal, Role};

/// Maximum bytes queued for one session's reader. The maximum number of messages is a setting.
const SESSION_BYTES: usize = 32 << 20;

impl HttpGateway {
    /// Finds the session that the headers name; `None` if they name none.
    pub(super) async fn named_session(
        &self,
        headers: &HeaderMap,
        scope: &Scope,
        principal: &Arc<Principal>,
    ) -> Result<Option<(Arc<Session>, Scope)>, Refusal> {
        let Some(id) = headers.get(modern::SESSION_ID) else {
            return Ok(None);
        };
        let id = id.to_str().unwrap_or_default();
        let session = match self.sessions.find_any(id, &principal.id) {
            None => Box::pin(self.take_up(id, principal, headers)).await?,
            known => known,
        };
        // If the request names no scope, the scope of the session applies.
        let session = session.filter(|(_, own)| scope == own || *scope == Scope::default());
        // 2025-11-25 basic/transports "Session Management": on 404 the client opens a new session.
        session.map(Some).ok_or_else(|| {
            refusal(
                StatusCode::NOT_FOUND,
                "Session not found: send `initialize` again",
            )
        })
    }

    /// Resumes a session that is not known here, if its id was issued to this principal.
    ///
    /// Changes in the meantime are unknown, so the client gets a "changed" notification for each list.
    async fn take_up(
        &self,
        id: &str,
        principal: &Arc<Principal>,
        headers: &HeaderMap,
    ) -> Result<Option<(Arc<Session>, Scope)>, Refusal> {
        if self.sessions.knows(id) {
            // The session has ended, or another request has just resumed it.
            return Ok(self.sessions.find_any(id, &principal.id));
        }
        let Some((scope, face)) = self.seal.open(&principal.id, id) else {
            return Ok(None);
        };
        // The principal's permissions may have changed since.
        let scope = self.admit(principal, scope).await?;
        if self.gateway.view(&scope).is_none() {
            return Ok(None);
        }
        let session = self.new_session(id.to_owned().into(), principal);
        session.introduce(face);
        for changed in [
            method::TOOLS_CHANGED,
            method::PROMPTS_CHANGED,
            method::RESOURCES_CHANGED,
        ] {
            let changed = Frame::notification(changed, None);
            let outbox = session.outbox();
            outbox.push(Weight::Signal, changed.text().clone());
        }
        let added = self.add(
            &session,
            self.with_values(principal, scope, headers)?,
            false,
        );
        // Another request may have resumed the session first.
        match self.sessions.find_any(id, &principal.id) {
            Some(known) => {
                tracing::debug!(session = ?session.id(), "taken up");
                Ok(Some(known))
            }
            None => added.map(|()| None),
        }
    }

    /// Creates a session with the standard limits.
    pub(crate) fn new_session(&self, id: SessionId, principal: &Arc<Principal>) -> Arc<Session> {
        let bounds = Bounds {
            messages: self.gateway.settings().limits.client_queue_len,
            bytes: SESSION_BYTES,
        };
        Session::charged(id, principal.id.clone(), bounds, &self.backlog)
    }

    /// Finds the session of a legacy message and checks the protocol version.
    pub(crate) async fn session(
        &self,
        headers: &HeaderMap,
        scope: &Scope,
        principal: &Arc<Principal>,
    ) -> Result<(Arc<Session>, Scope), Refusal> {
        let session = self
            .named_session(headers, scope, principal)
            .await?
            .ok_or_else(|| {
                refusal(
                    StatusCode::BAD_REQUEST,
                    "header Mcp-Session-Id is missing: send `initialize` first",
                )
            })?;
        if let Some(version) = headers.get(modern::PROTOCOL_VERSION) {
            let known = version.to_str().ok().and_then(Version::parse);
            if known.is_none_or(|version| version.era() == Era::Modern) {
                let what = format!(
                    "header MCP-Protocol-Version: this session cannot use {version:?}: send the version that `initialize` returned"
                );
                return Err(refusal(StatusCode::BAD_REQUEST, &what));
            }
        }
        Ok(session)
    }

    /// Handles a notification or a response of a legacy client.
    pub(crate) fn take_in(
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
            session: Some(session),
            may_use: principal.may(Role::Call, scope.project.as_ref()),
            ..Caller::legacy(scope, principal.id.clone(), outbox)
        };
        self.gateway.notification(&caller, frame);
    }

    /// Opens a session (2025-11-25 basic/lifecycle "Initialization").
    pub(super) async fn initialize(
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

    /// Adds a session. If another session has to end because the limit is reached, a separate task ends it.
    pub(crate) fn add(
        &self,
        session: &Arc<Session>,
        scope: Scope,
        is_own: bool,
    ) -> Result<(), Refusal> {
        let limit = self.gateway.settings().limits.max_sessions;
        let Some(ended) = self
            .sessions
            .add(&self.gateway, session, scope, is_own, limit)
        else {
            let what = format!(
                "{limit} client sessions are open already: end one, or raise `max_sessions`"
            );
            return Err(refusal(StatusCode::SERVICE_UNAVAILABLE, &what));
        };
        if let Some(ended) = ended {
            let gateway = self.gateway.clone();
            self.tasks.spawn(async move { ended.end(&gateway).await });
        }
        Ok(())
    }

    /// Opens a session for `initialize`, and builds the response.
    pub(crate) async fn open(
        &self,
        frame: &Frame,
        scope: Scope,
        principal: Arc<Principal>,
    ) -> Result<(Option<Arc<Session>>, Answer), Refusal> {
        let face = match ClientInfo::from_initialize(frame) {
            Ok(face) => face,
            Err(error) => return Ok((None, Answer::error(frame, &error))),
        };
        let result = self
            .gateway
            .initialize(&scope, &face)
            .await
            .ok_or_else(|| no_scope(&scope))?;
        let opener = self.peers.as_ref().map(|peers| peers.address());
        let id = self.seal.seal(&principal.id, &scope, &face, opener);
        let session = self.new_session(id, &principal);
        session.introduce(face);
        self.add(&session, scope, true)?;
        Ok((Some(session), Answer::result(frame, result.as_bytes())))
    }

    pub(super) async fn legacy(
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
            session: Some(session.clone()),
            may_use: principal.may(Role::Call, scope.project.as_ref()),
            ..Caller::legacy(scope, principal.id.clone(), outbox.clone())
        };
        let gateway = self.gateway.clone();
        let answering = Box::pin(async move { gateway.request(&caller, &frame).await });
        self.respond(session, outbox, answering, streams).await
    }

    /// The response to a legacy request or batch: JSON, or a stream of its session if `outbox` has messages before it.
    pub(crate) async fn respond(
        &self,
        session: Arc<Session>,
        outbox: Arc<Outbox>,
        mut answering: Answering,
        streams: bool,
    ) -> Response<Body> {
        // A client that can resume gets its event id immediately.
        let first = if streams && session.is_primed() {
            answering.as_mut().now_or_never().map(First::Answer)
        } else {
            Some(first(&outbox, &mut answering).await)
        };
        let (answerer, reader) = match first {
            // The client cancelled the request and does not wait for a response.
            Some(First::Answer(answer)) if outbox.is_empty() && answer.silent => {
                return empty(StatusCode::ACCEPTED);
            }
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
        // The task ends with the response, the request's deadline or the session, or when no client resumes the stream.
        self.tasks.spawn(async move {
            let answer = tokio::select! {
                answer = answering => answer,
                () = answerer.abandoned() => return,
            };
            answerer.answer(text(answer));
        });
        event_stream(Events::of_session(reader))
    }
}
