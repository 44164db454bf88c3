//! An HTTP client that sends requests unchanged and returns responses unchanged.
//!
//! One TCP connection per request, `TCP_NODELAY`, no redirects, no retries, no pooling: a test sees exactly one
//! exchange. The client knows nothing of MCP except two default headers.

use std::{collections::VecDeque, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, Uri, header};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::{net::TcpStream, sync::mpsc, task::JoinSet, time::timeout};

use crate::{
    sse::{Event, EventParser},
    wait::{DEADLINE, within},
};

/// A client for JSON-RPC over HTTP, for one URL.
#[derive(Clone, Debug)]
pub struct RawClient {
    uri: Uri,
    headers: HeaderMap,
}

impl RawClient {
    /// Creates a client of `url` that sends `Content-Type: application/json` and accepts JSON and event streams, as the
    /// specification requires.
    ///
    /// # Panics
    /// If `url` is not an absolute `http://` URL.
    pub fn new(url: &str) -> Self {
        let uri: Uri = url.parse().unwrap_or_else(|_| panic!("not a URL: {url}"));
        assert_eq!(uri.scheme_str(), Some("http"), "not an http URL: {url}");
        let mut headers = HeaderMap::new();
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/json"),
        );
        headers.insert(
            header::ACCEPT,
            HeaderValue::from_static("application/json, text/event-stream"),
        );
        Self { uri, headers }
    }

    /// Sets a header for all requests. An empty value removes the header.
    pub fn with(mut self, name: &str, value: &str) -> Self {
        set(&mut self.headers, name, value);
        self
    }

    /// Returns the same client for another path and query on the same host.
    pub fn at(&self, path_and_query: &str) -> Self {
        let mut parts = self.uri.clone().into_parts();
        parts.path_and_query = Some(
            path_and_query
                .parse()
                .unwrap_or_else(|_| panic!("not a path: {path_and_query}")),
        );
        let uri = Uri::from_parts(parts).expect("the parts of a URI with another path are a URI");
        Self {
            uri,
            headers: self.headers.clone(),
        }
    }

    pub fn url(&self) -> String {
        self.uri.to_string()
    }

    /// Posts `body` and reads the response to its end, for at most [`DEADLINE`].
    ///
    /// # Panics
    /// If the server cannot be reached or does not finish its response in time.
    pub async fn post(&self, body: impl Into<Bytes>) -> Reply {
        self.post_with(&[], body).await
    }

    /// Like [`RawClient::post`], with `headers` replacing the defaults of the same name. An empty value removes the
    /// header.
    pub async fn post_with(&self, headers: &[(&str, &str)], body: impl Into<Bytes>) -> Reply {
        let answer = self.send(Method::POST, headers, body).await;
        answer.collect(DEADLINE).await
    }

    /// Opens the server's own message stream, with GET.
    pub async fn get(&self, headers: &[(&str, &str)]) -> Streaming {
        self.send(Method::GET, headers, Bytes::new()).await
    }

    /// Ends a session, with DELETE.
    pub async fn delete(&self, headers: &[(&str, &str)]) -> Reply {
        let answer = self.send(Method::DELETE, headers, Bytes::new()).await;
        answer.collect(DEADLINE).await
    }

    /// Sends one request and returns when the response head has arrived. Dropping the result closes the TCP connection.
    ///
    /// # Panics
    /// If the server cannot be reached or sends no head within [`DEADLINE`].
    pub async fn send(
        &self,
        method: Method,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Streaming {
        let what = format!("an answer to {method} {}", self.uri);
        match within(&what, DEADLINE, self.try_send(method, headers, body)).await {
            Ok(answer) => answer,
            Err(error) => panic!("{what}: {error}"),
        }
    }

    /// Like [`RawClient::send`], for tests in which the server may disconnect or be unreachable.
    ///
    /// # Errors
    /// The transport error, as text.
    pub async fn try_send(
        &self,
        method: Method,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Result<Streaming, String> {
        let authority = self.uri.authority().expect("checked to be absolute");
        let address = (authority.host(), authority.port_u16().unwrap_or(80));
        let stream = TcpStream::connect(address)
            .await
            .map_err(|error| format!("connect to {authority}: {error}"))?;
        stream.set_nodelay(true).map_err(|e| e.to_string())?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| error.to_string())?;
        let mut driver = JoinSet::new();
        driver.spawn(async move {
            // The caller gets the error from the request or the body.
            let _ = connection.await;
        });

        let path = self.uri.path_and_query().map_or("/", |p| p.as_str());
        let mut request = Request::new(Full::new(body.into()));
        *request.uri_mut() = path.parse().expect("the path of a URI is a URI");
        let is_post = method == Method::POST;
        *request.method_mut() = method;
        *request.headers_mut() = self.headers.clone();
        if !is_post {
            request.headers_mut().remove(header::CONTENT_TYPE);
        }
        if !request.headers().contains_key(header::HOST) {
            set(request.headers_mut(), "host", authority.as_str());
        }
        for (name, value) in headers {
            set(request.headers_mut(), name, value);
        }
        let response = sender
            .send_request(request)
            .await
            .map_err(|error| format!("{error:?}"))?;
        let (head, body) = response.into_parts();
        Ok(Streaming {
            status: head.status,
            headers: head.headers,
            body,
            parser: EventParser::default(),
            ready: VecDeque::new(),
            _driver: driver,
        })
    }
}

fn set(headers: &mut HeaderMap, name: &str, value: &str) {
    let name: HeaderName = name
        .parse()
        .unwrap_or_else(|_| panic!("not a header name: {name}"));
    if value.is_empty() {
        headers.remove(&name);
    } else {
        let value = HeaderValue::from_str(value)
            .unwrap_or_else(|_| panic!("not a header value: {value:?}"));
        headers.insert(name, value);
    }
}

/// A response whose body has not been read yet. Dropping it closes the connection.
pub struct Streaming {
    pub status: StatusCode,
    pub headers: HeaderMap,
    body: Incoming,
    parser: EventParser,
    ready: VecDeque<Event>,
    _driver: JoinSet<()>,
}

impl Streaming {
    /// Returns a header's value as text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// Returns whether the body is an event stream.
    pub fn is_event_stream(&self) -> bool {
        is_event_stream(&self.headers)
    }

    /// Returns the next event, or `None` at the end of the stream or after `limit`.
    pub async fn next_event(&mut self, limit: Duration) -> Option<Event> {
        timeout(limit, self.event()).await.ok().flatten()
    }

    /// Returns the next event with JSON data, or `None` at the end of the stream or after `limit`.
    pub async fn next_json(&mut self, limit: Duration) -> Option<Value> {
        let json = async {
            loop {
                if let Some(value) = self.event().await?.json() {
                    return Some(value);
                }
            }
        };
        timeout(limit, json).await.ok().flatten()
    }

    /// Returns the next bytes of the body, after everything that was already read as events, or `None` at the end.
    pub async fn next_chunk(&mut self) -> Option<Bytes> {
        loop {
            match self.body.frame().await? {
                Ok(frame) => match frame.into_data() {
                    Ok(data) => return Some(data),
                    Err(_trailers) => {}
                },
                // An MCP client cannot distinguish a broken stream from one that has ended.
                Err(_) => return None,
            }
        }
    }

    /// Waits until the server has closed the stream, and discards the rest.
    ///
    /// # Panics
    /// After `limit`.
    pub async fn closed(&mut self, limit: Duration) {
        within("the end of a stream", limit, async {
            while self.next_chunk().await.is_some() {}
        })
        .await;
    }

    /// Reads the body to its end.
    ///
    /// # Panics
    /// After `limit`.
    pub async fn collect(mut self, limit: Duration) -> Reply {
        let mut body = Vec::new();
        within("the end of an answer", limit, async {
            while let Some(chunk) = self.next_chunk().await {
                body.extend_from_slice(&chunk);
            }
        })
        .await;
        Reply {
            status: self.status,
            headers: self.headers,
            body: body.into(),
        }
    }

    /// Forwards all messages, until the end of the stream or of the receiver.
    pub(crate) async fn forward(&mut self, inlet: &mpsc::Sender<Value>) {
        while let Some(event) = self.event().await {
            if let Some(message) = event.json()
                && inlet.send(message).await.is_err()
            {
                return;
            }
        }
    }

    /// Returns the next event, or `None` at the end of the stream.
    async fn event(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            let chunk = self.next_chunk().await?;
            self.ready.extend(self.parser.push(&chunk));
        }
    }
}

/// A complete response.
#[derive(Clone, Debug)]
pub struct Reply {
    pub status: StatusCode,
    pub headers: HeaderMap,
    /// The unmodified body.
    pub body: Bytes,
}

impl Reply {
    /// Returns a header's value as text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// Returns the body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// Returns the body as events; empty if it is not an event stream.
    pub fn events(&self) -> Vec<Event> {
        if is_event_stream(&self.headers) {
            EventParser::default().push(&self.body)
        } else {
            Vec::new()
        }
    }

    /// Returns the JSON-RPC messages of a JSON or event-stream response. Empty for other responses.
    pub fn messages(&self) -> Vec<Value> {
        if is_event_stream(&self.headers) {
            self.events().iter().filter_map(Event::json).collect()
        } else {
            serde_json::from_slice(&self.body).into_iter().collect()
        }
    }

    /// Returns the first JSON-RPC response among [`Reply::messages`].
    ///
    /// # Panics
    /// If there is no response.
    pub fn response(&self) -> Value {
        self.messages()
            .into_iter()
            .find(|message| message.get("result").is_some() || message.get("error").is_some())
            .unwrap_or_else(|| panic!("no response in {} {:?}", self.status, self.text()))
    }
}

fn is_event_stream(headers: &HeaderMap) -> bool {
    headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .is_some_and(|value| value.starts_with("text/event-stream"))
}

/// Extracts the one-time token of the form on one of Toolwharf's pages.
#[must_use]
pub fn form_token(page: &str) -> Option<String> {
    let (_, rest) = page.split_once("name=\"form\" value=\"")?;
    Some(rest.split('"').next()?.to_owned())
}
