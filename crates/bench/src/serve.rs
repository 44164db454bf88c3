//! The HTTP server loop used by the echo server and all baseline proxies: hyper, HTTP/1.1, keep-alive, `TCP_NODELAY`.
//!
//! It runs until its process exits. [`exit_when_stdin_closes`] ties the process to the driver, so that nothing is left
//! if the driver dies.

use std::convert::Infallible;
use std::future::Future;
use std::io::Read as _;

use anyhow::Context as _;
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::{Body, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

/// Largest accepted request body. Requests of the bench are below 1 KiB.
const BODY_LIMIT: usize = 16 << 20;

pub(crate) type BoxBody = UnsyncBoxBody<Bytes, hyper::Error>;

/// Creates the multi-threaded runtime of the baseline proxies and the HTTP echo server.
pub(crate) fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("the runtime did not start")
}

/// Binds `listen`, prints `http://ADDRESS/mcp` as the first line of stdout, and serves requests with `handle` until the
/// process exits.
///
/// # Errors
///
/// The address cannot be bound. A failing connection affects only itself.
pub(crate) async fn serve<H, F, B>(listen: &str, handle: H) -> anyhow::Result<()>
where
    H: Fn(http::Request<Incoming>) -> F + Clone + Send + 'static,
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let listener = TcpListener::bind(listen)
        .await
        .with_context(|| format!("cannot listen on {listen}"))?;
    println!("http://{}/mcp", listener.local_addr()?);
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = connections.join_next() => continue,
        };
        // If accept fails (for example, because no descriptor is free), the client notices.
        let Ok((stream, _)) = accepted else { continue };
        stream.set_nodelay(true)?;
        let handle = handle.clone();
        connections.spawn(async move {
            let service = service_fn(move |request| {
                let answer = handle(request);
                async move { Ok::<_, Infallible>(answer.await) }
            });
            // The client reports a broken connection.
            let _ = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(None)
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

/// Reads a whole body of at most [`BODY_LIMIT`] bytes. `None`: it was incomplete or too long.
pub(crate) async fn whole(body: Incoming) -> Option<Bytes> {
    match Limited::new(body, BODY_LIMIT).collect().await {
        Ok(body) => Some(body.to_bytes()),
        Err(_) => None,
    }
}

/// A JSON response with status 200.
pub(crate) fn json<B>(body: B) -> Response<B> {
    let mut response = Response::new(body);
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// A response without a body.
pub(crate) fn empty(status: StatusCode) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::default());
    *response.status_mut() = status;
    response
}

/// Exits the process once its stdin is closed.
pub(crate) fn exit_when_stdin_closes() {
    std::thread::spawn(|| {
        let mut sink = [0; 256];
        while matches!(std::io::stdin().read(&mut sink), Ok(n) if n > 0) {}
        std::process::exit(0);
    });
}
