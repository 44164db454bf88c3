//! The client role: conversations with servers.
//!
//! A [`Client`] is one live conversation in one era over one link. [`Client::call`] gives a [`Call`]: its
//! events are the notifications and server requests that belong to it, and at last its response. What
//! belongs to no call comes out of the [`Ambient`] channel.
//!
//! Ids and progress tokens towards a server are this conversation's own `u64` sequence; an answer with an
//! id that waits for nothing (late, doubled or forged) is dropped and counted.

mod authorize;
mod connect;
mod duplex;
pub mod http;
mod slot;
mod sse;
mod whose;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::sync::mpsc;

pub use self::authorize::{Access, Authorize, Prove, Sign, SignIn, Token};
pub use self::connect::{ConnectError, Connector, Identity, Options, Stray, Target};
use self::http::HeaderList;
pub use self::whose::CallerId;
use crate::{
    Era, Frame, Version,
    chain::Behind,
    json::{Span, Splice},
};

/// Something that happens in the course of a call.
#[derive(Debug, Clone)]
pub enum Event {
    /// A notification that belongs to the call. A progress token in it is the upstream one.
    Notification(Frame),
    /// The server asks something in mid-call; it waits for [`Client::respond`]. Legacy era only.
    Request(Frame),
    /// A question that comes up while calls of several callers are in flight: it could be anybody's. Never an event of a
    /// call.
    Unclear(Frame),
    /// The end of the call: the frame carries the upstream id.
    Response(Frame),
}

/// Why a call has no response.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The conversation is over; the request may or may not have reached the server.
    #[error("the connection closed: {0}")]
    Closed(Arc<str>),
    /// The request did not reach the server's application: trying once more on a new conversation is safe.
    #[error("the server no longer knows this session")]
    SessionExpired,
    /// The server's answer is not acceptable JSON-RPC.
    #[error("the server's answer was refused: {0}")]
    Refused(Arc<str>),
    /// The HTTP status says no, and the body is no JSON-RPC.
    #[error("the server answered HTTP {status}{detail}")]
    Http { status: u16, detail: Arc<str> },
    /// The server needs an access token, and there is none.
    #[error("{0}")]
    SignIn(SignIn),
    /// A request or header that cannot be sent over this link.
    #[error("the request cannot be sent: {0}")]
    Unsendable(Arc<str>),
}

/// What comes from a server outside of any call: list changes, resource updates, log messages, and requests
/// ([`Event::Request`], [`Event::Unclear`]) that could not be given to one call.
pub type Ambient = mpsc::Receiver<Event>;

/// A request on its way to a server: a frame, and how it differs from it.
pub struct Outgoing<'a> {
    pub frame: &'a Frame,
    /// Changes to the frame besides its id and progress token.
    pub splice: Splice<'a>,
    /// Where the caller's progress token stands in the frame, if it wants progress.
    pub progress: Option<Span>,
    /// `Mcp-Name` and `Mcp-Param-*` values for modern HTTP servers, already encoded.
    pub headers: HeaderList,
    /// On whose behalf it is sent: questions that name no call go to the only caller with calls in flight. `None`: on our
    /// own, as a stream of subscriptions is.
    pub caller: Option<CallerId>,
    /// Whether log messages are wanted: over HTTP they may come beside the answer, just after it.
    pub wants_logs: bool,
}

impl<'a> Outgoing<'a> {
    /// The frame as it is, on our own behalf.
    #[must_use]
    pub fn new(frame: &'a Frame) -> Self {
        Self {
            frame,
            splice: Splice::new(),
            progress: None,
            headers: HeaderList::new(),
            caller: None,
            wants_logs: false,
        }
    }

    /// The text to send under `id`.
    fn text(self, id: u64) -> Bytes {
        let id = id.to_string();
        let mut splice: Splice<'_> = self.splice;
        if let Some(token) = self.progress {
            splice.replace(token, id.as_bytes());
        }
        self.frame.rewritten(id.as_bytes(), splice)
    }
}

/// What a server said of itself.
#[derive(Debug, Clone)]
pub struct ServerInfo {
    pub era: Era,
    pub version: Version,
    /// `InitializeResult` or `DiscoverResult`: JSON text.
    pub result: Bytes,
    /// `capabilities` of it: JSON text, `{}` where there are none.
    pub capabilities: Bytes,
    /// `serverInfo` of it (or of its `_meta`): JSON text.
    pub implementation: Option<Bytes>,
    pub instructions: Option<String>,
    /// What it said of its place among gateways, if it is one.
    pub behind: Option<Behind>,
}

impl ServerInfo {
    /// What a server said of itself in an earlier conversation.
    ///
    /// # Errors
    /// When `result` is no `InitializeResult` or `DiscoverResult`.
    pub fn remembered(era: Era, result: Bytes) -> Result<Self, ConnectError> {
        match era {
            Era::Legacy => connect::read_initialize(result),
            Era::Modern => connect::read_discover(result),
        }
    }

    /// Whether the server declared the capability, e.g. `tools`.
    #[must_use]
    pub fn has(&self, capability: &str) -> bool {
        crate::json::Object::of(&self.capabilities)
            .is_some_and(|object| object.find(capability).is_some())
    }

    /// Whether the server declared a flag of a capability, e.g. `resources.subscribe`.
    #[must_use]
    pub fn flag(&self, capability: &str, flag: &str) -> bool {
        crate::json::Object::of(&self.capabilities)
            .and_then(|object| object.object(capability))
            .is_some_and(|object| object.raw(flag) == Some(b"true"))
    }
}

/// A live conversation with a server. Cheap to clone.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

struct Inner {
    link: Link,
    info: ServerInfo,
    /// `_meta` of our own requests, where the era wants it: JSON text.
    own_meta: Option<Arc<str>>,
}

#[derive(Clone)]
pub(crate) enum Link {
    /// stdio, or HTTP+SSE: one channel for everything.
    Duplex(duplex::Duplex),
    /// Streamable HTTP: a request, a response stream.
    Http(http::HttpLink),
}

impl Client {
    #[must_use]
    pub fn info(&self) -> &ServerInfo {
        &self.inner.info
    }

    /// Sends a request.
    ///
    /// Dropping the [`Call`] cancels the request at the server.
    ///
    /// # Errors
    /// [`CallError`] where it could not be sent.
    ///
    /// # Cancel safety
    /// Dropped before it is done, nothing was sent, or it is cancelled at the server.
    pub async fn call(&self, outgoing: Outgoing<'_>) -> Result<Call, CallError> {
        match &self.inner.link {
            Link::Duplex(link) => link.call(outgoing).await.map(Call::Duplex),
            Link::Http(link) => link.call(outgoing).map(Box::new).map(Call::Http),
        }
    }

    /// Whether requests travel over streamable HTTP, each with headers of its own.
    #[must_use]
    pub fn is_http(&self) -> bool {
        matches!(self.inner.link, Link::Http(_))
    }

    /// Asks something on our own behalf and waits for the answer. `members` are those of `params`: JSON text
    /// without braces.
    ///
    /// # Errors
    /// [`CallError`]. A JSON-RPC error is an answer.
    pub async fn ask(&self, method: &str, members: &str) -> Result<Frame, CallError> {
        connect::ask(self, method, &self.own_params(members)).await
    }

    /// `params` of a request of our own: `members` (JSON text without braces) and what the era wants.
    #[must_use]
    pub fn own_params(&self, members: &str) -> String {
        match &self.inner.own_meta {
            Some(meta) if members.is_empty() => format!("{{\"_meta\":{meta}}}"),
            Some(meta) => format!("{{\"_meta\":{meta},{members}}}"),
            None => format!("{{{members}}}"),
        }
    }

    /// Sends a notification, or a response to [`Event::Request`] (its frame with the server's id).
    ///
    /// # Errors
    /// [`CallError`] where it could not be sent.
    pub async fn send(&self, frame: &Frame) -> Result<(), CallError> {
        match &self.inner.link {
            Link::Duplex(link) => link.send(frame.text().clone()).await,
            Link::Http(link) => link.send(frame).await,
        }
    }

    /// The same for one that nobody waits for: it is left out where very many wait already.
    pub fn send_behind(&self, frame: Frame) {
        match &self.inner.link {
            Link::Duplex(link) => link.send_behind(&frame),
            Link::Http(link) => link.send_behind(frame),
        }
    }

    /// Waits until the conversation is over; says why.
    pub async fn closed(&self) -> Arc<str> {
        match &self.inner.link {
            Link::Duplex(link) => link.closed().await,
            Link::Http(link) => link.closed().await,
        }
    }

    /// Ends the conversation: calls in flight end with [`CallError::Closed`], a legacy HTTP session is
    /// deleted. Waits at most `grace`.
    pub async fn close(&self, grace: Duration) {
        match &self.inner.link {
            Link::Duplex(link) => link.close("closed by the gateway"),
            Link::Http(link) => link.close(grace).await,
        }
    }

    /// How often an answer came that nothing waited for.
    #[must_use]
    pub fn stray_answers(&self) -> u64 {
        match &self.inner.link {
            Link::Duplex(link) => link.stray_answers(),
            Link::Http(link) => link.stray_answers(),
        }
    }
}

/// A request in flight. Dropping it cancels the request at the server.
pub enum Call {
    Duplex(duplex::DuplexCall),
    /// Boxed: it is large, and a call moves about before it rests.
    Http(Box<http::HttpCall>),
}

impl Call {
    /// The next event. After [`Event::Response`] there is none.
    ///
    /// # Errors
    /// [`CallError`]: the call is over without a response.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn next(&mut self) -> Result<Event, CallError> {
        match self {
            Self::Duplex(call) => call.next().await,
            Self::Http(call) => call.next().await,
        }
    }

    /// The progress token that the server has for this call.
    #[must_use]
    pub fn upstream_id(&self) -> u64 {
        match self {
            Self::Duplex(call) => call.id(),
            Self::Http(call) => call.id(),
        }
    }
}

/// Starts the task that runs a link. It ends by itself when its link is closed or its streams end; the link is
/// its only owner, so there is nothing else to join.
#[expect(
    clippy::disallowed_methods,
    reason = "the task is owned by its link: closing that ends it"
)]
pub(crate) fn spawn_linked(task: impl Future<Output = ()> + Send + 'static) {
    tokio::spawn(task);
}
