//! The connection pool, and how it connects.
//!
//! Plain HTTP avoids the cost of TLS: the platform's root certificates are read at the first `https` connection. It
//! also avoids a task switch between a request and its connection ([`super::wire`]). TLS connections, with HTTP/1 or
//! HTTP/2, come from hyper's pool.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{
    Request, Response, StatusCode, Uri,
    header::{AUTHORIZATION, HOST, HeaderName, PROXY_AUTHORIZATION, WWW_AUTHENTICATE},
};
use http_body::{Frame, SizeHint};
use http_body_util::Full;
use http_client::{BoxError, Connector, KEEPALIVE, Options, Tcp, Via};
use hyper::body::Incoming;
use hyper_util::{
    client::legacy::Client,
    rt::{TokioExecutor, TokioTimer},
};

use crate::gather::Whole;

use super::{
    super::{Access, Authorize, SignIn, Token},
    endpoint::{Endpoint, Origin, SESSION_ID},
    refusal::names_lost_session,
    silent::SilentUrls,
    wire::{Wire, WireBody, Wires},
};

/// Maximum idle time of a TLS connection: shorter than that of the usual load balancers, 60 seconds.
const IDLE_TIMEOUT: Duration = Duration::from_secs(50);
/// Maximum bytes of a 401 response that are searched for a lost session.
const MAX_SEARCHED_BYTES: usize = 16 * 1024;
/// Timeout for the response to an HTTP/2 ping.
const PING_TIMEOUT: Duration = Duration::from_secs(10);
/// Buffer of an HTTP/1 connection in bytes, which is also the size limit of a response head.
const HTTP1_BUFFER_BYTES: usize = 256 * 1024;

/// The headers of DPoP proofs (RFC 9449), and the maximum length of a nonce in bytes.
const DPOP: HeaderName = HeaderName::from_static("dpop");
const DPOP_NONCE: HeaderName = HeaderName::from_static("dpop-nonce");
const MAX_NONCE_BYTES: usize = 1024;

/// A connection pool that MCP connections share. Cheap to clone.
#[derive(Clone)]
pub struct Pool {
    client: Client<Connector, Full<Bytes>>,
    http: Tcp,
    wires: Wires,
    pub(super) silent: SilentUrls,
}

/// A request in flight. Resolves to the response head.
pub(in crate::client) type Answering =
    Pin<Box<dyn Future<Output = Result<Response<Body>, Error>> + Send>>;

/// Why a request has no response.
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
    /// Returns true if connecting failed.
    pub(in crate::client) fn is_connect(&self) -> bool {
        match self {
            Self::Connect(_) => true,
            Self::Broken(_) | Self::SignIn(_) => false,
            Self::Client(error) => error.is_connect(),
        }
    }
}

/// A response body. Dropping it before its end closes the connection.
pub(in crate::client) enum Body {
    Wire(WireBody),
    Client(Incoming),
    /// It was read already.
    Read(Full<Bytes>),
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
            Self::Read(body) => {
                let frame = Pin::new(body).poll_frame(cx);
                frame.map_err(|never| match never {})
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Wire(body) => body.is_end_stream(),
            Self::Client(body) => body.is_end_stream(),
            Self::Read(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Wire(body) => body.size_hint(),
            Self::Client(body) => body.size_hint(),
            Self::Read(body) => body.size_hint(),
        }
    }
}

impl Pool {
    pub(in crate::client) fn new(options: Options) -> Self {
        let connector = Connector::new(options);
        Self {
            http: connector.tcp().clone(),
            wires: Wires::default(),
            silent: SilentUrls::default(),
            client: Client::builder(TokioExecutor::new())
                .pool_timer(TokioTimer::new())
                .timer(TokioTimer::new())
                .pool_idle_timeout(IDLE_TIMEOUT)
                .pool_max_idle_per_host(options.max_idle)
                .http1_max_buf_size(HTTP1_BUFFER_BYTES)
                .http2_keep_alive_interval(KEEPALIVE)
                .http2_keep_alive_timeout(PING_TIMEOUT)
                .build(connector),
        }
    }

    /// Starts a request with the endpoint's access token, if it uses one. If the server rejects the token and another
    /// one is available, the request is sent a second time.
    pub(in crate::client) fn send(
        &self,
        endpoint: &Endpoint,
        mut request: Request<Bytes>,
    ) -> Answering {
        if let Some(sign) = &endpoint.sign {
            // A signature is valid once.
            request.extensions_mut().remove::<Repeatable>();
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

    /// Starts a request to `origin`. Nothing is sent until the future is polled. Does not follow redirects.
    pub(in crate::client) fn request(
        &self,
        origin: &Arc<Origin>,
        mut request: Request<Full<Bytes>>,
    ) -> Answering {
        if origin.tls {
            *request.uri_mut() = origin.uri.clone();
            let (client, spare) = (self.client.clone(), spare(&request));
            return Box::pin(async move {
                let answer = match (client.request(request).await, spare) {
                    (Err(error), Some(spare)) if broke_off(&error) => client.request(spare).await,
                    (answer, _) => answer,
                };
                let response = answer.map_err(Error::Client)?;
                Ok(response.map(Body::Client))
            });
        }
        let forwarder = self.http.forwarder(&origin.uri);
        *request.uri_mut() = match forwarder {
            Some(_) => origin.uri.clone(),
            None => origin.target.clone(),
        };
        let headers = request.headers_mut();
        if let Some(host) = &origin.host {
            headers.entry(HOST).or_insert_with(|| host.clone());
        }
        if let Some(value) = forwarder.and_then(Via::authorization) {
            headers.insert(PROXY_AUTHORIZATION, value.clone());
        }
        let (http, wires) = (self.http.clone(), self.wires.clone());
        Box::pin(plain(http, wires, origin.clone(), request))
    }
}

/// Sends a request with a token, and once more with another token if the server rejects the first.
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
    // The second token may be rejected too. Then the call fails; the request is not sent a third time.
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
        // Another token would not help.
        if let Some(answer) = lost_session(&request, answer).await {
            return Ok(answer);
        }
        let another = authorize.refused(token, challenge).await;
        token = Some(another.map_err(Error::SignIn)?);
    }
    Err(Error::SignIn(SignIn {
        reason: "it rejects a newly issued access token".into(),
        is_needed: false,
    }))
}

/// Returns the response if it says that the session of the request is unknown.
async fn lost_session(
    request: &Request<Full<Bytes>>,
    answer: Response<Body>,
) -> Option<Response<Body>> {
    if !request.headers().contains_key(SESSION_ID) {
        return None;
    }
    let (parts, body) = answer.into_parts();
    let mut body = Whole::new(body, MAX_SEARCHED_BYTES);
    let text = match body.read().await {
        Ok(text) => text,
        Err(_) => body.so_far(),
    };
    names_lost_session(parts.status, &text)
        .then(|| Response::from_parts(parts, Body::Read(text.into())))
}

/// Adds a token to a copy of the request.
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
        headers.insert(DPOP, proof);
    }
    attempt
}

/// Stores the nonce of a response for later proofs. Returns true if there was one.
fn learn(answer: &Response<Body>, token: Option<&Access>) -> bool {
    let nonce = answer.headers().get(DPOP_NONCE);
    let nonce = nonce.and_then(|nonce| nonce.to_str().ok());
    let prover = token.and_then(|access| access.prover.as_ref());
    match (nonce, prover) {
        (Some(nonce), Some(prover)) if nonce.len() <= MAX_NONCE_BYTES => {
            prover.learn(nonce);
            true
        }
        _ => false,
    }
}

/// Returns true if the server rejected a proof only because it lacked the nonce (RFC 9449, 9). The next proof contains
/// it.
fn wants_nonce(answer: &Response<Body>, token: Option<&Access>) -> bool {
    let has_learned = learn(answer, token);
    has_learned && challenge(answer).is_some_and(|said| said.contains("use_dpop_nonce"))
}

/// The challenge of a response that asks for a better token: any 401, and a 403 with `insufficient_scope`.
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

/// Marks a request that may be sent again if its connection turns out to be closed.
#[derive(Clone, Copy)]
pub(super) struct Repeatable;

/// A copy of a request that may be sent again.
fn spare(request: &Request<Full<Bytes>>) -> Option<Request<Full<Bytes>>> {
    request
        .extensions()
        .get::<Repeatable>()
        .map(|_| request.clone())
}

/// Returns true if the server closed the connection instead of answering.
fn broke_off(error: &hyper_util::client::legacy::Error) -> bool {
    let source = std::error::Error::source(error);
    let source = source.and_then(|source| source.downcast_ref::<hyper::Error>());
    source.is_some_and(|error| error.is_incomplete_message() || error.is_closed())
}

/// Sends a request over plain HTTP. If an idle connection turns out to be closed, another one is used, provided that
/// none of the request was sent or that the request is [`Repeatable`].
async fn plain(
    http: Tcp,
    wires: Wires,
    origin: Arc<Origin>,
    mut request: Request<Full<Bytes>>,
) -> Result<Response<Body>, Error> {
    loop {
        let (mut wire, idle) = match wires.take(&origin.authority) {
            Some((wire, idle)) => (wire, Some(idle)),
            // Boxed, because most requests find an idle connection.
            None => (
                Box::pin(connect(http.clone(), origin.uri.clone())).await?,
                None,
            ),
        };
        let spare = idle.and_then(|_| spare(&request));
        match wire.send(request).await {
            Ok(response) => {
                let status = response.status();
                if status == StatusCode::PROXY_AUTHENTICATION_REQUIRED
                    && let Some(via) = http.forwarder(&origin.uri)
                {
                    return Err(Error::Connect(
                        via.refusal(status, &origin.authority).into(),
                    ));
                }
                wires.learn(&origin.authority, response.headers());
                return Ok(response.map(|incoming| {
                    Body::Wire(WireBody::new(
                        incoming,
                        wire,
                        origin.authority.clone(),
                        wires,
                    ))
                }));
            }
            Err(mut error) => {
                let unsent = error.take_message();
                if let Some(idle) = idle {
                    wires.closed_after(&origin.authority, idle);
                }
                match unsent.or(spare) {
                    Some(again) if idle.is_some() => request = again,
                    _ => return Err(Error::Broken(error.into_error())),
                }
            }
        }
    }
}

async fn connect(http: Tcp, uri: Uri) -> Result<Wire, Error> {
    let connected = http.connect(uri).await.map_err(Error::Connect)?;
    Wire::new(connected).await.map_err(Error::Broken)
}
