//! A session with one client.

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering},
    },
    task::Poll,
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use bytes::Bytes;
use futures_util::task::AtomicWaker;
use parking_lot::Mutex;
use tokio::{sync::oneshot, time::Instant};
use tokio_util::sync::CancellationToken;

use super::replay::Streams;
use crate::{
    Frame, RpcError, Version,
    backlog::{Account, Backlog},
    bridge::{self, ClientFace},
    chain,
    client::CallerId,
    json::Object,
    outbox::{Bounds, Outbox, Weight},
};

/// Maximum requests to one client that wait for its response.
const MAX_ASKED: usize = 64;
/// Maximum requests of one client in flight.
const MAX_IN_FLIGHT: usize = 1024;

/// A session id with at least 128 random bits. Together with the principal that it is bound to, knowing it grants
/// access to the session (2025-11-25 basic/security_best_practices "Session Hijacking").
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(Arc<str>);

impl SessionId {
    #[must_use]
    pub fn random() -> Self {
        Self(URL_SAFE_NO_PAD.encode(rand::random::<[u8; 16]>()).into())
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<String> for SessionId {
    /// Accepts an id made elsewhere. It must be ASCII, and as hard to guess as a random one.
    fn from(id: String) -> Self {
        Self(id.into())
    }
}

impl std::borrow::Borrow<str> for SessionId {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for SessionId {
    /// Prints the first six characters: enough to follow a session in a log, too few to use it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}…", self.0.get(..6).unwrap_or_default())
    }
}

/// The client's description of itself in `initialize`.
#[derive(Debug, Clone)]
pub struct ClientInfo {
    pub version: Version,
    /// `Implementation`: JSON text.
    pub info: Bytes,
    /// `ClientCapabilities`: JSON text.
    pub capabilities: Bytes,
    /// True if the client is a gateway that wants to know the gateways behind this one.
    pub is_gateway: bool,
}

impl ClientInfo {
    /// Reads the params of `initialize` (2025-11-25 basic/lifecycle "Initialization").
    ///
    /// # Errors
    /// -32602, naming the field.
    pub fn from_initialize(frame: &Frame) -> Result<Self, RpcError> {
        let wrong = |what: &str| RpcError::invalid_params(format!("Invalid params: {what}"));
        let params = frame
            .object()
            .ok_or_else(|| wrong("`params` must be an object"))?;
        let asked = params
            .string("protocolVersion")
            .ok_or_else(|| wrong("`protocolVersion` must be a string"))?;
        // Copied: a slice would keep the whole body and its read buffer alive for as long as the session.
        let object = |key: &str| {
            let span = params.object(key)?.span();
            Some(Bytes::copy_from_slice(&frame.text()[span]))
        };
        Ok(Self {
            version: Version::negotiate_legacy(&asked),
            info: object("clientInfo")
                .unwrap_or_else(|| Bytes::from_static(b"{\"name\":\"unknown\",\"version\":\"0\"}")),
            capabilities: object("capabilities").unwrap_or_else(|| Bytes::from_static(b"{}")),
            is_gateway: params
                .object("_meta")
                .is_some_and(|meta| meta.find(chain::KEY).is_some()),
        })
    }
}

/// A session with one client.
pub struct Session {
    id: SessionId,
    caller: CallerId,
    /// The principal that opened the session. No other principal may use it.
    principal: Arc<str>,
    face: OnceLock<ClientInfo>,
    /// 0: not set. Otherwise the index in [`bridge::LOG_LEVELS`] plus one.
    level: AtomicU8,
    /// Messages outside of any request's stream.
    outbox: Arc<Outbox>,
    /// Bytes waiting for the client in all of its streams.
    account: Option<Arc<Account>>,
    next_id: AtomicU64,
    asked: Mutex<HashMap<u64, oneshot::Sender<Frame>>>,
    in_flight: Mutex<HashMap<Bytes, Arc<Cancel>>>,
    born: Instant,
    /// Set when the client does anything. Cleared by [`Session::idle`].
    used: AtomicBool,
    /// Time of the last activity that [`Session::idle`] observed, in milliseconds after `born`.
    seen: AtomicU64,
    pub(super) streams: Mutex<Streams>,
    pub(super) readers: AtomicU64,
    over: CancellationToken,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Session").field(&self.id).finish()
    }
}

impl Session {
    /// A session whose outbox is bounded but not charged to a backlog.
    #[must_use]
    pub fn new(principal: Arc<str>, bounds: Bounds) -> Arc<Self> {
        Self::with(SessionId::random(), principal, Outbox::new(bounds), None)
    }

    /// A session that is ended if `backlog` is over its limit and this client is the slowest.
    #[must_use]
    pub fn charged(
        id: SessionId,
        principal: Arc<str>,
        bounds: Bounds,
        backlog: &Arc<Backlog>,
    ) -> Arc<Self> {
        let account = backlog.account();
        let outbox = Outbox::charged(bounds, account.clone());
        let session = Self::with(id, principal, outbox, Some(account.clone()));
        let weak = Arc::downgrade(&session);
        account.on_cut(move || {
            if let Some(session) = weak.upgrade() {
                session.end();
            }
        });
        session
    }

    fn with(
        id: SessionId,
        principal: Arc<str>,
        outbox: Arc<Outbox>,
        account: Option<Arc<Account>>,
    ) -> Arc<Self> {
        Arc::new(Self {
            id,
            caller: CallerId::unique(),
            principal,
            face: OnceLock::new(),
            level: AtomicU8::new(0),
            next_id: AtomicU64::new(1),
            asked: Mutex::default(),
            in_flight: Mutex::default(),
            born: Instant::now(),
            used: AtomicBool::new(false),
            seen: AtomicU64::new(0),
            streams: Mutex::new(Streams::new(outbox.clone(), account.clone())),
            readers: AtomicU64::new(0),
            outbox,
            account,
            over: CancellationToken::new(),
        })
    }

    #[must_use]
    pub fn id(&self) -> &SessionId {
        &self.id
    }

    /// The caller id for the session's calls to servers.
    #[must_use]
    pub fn caller(&self) -> CallerId {
        self.caller
    }

    #[must_use]
    pub fn principal(&self) -> &Arc<str> {
        &self.principal
    }

    /// Sets the client's description. Returns `false` if a description was already set.
    pub fn introduce(&self, face: ClientInfo) -> bool {
        self.face.set(face).is_ok()
    }

    #[must_use]
    pub fn face(&self) -> Option<&ClientInfo> {
        self.face.get()
    }

    /// The client's description for modern servers.
    #[must_use]
    pub fn client_face(&self) -> ClientFace {
        let face = self.face.get();
        ClientFace {
            info: face.map_or_else(|| Bytes::from_static(b"{}"), |face| face.info.clone()),
            capabilities: face.map_or_else(
                || Bytes::from_static(b"{}"),
                |face| face.capabilities.clone(),
            ),
            log_level: self.log_level(),
        }
    }

    /// Returns true if the client declared the capability, e.g. `sampling`.
    #[must_use]
    pub fn declares(&self, capability: &str) -> bool {
        self.face
            .get()
            .is_some_and(|face| bridge::declares(&face.capabilities, capability))
    }

    #[must_use]
    pub fn log_level(&self) -> Option<&'static str> {
        let level = self.level.load(Ordering::Relaxed);
        level
            .checked_sub(1)
            .and_then(|at| bridge::LOG_LEVELS.get(usize::from(at)).copied())
    }

    pub fn set_log_level(&self, level: &'static str) {
        let at = bridge::LOG_LEVELS.iter().position(|known| *known == level);
        self.level.store(
            at.map_or(0, |at| u8::try_from(at + 1).unwrap_or(0)),
            Ordering::Relaxed,
        );
    }

    pub(super) fn account(&self) -> Option<&Arc<Account>> {
        self.account.as_ref()
    }

    #[must_use]
    pub fn outbox(&self) -> &Arc<Outbox> {
        &self.outbox
    }

    /// Records that the client is alive. Very cheap: the time is determined later, by [`Session::idle`].
    pub fn touch(&self) {
        self.used.store(true, Ordering::Relaxed);
    }

    /// Time since the client was last active: a message received, a stream open, or a request in flight. Only as
    /// precise as the interval between calls of this method.
    #[must_use]
    pub fn idle(&self) -> Duration {
        let now = self.born.elapsed();
        if self.used.swap(false, Ordering::Relaxed) || self.is_in_use() {
            let now = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
            self.seen.store(now, Ordering::Relaxed);
            return Duration::ZERO;
        }
        now.saturating_sub(Duration::from_millis(self.seen.load(Ordering::Relaxed)))
    }

    /// Returns true while the client has a stream open or a request in flight.
    #[must_use]
    pub fn is_in_use(&self) -> bool {
        self.readers.load(Ordering::Relaxed) > 0 || !self.in_flight.lock().is_empty()
    }

    /// Marks the session as in use for as long as the returned guard exists. For a client whose connection is the
    /// session, such as a pipe.
    #[must_use]
    pub fn hold_open(self: &Arc<Self>) -> HeldOpen {
        self.readers.fetch_add(1, Ordering::Relaxed);
        HeldOpen(self.clone())
    }

    /// Sends a request to the client through `outbox` (of a request's stream, or the session's own).
    ///
    /// # Errors
    /// Why it could not be sent.
    pub fn ask(
        self: &Arc<Self>,
        outbox: &Outbox,
        method: &str,
        params: Option<&[u8]>,
    ) -> Result<Asked, RpcError> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let (answer, answered) = oneshot::channel();
        {
            let mut asked = self.asked.lock();
            if asked.len() >= MAX_ASKED {
                return Err(RpcError::internal(format!(
                    "the client has not answered {MAX_ASKED} earlier requests"
                )));
            }
            asked.insert(id, answer);
        }
        let asked = Asked {
            session: self.clone(),
            id,
            answered,
        };
        let request = Frame::request(&id.to_string(), method, params);
        if outbox.push(Weight::Must, request.text().clone()) {
            Ok(asked)
        } else {
            Err(RpcError::internal("the client does not read its messages"))
        }
    }

    /// Accepts the client's response to a request. Returns `false` if it matches no pending request.
    pub fn answered(&self, frame: Frame) -> bool {
        let waiting = frame
            .numeric_id()
            .and_then(|id| self.asked.lock().remove(&id));
        waiting.is_some_and(|waiting| waiting.send(frame).is_ok())
    }

    /// Registers a request of the client, so that the client can cancel it.
    ///
    /// # Errors
    /// -32600 if the id is already in use (2026-07-28 basic "Requests"); -32603 if too many requests are in flight.
    pub fn begin(self: &Arc<Self>, frame: &Frame) -> Result<InFlight, RpcError> {
        let id = frame.text().slice(frame.id_span());
        let cancel = Arc::<Cancel>::default();
        let mut in_flight = self.in_flight.lock();
        if in_flight.len() >= MAX_IN_FLIGHT {
            return Err(RpcError::internal(format!(
                "{MAX_IN_FLIGHT} requests of this client are already in flight: wait for one to end"
            )));
        }
        if in_flight.contains_key(&id) {
            return Err(RpcError::new(
                crate::error::INVALID_REQUEST,
                format!(
                    "Invalid request: id {} is in use by a request in flight",
                    String::from_utf8_lossy(&id)
                ),
            ));
        }
        in_flight.insert(id.clone(), cancel.clone());
        drop(in_flight);
        Ok(InFlight {
            session: self.clone(),
            id,
            cancel,
        })
    }

    /// Handles `notifications/cancelled`. Unknown ids are ignored, as the specification requires.
    pub fn cancel(&self, cancelled: &Frame) {
        let id = cancelled
            .object()
            .and_then(|params| Object::raw(&params, "requestId"));
        if let Some(token) = id.and_then(|id| self.in_flight.lock().get(id).cloned()) {
            token.cancel();
        }
    }

    /// Ends the session. Requests in flight are cancelled.
    pub fn end(&self) {
        self.over.cancel();
        self.outbox.close();
        self.streams.lock().end();
        for (_, token) in self.in_flight.lock().drain() {
            token.cancel();
        }
    }

    #[must_use]
    pub fn over(&self) -> &CancellationToken {
        &self.over
    }
}

/// See [`Session::hold_open`].
pub struct HeldOpen(Arc<Session>);

impl Drop for HeldOpen {
    fn drop(&mut self) {
        self.0.readers.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A pending request to a client. Dropping it abandons the request.
pub struct Asked {
    session: Arc<Session>,
    id: u64,
    answered: oneshot::Receiver<Frame>,
}

impl Asked {
    /// Waits for the response. `None` if the session ended first.
    ///
    /// # Cancel safety
    /// If this future is dropped, the request is abandoned.
    pub async fn answer(mut self) -> Option<Frame> {
        let over = self.session.over.clone();
        tokio::select! {
            frame = &mut self.answered => frame.ok(),
            () = over.cancelled() => None,
        }
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        self.session.asked.lock().remove(&self.id);
    }
}

/// The cancellation flag of a request, and the task to wake.
#[derive(Debug, Default)]
struct Cancel {
    cancelled: AtomicBool,
    waker: AtomicWaker,
}

impl Cancel {
    fn cancel(&self) {
        self.cancelled.store(true, Ordering::Release);
        self.waker.wake();
    }
}

/// A client's request in flight. Dropping it removes it from the session's table.
pub struct InFlight {
    session: Arc<Session>,
    id: Bytes,
    cancel: Arc<Cancel>,
}

impl InFlight {
    /// Waits until the client cancels the request or the session ends.
    pub async fn cancelled(&self) {
        std::future::poll_fn(|cx| {
            self.cancel.waker.register(cx.waker());
            if self.cancel.cancelled.load(Ordering::Acquire) {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.session.in_flight.lock().remove(&self.id);
    }
}
