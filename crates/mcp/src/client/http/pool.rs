//! The connection pool, and how its connections are made.
//!
//! Plain HTTP never pays for TLS: the platform's root certificates are read at the first `https` connection.
//! Nor does it pay for tasks between a request and its connection ([`super::wire`]); what speaks TLS, and
//! perhaps HTTP/2 in it, comes out of hyper's own pool.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{
    Request, Response, StatusCode, Uri,
    header::{AUTHORIZATION, HOST, HeaderName, WWW_AUTHENTICATE},
    uri::Scheme,
};
use http_body::{Frame, SizeHint};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder, MaybeHttpsStream};
use hyper_util::{
    client::legacy::Client,
    rt::{TokioExecutor, TokioIo, TokioTimer},
};
use tokio::{
    io::{AsyncWrite, AsyncWriteExt as _},
    net::TcpStream,
    sync::OnceCell,
};
use tower_service::Service;

use super::{
    super::{Access, Authorize, SignIn, Token},
    endpoint::{Endpoint, Origin},
    tcp::{KEEPALIVE, Tcp},
    wire::{Wire, WireBody, Wires},
};

/// Idle connections that are kept per host.
const IDLE_PER_HOST: usize = 256;
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// Answer to a ping over HTTP/2.
const PING_TIMEOUT: Duration = Duration::from_secs(10);
/// Name lookup, TCP and TLS together.
const ESTABLISH_TIMEOUT: Duration = Duration::from_secs(20);
/// A request that is no part of a conversation.
pub(in crate::client) const FETCH_TIMEOUT: Duration = Duration::from_secs(20);
/// Bytes that an HTTP/1 connection buffers: bounds a response's head.
const HTTP1_BUFFER: usize = 256 * 1024;

/// The headers of proofs (RFC 9449), and how long a nonce may be, in bytes.
const PROOF: HeaderName = HeaderName::from_static("dpop");
const NONCE: HeaderName = HeaderName::from_static("dpop-nonce");
const LONGEST_NONCE: usize = 1024;

/// The connection pool that conversations share. Cheap to clone.
#[derive(Clone)]
pub struct Pool {
    client: Client<Connector, Full<Bytes>>,
    http: Tcp,
    wires: Wires,
}

/// A request under way: the head of its answer.
pub(in crate::client) type Answering =
    Pin<Box<dyn Future<Output = Result<Response<Body>, Error>> + Send>>;

/// Why a request got no answer.
#[derive(Debug, thiserror::Error)]
pub(in crate::client) enum Error {
    #[error("no connection")]
    Connect(#[source] BoxError),
    #[error("the connection broke")]
    Broken(#[source] hyper::Error),
    #[error(transparent)]
    Client(hyper_util::client::legacy::Error),
    #[error("no access token")]
    SignIn(#[source] SignIn),
}

impl Error {
    /// Whether not even a connection could be made.
    pub(in crate::client) fn is_connect(&self) -> bool {
        match self {
            Self::Connect(_) => true,
            Self::Broken(_) | Self::SignIn(_) => false,
            Self::Client(error) => error.is_connect(),
        }
    }
}

/// A response's body. Dropped before its end, it costs the connection.
pub(in crate::client) enum Body {
    Wire(WireBody),
    Client(Incoming),
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match self.get_mut() {
            Self::Wire(body) => Pin::new(body).poll_frame(cx),
            Self::Client(body) => Pin::new(body).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Wire(body) => body.is_end_stream(),
            Self::Client(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Wire(body) => body.size_hint(),
            Self::Client(body) => body.size_hint(),
        }
    }
}

impl Default for Pool {
    fn default() -> Self {
        Self::new(false)
    }
}

impl Pool {
    /// `public_only`: whether it only leads to addresses of the public internet.
    pub(in crate::client) fn new(public_only: bool) -> Self {
        let connector = Connector::new(public_only);
        Self {
            http: connector.http.clone(),
            wires: Wires::default(),
            client: Client::builder(TokioExecutor::new())
                .pool_timer(TokioTimer::new())
                .timer(TokioTimer::new())
                .pool_idle_timeout(IDLE_TIMEOUT)
                .pool_max_idle_per_host(IDLE_PER_HOST)
                .http1_max_buf_size(HTTP1_BUFFER)
                .http2_keep_alive_interval(KEEPALIVE)
                .http2_keep_alive_timeout(PING_TIMEOUT)
                .build(connector),
        }
    }

    /// Starts a request with the access token that the endpoint's requests need, if any. It is sent a second time where the
    /// server refuses the token and there is another one.
    pub(in crate::client) fn send(
        &self,
        endpoint: &Endpoint,
        mut request: Request<Bytes>,
    ) -> Answering {
        if let Some(sign) = &endpoint.sign {
            sign.sign(&mut request);
        }
        let request = request.map(Full::new);
        match &endpoint.authorize {
            None => self.request(&endpoint.origin, request),
            Some(authorize) => {
                let (pool, origin) = (self.clone(), endpoint.origin.clone());
                Box::pin(authorized(pool, origin, authorize.clone(), request))
            }
        }
    }

    /// Sends a request, and reads its whole answer: not a conversation's, but one of those before it.
    ///
    /// # Errors
    /// Why there is no answer of at most `max` bytes within that time.
    pub(in crate::client) async fn fetch(
        &self,
        request: Request<Bytes>,
        max: usize,
        within: Duration,
    ) -> Result<Response<Bytes>, String> {
        let origin = Origin::new(request.uri());
        let fetching = async {
            let answer = self.request(&origin, request.map(Full::new)).await;
            let answer = answer.map_err(|error| super::cause(&error))?;
            let (head, body) = answer.into_parts();
            let body = Limited::new(body, max).collect().await;
            let body =
                body.map_err(|_| format!("its answer breaks off, or is longer than {max} bytes"))?;
            Ok(Response::from_parts(head, body.to_bytes()))
        };
        let late = |_| Err(format!("no answer within {} s", within.as_secs()));
        tokio::time::timeout(within, fetching)
            .await
            .unwrap_or_else(late)
    }

    /// Sends a request, and writes the body of its answer to `into` as it arrives, if the status is 200.
    ///
    /// # Errors
    /// The request failed, took longer than `within`, or its body is longer than `max` bytes. `into` may then hold a part of the body.
    pub(in crate::client) async fn fetch_into(
        &self,
        request: Request<Bytes>,
        max: usize,
        within: Duration,
        into: &mut (impl AsyncWrite + Unpin),
    ) -> Result<Response<()>, String> {
        let origin = Origin::new(request.uri());
        let fetching = async {
            let answer = self.request(&origin, request.map(Full::new)).await;
            let answer = answer.map_err(|error| super::cause(&error))?;
            let (head, body) = answer.into_parts();
            if head.status != StatusCode::OK {
                return Ok(Response::from_parts(head, ()));
            }
            let mut body = Limited::new(body, max);
            while let Some(frame) = body.frame().await {
                let frame = frame
                    .map_err(|_| format!("its answer breaks off, or is longer than {max} bytes"))?;
                if let Ok(data) = frame.into_data() {
                    let written = into.write_all(&data).await;
                    written.map_err(|error| format!("its answer cannot be written: {error}"))?;
                }
            }
            let flushed = into.flush().await;
            flushed.map_err(|error| format!("its answer cannot be written: {error}"))?;
            Ok(Response::from_parts(head, ()))
        };
        let late = |_| Err(format!("no answer within {} s", within.as_secs()));
        tokio::time::timeout(within, fetching)
            .await
            .unwrap_or_else(late)
    }

    /// Starts a request to `origin`; nothing is sent before the future is polled. Redirects are not followed.
    pub(in crate::client) fn request(
        &self,
        origin: &Arc<Origin>,
        mut request: Request<Full<Bytes>>,
    ) -> Answering {
        if origin.tls {
            *request.uri_mut() = origin.uri.clone();
            let answer = self.client.request(request);
            return Box::pin(async move {
                let response = answer.await.map_err(Error::Client)?;
                Ok(response.map(Body::Client))
            });
        }
        *request.uri_mut() = origin.target.clone();
        if let Some(host) = &origin.host {
            let headers = request.headers_mut();
            headers.entry(HOST).or_insert_with(|| host.clone());
        }
        let (http, wires) = (self.http.clone(), self.wires.clone());
        Box::pin(plain(http, wires, origin.clone(), request))
    }
}

/// A request with a token, sent again once with another one where the server refuses the first.
async fn authorized(
    pool: Pool,
    origin: Arc<Origin>,
    authorize: Arc<dyn Authorize>,
    request: Request<Full<Bytes>>,
) -> Result<Response<Body>, Error> {
    let token = match authorize.token() {
        Token::Is(token) => token,
        Token::Comes(coming) => coming.await.map_err(Error::SignIn)?,
    };
    let mut token = token;
    // A token that was made for this request may be refused as well: that is told, and the request is sent no third time.
    for _ in 0..2 {
        let sent = attempt(&request, &origin, token.as_ref());
        let mut answer = pool.request(&origin, sent).await?;
        if wants_nonce(&answer, token.as_ref()) {
            drop(answer);
            let sent = attempt(&request, &origin, token.as_ref());
            answer = pool.request(&origin, sent).await?;
            learn(&answer, token.as_ref());
        }
        let Some(challenge) = challenge(&answer) else {
            return Ok(answer);
        };
        drop(answer);
        let another = authorize.refused(token, challenge).await;
        token = Some(another.map_err(Error::SignIn)?);
    }
    Err(Error::SignIn(SignIn {
        reason: "it refuses an access token that was made for it just now".into(),
        is_needed: false,
    }))
}

/// A request with a token.
fn attempt(
    request: &Request<Full<Bytes>>,
    origin: &Origin,
    token: Option<&Access>,
) -> Request<Full<Bytes>> {
    let mut attempt = request.clone();
    let Some(access) = token else { return attempt };
    let method = attempt.method().clone();
    let headers = attempt.headers_mut();
    headers.insert(AUTHORIZATION, access.header.clone());
    let prover = access.prover.as_ref();
    if let Some(proof) = prover.and_then(|it| it.proof(method.as_str(), &origin.uri.to_string())) {
        headers.insert(PROOF, proof);
    }
    attempt
}

/// Takes in the nonce of an answer, for the next proofs; whether there was one.
fn learn(answer: &Response<Body>, token: Option<&Access>) -> bool {
    let nonce = answer.headers().get(NONCE);
    let nonce = nonce.and_then(|nonce| nonce.to_str().ok());
    let prover = token.and_then(|access| access.prover.as_ref());
    match (nonce, prover) {
        (Some(nonce), Some(prover)) if nonce.len() <= LONGEST_NONCE => {
            prover.learn(nonce);
            true
        }
        _ => false,
    }
}

/// Whether a server refuses a proof that lacks its nonce (RFC 9449, 9), which the next one has.
fn wants_nonce(answer: &Response<Body>, token: Option<&Access>) -> bool {
    let has_learned = learn(answer, token);
    has_learned && challenge(answer).is_some_and(|said| said.contains("use_dpop_nonce"))
}

/// What a server says that refuses a request for want of a better token: any 401, and a 403 that says so.
fn challenge(response: &Response<Body>) -> Option<String> {
    let said = response.headers().get_all(WWW_AUTHENTICATE).iter();
    let said: Vec<_> = said.filter_map(|value| value.to_str().ok()).collect();
    let said = said.join(", ");
    match response.status() {
        StatusCode::UNAUTHORIZED => Some(said),
        StatusCode::FORBIDDEN if said.contains("insufficient_scope") => Some(said),
        _ => None,
    }
}

/// A request over plain HTTP. It is tried again where a connection that had rested turns out to be closed
/// before the request was begun to be sent.
async fn plain(
    http: Tcp,
    wires: Wires,
    origin: Arc<Origin>,
    mut request: Request<Full<Bytes>>,
) -> Result<Response<Body>, Error> {
    loop {
        let (mut wire, rested) = match wires.take(&origin.authority) {
            Some(wire) => (wire, true),
            // Boxed: most requests find a connection.
            None => (
                Box::pin(connect(http.clone(), origin.uri.clone())).await?,
                false,
            ),
        };
        match wire.send(request).await {
            Ok(response) => {
                return Ok(response.map(|incoming| {
                    Body::Wire(WireBody::new(
                        incoming,
                        wire,
                        origin.authority.clone(),
                        wires,
                    ))
                }));
            }
            Err(mut error) => match error.take_message() {
                Some(unsent) if rested => request = unsent,
                _ => return Err(Error::Broken(error.into_error())),
            },
        }
    }
}

async fn connect(mut http: Tcp, uri: Uri) -> Result<Wire, Error> {
    let connected = establish(http.call(uri)).await.map_err(Error::Connect)?;
    Wire::new(connected).await.map_err(Error::Broken)
}

/// Waits for a connection, though not for ever.
async fn establish<T, E: Into<BoxError>>(
    connecting: impl Future<Output = Result<T, E>>,
) -> Result<T, BoxError> {
    let connected = tokio::time::timeout(ESTABLISH_TIMEOUT, connecting).await;
    let late = || {
        format!(
            "no connection within {} seconds",
            ESTABLISH_TIMEOUT.as_secs()
        )
    };
    connected.map_err(|_| late())?.map_err(Into::into)
}

#[derive(Clone)]
struct Connector {
    http: Tcp,
    https: Arc<OnceCell<HttpsConnector<Tcp>>>,
}

type Stream = MaybeHttpsStream<TokioIo<TcpStream>>;
pub(super) type BoxError = Box<dyn std::error::Error + Send + Sync>;

impl Connector {
    fn new(public_only: bool) -> Self {
        Self {
            http: Tcp::new(public_only),
            https: Arc::default(),
        }
    }

    async fn connect(mut self, uri: Uri) -> Result<Stream, BoxError> {
        if uri.scheme() != Some(&Scheme::HTTPS) {
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

fn tls(http: Tcp) -> Result<HttpsConnector<Tcp>, BoxError> {
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
        Box::pin(establish(connecting))
    }
}
