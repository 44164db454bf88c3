//! The accept loop. Each connection has one task; everything else on it is a state machine inside that task.

use crate::listen::HEAD_BYTES;
use std::{
    future::{Future, poll_fn, ready},
    io,
    net::{IpAddr, SocketAddr},
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{self, Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures_util::{FutureExt as _, future::Either};
use http::{HeaderValue, Request, Response, StatusCode, header};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use mcp::backlog::Account;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::mpsc,
    time::Instant,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    Body, HttpGateway,
    http::refusal,
    idle::{self, Source, Takeover},
    patience::Patience,
    socket::{Heir, Socket},
    tls::Tls,
    wire::{AtWork, Download, Wire},
};
use crate::http::Upload;
use auth::Principal;

/// Milliseconds after which unacknowledged data ends a connection.
const TCP_USER_TIMEOUT_MS: u32 = 60_000;

/// Time after the accept in which a connection may still send its first request while the gateway stops.
const FIRST_REQUEST_WAIT: Duration = Duration::from_millis(500);

/// Connections above the limit that are reserved for administrators on this machine.
const RESERVED_CONNECTIONS: usize = 32;

/// The response to a request outside MCP.
pub type Answered = Pin<Box<dyn Future<Output = Response<Body>> + Send>>;

/// All routes except MCP.
pub trait Routes: Send + Sync {
    /// Answers a request. Unread parts of the response are charged to the account.
    fn answer(&self, request: Request<Upload>, account: &Arc<Account>) -> Answered;

    /// Answers a request of another replica, which has checked that `who` may make it.
    fn answer_replica(
        &self,
        who: Arc<Principal>,
        request: Request<Bytes>,
        account: &Arc<Account>,
    ) -> Answered;
}

/// Who may connect to a listener, with the listener's routes outside MCP.
#[derive(Clone)]
pub enum For {
    Clients(Arc<dyn Routes>),
    Replicas(Arc<dyn Routes>),
}

/// The open connections of one listener.
struct Crowd {
    most: usize,
    open: AtomicUsize,
    /// Set while connections are refused, so that this is logged once.
    full: AtomicBool,
}

impl Crowd {
    /// Returns true if 75 % of the limit is used.
    fn is_dense(&self) -> bool {
        self.open.load(Ordering::Relaxed) >= self.most / 4 * 3
    }

    /// Reserves a place for one more connection; `None` if it must be refused.
    fn admit(self: &Arc<Self>, from: IpAddr) -> Option<Seat> {
        let before = self.open.fetch_add(1, Ordering::Relaxed);
        let seat = Seat {
            crowd: self.clone(),
            reserved: before >= self.most,
        };
        if !seat.reserved {
            if self.full.load(Ordering::Relaxed) && before < self.most / 4 * 3 {
                self.full.store(false, Ordering::Relaxed);
            }
            return Some(seat);
        }
        if !self.full.swap(true, Ordering::Relaxed) {
            tracing::warn!("{}", full(self.most));
        }
        (from.to_canonical().is_loopback() && before < self.most + RESERVED_CONNECTIONS)
            .then_some(seat)
    }
}

struct Seat {
    crowd: Arc<Crowd>,
    /// Set if the connection is above the limit: only an administrator or a health check may use it.
    reserved: bool,
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.crowd.open.fetch_sub(1, Ordering::Relaxed);
    }
}

fn full(most: usize) -> String {
    format!("the limit of {most} open connections is reached (`max_connections`)")
}

/// How a connection left hyper.
enum Left {
    Closed,
    /// A stream takes it over.
    Stream(Box<Takeover>),
    /// Another process takes it over.
    Heir(Heir),
}

/// Serves connections until `over`, then lets requests in flight finish for `drain`. Connections that are still busy
/// run until the process ends; the returned tracker waits for them. `passed`: connections that another process passes
/// on, each between two requests.
pub async fn serve(
    listener: TcpListener,
    mut passed: mpsc::Receiver<TcpStream>,
    front: Arc<HttpGateway>,
    whom: For,
    over: CancellationToken,
    drain: Duration,
) -> TaskTracker {
    let connections = TaskTracker::new();
    let crowd = Arc::new(Crowd {
        most: front.most_connections(),
        open: AtomicUsize::new(0),
        full: AtomicBool::new(false),
    });
    let is_plain = tls_of(&front, &whom).is_none();
    let admit = |accepted: io::Result<(TcpStream, SocketAddr)>, is_passed: bool| match accepted {
        Ok((socket, from)) => match crowd.admit(from.ip()) {
            Some(seat) => {
                // The tracker boxes this future, so its size is what an idle connection needs.
                connections.spawn(connection(
                    (socket, from.ip()),
                    front.clone(),
                    whom.clone(),
                    over.clone(),
                    seat,
                    is_passed,
                ));
                true
            }
            None => {
                if !is_plain {
                    return true;
                }
                let what = full(crowd.most);
                let head = format!(
                    "HTTP/1.1 503 Service Unavailable\r\nretry-after: 5\r\nconnection: close\r\n\
                     content-type: text/plain\r\ncontent-length: {}\r\n\r\n",
                    what.len()
                );
                // There is only one attempt to write: if the socket is not writable at once, the client gets no text.
                let _ = socket.try_write((head + &what).as_bytes());
                true
            }
        },
        Err(error) => {
            tracing::warn!("cannot accept a connection: {error}");
            false
        }
    };
    loop {
        let (accepted, is_passed) = tokio::select! {
            accepted = listener.accept() => (accepted, false),
            Some(socket) = passed.recv() => match socket.peer_addr() {
                Ok(from) => (Ok((socket, from)), true),
                // The client has closed it.
                Err(_) => continue,
            },
            () = over.cancelled() => break,
        };
        if !admit(accepted, is_passed) {
            // Most likely out of file descriptors. Retrying at once would only burn CPU.
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
    // Clients that have already connected may have sent a request, and get a response. This asks the OS directly, since
    // tokio's readiness may be stale.
    if let Ok(listener) = listener.into_std() {
        while let Ok((socket, from)) = listener.accept() {
            let socket = socket
                .set_nonblocking(true)
                .and_then(|()| TcpStream::from_std(socket));
            admit(socket.map(|socket| (socket, from)), false);
        }
    }
    connections.close();
    if tokio::time::timeout(drain, connections.wait())
        .await
        .is_err()
    {
        tracing::warn!(
            "closed {} connections that were still busy after {} s",
            connections.len(),
            drain.as_secs()
        );
    }
    connections
}

async fn connection(
    (socket, from): (TcpStream, IpAddr),
    front: Arc<HttpGateway>,
    whom: For,
    over: CancellationToken,
    seat: Seat,
    is_passed: bool,
) {
    let tls = tls_of(&front, &whom);
    // It was accepted before the settings had a certificate.
    if is_passed && tls.is_some() {
        return;
    }
    let _ = socket.set_nodelay(true);
    // Nothing else would end a connection whose client does not acknowledge data once the response is complete.
    let _ = rustix::net::sockopt::set_tcp_user_timeout(&socket, TCP_USER_TIMEOUT_MS);
    let mut socket = match tls {
        Some(tls) => {
            let stopped = async {
                over.cancelled().await;
                tokio::time::sleep(FIRST_REQUEST_WAIT).await;
            };
            let is_scarce = || seat.crowd.is_dense();
            match Box::pin(tls.accept(socket, is_scarce, stopped)).await {
                Some(socket) => Socket::Tls(Box::new(socket)),
                None => return,
            }
        }
        None => Socket::Plain(socket),
    };
    // Boxed, so that it is freed before the stream runs.
    let wire = Wire::new(front.backlog());
    if is_passed {
        wire.resume();
    }
    let account = wire.account().clone();
    let left = Box::pin(http((&mut socket, from), &front, whom, &over, &seat, wire)).await;
    let mut takeover = match left {
        Left::Closed => return,
        Left::Heir(heir) => {
            if let Socket::Plain(socket) = socket {
                heir(socket).await;
            }
            return;
        }
        Left::Stream(takeover) => takeover,
    };
    let ended = idle::run(&mut socket, &mut takeover, &account, &over).await;
    if let Err(error) = ended {
        tracing::debug!("an event stream failed: {error}");
    }
    if let (Source::Session(stream), true) = (&takeover.stream, takeover.ends_session) {
        let id = stream.session().id().clone();
        Box::pin(front.end_session(&id)).await;
    }
    Box::pin(idle::drain(&mut socket)).await;
}

/// TLS of this listener. Other replicas use plain HTTP with encrypted heads ([`super::peers`]).
fn tls_of<'f>(front: &'f HttpGateway, whom: &For) -> Option<&'f Arc<Tls>> {
    match whom {
        For::Clients(_) => front.tls(),
        For::Replicas(_) => None,
    }
}

/// Speaks HTTP on a connection until it ends, or a stream or another process takes it over.
async fn http(
    (socket, from): (&mut Socket, IpAddr),
    front: &Arc<HttpGateway>,
    whom: For,
    over: &CancellationToken,
    seat: &Seat,
    wire: Arc<Wire>,
) -> Left {
    let cap = seat.reserved.then_some(seat.crowd.most);
    let inside = matches!(whom, For::Replicas(_));
    // The state of TLS cannot be passed to another process.
    let is_plain = matches!(socket, Socket::Plain(_));
    let service = {
        let front = front.clone();
        let wire = wire.clone();
        service_fn(move |request: Request<Incoming>| {
            let counted = inside.then(|| front.counted());
            let at_work = AtWork::begin(wire.clone(), counted);
            answer(&front, &whom, &wire, (request, from), cap)
                .map(|answer| Ok::<_, io::Error>(answer.map(|body| Download::new(body, at_work))))
        })
    };
    let mut builder = http1::Builder::new();
    builder.header_read_timeout(None).max_buf_size(HEAD_BYTES);
    let counted = Counted {
        socket,
        wire: wire.clone(),
    };
    let mut conn = pin!(builder.serve_connection(TokioIo::new(counted), service));
    let mut patience = Patience::new(Instant::now(), seat.reserved);
    let mut alarm = pin!(tokio::time::sleep_until(patience.alarm()));
    let mut cancelled = pin!(over.cancelled());
    let (mut armed, mut leaving) = (false, false);
    let first = Instant::now() + FIRST_REQUEST_WAIT;
    let mut expects = false;
    // Polled by hand instead of with `select!`: this code runs on every wake of every connection.
    poll_fn(|cx| {
        // The timer is polled first, while the task still has cooperative budget for it. The timer and the cancellation
        // keep the task's waker, so their state can be read below without another poll.
        if !armed {
            armed = true;
            let _ = cancelled.as_mut().poll(cx);
            let _ = alarm.as_mut().poll(cx);
            wire.account().register(cx.waker());
        }
        if let Poll::Ready(ended) = conn.as_mut().poll(cx) {
            if let Err(error) = ended {
                tracing::trace!("a client's HTTP connection failed: {error}");
            }
            return Poll::Ready(Left::Closed);
        }
        if let Some(takeover) = wire.take() {
            return Poll::Ready(Left::Stream(Box::new(takeover)));
        }
        if wire.account().is_cut() {
            return Poll::Ready(Left::Closed);
        }
        let progress = wire.progress();
        let mut reset = patience.note(progress, Instant::now);
        if alarm.is_elapsed() {
            let crowded = seat.crowd.is_dense();
            if let Some(spent) = patience.verdict(progress, Instant::now(), crowded) {
                tracing::debug!("closed a connection: {spent:?}");
                return Poll::Ready(Left::Closed);
            }
            reset = true;
        }
        if reset {
            alarm.as_mut().reset(patience.alarm());
            armed = false;
            cx.waker().wake_by_ref();
        }
        // Connections of other replicas stay open until the end: closing one while it sends would leave the replica
        // unsure about its request.
        let stops = if inside {
            over.is_cancelled()
        } else {
            front.is_stopping()
        };
        let can_pass = stops && !inside && !leaving && is_plain;
        if let Some(heir) = front.heir().filter(|_| can_pass) {
            if wire.is_between_requests() {
                return Poll::Ready(Left::Heir(heir.clone()));
            }
            // A request that is read or answered ends first.
            if wire.is_ahead() {
                leaving = true;
                conn.as_mut().graceful_shutdown();
                cx.waker().wake_by_ref();
            }
            return Poll::Pending;
        }
        if !leaving && stops {
            // hyper would close a connection on which nothing has arrived yet, although a request may be on its way.
            if progress.is_new() && Instant::now() < first {
                if !expects {
                    expects = true;
                    armed = false;
                    alarm.as_mut().reset(first);
                    cx.waker().wake_by_ref();
                }
                return Poll::Pending;
            }
            leaving = true;
            conn.as_mut().graceful_shutdown();
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    })
    .await
}

/// A socket that counts the bytes it reads and writes.
struct Counted<'a> {
    socket: &'a mut Socket,
    wire: Arc<Wire>,
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
        self.wire.received(count);
        read
    }
}

impl AsyncWrite for Counted<'_> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.wire.flushed(false);
        let written = task::ready!(Pin::new(&mut *self.socket).poll_write(cx, data))?;
        self.wire.sent(written);
        Poll::Ready(Ok(written))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.wire.flushed(false);
        let written = task::ready!(Pin::new(&mut *self.socket).poll_write_vectored(cx, data))?;
        self.wire.sent(written);
        Poll::Ready(Ok(written))
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut *self.socket).poll_flush(cx);
        if flushed.is_ready() {
            self.wire.flushed(true);
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.socket).poll_shutdown(cx)
    }
}

/// Answers a request of the peer at `from`. `cap`: the connection limit, if this connection is above it.
///
/// The future for MCP requests is kept small, since it is moved into its connection. All others are boxed.
fn answer(
    front: &Arc<HttpGateway>,
    whom: &For,
    wire: &Arc<Wire>,
    (request, from): (Request<Incoming>, IpAddr),
    cap: Option<usize>,
) -> impl Future<Output = Response<Body>> + use<> {
    let mut request = request.map(|body| front.upload(body, wire));
    let other = match whom {
        For::Clients(other) => other,
        For::Replicas(other) => {
            let forwarded = front
                .clone()
                .answer_forwarded(request, wire.clone(), other.clone());
            return Either::Right(Box::pin(forwarded) as Answered);
        }
    };
    if let Err(refusal) = front.guard().arrive(from, &mut request) {
        let response = HttpGateway::refuse(&refusal);
        return Either::Right(Box::pin(ready(response)) as Answered);
    }
    if let Some(most) = cap
        && !is_reserved_for(front, &request)
    {
        let mut response =
            HttpGateway::refuse(&refusal(StatusCode::SERVICE_UNAVAILABLE, &full(most)));
        let close = HeaderValue::from_static("close");
        response.headers_mut().insert(header::CONNECTION, close);
        return Either::Right(Box::pin(ready(response)) as Answered);
    }
    if HttpGateway::owns(request.uri().path()) {
        return Either::Left(front.clone().answer(request, wire.clone()));
    }
    let beside = beside(front.clone(), other.clone(), wire.clone(), request);
    Either::Right(Box::pin(beside))
}

/// Answers a request outside MCP.
async fn beside(
    front: Arc<HttpGateway>,
    other: Arc<dyn Routes>,
    wire: Arc<Wire>,
    request: Request<Upload>,
) -> Response<Body> {
    if let Err(refusal) = front.guard().check(request.headers()) {
        return HttpGateway::refuse(&refusal);
    }
    shared(&front, other.answer(request, wire.account()).await)
}

/// Ends an event stream when its principal is revoked. The routes name the principal in an extension of the response.
fn shared(front: &HttpGateway, mut response: Response<Body>) -> Response<Body> {
    let kind = response.headers().get(header::CONTENT_TYPE);
    let is_stream = kind.is_some_and(|kind| kind == "text/event-stream");
    let who = response.extensions_mut().remove::<Arc<Principal>>();
    let Some(who) = who.filter(|_| is_stream) else {
        return response;
    };
    let share = front.streams().join(&who.id);
    if !front.guard().identities().lives(&who.id) {
        // The key was revoked in the meantime.
        *response.body_mut() = Body::Text(None);
        return response;
    }
    response.map(|body| match body {
        Body::Other(body) => Body::shared(body, share),
        body => body,
    })
}

/// Returns true if the request may use a connection above the limit.
fn is_reserved_for<B>(front: &HttpGateway, request: &Request<B>) -> bool {
    if matches!(request.uri().path(), "/healthz" | "/readyz" | "/metrics") {
        return true;
    }
    front.guard().is_administrators(request.headers())
}
