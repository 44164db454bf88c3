//! HTTP+SSE of 2024-11-05 towards servers: one event stream in, a POST per message out.
//!
//! The connection is a [`Duplex`] and ends with the stream. If the server refuses a message, only the message's call
//! ends. Exceptions: the refusal names a lost session, or the server then refuses a ping as well; these end the
//! connection. Messages are sent in order. A POST delays the next one by at most [`MAX_ORDER_WAIT`], because some
//! servers answer it only when the call is done.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::{StreamExt, stream::FuturesUnordered};
use http::{
    HeaderMap, HeaderValue, Method, Request, Response,
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
    http::{
        Body, Endpoint, Media, Pool, cause, means_wait, media, names_lost_session, redirect,
        resolve, status_hint,
    },
};
use super::{body::MAX_REDIRECTS, pool};
use crate::{
    Era, Frame, Kind, RpcError,
    gather::Whole,
    json::quote,
    protocol::method,
    sse::{self, Parser},
};

/// Timeouts for the head of the stream and for its first event.
const OPEN_TIMEOUT: Duration = Duration::from_secs(10);
const POST_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum time that a POST without a response delays the next message.
const MAX_ORDER_WAIT: Duration = Duration::from_secs(1);
/// Timeout for the ping that follows a refusal.
const CHECK_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum bytes read of an error response.
const MAX_ERROR_BODY_BYTES: usize = 16 * 1024;
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
    let mut endpoint = Endpoint::new(url, headers)?.authorized(options.authorize.as_ref());
    let mut stream = open(pool, &mut endpoint, options.max_message).await?;
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

/// Opens the stream. Follows redirects, and changes `endpoint` accordingly.
async fn open(
    pool: &Pool,
    endpoint: &mut Endpoint,
    max_event: usize,
) -> Result<Stream, ConnectError> {
    let mut redirects = 0;
    let response = loop {
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
        match redirect(response.status(), response.headers(), &endpoint.uri) {
            Some(target) if redirects < MAX_REDIRECTS => {
                redirects += 1;
                *endpoint = endpoint.at(target);
            }
            _ => break response,
        }
    };
    let status = response.status();
    if !status.is_success() {
        let hint = status_hint(status, response.headers(), &endpoint.uri).unwrap_or_default();
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
                Ok(event) if matches!(&*event.event, "" | "message") => {
                    link.deliver(event.data);
                }
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
        let posted = self.posted(headers.clone(), message.clone());
        let (reason, why) = match timeout(POST_TIMEOUT, posted).await {
            Ok(Ok(response)) if response.status().is_success() => return Ok(()),
            Ok(Ok(response)) => {
                let status = response.status();
                let refusal = self.refusal(response).await;
                if let Err(lost) = refusal {
                    // The server has not processed this message.
                    if let Ok(frame) = Frame::parse(message, self.max_depth)
                        && let Some(id) = frame.numeric_id()
                        && frame.kind() == Kind::Request
                    {
                        self.link.turned_away(id);
                    }
                    return Err(format!("{}: {lost}", CallError::SessionExpired));
                }
                let why = refusal.unwrap_or_default();
                if !means_wait(status) {
                    self.check(headers).await?;
                }
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
    /// Sends a message. Follows redirects.
    async fn posted(
        &self,
        headers: HeaderMap,
        message: Bytes,
    ) -> Result<Response<Body>, pool::Error> {
        let mut moved: Option<Endpoint> = None;
        let mut redirects = 0;
        loop {
            let endpoint = moved.as_ref().unwrap_or(&self.endpoint);
            let mut request = Request::new(message.clone());
            *request.method_mut() = Method::POST;
            *request.headers_mut() = headers.clone();
            let response = self.pool.send(endpoint, request).await?;
            match redirect(response.status(), response.headers(), &endpoint.uri) {
                Some(target) if redirects < MAX_REDIRECTS => {
                    redirects += 1;
                    moved = Some(endpoint.at(target));
                }
                _ => return Ok(response),
            }
        }
    }

    /// The reason of a refusal.
    ///
    /// # Errors
    /// The reason, if it names a lost session.
    async fn refusal(&self, response: Response<Body>) -> Result<String, String> {
        let status = response.status();
        let hint = status_hint(status, response.headers(), &self.endpoint.uri);
        let mut body = Whole::new(response.into_body(), MAX_ERROR_BODY_BYTES);
        let text = match timeout(POST_TIMEOUT, body.read()).await {
            Ok(Ok(text)) => text,
            _ => body.so_far(),
        };
        let detail = hint.unwrap_or_else(|| self.endpoint.detail(&text));
        let why = format!("the server answered HTTP {}{detail}", status.as_u16());
        match names_lost_session(status, &text) {
            true => Err(why),
            false => Ok(why),
        }
    }

    /// Checks with a ping whether the server refuses everything. The response to the ping matches no call and is dropped.
    ///
    /// # Errors
    /// The server refuses the ping.
    async fn check(&self, headers: HeaderMap) -> Result<(), String> {
        let ping = Frame::request("0", method::PING, None).text().clone();
        let refusal = match timeout(CHECK_TIMEOUT, self.posted(headers, ping)).await {
            Ok(Ok(response)) if response.status().is_success() => return Ok(()),
            Ok(Ok(response)) if means_wait(response.status()) => return Ok(()),
            Ok(Ok(response)) => self.refusal(response).await.unwrap_or_else(|why| why),
            Ok(Err(error)) => cause(&error),
            Err(_) => return Ok(()),
        };
        Err(format!("it refuses every request: {refusal}"))
    }
}
