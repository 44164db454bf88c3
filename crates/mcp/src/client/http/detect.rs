//! Detects the protocol that a URL speaks (2026-07-28 basic/transports/streamable-http "Backward Compatibility").
//!
//! `server/discover` is tried first. A result, or an error that only modern servers send, shows that the server is
//! modern. Otherwise `initialize` is tried, and if that is refused too, GET for the event stream of HTTP+SSE.
//!
//! A server may answer 401 to every method that it does not know, so only a 401 to `initialize` means that it needs a
//! sign-in. A server that never answers `server/discover` gets `initialize` after [`PROBE_TIMEOUT`]. Its URL is
//! remembered, so that the next connection begins with `initialize`.

use std::{pin::pin, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use http::{HeaderValue, Uri};
use tokio::{
    sync::mpsc,
    time::{Instant, timeout, timeout_at},
};

use super::{
    super::{
        Access, Authorize, CallError, Client, ConnectError, Event, Link, Options, Outgoing,
        ServerInfo, SignIn, Token,
    },
    HttpLink, Pool,
    body::MAX_REDIRECTS,
    endpoint::Endpoint,
    link::Mode,
    listen::listen,
    sse,
};
use crate::client::handshake::initialize_params;
use crate::client::handshake::modern_meta;
use crate::client::handshake::older_version;
use crate::client::handshake::read_discover;
use crate::client::handshake::read_initialize;
use crate::{
    Era, Frame, Kind, RpcError, Version,
    error::{HEADER_MISMATCH, MISSING_CAPABILITY, UNSUPPORTED_VERSION},
    json::{self, Object},
    protocol::method,
};

/// Maximum wait for the response to `server/discover` before `initialize` is tried as well.
const PROBE_TIMEOUT: Duration = Duration::from_secs(4);
/// Further wait for the response to `server/discover` after `initialize` was accepted.
const PROBE_GRACE: Duration = Duration::from_secs(1);
/// Maximum wait for the end of a session that is not needed.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// A server at a URL, and how to connect to it.
struct Detection<'a> {
    pool: &'a Pool,
    url: &'a str,
    headers: &'a [(String, String)],
    endpoint: Endpoint,
    options: &'a Options,
    ambient: mpsc::Sender<Event>,
}

/// Connects to the server at `url`.
pub(in crate::client) async fn connect(
    pool: &Pool,
    url: &str,
    headers: &[(String, String)],
    options: &Options,
    ambient: mpsc::Sender<Event>,
) -> Result<Client, ConnectError> {
    let mut endpoint = Endpoint::new(url, headers)?.authorized(options.authorize.as_ref());
    endpoint.sign.clone_from(&options.sign);
    let detection = Detection {
        pool,
        url,
        headers,
        endpoint,
        options,
        ambient,
    };
    match options.era {
        Some(Era::Legacy) => detection.legacy(None).await,
        Some(Era::Modern) => detection.modern().await,
        None => detection.either().await,
    }
}

impl Detection<'_> {
    async fn either(&self) -> Result<Client, ConnectError> {
        let (silent, uri) = (&self.pool.silent, &self.endpoint.uri);
        if silent.contain(uri) {
            match self.legacy(None).await {
                Err(ConnectError::Unreachable(why)) => return Err(ConnectError::Unreachable(why)),
                // The URL may lead to another server by now, so `server/discover` is tried again.
                Err(_) => silent.remove(uri),
                connected => return connected,
            }
        }
        let half = self.options.timeout / 2;
        let deadline = Instant::now() + half;
        let token = self.token();
        let mut probing = pin!(self.probe(true));
        match timeout(PROBE_TIMEOUT.min(half), probing.as_mut()).await {
            Ok(Probe::Modern(client)) => return Ok(client),
            Ok(Probe::No(error)) => return Err(error),
            Ok(Probe::NotModern(error)) => return self.after_refusal(error, token).await,
            Err(_) => {}
        }
        let mut connecting = pin!(self.legacy(None));
        tokio::select! {
            biased;
            probed = probing.as_mut() => match probed {
                Probe::Modern(client) => Ok(client),
                Probe::No(error) => Err(error),
                Probe::NotModern(_) => connecting.await,
            },
            connected = connecting.as_mut() => match connected {
                Ok(legacy) => match timeout(PROBE_GRACE, probing).await {
                    Ok(Probe::Modern(client)) => {
                        legacy.close(CLOSE_TIMEOUT).await;
                        Ok(client)
                    }
                    Ok(_) => Ok(legacy),
                    Err(_) => {
                        silent.add(uri);
                        Ok(legacy)
                    }
                },
                // This may be a slow modern server, so wait for its response to `server/discover`.
                Err(error) => match timeout_at(deadline, probing).await {
                    Ok(Probe::Modern(client)) => Ok(client),
                    _ => Err(error),
                },
            },
        }
    }

    /// Continues after a refusal of `server/discover`. `token`: the access token that it was sent with.
    async fn after_refusal(
        &self,
        refusal: ConnectError,
        token: Option<Access>,
    ) -> Result<Client, ConnectError> {
        let is_unauthorized = is_sign_in(&refusal);
        let connected = self.legacy(Some(&refusal)).await;
        let is_open = match &connected {
            Ok(_) => self.token() != token,
            Err(error) => !is_sign_in(error),
        };
        if !(is_unauthorized && is_open) {
            return connected;
        }
        // Either the token was replaced, or `initialize` needs no token and failed for another reason. Try
        // `server/discover` once more.
        match (self.modern().await, connected) {
            (Ok(modern), Ok(legacy)) => {
                legacy.close(CLOSE_TIMEOUT).await;
                Ok(modern)
            }
            (Err(error), Err(_)) if is_sign_in(&error) => Err(error),
            (Err(_), connected) => connected,
            (modern, Err(_)) => modern,
        }
    }

    async fn modern(&self) -> Result<Client, ConnectError> {
        match self.probe(false).await {
            Probe::Modern(client) => Ok(client),
            Probe::No(error) | Probe::NotModern(error) => Err(error),
        }
    }

    /// The access token for the next request, if it is already available.
    fn token(&self) -> Option<Access> {
        match self.endpoint.authorize.as_ref()?.token() {
            Token::Is(token) => token,
            Token::Comes(_) => None,
        }
    }
}

fn is_sign_in(error: &ConnectError) -> bool {
    matches!(error, ConnectError::Call(CallError::SignIn(_)))
}

/// Supplies access tokens, but requests no other token or sign-in when the server rejects one.
#[derive(Debug)]
struct Passive(Arc<dyn Authorize>);

impl Authorize for Passive {
    fn token(&self) -> Token {
        self.0.token()
    }

    fn refused(&self, _: Option<Access>, _: String) -> BoxFuture<'static, Result<Access, SignIn>> {
        Box::pin(async {
            Err(SignIn {
                reason: "it answers 401 to `server/discover`".into(),
                is_needed: true,
            })
        })
    }
}

fn client(link: HttpLink, info: ServerInfo) -> Client {
    Client::provisional(Link::Http(link)).established(info)
}

enum Probe {
    Modern(Client),
    /// Not modern, or unclear. `initialize` may work.
    NotModern(ConnectError),
    /// No protocol will work.
    No(ConnectError),
}

impl Detection<'_> {
    /// Tries `server/discover`. `is_passive`: a 401 leads neither to a request for another token nor to a sign-in.
    async fn probe(&self, is_passive: bool) -> Probe {
        let (pool, options) = (self.pool, self.options);
        let mut endpoint = self.endpoint.clone();
        if is_passive {
            let passive = |authorize| Arc::new(Passive(authorize)) as Arc<dyn Authorize>;
            endpoint.authorize = endpoint.authorize.map(passive);
        }
        let params = format!("{{\"_meta\":{}}}", modern_meta(options));
        let (mode, name) = (Mode::Modern, method::DISCOVER);
        let (mut link, mut asked) = ask(pool, &mut endpoint, &mode, options, name, &params).await;
        if matches!(&asked.answer, Ok(frame) if offers_ours(frame)) {
            // 2026-07-28 basic/versioning: a client retries with a version that the server names. Here that is the
            // version it already used. The retry may still succeed, for example if the URL leads to several instances
            // of which only some are updated yet.
            (link, asked) = ask(pool, &mut endpoint, &mode, options, name, &params).await;
        }
        match asked.answer {
            Ok(frame) if frame.kind() == Kind::Result => match read_discover(frame.body_bytes()) {
                Ok(info) => {
                    if is_passive && endpoint.authorize.is_some() {
                        endpoint.authorize.clone_from(&self.endpoint.authorize);
                        link = HttpLink::new(pool, &endpoint, &mode, options);
                    }
                    Probe::Modern(client(link, info))
                }
                Err(error) => Probe::NotModern(error),
            },
            Ok(frame) => refusal(&RpcError::from_json(frame.body())),
            Err(error) if asked.unreachable => Probe::No(unreachable(error)),
            Err(error) => Probe::NotModern(ConnectError::Call(error)),
        }
    }
}

/// Returns true if an error says that our version is unsupported, yet lists it as supported.
fn offers_ours(frame: &Frame) -> bool {
    if frame.kind() != Kind::Error {
        return false;
    }
    let error = RpcError::from_json(frame.body());
    let data = error.data.unwrap_or_default();
    let supported = Object::of(&data).and_then(|object| object.find("supported"));
    error.code == UNSUPPORTED_VERSION
        && supported.is_some_and(|supported| {
            json::elements(&data, supported)
                .filter_map(|span| json::as_string(&data[span]))
                .any(|version| version == Version::LATEST.as_str())
        })
}

/// Interprets an error response to `server/discover`.
fn refusal(error: &RpcError) -> Probe {
    match error.code {
        UNSUPPORTED_VERSION => {
            let data = error.data.clone().unwrap_or_default();
            let supported = Object::of(&data).and_then(|object| object.find("supported"));
            let Some(supported) = supported else {
                return Probe::NotModern(ConnectError::NotModern(error.clone()));
            };
            let legacy = json::elements(&data, supported.clone())
                .filter_map(|span| Version::parse(&json::as_string(&data[span])?))
                .any(|version| version.era() == Era::Legacy);
            let offered = String::from_utf8_lossy(&data[supported]);
            let error = ConnectError::Version(offered.chars().take(80).collect());
            if legacy {
                Probe::NotModern(error)
            } else {
                Probe::No(error)
            }
        }
        HEADER_MISMATCH | MISSING_CAPABILITY => Probe::No(ConnectError::NotModern(error.clone())),
        _ => Probe::NotModern(ConnectError::NotModern(error.clone())),
    }
}

impl Detection<'_> {
    /// Tries `initialize`, then HTTP+SSE if that is refused. `probed`: how the server refused `server/discover`.
    async fn legacy(&self, probed: Option<&ConnectError>) -> Result<Client, ConnectError> {
        let (pool, options) = (self.pool, self.options);
        let mut endpoint = self.endpoint.clone();
        let initialized = initialize(pool, &mut endpoint, options).await;
        let Refusal { mut error, status } = match initialized {
            Ok((result, session)) => {
                let info = read_initialize(result.body_bytes())?;
                let ambient = self.ambient.clone();
                return established(pool, &endpoint, options, info, session, ambient).await;
            }
            Err(refusal) => refusal,
        };
        // Show the refusal of `server/discover` as well, since it may be the one that tells the user what to do.
        if let (ConnectError::NotLegacy(error), Some(ConnectError::NotModern(first))) =
            (&mut error, probed)
        {
            error.message = format!("{}; and `server/discover`: {first}", error.message);
        }
        if !matches!(status, 400 | 404 | 405) {
            return Err(error);
        }
        match sse::connect(pool, self.url, self.headers, options, self.ambient.clone()).await {
            Ok(client) => Ok(client),
            Err(ConnectError::Unreachable(_)) => Err(error),
            // The server speaks HTTP+SSE, but something else is wrong.
            Err(other) => Err(other),
        }
    }
}

/// Why a URL did not answer `initialize` with a result.
struct Refusal {
    error: ConnectError,
    status: u16,
}

/// Sends `initialize`, and again with an older version that the refusal names. Returns the result and the session.
/// Follows redirects, and changes `endpoint` accordingly.
async fn initialize(
    pool: &Pool,
    endpoint: &mut Endpoint,
    options: &Options,
) -> Result<(Frame, Option<HeaderValue>), Refusal> {
    let (mode, name) = (Mode::Handshake, method::INITIALIZE);
    let mut version = Version::LATEST_LEGACY;
    loop {
        let params = initialize_params(options, version);
        let (_, asked) = ask(pool, endpoint, &mode, options, name, &params).await;
        let error = match asked.answer {
            Ok(frame) if frame.kind() == Kind::Result => return Ok((frame, asked.session)),
            Ok(frame) => ConnectError::NotLegacy(RpcError::from_json(frame.body())),
            Err(error) if asked.unreachable => unreachable(error),
            Err(error) => ConnectError::Call(error),
        };
        match older_version(&error, version) {
            Some(older) => version = older,
            None => {
                let status = asked.status;
                return Err(Refusal { error, status });
            }
        }
    }
}

/// Completes the handshake of a legacy session.
async fn established(
    pool: &Pool,
    endpoint: &Endpoint,
    options: &Options,
    info: ServerInfo,
    session: Option<HeaderValue>,
    ambient: mpsc::Sender<Event>,
) -> Result<Client, ConnectError> {
    let mode = Mode::Legacy {
        version: info.version,
        session,
    };
    let link = HttpLink::new(pool, endpoint, &mode, options);
    if let Err(error) = link
        .send(&Frame::notification(method::INITIALIZED, None))
        .await
    {
        link.close(CLOSE_TIMEOUT).await;
        return Err(error.into());
    }
    link.spawn(listen(link.core().clone(), ambient));
    Ok(client(link, info))
}

/// Opens a legacy session at the URL of a modern server. `None`: the server refuses `initialize`.
pub(in crate::client) async fn initialize_too(
    modern: &HttpLink,
    options: &Options,
    ambient: mpsc::Sender<Event>,
) -> Result<Option<Client>, ConnectError> {
    let (pool, mut endpoint) = (modern.pool(), modern.core().endpoint.clone());
    let refusal = match initialize(pool, &mut endpoint, options).await {
        Ok((result, session)) => match read_initialize(result.body_bytes()) {
            Ok(info) => {
                let opened = established(pool, &endpoint, options, info, session, ambient);
                return opened.await.map(Some);
            }
            // The result is unusable. For example, it names a modern version.
            Err(_) => return Ok(None),
        },
        Err(refusal) => refusal,
    };
    // Other refusals may be temporary: the server is busy, or requires another sign-in.
    let is_lasting = (200..500).contains(&refusal.status)
        && !matches!(refusal.status, 401 | 403 | 407 | 408 | 429);
    match refusal.error {
        ConnectError::Unreachable(_)
        | ConnectError::Call(CallError::Closed(_) | CallError::SignIn(_)) => Err(refusal.error),
        _ if is_lasting => Ok(None),
        error => Err(error),
    }
}

fn unreachable(error: CallError) -> ConnectError {
    match error {
        CallError::Closed(why) => ConnectError::Unreachable(why.to_string()),
        other => other.into(),
    }
}

struct Asked {
    answer: Result<Frame, CallError>,
    status: u16,
    session: Option<HeaderValue>,
    moved: Option<Uri>,
    unreachable: bool,
}

/// Sends one handshake request over a new link. Follows redirects, and changes `endpoint` accordingly.
async fn ask(
    pool: &Pool,
    endpoint: &mut Endpoint,
    mode: &Mode,
    options: &Options,
    method: &str,
    params: &str,
) -> (HttpLink, Asked) {
    let mut redirects = 0;
    loop {
        let link = HttpLink::new(pool, endpoint, mode, options);
        let mut asked = ask_over(&link, method, params).await;
        match asked.moved.take() {
            Some(target) if redirects < MAX_REDIRECTS => {
                redirects += 1;
                *endpoint = endpoint.at(target);
            }
            _ => return (link, asked),
        }
    }
}

/// Sends one handshake request. Notifications before the response are ignored.
async fn ask_over(link: &HttpLink, method: &str, params: &str) -> Asked {
    let request = Frame::request("0", method, Some(params.as_bytes()));
    let mut call = match link.call(Outgoing::new(&request)) {
        Ok(call) => call.handshake(),
        Err(error) => {
            return Asked {
                answer: Err(error),
                status: 0,
                session: None,
                moved: None,
                unreachable: false,
            };
        }
    };
    let answer = loop {
        match call.next().await {
            Ok(Event::Response(frame)) => break Ok(frame),
            // No client is attached yet that could answer.
            Ok(Event::Request(question)) => {
                let refusal = RpcError::method_not_found(question.method());
                link.send_behind(Frame::error(question.id(), &refusal));
            }
            Ok(Event::Notification(_) | Event::Unclear(_)) => {}
            Err(error) => break Err(error),
        }
    };
    Asked {
        answer,
        status: call.status(),
        session: call.session().cloned(),
        moved: call.moved().cloned(),
        unreachable: call.unreachable(),
    }
}
