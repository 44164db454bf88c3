//! The connection pool, and how its connections are made.
//!
//! Plain HTTP never pays for TLS: the platform's root certificates are read at the first `https` connection.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Uri};
use http_body_util::Full;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder, MaybeHttpsStream};
use hyper_util::{
    client::legacy::{Client, ResponseFuture, connect::HttpConnector},
    rt::{TokioExecutor, TokioIo, TokioTimer},
};
use tokio::{net::TcpStream, sync::OnceCell};
use tower_service::Service;

/// Idle connections that are kept per host.
const IDLE_PER_HOST: usize = 256;
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// TCP connect, per address.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Name lookup, TCP and TLS together.
const ESTABLISH_TIMEOUT: Duration = Duration::from_secs(20);
/// Silence on a socket after which the kernel asks whether the peer lives: streams have no other idle bound.
const KEEPALIVE: Duration = Duration::from_secs(30);
/// Bytes that an HTTP/1 connection buffers: bounds a response's head.
const HTTP1_BUFFER: usize = 256 * 1024;

/// The connection pool that conversations share. Cheap to clone.
#[derive(Clone)]
pub struct Pool {
    client: Client<Connector, Full<Bytes>>,
}

impl Default for Pool {
    fn default() -> Self {
        Self {
            client: Client::builder(TokioExecutor::new())
                .pool_timer(TokioTimer::new())
                .timer(TokioTimer::new())
                .pool_idle_timeout(IDLE_TIMEOUT)
                .pool_max_idle_per_host(IDLE_PER_HOST)
                .http1_max_buf_size(HTTP1_BUFFER)
                .http2_keep_alive_interval(KEEPALIVE)
                .http2_keep_alive_timeout(CONNECT_TIMEOUT)
                .build(Connector::new()),
        }
    }
}

impl Pool {
    /// Starts a request; nothing is sent before the future is polled. Redirects are not followed.
    pub(in crate::client) fn request(&self, request: Request<Full<Bytes>>) -> ResponseFuture {
        self.client.request(request)
    }
}

#[derive(Clone)]
struct Connector {
    http: HttpConnector,
    https: Arc<OnceCell<HttpsConnector<HttpConnector>>>,
}

type Stream = MaybeHttpsStream<TokioIo<TcpStream>>;
type BoxError = Box<dyn std::error::Error + Send + Sync>;

impl Connector {
    fn new() -> Self {
        let mut http = HttpConnector::new();
        http.enforce_http(false);
        // Without it Nagle's algorithm and delayed acknowledgements cost 40 ms a call.
        http.set_nodelay(true);
        http.set_connect_timeout(Some(CONNECT_TIMEOUT));
        http.set_keepalive(Some(KEEPALIVE));
        http.set_keepalive_interval(Some(KEEPALIVE));
        http.set_keepalive_retries(Some(4));
        Self {
            http,
            https: Arc::default(),
        }
    }

    async fn connect(mut self, uri: Uri) -> Result<Stream, BoxError> {
        if uri.scheme() != Some(&http::uri::Scheme::HTTPS) {
            return Ok(MaybeHttpsStream::Http(self.http.call(uri).await?));
        }
        let mut https = self
            .https
            .get_or_try_init(|| async {
                let http = self.http.clone();
                tokio::task::spawn_blocking(move || tls(http))
                    .await
                    .map_err(BoxError::from)?
            })
            .await?
            .clone();
        https.call(uri).await
    }
}

fn tls(http: HttpConnector) -> Result<HttpsConnector<HttpConnector>, BoxError> {
    let provider = rustls::crypto::ring::default_provider();
    let builder = HttpsConnectorBuilder::new()
        .with_provider_and_native_roots(provider)
        .map_err(|error| format!("the platform's root certificates cannot be read: {error}"))?;
    Ok(builder
        .https_or_http()
        .enable_all_versions()
        .wrap_connector(http))
}

impl Service<Uri> for Connector {
    type Response = Stream;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Stream, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let connecting = self.clone().connect(uri);
        Box::pin(async move {
            tokio::time::timeout(ESTABLISH_TIMEOUT, connecting)
                .await
                .map_err(|_| {
                    format!(
                        "no connection within {} seconds",
                        ESTABLISH_TIMEOUT.as_secs()
                    )
                })?
        })
    }
}
