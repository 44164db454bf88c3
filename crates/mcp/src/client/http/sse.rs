//! HTTP+SSE of 2024-11-05 towards servers: one event stream in, a POST per message out.
//!
//! The connection is a [`Duplex`] and ends with the stream. A message that the server refuses ends only its call,
//! unless the server has forgotten the session. Messages are sent in order. A POST delays the next one by at most
//! [`MAX_ORDER_WAIT`], because some servers answer it only when the call is done.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::{StreamExt, stream::FuturesUnordered};
use http::{
    HeaderMap, HeaderValue, Method, Request, StatusCode,
    header::{ACCEPT, CONTENT_TYPE},
};
use http_body_util::BodyExt;
use tokio::{
    sync::mpsc,
    time::{sleep, timeout},
};

use super::super::{
    CallError, Client, ConnectError, Event, Link, Options,
    duplex::Duplex,
    handshake::handshake,
    http::{Body, Endpoint, Media, Pool, cause, media, resolve, status_hint},
};
use crate::{
    Era, Frame, Kind, RpcError,
    json::quote,
    sse::{self, Parser},
};

/// Timeouts for the head of the stream and for its first event.
const OPEN_TIMEOUT: Duration = Duration::from_secs(10);
const POST_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum time that a POST without a response delays the next message.
const MAX_ORDER_WAIT: Duration = Duration::from_secs(1);
/// Maximum POSTs in flight. Further messages wait.
const MAX_CONCURRENT_POSTS: usize = 64;

/// Opens the stream at `url` and performs the handshake. [`ConnectError::Unreachable`] means that the URL is not an
/// HTTP+SSE server.
pub(in crate::client) async fn connect(
    pool: &Pool,
    url: &str,
    headers: &[(String, String)],
    options: &Options,
    ambient: mpsc::Sender<Event>,
) -> Result<Client, ConnectError> {
    if options.era == Some(Era::Modern) {
        let why = "HTTP+SSE exists only in legacy protocol versions";
        return Err(ConnectError::Unreachable(why.into()));
    }
    let endpoint = Endpoint::new(url, headers)?.authorized(options.authorize.as_ref());
    let mut stream = open(pool, &endpoint, options.max_message).await?;
    let reference = timeout(OPEN_TIMEOUT, stream.endpoint())
        .await
        .unwrap_or_else(|_| {
            let seconds = OPEN_TIMEOUT.as_secs();
            Err(format!("no `endpoint` event within {seconds} s"))
        })
        .map_err(ConnectError::Unreachable)?;
    let messages = resolve(&endpoint.uri, &reference).map_err(ConnectError::Nonsense)?;
    let (link, outbound) = Duplex::new(options.label.clone(), options.max_depth, ambient);
    let poster = Poster {
        label: options.label.clone(),
        pool: pool.clone(),
        endpoint: endpoint.at(messages),
        link: link.clone(),
        max_depth: options.max_depth,
    };
    let running = link.clone();
    crate::client::spawn_linked(async move {
        let why = tokio::select! {
            why = stream.deliver(&running) => why,
            why = poster.run(outbound) => why,
            why = running.closed() => why.to_string(),
        };
        running.close(&why);
    });
    handshake(Link::Duplex(link), options).await
}

struct Stream {
    body: Body,
    parser: Parser,
}

async fn open(pool: &Pool, endpoint: &Endpoint, max_event: usize) -> Result<Stream, ConnectError> {
    let mut request = Request::new(Bytes::new());
    *request.headers_mut() = endpoint.headers.clone();
    let accept = HeaderValue::from_static("text/event-stream");
    request.headers_mut().insert(ACCEPT, accept);
    let peer = &endpoint.peer;
    let response = timeout(OPEN_TIMEOUT, pool.send(endpoint, request))
        .await
        .map_err(|_| format!("no answer from {peer} within {} s", OPEN_TIMEOUT.as_secs()))
        .and_then(|answer| {
            answer.map_err(|error| format!("no event stream from {peer}: {}", cause(&error)))
        })
        .map_err(ConnectError::Unreachable)?;
    let status = response.status();
    if !status.is_success() {
        let hint = status_hint(status, response.headers()).unwrap_or_default();
        let why = format!(
            "opening the event stream failed with HTTP {}{hint}",
            status.as_u16()
        );
        return Err(ConnectError::Unreachable(why));
    }
    if media(response.headers()) != Media::Events {
        let why = "the URL does not return an event stream";
        return Err(ConnectError::Unreachable(why.into()));
    }
    Ok(Stream {
        body: response.into_body(),
        parser: Parser::new(max_event),
    })
}

impl Stream {
    /// The next event, or why the stream ended.
    async fn next(&mut self) -> Result<sse::Event, String> {
        loop {
            match self.parser.next_event() {
                Ok(Some(event)) => return Ok(event),
                Ok(None) => {}
                Err(error) => return Err(error.to_string()),
            }
            match self.body.frame().await {
                Some(Ok(frame)) => {
                    if let Some(data) = frame.data_ref() {
                        self.parser.push(data.clone());
                    }
                }
                Some(Err(error)) => {
                    return Err(format!("the event stream broke: {}", cause(&error)));
                }
                None => return Err("the server ended the event stream".to_owned()),
            }
        }
    }

    /// The URL for messages: the stream's first event.
    async fn endpoint(&mut self) -> Result<String, String> {
        loop {
            let event = self.next().await?;
            match &*event.event {
                "endpoint" => return Ok(String::from_utf8_lossy(&event.data).into_owned()),
                _ if event.data.is_empty() => {}
                _ => return Err("the stream does not begin with an `endpoint` event".to_owned()),
            }
        }
    }

    /// Passes messages to the link until the stream ends. Returns the reason.
    async fn deliver(&mut self, link: &Duplex) -> String {
        loop {
            match self.next().await {
                Ok(event) if event.data.is_empty() => {}
                Ok(event) if matches!(&*event.event, "" | "message") => link.deliver(event.data),
                Ok(_) => {}
                Err(why) => return why,
            }
        }
    }
}

struct Poster {
    label: Arc<str>,
    pool: Pool,
    endpoint: Endpoint,
    link: Duplex,
    max_depth: usize,
}

impl Poster {
    /// Sends the queued messages. Returns the reason when the connection can no longer be used.
    async fn run(&self, mut outbound: mpsc::Receiver<Bytes>) -> String {
        let mut headers = self.endpoint.headers.clone();
        headers.insert(
            ACCEPT,
            HeaderValue::from_static("application/json, text/event-stream"),
        );
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let mut late = FuturesUnordered::new();
        loop {
            let message = tokio::select! {
                Some(done) = late.next() => match done {
                    Ok(()) => continue,
                    Err(why) => return why,
                },
                message = outbound.recv(), if late.len() < MAX_CONCURRENT_POSTS => message,
            };
            let Some(message) = message else {
                return "closed by the gateway".to_owned();
            };
            let mut post = Box::pin(self.post(headers.clone(), message));
            tokio::select! {
                biased;
                done = &mut post => match done {
                    Ok(()) => {}
                    Err(why) => return why,
                },
                () = sleep(MAX_ORDER_WAIT) => late.push(post),
            }
        }
    }

    /// Sends one message. A failure ends the call that the message belongs to.
    ///
    /// # Errors
    /// Why the whole connection can no longer be used.
    async fn post(&self, headers: HeaderMap, message: Bytes) -> Result<(), String> {
        const UNAVAILABLE: &str = "server_unavailable";
        let mut request = Request::new(message.clone());
        *request.method_mut() = Method::POST;
        *request.headers_mut() = headers;
        let answer = self.pool.send(&self.endpoint, request);
        let (reason, why) = match timeout(POST_TIMEOUT, answer).await {
            Ok(Ok(response)) if response.status().is_success() => return Ok(()),
            Ok(Ok(response)) if response.status() == StatusCode::NOT_FOUND => {
                return Err(CallError::SessionExpired.to_string());
            }
            Ok(Ok(response)) => {
                let (status, headers) = (response.status(), response.headers());
                let hint = status_hint(status, headers).unwrap_or_default();
                let why = format!("the server answered HTTP {}{hint}", status.as_u16());
                ("server_failed", why)
            }
            Ok(Err(error)) => (
                UNAVAILABLE,
                format!("the server did not accept the request: {}", cause(&error)),
            ),
            Err(_) => {
                let seconds = POST_TIMEOUT.as_secs();
                let why = format!("the server did not accept the request within {seconds} s");
                (UNAVAILABLE, why)
            }
        };
        match Frame::parse(message, self.max_depth) {
            Ok(frame) if frame.kind() == Kind::Request => {
                let server = quote(&self.label);
                let data = format!("{{\"reason\":\"{reason}\",\"server\":{server}}}");
                let error = RpcError::internal(format!("server `{}`: {why}", self.label));
                let error = error.with_data(data.into_bytes());
                self.link
                    .deliver(Frame::error(frame.id(), &error).text().clone());
            }
            _ => {
                tracing::debug!(peer = %self.endpoint.peer, "the server did not accept a message: {why}")
            }
        }
        Ok(())
    }
}
