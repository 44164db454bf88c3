//! HTTP/1.1 connections that run inside the task of the request.
//!
//! An ordinary pool runs every connection in a separate task, so that each request wakes that task and is woken by it.
//! Here the request's future polls its connection, and later the response body does. A call stays in one task from end
//! to end, and dropping it closes the connection.
//!
//! Invariants: an idle connection has no unfinished response and is checked before it is reused. A request moves to
//! another connection only if sending it had not begun, or if it may be repeated. Idle connections are bounded in number
//! and time. The server may close one at the moment a request is sent, so a connection is used only well before its
//! server's limit: the one in the `Keep-Alive` header, or else [`DEFAULT_LIMIT`]. Deliberately absent: TLS, HTTP/2 (see [`super::pool`]) and pipelining.

use std::{
    collections::HashMap,
    pin::{Pin, pin},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicU8, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use bytes::Bytes;
use futures_util::task::AtomicWaker;
use http::{HeaderMap, HeaderName, Request, Response};
use http_body::{Body, Frame, SizeHint};
use http_body_util::Full;
use hyper::{
    body::Incoming,
    client::conn::{
        TrySendError,
        http1::{Builder, Connection, SendRequest},
    },
};
use hyper_util::rt::TokioIo;
use tokio::{
    net::TcpStream,
    time::{Instant, sleep},
};

use crate::client::spawn_linked;

/// Maximum idle connections per authority.
const MAX_IDLE_PER_AUTHORITY: usize = 256;
/// Interval between sweeps over the idle connections.
const SWEEP_INTERVAL: Duration = Duration::from_secs(15);
/// The time after which a server closes an idle connection, if it does not say so. Node and uvicorn use this.
const DEFAULT_LIMIT: Duration = Duration::from_secs(5);
const MAX_LIMIT: Duration = Duration::from_secs(60);
/// A connection is not used in this time before its limit, or in the last quarter of a short limit.
const LIMIT_MARGIN: Duration = Duration::from_secs(1);
/// A connection that was closed sooner says nothing about the limit: the server was probably restarted.
const MIN_LEARNED_LIMIT: Duration = Duration::from_secs(1);
/// Authorities beyond which those without idle connections are forgotten.
const MAX_KNOWN_LIMITS: usize = 1024;
/// Buffer of a connection in bytes. It limits a response head.
const BUFFER_BYTES: usize = 256 * 1024;
/// Maximum iterations over a connection in one poll, before other tasks get their turn.
const MAX_ROUNDS_PER_POLL: usize = 16;

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");

type Io = TokioIo<TcpStream>;
type Running = Connection<Io, Full<Bytes>>;

/// A connection.
pub(super) struct Wire {
    sender: SendRequest<Full<Bytes>>,
    /// `None` after the connection has ended.
    connection: Option<Pin<Box<Running>>>,
    quiet: Arc<Quiet>,
    waker: Waker,
}

impl Wire {
    pub(super) async fn new(io: Io) -> Result<Self, hyper::Error> {
        let (sender, connection) = Builder::new()
            .max_buf_size(BUFFER_BYTES)
            .handshake(io)
            .await?;
        let quiet = Arc::<Quiet>::default();
        Ok(Self {
            sender,
            connection: Some(Box::pin(connection)),
            waker: quiet.clone().into(),
            quiet,
        })
    }

    /// Sends a request and waits for the response head.
    ///
    /// # Errors
    /// The error contains the request if sending it had not begun.
    pub(super) async fn send(
        &mut self,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, TrySendError<Request<Full<Bytes>>>> {
        // The task is about to be polled, so it need not be woken.
        self.quiet.begin();
        let mut response = pin!(self.sender.try_send_request(request));
        std::future::poll_fn(|cx| self.drive(cx, |cx| response.as_mut().poll(cx))).await
    }

    /// Polls the connection and `what` until neither makes progress.
    fn drive<T>(
        &mut self,
        cx: &Context<'_>,
        mut what: impl FnMut(&mut Context<'_>) -> Poll<T>,
    ) -> Poll<T> {
        self.quiet.outer.register(cx.waker());
        for _ in 0..MAX_ROUNDS_PER_POLL {
            self.quiet.begin();
            self.step();
            if let Poll::Ready(done) = what(&mut Context::from_waker(&self.waker)) {
                return Poll::Ready(done);
            }
            if self.quiet.rest() {
                return Poll::Pending;
            }
        }
        self.quiet.rest();
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn step(&mut self) {
        let mut cx = Context::from_waker(&self.waker);
        if let Some(connection) = &mut self.connection
            && let Poll::Ready(ended) = connection.as_mut().poll(&mut cx)
        {
            // A pending response gets the error separately.
            if let Err(error) = ended {
                tracing::trace!("an HTTP connection to a server failed: {error}");
            }
            self.connection = None;
        }
    }

    /// Returns true if the connection can take another request, as far as is known now. Wakes no task while it is idle.
    fn is_free(&mut self) -> bool {
        self.quiet.begin();
        self.step();
        self.is_ready()
    }

    fn is_ready(&self) -> bool {
        self.connection.is_some() && self.sender.is_ready()
    }
}

/// The waker of a connection. It wakes the connection's user, unless the user is polling the connection.
#[derive(Default)]
struct Quiet {
    state: AtomicU8,
    outer: AtomicWaker,
}

const RESTING: u8 = 0;
const POLLED: u8 = 1;
/// The waker was called during a poll.
const WOKEN: u8 = 2;

impl Quiet {
    fn begin(&self) {
        self.state.store(POLLED, Ordering::SeqCst);
    }

    /// Ends the poll. Returns `false` if the waker was called during the poll.
    fn rest(&self) -> bool {
        self.state.swap(RESTING, Ordering::SeqCst) == POLLED
    }
}

impl Wake for Quiet {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let polled = self
            .state
            .compare_exchange(POLLED, WOKEN, Ordering::SeqCst, Ordering::SeqCst);
        if polled == Err(RESTING) {
            self.outer.wake();
        }
    }
}

/// The idle connections. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct Wires {
    shared: Arc<Mutex<Resting>>,
}

#[derive(Default)]
struct Resting {
    by_authority: HashMap<Arc<str>, Idle>,
    swept: bool,
}

/// The idle connections to one authority.
#[derive(Default)]
struct Idle {
    /// Each connection, with the time at which it became idle.
    wires: Vec<(Wire, Instant)>,
    limit: Limit,
}

/// The idle time after which a server closes a connection.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
struct Limit {
    stated: Option<Duration>,
    /// The shortest idle time after which a request failed.
    shown: Option<Duration>,
}

impl Limit {
    /// The idle time up to which a connection is used.
    fn usable(self) -> Duration {
        let limit = self.stated.unwrap_or(DEFAULT_LIMIT).min(MAX_LIMIT);
        let limit = self.shown.map_or(limit, |shown| limit.min(shown));
        limit - LIMIT_MARGIN.min(limit / 4)
    }
}

/// The `timeout` of a `Keep-Alive` header, in seconds.
fn stated_limit(headers: &HeaderMap) -> Option<Duration> {
    let value = headers.get(KEEP_ALIVE)?.to_str().ok()?;
    value.split(',').find_map(|parameter| {
        let (name, value) = parameter.split_once('=')?;
        let is_timeout = name.trim().eq_ignore_ascii_case("timeout");
        let seconds = value.trim().trim_matches('"').parse().ok();
        seconds.filter(|_| is_timeout).map(Duration::from_secs)
    })
}

impl Resting {
    fn of(&mut self, authority: &Arc<str>) -> &mut Idle {
        if self.by_authority.len() >= MAX_KNOWN_LIMITS {
            self.by_authority.retain(|_, idle| !idle.wires.is_empty());
        }
        self.by_authority.entry(authority.clone()).or_default()
    }
}

impl Wires {
    /// The most recently used idle connection that still works, and how long it was idle.
    pub(super) fn take(&self, authority: &str) -> Option<(Wire, Duration)> {
        loop {
            let mut resting = lock(&self.shared);
            let idle = resting.by_authority.get_mut(authority)?;
            let (mut wire, since) = idle.wires.pop()?;
            let time = since.elapsed();
            if time >= idle.limit.usable() {
                // All other connections have been idle for even longer, so they are unusable too.
                let unusable = std::mem::take(&mut idle.wires);
                drop(resting);
                drop(unusable);
                return None;
            }
            drop(resting);
            if wire.is_free() {
                return Some((wire, time));
            }
        }
    }

    /// Records the idle limit that a response states.
    pub(super) fn learn(&self, authority: &Arc<str>, headers: &HeaderMap) {
        if let Some(stated) = stated_limit(headers) {
            lock(&self.shared).of(authority).limit.stated = Some(stated);
        }
    }

    /// Records that a connection which was idle for this long turned out to be closed.
    pub(super) fn closed_after(&self, authority: &Arc<str>, idle: Duration) {
        if idle >= MIN_LEARNED_LIMIT {
            let mut resting = lock(&self.shared);
            let limit = &mut resting.of(authority).limit;
            limit.shown = Some(limit.shown.map_or(idle, |shown| shown.min(idle)));
        }
    }

    fn put(&self, authority: &Arc<str>, wire: Wire) {
        let mut resting = lock(&self.shared);
        let now = Instant::now();
        match resting.by_authority.get_mut(authority) {
            Some(idle) if idle.wires.len() >= MAX_IDLE_PER_AUTHORITY => return,
            Some(idle) => idle.wires.push((wire, now)),
            None => resting.of(authority).wires.push((wire, now)),
        }
        if !resting.swept {
            resting.swept = true;
            spawn_linked(sweep(Arc::downgrade(&self.shared)));
        }
    }
}

fn lock(shared: &Mutex<Resting>) -> MutexGuard<'_, Resting> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Closes connections that were idle for too long or were closed by their server. Ends when no idle connection is left.
async fn sweep(shared: Weak<Mutex<Resting>>) {
    loop {
        sleep(SWEEP_INTERVAL).await;
        let Some(shared) = shared.upgrade() else {
            return;
        };
        let mut resting = lock(&shared);
        let mut are_left = false;
        for idle in resting.by_authority.values_mut() {
            let usable = idle.limit.usable();
            idle.wires
                .retain_mut(|(wire, since)| since.elapsed() < usable && wire.is_free());
            are_left |= !idle.wires.is_empty();
        }
        if !are_left {
            resting.swept = false;
            return;
        }
    }
}

/// A response body with its connection. At the end of the body, the connection becomes idle.
pub(in crate::client) struct WireBody {
    incoming: Incoming,
    wire: Option<Wire>,
    authority: Arc<str>,
    wires: Wires,
}

impl WireBody {
    pub(super) fn new(incoming: Incoming, wire: Wire, authority: Arc<str>, wires: Wires) -> Self {
        let mut body = Self {
            incoming,
            wire: Some(wire),
            authority,
            wires,
        };
        if body.incoming.is_end_stream() {
            body.release();
        }
        body
    }

    fn release(&mut self) {
        let Some(mut wire) = self.wire.take() else {
            return;
        };
        wire.quiet.begin();
        if wire.is_ready() || wire.is_free() {
            self.wires.put(&self.authority, wire);
        }
    }
}

impl Body for WireBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let Self { incoming, wire, .. } = &mut *self;
        let frame = match wire {
            Some(wire) => wire.drive(cx, |cx| Pin::new(&mut *incoming).poll_frame(cx)),
            None => Pin::new(incoming).poll_frame(cx),
        };
        match &frame {
            Poll::Ready(None) => self.release(),
            Poll::Ready(Some(Ok(_))) if self.incoming.is_end_stream() => self.release(),
            Poll::Ready(Some(Err(_))) => self.wire = None,
            _ => {}
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_used_well_before_its_limit() {
        let stated = |text: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(KEEP_ALIVE, text.parse().expect("a value"));
            stated_limit(&headers)
        };
        for (text, seconds) in [
            ("timeout=5", Some(5)),
            ("max=100, Timeout = 72", Some(72)),
            ("timeout=\"0\"", Some(0)),
            ("max=100", None),
            ("timeout=soon", None),
        ] {
            assert_eq!(stated(text), seconds.map(Duration::from_secs), "{text}");
        }
        for (stated, shown, usable) in [
            (None, None, 4_000),
            (Some(5_000), None, 4_000),
            (Some(120_000), None, 59_000),
            (Some(120_000), Some(20_000), 19_000),
            (Some(2_000), None, 1_500),
            (None, Some(20_000), 4_000),
            (None, Some(1_000), 750),
            (Some(0), None, 0),
        ] {
            let limit = Limit {
                stated: stated.map(Duration::from_millis),
                shown: shown.map(Duration::from_millis),
            };
            assert_eq!(limit.usable(), Duration::from_millis(usable), "{limit:?}");
        }
    }
}
