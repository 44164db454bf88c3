//! The caller of a request, and the answer to it.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use code::{Clock, Pause};
use mcp::{
    Era, Frame, RpcError,
    bridge::{self, ClientFace},
    client::CallerId,
    frame::Param,
    json::{Object, quote},
    outbox::Outbox,
    protocol::meta,
    server::{Session, SessionId},
};

use crate::scope::Scope;

/// The principal of a caller without a key.
pub const ANONYMOUS: &str = "anonymous";

/// The caller of a request, and where messages about the request are sent.
pub struct Caller {
    pub era: Era,
    pub scope: Scope,
    /// The legacy session or the stdio pipe.
    pub session: Option<Arc<Session>>,
    pub outbox: Arc<Outbox>,
    pub principal: Arc<str>,
    /// True if the caller may call and read things. Otherwise it may only list them.
    pub may_use: bool,
    /// Capabilities of the client, as JSON. Set for modern requests, which have no session.
    pub modern_capabilities: Option<Bytes>,
    /// The HTTP headers of a modern request. `Mcp-Param-*` headers are checked against its arguments.
    pub headers: Option<http::HeaderMap>,
    /// Timeout for the server. `None`: the configured one.
    pub timeout: Option<Duration>,
    /// The agent run that the call's record belongs to.
    pub run: Option<Arc<str>>,
    /// The recorded call that this call repeats.
    pub replay_of: Option<Arc<str>>,
    /// True: long results are not replaced by previews, because the caller shortens them itself.
    pub wants_whole: bool,
    /// The clock of the run of code that makes the call. It stands still while the caller is asked something.
    pub clock: Option<Clock>,
}

impl Caller {
    /// A caller that speaks a legacy version, outside of a session and of an agent run. It may only list things, and
    /// its calls have the configured timeout.
    #[must_use]
    pub fn legacy(scope: Scope, principal: Arc<str>, outbox: Arc<Outbox>) -> Self {
        Self {
            era: Era::Legacy,
            scope,
            session: None,
            outbox,
            principal,
            may_use: false,
            modern_capabilities: None,
            headers: None,
            timeout: None,
            run: None,
            replay_of: None,
            wants_whole: false,
            clock: None,
        }
    }

    /// Like [`Caller::legacy`], for a modern version.
    #[must_use]
    pub fn modern(scope: Scope, principal: Arc<str>, outbox: Arc<Outbox>) -> Self {
        Self {
            era: Era::Modern,
            ..Self::legacy(scope, principal, outbox)
        }
    }

    /// Identifies on whose behalf the request is made. Requests of the same session share an id, as do requests of the
    /// same agent run, and requests with the same key and the same client info. Any other request gets a unique id.
    pub(crate) fn id(&self, frame: &Frame) -> CallerId {
        if let Some(session) = &self.session {
            return session.caller();
        }
        if let Some(run) = &self.run {
            return CallerId::of(("run", run));
        }
        // Callers without a key cannot be told apart.
        if self.modern_capabilities.is_none() || &*self.principal == ANONYMOUS {
            return CallerId::unique();
        }
        let info = frame.meta().and_then(|own| own.raw(meta::CLIENT_INFO));
        info.map_or_else(CallerId::unique, |info| {
            CallerId::of((&self.principal, info))
        })
    }

    /// Stops the clock of the run that makes the call, while the caller is asked something.
    pub(crate) fn pause(&self) -> Option<Pause> {
        self.clock.as_ref().map(Clock::pause)
    }

    /// The era in which its requests reach a server that speaks both. Without a session, there is nobody whom a legacy
    /// server could ask.
    pub(crate) fn era_upstream(&self) -> Era {
        match self.session {
            Some(_) => self.era,
            None => Era::Modern,
        }
    }

    pub(crate) fn face(&self) -> ClientFace {
        match (&self.modern_capabilities, &self.session) {
            (Some(capabilities), _) => ClientFace {
                info: Bytes::from_static(b"{}"),
                capabilities: capabilities.clone(),
                log_level: None,
            },
            (None, Some(session)) => session.client_face(),
            (None, None) => ClientFace {
                info: Bytes::from_static(b"{}"),
                capabilities: Bytes::from_static(b"{}"),
                log_level: None,
            },
        }
    }
}

/// The owner of state that a request creates, such as a task or an opened view.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Owner {
    Principal(Arc<str>),
    Session(SessionId),
    /// Anyone who knows the id of the task or view.
    Bearer,
}

impl Owner {
    pub(crate) fn of(caller: &Caller) -> Self {
        match &caller.session {
            _ if *caller.principal != *ANONYMOUS => Self::Principal(caller.principal.clone()),
            Some(session) => Self::Session(session.id().clone()),
            None => Self::Bearer,
        }
    }
}

/// Refuses a request for a further page. Every list is returned as a single page. Some clients write no cursor as null
/// or as an empty string.
///
/// # Errors
/// -32602 if the request has a `cursor`.
pub(crate) fn check_cursor(frame: &Frame) -> Result<(), RpcError> {
    let cursor = frame.param(Param::Cursor).map(|at| &frame.text()[at]);
    match cursor.filter(|cursor| !matches!(*cursor, b"null" | b"\"\"")) {
        Some(_) => Err(RpcError::invalid_params("Invalid params: unknown `cursor`")),
        None => Ok(()),
    }
}

/// The answer to a request.
#[derive(Debug)]
pub struct Answer {
    /// The response as JSON text. For a list, only the part before `shared`.
    pub(crate) text: Bytes,
    /// A list that is shared by all callers, from the snapshot. One closing brace follows it.
    pub(crate) shared: Option<Bytes>,
    /// True for a result that the gateway made itself.
    pub(crate) is_own: bool,
    /// The JSON-RPC error code, if the response is an error.
    pub code: Option<i64>,
    /// True if the client cancelled the request and expects no response.
    pub silent: bool,
    /// An HTTP status that overrides the default for the response.
    pub status: Option<http::StatusCode>,
}

impl Answer {
    #[must_use]
    pub fn ok(text: Bytes) -> Self {
        Self {
            text,
            shared: None,
            is_own: false,
            code: None,
            silent: false,
            status: None,
        }
    }

    /// A result that is stored in a snapshot. It is sent from there without a copy.
    #[must_use]
    pub fn shared(frame: &Frame, result: Bytes) -> Self {
        let id = frame.id();
        let mut head = Vec::with_capacity(id.len() + 40);
        head.extend_from_slice(b"{\"jsonrpc\":\"2.0\",\"id\":");
        head.extend_from_slice(id);
        head.extend_from_slice(b",\"result\":");
        Self {
            shared: Some(result),
            ..Self::ok(head.into())
        }
    }

    /// The pieces of the response, in order.
    #[must_use]
    pub fn pieces(self) -> [Bytes; 3] {
        match self.shared {
            Some(shared) => [self.text, shared, Bytes::from_static(b"}")],
            None => [self.text, Bytes::new(), Bytes::new()],
        }
    }

    /// The response in one piece.
    #[must_use]
    pub fn into_text(self) -> Bytes {
        match &self.shared {
            None => self.text,
            Some(_) => self.pieces().concat().into(),
        }
    }

    pub(crate) fn relayed(text: Bytes, code: Option<i64>) -> Self {
        Self {
            code,
            ..Self::ok(text)
        }
    }

    /// The answer to a request that the client cancelled. It is not sent.
    pub(crate) fn cancelled(frame: &Frame) -> Self {
        let error = RpcError::internal("the client cancelled the request");
        Self {
            silent: true,
            ..Self::error(frame, &error)
        }
    }

    /// A result that the gateway made itself.
    #[must_use]
    pub fn result(frame: &Frame, result: &[u8]) -> Self {
        Self {
            is_own: true,
            ..Self::ok(Frame::result(frame.id(), result).text().clone())
        }
    }

    /// The result of a tool of the gateway.
    pub(crate) fn of_tool(frame: &Frame, era: Era, text: &str, is_error: bool) -> Self {
        let kind = match era {
            Era::Modern => "\"resultType\":\"complete\",",
            Era::Legacy => "",
        };
        let text = quote(text);
        let result = format!(
            "{{{kind}\"content\":[{{\"type\":\"text\",\"text\":{text}}}],\"isError\":{is_error}}}"
        );
        Self::result(frame, result.as_bytes())
    }

    /// A result of the gateway for a modern client names a server in `_meta`: `info` is its description, as JSON text.
    pub(crate) fn signed(self, frame: &Frame, info: impl FnOnce() -> String) -> Self {
        if !self.is_own {
            return self;
        }
        let signed = Object::of(&self.text)
            .and_then(|answer| bridge::with_server_info(answer.raw("result")?, &info()));
        signed.map_or(self, |result| Self::result(frame, &result))
    }

    pub(crate) fn unavailable(frame: &Frame, what: &str) -> Self {
        let error = RpcError::internal(what).with_data(br#"{"reason":"unavailable"}"#.to_vec());
        Self {
            status: Some(http::StatusCode::SERVICE_UNAVAILABLE),
            ..Self::error(frame, &error)
        }
    }

    #[must_use]
    pub fn error(frame: &Frame, error: &RpcError) -> Self {
        Self {
            code: Some(error.code),
            ..Self::ok(Frame::error(frame.id(), error).text().clone())
        }
    }
}
