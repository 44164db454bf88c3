//! The accept loop: one task per connection, everything else on it a state machine.

use std::{
    convert::Infallible,
    future::{Future, poll_fn},
    io,
    pin::pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::Poll,
    time::Duration,
};

use http::{Request, Response};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower::ServiceExt;

use super::{
    Body, Front,
    idle::{self, Takeover},
};

/// A client that has not sent a whole request head after this is cut off.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);

/// All routes but those of MCP.
pub(crate) type Other = axum::Router;

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

/// Serves connections until `over`, then lets those in flight finish for `drain`.
pub(crate) async fn serve(
    listener: TcpListener,
    front: Arc<Front>,
    other: Other,
    over: CancellationToken,
    drain: Duration,
) {
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
}

async fn connection(socket: TcpStream, front: Arc<Front>, other: Other, over: CancellationToken) {
    let _ = socket.set_nodelay(true);
    let mut socket = socket;
    // Boxed, so that it is gone once a stream has taken over.
    let takeover = Box::pin(http(&mut socket, &front, other, &over)).await;
    if let Some(takeover) = takeover {
        let ended = idle::run(&mut socket, &takeover, &over).await;
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
    other: Other,
    over: &CancellationToken,
) -> Option<Takeover> {
    let handover = Handover::default();
    let service = {
        let handover = handover.clone();
        let front = front.clone();
        service_fn(move |request: Request<Incoming>| {
            answer(front.clone(), other.clone(), handover.clone(), request)
        })
    };
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT);
    let mut conn = pin!(builder.serve_connection(TokioIo::new(socket), service));
    let mut cancelled = pin!(over.cancelled());
    let (mut armed, mut leaving) = (false, false);
    // By hand instead of `select!`: this runs on every wake of every connection.
    poll_fn(|cx| {
        if let Poll::Ready(ended) = conn.as_mut().poll(cx) {
            if let Err(error) = ended {
                tracing::trace!("a connection ended: {error}");
            }
            return Poll::Ready(None);
        }
        if let Some(takeover) = handover.take() {
            return Poll::Ready(Some(takeover));
        }
        if !armed {
            armed = true;
            // Wakes this task when the product stops; what it came to is the flag's to say.
            let _ = cancelled.as_mut().poll(cx);
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

fn answer(
    front: Arc<Front>,
    other: Other,
    handover: Handover,
    request: Request<Incoming>,
) -> impl Future<Output = Result<Response<Body>, io::Error>> {
    async move {
        if Front::owns(request.uri().path()) {
            return Ok(front.answer(request, handover).await);
        }
        if let Err(refusal) = front.guard().check(request.headers()) {
            return Ok(Front::refuse(&refusal));
        }
        match other.oneshot(request.map(axum::body::Body::new)).await {
            Ok(response) => Ok(response.map(Body::Other)),
        }
    }
}
