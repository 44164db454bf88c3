//! The client role: connections to servers.
//!
//! A [`Client`] is one live connection in one era over one link. [`Client::call`] returns a [`Call`]. Its events are
//! the notifications and server requests of that call, and finally the response. Events outside of any call come from
//! the [`Ambient`] channel.
//!
//! Ids and progress tokens sent to a server come from one `u64` sequence per connection. A response whose id matches no
//! pending call (late, duplicate or forged) is dropped and counted.

mod authorize;
mod connect;
mod duplex;
mod handshake;
pub mod http;
mod printed;
mod slot;
mod whose;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::{sync::mpsc, time::Instant};

pub use self::authorize::{Access, Authorize, Prove, Sign, SignIn, Token};
pub use self::connect::{Connector, Stray, Target};
use self::http::HeaderList;
pub use self::whose::CallerId;
pub use crate::client::handshake::ConnectError;
pub use crate::client::handshake::Identity;
pub use crate::client::handshake::Options;
pub use crate::client::handshake::PROBE_TIMEOUT;
use crate::{
    Era, Frame, Version,
    chain::Behind,
    json::{Span, Splice},
};

/// An event of a call.
#[derive(Debug, Clone)]
pub enum Event {
    /// A notification of the call. Its progress token, if any, is the upstream one.
    Notification(Frame),
    /// A server request in mid-call, to be answered with [`Client::send`]. Legacy era only.
    Request(Frame),
    /// A server request that arrived while calls of several callers were in flight, so its recipient is unclear. Never
    /// an event of a call.
    Unclear(Frame),
    /// The end of the call. The frame carries the upstream id.
    Response(Frame),
}

/// Why a call has no response.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The connection is closed. The request may or may not have reached the server.
    #[error("the connection closed: {0}")]
    Closed(Arc<str>),
    /// The request did not reach the server's application. Retrying once over a new connection is safe.
    #[error("the server no longer knows this session")]
    SessionExpired,
    /// The server's response is not acceptable JSON-RPC.
    #[error("the server's answer is invalid: {0}")]
    Refused(Arc<str>),
    /// An HTTP error status whose body is not JSON-RPC.
    #[error("the server answered HTTP {status}{detail}")]
    Http { status: u16, detail: Arc<str> },
    /// The server needs an access token, and none is available.
    #[error("{0}")]
    SignIn(SignIn),
    /// The request or a header cannot be sent over this link.
    #[error("the request cannot be sent: {0}")]
    Unsendable(Arc<str>),
}

/// Events outside of any call: list changes, resource updates, log messages, and requests ([`Event::Request`],
/// [`Event::Unclear`]) that could not be assigned to one call.
pub type Ambient = mpsc::Receiver<Event>;

/// A request to a server: a frame and the changes to it.
pub struct Outgoing<'a> {
    pub frame: &'a Frame,
    /// Changes to the frame other than its id and progress token.
    pub splice: Splice<'a>,
    /// The span of the caller's progress token in the frame, if it wants progress.
    pub progress: Option<Span>,
    /// `Mcp-Name` and `Mcp-Param-*` values for modern HTTP servers, already encoded.
    pub headers: HeaderList,
    /// The caller that this request is made for. Server requests without a call id go to the only caller with calls in
    /// flight. `None` for the gateway's own requests, such as subscription streams.
    pub caller: Option<CallerId>,
    /// True if the caller wants log messages. Over HTTP, log messages may arrive on another stream, just after the
    /// response.
    pub wants_logs: bool,
}

impl<'a> Outgoing<'a> {
    /// The unchanged frame, as the gateway's own request.
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

/// A server's description of itself.
#[derive(Debug, Clone)]
pub struct ServerInfo {
    pub era: Era,
    pub version: Version,
    /// `InitializeResult` or `DiscoverResult`: JSON text.
    pub result: Bytes,
    /// The server's `capabilities`: JSON text, `{}` if missing.
    pub capabilities: Bytes,
    /// The server's `serverInfo` (possibly from `_meta`): JSON text.
    pub implementation: Option<Bytes>,
    pub instructions: Option<String>,
    /// The server's position in the chain of gateways, if it is a gateway.
    pub behind: Option<Behind>,
}

impl ServerInfo {
    /// The description from an earlier connection.
    ///
    /// # Errors
    /// `result` is not an `InitializeResult` or `DiscoverResult`.
    pub fn remembered(era: Era, result: Bytes) -> Result<Self, ConnectError> {
        match era {
            Era::Legacy => handshake::read_initialize(result),
            Era::Modern => handshake::read_discover(result),
        }
    }

    /// Returns true if the server declared the capability, e.g. `tools`.
    #[must_use]
    pub fn has(&self, capability: &str) -> bool {
        crate::json::Object::of(&self.capabilities)
            .is_some_and(|object| object.find(capability).is_some())
    }

    /// Returns true if the server declared a flag of a capability, e.g. `resources.subscribe`.
    #[must_use]
    pub fn flag(&self, capability: &str, flag: &str) -> bool {
        crate::json::Object::of(&self.capabilities)
            .and_then(|object| object.object(capability))
            .is_some_and(|object| object.raw(flag) == Some(b"true"))
    }
}

/// A live connection to a server. Cheap to clone.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

struct Inner {
    link: Link,
    info: ServerInfo,
    /// `_meta` for the gateway's own requests, if the era needs it: JSON text.
    own_meta: Option<Arc<str>>,
    /// Set for a modern server at a URL whose era was detected: with these options, it may also accept `initialize`.
    detected: Option<Options>,
}

#[derive(Clone)]
pub(crate) enum Link {
    /// stdio or HTTP+SSE: one channel for everything.
    Duplex(duplex::Duplex),
    /// Streamable HTTP: a response stream per request.
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
    /// [`CallError`] if it could not be sent.
    ///
    /// # Cancel safety
    /// If this future is dropped, the request was either not sent or is cancelled at the server.
    pub async fn call(&self, outgoing: Outgoing<'_>) -> Result<Call, CallError> {
        match &self.inner.link {
            Link::Duplex(link) => link.call(outgoing).await.map(Call::Duplex),
            Link::Http(link) => link.call(outgoing).map(Box::new).map(Call::Http),
        }
    }

    /// Returns true if requests travel over streamable HTTP, each with separate headers.
    #[must_use]
    pub fn is_http(&self) -> bool {
        matches!(self.inner.link, Link::Http(_))
    }

    /// Returns true if a legacy server can send messages outside of any call at the moment.
    #[must_use]
    pub fn has_stream(&self) -> bool {
        match &self.inner.link {
            Link::Duplex(_) => true,
            Link::Http(link) => link.has_stream(),
        }
    }

    /// Sends one of the gateway's own requests and waits for the response. `members` are the members of `params`: JSON
    /// text without braces.
    ///
    /// # Errors
    /// [`CallError`]. A JSON-RPC error counts as a response.
    pub async fn ask(&self, method: &str, members: &str) -> Result<Frame, CallError> {
        handshake::ask(self, method, &self.own_params(members)).await
    }

    /// `params` of one of the gateway's own requests: `members` (JSON text without braces) and the `_meta` that the era
    /// needs.
    #[must_use]
    pub fn own_params(&self, members: &str) -> String {
        match &self.inner.own_meta {
            Some(meta) if members.is_empty() => format!("{{\"_meta\":{meta}}}"),
            Some(meta) => format!("{{\"_meta\":{meta},{members}}}"),
            None => format!("{{{members}}}"),
        }
    }

    /// Sends a notification, or the response to an [`Event::Request`] (a frame with the server's id).
    ///
    /// # Errors
    /// [`CallError`] if it could not be sent.
    pub async fn send(&self, frame: &Frame) -> Result<(), CallError> {
        match &self.inner.link {
            Link::Duplex(link) => link.send(frame.text().clone()).await,
            Link::Http(link) => link.send(frame).await,
        }
    }

    /// Like [`Client::send`], but without waiting. The message is dropped if too many are queued.
    pub fn send_behind(&self, frame: Frame) {
        match &self.inner.link {
            Link::Duplex(link) => link.send_behind(&frame),
            Link::Http(link) => link.send_behind(frame),
        }
    }

    /// Returns true for a modern server at a URL whose era was detected, so that [`Client::legacy_too`] may succeed.
    #[must_use]
    pub fn may_be_legacy_too(&self) -> bool {
        self.inner.detected.is_some()
    }

    /// Opens a legacy conversation with the same server, in addition to this modern one: at the same URL, with the same
    /// credentials and capabilities. Waits at most `wait`. `None`: the server, or the way it is connected, allows only
    /// this era.
    ///
    /// # Errors
    /// [`ConnectError`]: unknown, since the server did not answer `initialize`.
    pub async fn legacy_too(
        &self,
        wait: Duration,
    ) -> Result<Option<(Self, Ambient)>, ConnectError> {
        let (Some(options), Link::Http(link)) = (&self.inner.detected, &self.inner.link) else {
            return Ok(None);
        };
        let (ambient, events) = mpsc::channel(connect::MAX_AMBIENT_EVENTS);
        let opening = http::initialize_too(link, options, ambient);
        let opened = tokio::time::timeout(wait, opening);
        let opened = opened.await.map_err(|_| ConnectError::Timeout(wait))??;
        Ok(opened.map(|client| (client.speaking_as(options), events)))
    }

    /// Waits until the connection is closed, and returns the reason.
    pub async fn closed(&self) -> Arc<str> {
        match &self.inner.link {
            Link::Duplex(link) => link.closed().await,
            Link::Http(link) => link.closed().await,
        }
    }

    /// Returns true if the connection can no longer be used.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        match &self.inner.link {
            Link::Duplex(link) => link.is_closed(),
            Link::Http(link) => link.is_closed(),
        }
    }

    /// Closes the connection. Calls in flight end with [`CallError::Closed`], and a legacy HTTP session is deleted.
    /// Waits at most `grace`.
    pub async fn close(&self, grace: Duration) {
        match &self.inner.link {
            Link::Duplex(link) => link.close("closed by the gateway"),
            Link::Http(link) => link.close(grace).await,
        }
    }

    /// Text other than messages that the server wrote at `start` or later, shortened, if its messages share one channel.
    #[must_use]
    pub fn printed_since(&self, start: Instant) -> Option<String> {
        match &self.inner.link {
            Link::Duplex(link) => link.printed().since(start),
            Link::Http(_) => None,
        }
    }

    /// Number of responses that matched no pending call.
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
    /// Boxed, because it is large and is moved a few times.
    Http(Box<http::HttpCall>),
}

impl Call {
    /// The next event. [`Event::Response`] is the last one.
    ///
    /// # Errors
    /// [`CallError`]: the call ended without a response.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn next(&mut self) -> Result<Event, CallError> {
        match self {
            Self::Duplex(call) => call.next().await,
            Self::Http(call) => call.next().await,
        }
    }

    /// The progress token that the server uses for this call.
    #[must_use]
    pub fn upstream_id(&self) -> u64 {
        match self {
            Self::Duplex(call) => call.id(),
            Self::Http(call) => call.id(),
        }
    }
}

/// Starts the task that runs a link. The task ends when the link is closed or its streams end. The link is its only
/// owner, so nothing else has to join it.
#[expect(
    clippy::disallowed_methods,
    reason = "the task is owned by its link: closing that ends it"
)]
pub(crate) fn spawn_linked(task: impl Future<Output = ()> + Send + 'static) {
    tokio::spawn(task);
}
