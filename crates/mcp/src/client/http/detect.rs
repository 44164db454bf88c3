//! Detects the protocol that a URL speaks (2026-07-28 basic/transports/streamable-http "Backward Compatibility").
//!
//! `server/discover` is tried first. A result, or an error that only modern servers send, settles it. Otherwise
//! `initialize` is tried, and if that is refused too, GET for the event stream of HTTP+SSE.

use super::sse;
use std::time::Duration;

use http::HeaderValue;
use tokio::{sync::mpsc, time::timeout};

use super::{
    super::{CallError, Client, ConnectError, Event, Link, Options, Outgoing, ServerInfo},
    HttpLink, Pool,
    endpoint::Endpoint,
    link::Mode,
    listen::listen,
};
use crate::client::handshake::initialize_params;
use crate::client::handshake::modern_meta;
use crate::client::handshake::read_discover;
use crate::client::handshake::read_initialize;
use crate::{
    Era, Frame, Kind, RpcError, Version,
    error::{HEADER_MISMATCH, MISSING_CAPABILITY, UNSUPPORTED_VERSION},
    json::{self, Object},
    protocol::method,
};

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
    let probed = match options.era {
        Some(Era::Legacy) => None,
        Some(Era::Modern) => {
            let (link, outcome) = probe(pool, &endpoint, options).await;
            return match outcome {
                Probe::Modern(info) => Ok(client(link, info)),
                Probe::No(error) | Probe::NotModern(error) => Err(error),
            };
        }
        None => {
            // Half of the time is reserved for `initialize`, in case the server never answers unknown requests.
            match timeout(options.timeout / 2, probe(pool, &endpoint, options)).await {
                Ok((link, Probe::Modern(info))) => return Ok(client(link, info)),
                Ok((_, Probe::No(error))) => return Err(error),
                Ok((_, Probe::NotModern(error))) => Some(error),
                Err(_) => Some(ConnectError::Timeout(options.timeout / 2)),
            }
        }
    };
    legacy(pool, &endpoint, url, headers, options, ambient, probed).await
}

fn client(link: HttpLink, info: ServerInfo) -> Client {
    Client::provisional(Link::Http(link)).established(info)
}

enum Probe {
    Modern(ServerInfo),
    /// Not modern, or unclear. `initialize` may work.
    NotModern(ConnectError),
    /// No protocol will work.
    No(ConnectError),
}

async fn probe(pool: &Pool, endpoint: &Endpoint, options: &Options) -> (HttpLink, Probe) {
    let link = HttpLink::new(pool, endpoint, Mode::Modern, options);
    let params = format!("{{\"_meta\":{}}}", modern_meta(options));
    let mut asked = ask(&link, method::DISCOVER, &params).await;
    if matches!(&asked.answer, Ok(frame) if offers_ours(frame)) {
        // 2026-07-28 basic/versioning: a client retries with a version that the server names. Here that is the version
        // it already used. The retry may still succeed, for example if the URL leads to several instances of which only
        // some are updated yet.
        asked = ask(&link, method::DISCOVER, &params).await;
    }
    let outcome = match asked.answer {
        Ok(frame) if frame.kind() == Kind::Result => match read_discover(frame.body_bytes()) {
            Ok(info) => Probe::Modern(info),
            Err(error) => Probe::NotModern(error),
        },
        Ok(frame) => refusal(&RpcError::from_json(frame.body())),
        Err(error @ CallError::SignIn(_)) => Probe::No(error.into()),
        Err(error) if asked.unreachable => Probe::No(unreachable(error)),
        Err(error) => Probe::NotModern(ConnectError::Call(error)),
    };
    (link, outcome)
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

/// Tries `initialize`, then HTTP+SSE if that is refused.
async fn legacy(
    pool: &Pool,
    endpoint: &Endpoint,
    url: &str,
    headers: &[(String, String)],
    options: &Options,
    ambient: mpsc::Sender<Event>,
    probed: Option<ConnectError>,
) -> Result<Client, ConnectError> {
    let link = HttpLink::new(pool, endpoint, Mode::Handshake, options);
    let params = initialize_params(options);
    let asked = ask(&link, method::INITIALIZE, &params).await;
    let error = match asked.answer {
        Ok(frame) if frame.kind() == Kind::Result => {
            let info = read_initialize(frame.body_bytes())?;
            return established(pool, endpoint, options, info, asked.session, ambient).await;
        }
        Ok(frame) => {
            let mut error = RpcError::from_json(frame.body());
            // The first refusal may be more helpful to the user than the second.
            if let Some(ConnectError::NotModern(first)) = &probed {
                error.message = format!("{}; and `server/discover`: {first}", error.message);
            }
            ConnectError::NotLegacy(error)
        }
        Err(error) if asked.unreachable => return Err(unreachable(error)),
        Err(error) => ConnectError::Call(error),
    };
    if !matches!(asked.status, 400 | 404 | 405) {
        return Err(error);
    }
    match sse::connect(pool, url, headers, options, ambient).await {
        Ok(client) => Ok(client),
        Err(ConnectError::Unreachable(_)) => Err(error),
        // The server speaks HTTP+SSE, but something else is wrong.
        Err(other) => Err(other),
    }
}

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
    let link = HttpLink::new(pool, endpoint, mode, options);
    if let Err(error) = link
        .send(&Frame::notification(method::INITIALIZED, None))
        .await
    {
        link.close(Duration::from_secs(2)).await;
        return Err(error.into());
    }
    link.spawn(listen(link.core().clone(), ambient));
    Ok(client(link, info))
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
    unreachable: bool,
}

/// Sends one handshake request. Notifications before the response are ignored.
async fn ask(link: &HttpLink, method: &str, params: &str) -> Asked {
    let request = Frame::request("0", method, Some(params.as_bytes()));
    let mut call = match link.call(Outgoing::new(&request)) {
        Ok(call) => call.handshake(),
        Err(error) => {
            return Asked {
                answer: Err(error),
                status: 0,
                session: None,
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
        unreachable: call.unreachable(),
    }
}
