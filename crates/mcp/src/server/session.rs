//! One conversation with a client.

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

/// Requests to one client that may wait for its answer.
const MAX_ASKED: usize = 64;
/// Requests of one client that may be in flight.
const MAX_IN_FLIGHT: usize = 1024;

/// At least 128 bits that nobody guesses: knowing it is being allowed to use it, together with the principal it is bound to
/// (2025-11-25 basic/security_best_practices "Session Hijacking").
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
    /// Takes an id that was made elsewhere: ASCII, and as hard to guess as a random one.
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
    /// The first characters: enough to follow a session in a log, too few to use it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}…", self.0.get(..6).unwrap_or_default())
    }
}

/// What the client said of itself in `initialize`.
#[derive(Debug, Clone)]
pub struct Face {
    pub version: Version,
    /// `Implementation`: JSON text.
    pub info: Bytes,
    /// `ClientCapabilities`: JSON text.
    pub capabilities: Bytes,
    /// Whether it is a gateway that wants to know which gateways it gets behind itself.
    pub is_gateway: bool,
}

impl Face {
    /// Reads the params of `initialize` (2025-11-25 basic/lifecycle "Initialization").
    ///
    /// # Errors
    /// -32602 naming the field.
    pub fn from_initialize(frame: &Frame) -> Result<Self, RpcError> {
        let wrong = |what: &str| RpcError::invalid_params(format!("Invalid params: {what}"));
        let params = frame
            .object()
            .ok_or_else(|| wrong("`params` must be an object"))?;
        let asked = params
            .string("protocolVersion")
            .ok_or_else(|| wrong("`protocolVersion` must be a string"))?;
        // Copies: a slice would keep the whole body, and the buffer that it was read into, for the session's life.
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

/// One conversation with a client.
pub struct Session {
    id: SessionId,
    caller: CallerId,
    /// Who opened it; nobody else may use it.
    principal: Arc<str>,
    face: OnceLock<Face>,
    /// 0: not set; else one more than the place in [`bridge::LOG_LEVELS`].
    level: AtomicU8,
    /// What goes to the client outside of a request's own stream.
    outbox: Arc<Outbox>,
    /// What waits for the client in all of its streams.
    account: Option<Arc<Account>>,
    next_id: AtomicU64,
    asked: Mutex<HashMap<u64, oneshot::Sender<Frame>>>,
    in_flight: Mutex<HashMap<Bytes, Arc<Cancel>>>,
    born: Instant,
    /// Whether anything came since it was last asked for how long nothing did.
    used: AtomicBool,
    /// When something had come, in milliseconds after `born`.
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
    /// A session whose queue has an end of its own only.
    #[must_use]
    pub fn new(principal: Arc<str>, bounds: Bounds) -> Arc<Self> {
        Self::with(SessionId::random(), principal, Outbox::new(bounds), None)
    }

    /// A session that is ended if too much waits for all clients, and it is the slowest of them.
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

    /// On whose behalf its calls are made, towards servers.
    #[must_use]
    pub fn caller(&self) -> CallerId {
        self.caller
    }

    #[must_use]
    pub fn principal(&self) -> &Arc<str> {
        &self.principal
    }

    /// Sets what the client said of itself; the first time counts.
    pub fn introduce(&self, face: Face) -> bool {
        self.face.set(face).is_ok()
    }

    #[must_use]
    pub fn face(&self) -> Option<&Face> {
        self.face.get()
    }

    /// What a modern server has to be told on behalf of this client.
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

    /// Whether the client declared the capability, e.g. `sampling`.
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

    /// Notes that the client is alive. Costs next to nothing: when that was is found out by who asks.
    pub fn touch(&self) {
        self.used.store(true, Ordering::Relaxed);
    }

    /// Since when nothing came from the client and no stream was open, as far as the times tell at which this
    /// was asked.
    #[must_use]
    pub fn idle(&self) -> Duration {
        let now = self.born.elapsed();
        let busy = self.readers.load(Ordering::Relaxed) > 0 || !self.in_flight.lock().is_empty();
        if self.used.swap(false, Ordering::Relaxed) || busy {
            let now = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
            self.seen.store(now, Ordering::Relaxed);
            return Duration::ZERO;
        }
        now.saturating_sub(Duration::from_millis(self.seen.load(Ordering::Relaxed)))
    }

    /// Asks the client something: puts the request into `outbox` (of a request's own stream, or the session's).
    ///
    /// # Errors
    /// Why it cannot be asked.
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
                    "the client has {MAX_ASKED} requests to answer already"
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
            Err(RpcError::internal("the client does not read"))
        }
    }

    /// Takes the client's answer to something asked; `false` if nothing waits for it.
    pub fn answered(&self, frame: Frame) -> bool {
        let waiting = frame
            .numeric_id()
            .and_then(|id| self.asked.lock().remove(&id));
        waiting.is_some_and(|waiting| waiting.send(frame).is_ok())
    }

    /// Notes a request of the client, so that it can cancel it.
    ///
    /// # Errors
    /// -32600: its id is in use already (2026-07-28 basic "Requests"), or there are too many.
    pub fn begin(self: &Arc<Self>, frame: &Frame) -> Result<InFlight, RpcError> {
        let id = frame.text().slice(frame.id_span());
        let cancel = Arc::<Cancel>::default();
        let mut in_flight = self.in_flight.lock();
        if in_flight.len() >= MAX_IN_FLIGHT {
            return Err(RpcError::internal(format!(
                "{MAX_IN_FLIGHT} requests of this client are in flight already"
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

    /// The client's `notifications/cancelled`. Unknown ids are ignored, as the specification says.
    pub fn cancel(&self, cancelled: &Frame) {
        let id = cancelled
            .object()
            .and_then(|params| Object::raw(&params, "requestId"));
        if let Some(token) = id.and_then(|id| self.in_flight.lock().get(id).cloned()) {
            token.cancel();
        }
    }

    /// Ends the conversation: what is in flight is cancelled.
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

/// Something a client was asked. Dropping it forgets the question.
pub struct Asked {
    session: Arc<Session>,
    id: u64,
    answered: oneshot::Receiver<Frame>,
}

impl Asked {
    /// Waits for the answer; `None` if the conversation ended first.
    ///
    /// # Cancel safety
    /// Dropped before it is done, the question is forgotten.
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

/// Whether a request was cancelled, and whom to tell.
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

/// A request of the client in flight; dropping it takes it off the list.
pub struct InFlight {
    session: Arc<Session>,
    id: Bytes,
    cancel: Arc<Cancel>,
}

impl InFlight {
    /// Waits until the client cancels the request or its conversation ends.
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
