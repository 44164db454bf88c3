//! The accept loop: one task per connection, everything else on it a state machine.

use std::{
    convert::Infallible,
    future::{Future, poll_fn},
    io,
    pin::{Pin, pin},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use http::{Request, Response};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    time::Instant,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower::ServiceExt;

use super::{
    Body, Front,
    idle::{self, Takeover},
};
use crate::rest::{Rest, bridge};

/// How often a connection is looked at for a request head that does not get finished: found twice, it is cut.
/// One timer per connection instead of one per request.
const HEAD_CHECK: Duration = Duration::from_secs(15);

/// Milliseconds after which data that a client does not acknowledge ends its connection.
const UNREAD_MS: u32 = 60_000;

/// All routes but those of MCP.
pub(crate) struct Other {
    pub(crate) router: axum::Router,
    pub(crate) rest: Arc<Rest>,
}

/// Where a request leaves a stream that is to take its connection over.
///
/// Both ends run in the connection's task, one inside the other: a flag is all that has to be looked at.
#[derive(Clone, Default)]
pub(crate) struct Handover {
    left: Arc<(AtomicBool, Mutex<Option<Takeover>>)>,
}

impl Handover {
    /// Takes the connection over. Does not return: the request's future is dropped with hyper's connection.
    pub(crate) async fn leave(self, takeover: Takeover) -> Infallible {
        *self.left.1.lock().unwrap_or_else(PoisonError::into_inner) = Some(takeover);
        self.left.0.store(true, Ordering::Release);
        std::future::pending().await
    }

    fn take(&self) -> Option<Takeover> {
        if !self.left.0.load(Ordering::Acquire) {
            return None;
        }
        self.left
            .1
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }
}

/// Serves connections until `over`, then lets those in flight finish for `drain`. What is still busy then goes on until
/// the program ends; it is given back, to wait for.
pub(crate) async fn serve(
    listener: TcpListener,
    front: Arc<Front>,
    other: Arc<Other>,
    over: CancellationToken,
    drain: Duration,
) -> TaskTracker {
    let connections = TaskTracker::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = over.cancelled() => break,
        };
        match accepted {
            Ok((socket, _)) => {
                // Boxed by the tracker's task: what a connection needs while idle is what this future holds.
                connections.spawn(connection(
                    socket,
                    front.clone(),
                    other.clone(),
                    over.clone(),
                ));
            }
            Err(error) => {
                tracing::warn!("cannot accept a connection: {error}");
                // Out of file descriptors, most likely: trying at once would only burn the processor.
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
    drop(listener);
    connections.close();
    if tokio::time::timeout(drain, connections.wait())
        .await
        .is_err()
    {
        tracing::warn!(
            "cut {} connections that were still busy after {} s",
            connections.len(),
            drain.as_secs()
        );
    }
    connections
}

async fn connection(
    socket: TcpStream,
    front: Arc<Front>,
    other: Arc<Other>,
    over: CancellationToken,
) {
    let _ = socket.set_nodelay(true);
    // What was sent and is not taken ends the connection: nothing else would, once an answer is complete.
    let _ = rustix::net::sockopt::set_tcp_user_timeout(&socket, UNREAD_MS);
    let mut socket = socket;
    // Boxed, so that it is gone once a stream has taken over.
    let takeover = Box::pin(http(&mut socket, &front, other, &over)).await;
    if let Some(mut takeover) = takeover {
        let ended = idle::run(&mut socket, &mut takeover, &over).await;
        if let Err(error) = ended {
            tracing::debug!("a stream ended: {error}");
        }
        if takeover.ends_session {
            let id = takeover.stream.session().id().clone();
            Box::pin(front.end_session(&id)).await;
        }
        Box::pin(idle::drain(&mut socket)).await;
    }
}

/// HTTP on a connection until it ends, or a stream takes it over.
async fn http(
    socket: &mut TcpStream,
    front: &Arc<Front>,
    other: Arc<Other>,
    over: &CancellationToken,
) -> Option<Takeover> {
    let handover = Handover::default();
    let traffic = Arc::<Traffic>::default();
    let service = {
        let handover = handover.clone();
        let front = front.clone();
        let traffic = traffic.clone();
        service_fn(move |request: Request<Incoming>| {
            let at_work = AtWork::begin(traffic.clone());
            let answer = answer(front.clone(), other.clone(), handover.clone(), request);
            async move {
                let answer = answer.await;
                drop(at_work);
                answer
            }
        })
    };
    let mut builder = http1::Builder::new();
    builder.header_read_timeout(None);
    let counted = Counted {
        socket,
        traffic: traffic.clone(),
    };
    let mut conn = pin!(builder.serve_connection(TokioIo::new(counted), service));
    let mut check = pin!(tokio::time::sleep(HEAD_CHECK));
    let mut unfinished = None;
    let mut cancelled = pin!(over.cancelled());
    let (mut armed, mut leaving) = (false, false);
    // By hand instead of `select!`: this runs on every wake of every connection.
    poll_fn(|cx| {
        // First, while this turn of the task has budget left for a timer. Both wake the task, which keeps its
        // waker; what they came to is looked at without another poll.
        if !armed {
            armed = true;
            let _ = cancelled.as_mut().poll(cx);
            let _ = check.as_mut().poll(cx);
        }
        if let Poll::Ready(ended) = conn.as_mut().poll(cx) {
            if let Err(error) = ended {
                tracing::trace!("a connection ended: {error}");
            }
            return Poll::Ready(None);
        }
        if let Some(takeover) = handover.take() {
            return Poll::Ready(Some(takeover));
        }
        if check.is_elapsed() {
            let now = traffic.unfinished_head();
            if now.is_some() && now == unfinished {
                tracing::debug!("cut a connection: its request head does not get finished");
                return Poll::Ready(None);
            }
            unfinished = now;
            check.as_mut().reset(Instant::now() + HEAD_CHECK);
            armed = false;
            cx.waker().wake_by_ref();
        }
        if !leaving && front.is_stopping() {
            leaving = true;
            conn.as_mut().graceful_shutdown();
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    })
    .await
}

/// What came in on a connection.
#[derive(Default)]
struct Traffic {
    /// Bytes read so far.
    read: AtomicU64,
    /// Bytes read when the last request was answered.
    answered: AtomicU64,
    /// Requests begun.
    begun: AtomicU64,
    busy: AtomicBool,
}

impl Traffic {
    /// Which request has a head that came in part only, if one has: by how many came before it.
    fn unfinished_head(&self) -> Option<u64> {
        let partial = self.read.load(Ordering::Relaxed) > self.answered.load(Ordering::Relaxed);
        (partial && !self.busy.load(Ordering::Relaxed)).then(|| self.begun.load(Ordering::Relaxed))
    }
}

/// A request is being answered.
struct AtWork(Arc<Traffic>);

impl AtWork {
    fn begin(traffic: Arc<Traffic>) -> Self {
        traffic.begun.fetch_add(1, Ordering::Relaxed);
        traffic.busy.store(true, Ordering::Relaxed);
        Self(traffic)
    }
}

impl Drop for AtWork {
    fn drop(&mut self) {
        let read = self.0.read.load(Ordering::Relaxed);
        self.0.answered.store(read, Ordering::Relaxed);
        self.0.busy.store(false, Ordering::Relaxed);
    }
}

/// A socket that counts what it reads.
struct Counted<'a> {
    socket: &'a mut TcpStream,
    traffic: Arc<Traffic>,
}

impl AsyncRead for Counted<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut *self.socket).poll_read(cx, buffer);
        let count = buffer.filled().len() - before;
        self.traffic.read.fetch_add(count as u64, Ordering::Relaxed);
        read
    }
}

impl AsyncWrite for Counted<'_> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.socket).poll_write(cx, data)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.socket).poll_write_vectored(cx, data)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.socket).poll_shutdown(cx)
    }
}

async fn answer(
    front: Arc<Front>,
    other: Arc<Other>,
    handover: Handover,
    request: Request<Incoming>,
) -> Result<Response<Body>, io::Error> {
    if Front::owns(request.uri().path()) {
        return Ok(front.answer(request, handover).await);
    }
    if let Err(refusal) = front.guard().check(request.headers()) {
        return Ok(Front::refuse(&refusal));
    }
    // Boxed: what answers a call of MCP is small, for it is moved into its connection.
    if let Some(id) = bridge::called(&request) {
        return Ok(Box::pin(bridge::answer(other.rest.clone(), id, request)).await);
    }
    let router = other.router.clone();
    let answer = Box::pin(router.oneshot(request.map(axum::body::Body::new)));
    match answer.await {
        Ok(response) => Ok(response.map(Body::Other)),
    }
}
