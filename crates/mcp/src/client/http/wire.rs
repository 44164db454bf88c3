//! HTTP/1.1 connections that run inside the task of the request.
//!
//! An ordinary pool runs every connection in a separate task, so that each request wakes that task and is woken by it.
//! Here the request's future polls its connection, and later the response body does. A call stays in one task from end
//! to end, and dropping it closes the connection.
//!
//! Invariants: an idle connection has no unfinished response and is checked before it is reused. A request moves to
//! another connection only if sending it had not begun. Idle connections are bounded in number and time. Deliberately
//! absent: TLS, HTTP/2 (see [`super::pool`]) and pipelining.

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
use http::{Request, Response};
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
use tokio::{net::TcpStream, time::sleep};

use crate::client::spawn_linked;

/// Maximum idle connections per authority.
const MAX_IDLE_PER_AUTHORITY: usize = 256;
/// Interval between sweeps over the idle connections, and how many sweeps a connection may stay idle (one minute in
/// total).
const SWEEP_INTERVAL: Duration = Duration::from_secs(15);
const MAX_IDLE_SWEEPS: u64 = 4;
/// Buffer of a connection in bytes, which is also the size limit of a response head.
const BUFFER_BYTES: usize = 256 * 1024;
/// Maximum iterations over a connection in one poll, before other tasks get their turn.
const MAX_ROUNDS_PER_POLL: usize = 16;

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
    /// Each with the number of the last sweep before it became idle.
    by_authority: HashMap<Arc<str>, Vec<(Wire, u64)>>,
    swept: bool,
    sweeps: u64,
}

impl Wires {
    /// The most recently used idle connection that still works.
    pub(super) fn take(&self, authority: &str) -> Option<Wire> {
        loop {
            let (mut wire, _) = lock(&self.shared).by_authority.get_mut(authority)?.pop()?;
            if wire.is_free() {
                return Some(wire);
            }
        }
    }

    fn put(&self, authority: &Arc<str>, wire: Wire) {
        let mut resting = lock(&self.shared);
        let now = resting.sweeps;
        match resting.by_authority.get_mut(authority) {
            Some(wires) if wires.len() >= MAX_IDLE_PER_AUTHORITY => return,
            Some(wires) => wires.push((wire, now)),
            None => {
                resting
                    .by_authority
                    .insert(authority.clone(), vec![(wire, now)]);
            }
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
        resting.sweeps += 1;
        let now = resting.sweeps;
        resting.by_authority.retain(|_, wires| {
            wires.retain_mut(|(wire, since)| now - *since <= MAX_IDLE_SWEEPS && wire.is_free());
            !wires.is_empty()
        });
        if resting.by_authority.is_empty() {
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
