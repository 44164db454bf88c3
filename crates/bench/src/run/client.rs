//! An MCP client of the load generator: one keep-alive connection, one outstanding request.
//!
//! Both response types are accepted, `application/json` and `text/event-stream`. Event streams are counted, because
//! they cost more and the baseline proxy never uses them.
//!
//! Deliberately absent: a deadline per request. The caller sets one for a whole round, which saves a timer per call.

use std::borrow::Cow;

use anyhow::Context as _;
use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use serde_json::value::RawValue;
use testkit::{Event, EventParser};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::echo::http::{METHOD, NAME, SESSION, VERSION};
use crate::echo::{Era, LEGACY_VERSION, MODERN_VERSION};
use crate::frame::Envelope;

/// The client information of a 2026-07-28 client, as a member of the `params` of every request.
pub(crate) const MODERN_META: &str = r#""_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"bench","version":"0.1.0"},"io.modelcontextprotocol/clientCapabilities":{}}"#;

#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) era: Era,
    /// Responses that were event streams.
    pub(crate) streamed: u64,
    sender: SendRequest<Full<Bytes>>,
    uri: Uri,
    headers: HeaderMap,
    /// Owns the connection's task, which is aborted when the client is dropped.
    _connection: JoinSet<()>,
}

#[derive(Deserialize)]
struct ListPage<'a> {
    #[serde(borrow)]
    tools: Vec<ListedTool<'a>>,
    #[serde(rename = "nextCursor")]
    next_cursor: Option<String>,
}

#[derive(Deserialize)]
struct ListedTool<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
}

#[derive(Deserialize)]
struct Initialized {
    #[serde(rename = "protocolVersion")]
    protocol_version: String,
}

#[derive(Deserialize)]
struct Reply<'a> {
    #[serde(borrow)]
    result: Option<&'a RawValue>,
}

/// Returns whether the gateway at `url` (its MCP endpoint) reports readiness.
pub(crate) async fn ready(url: &str) -> bool {
    let client = testkit::RawClient::new(url).at("/readyz");
    let answer = client.try_send(Method::GET, &[], "").await;
    answer.is_ok_and(|answer| answer.status == StatusCode::OK)
}

impl Client {
    /// Connects and, in the legacy era, initialises a session.
    pub(crate) async fn connect(url: &str, era: Era) -> anyhow::Result<Self> {
        let mut client = Self::bare(url, era).await?;
        if era == Era::Legacy {
            client.initialize().await.context("initialize")?;
        }
        Ok(client)
    }

    /// Connects without a handshake.
    pub(crate) async fn bare(url: &str, era: Era) -> anyhow::Result<Self> {
        let uri: Uri = url.parse().with_context(|| format!("not a URL: {url}"))?;
        let (sender, connection) = connect(&uri).await?;
        let mut headers = HeaderMap::new();
        let authority = uri.authority().context("the URL has no authority")?;
        headers.insert(HOST, HeaderValue::from_str(authority.as_str())?);
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(
            ACCEPT,
            HeaderValue::from_static("application/json, text/event-stream"),
        );
        let path = uri.path().parse()?;
        let mut client = Self {
            era,
            streamed: 0,
            sender,
            uri: path,
            headers,
            _connection: connection,
        };
        if era == Era::Modern {
            client.set(VERSION.clone(), MODERN_VERSION)?;
        }
        Ok(client)
    }

    async fn initialize(&mut self) -> anyhow::Result<()> {
        let body = format!(
            r#"{{"jsonrpc":"2.0","id":"init","method":"initialize","params":{{"protocolVersion":"{LEGACY_VERSION}","capabilities":{{}},"clientInfo":{{"name":"bench","version":"0.1.0"}}}}}}"#
        );
        let response = self.send(body.into()).await?;
        if let Some(session) = response.headers().get(&SESSION) {
            let session = session.clone();
            self.headers.insert(SESSION.clone(), session);
        }
        let answer = self.message(response).await?;
        let initialized: Initialized = serde_json::from_str(result_of(&answer)?.get())?;
        self.set(VERSION.clone(), &initialized.protocol_version)?;
        let notification = br#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
        let response = self.send(Bytes::from_static(notification)).await?;
        let status = response.status();
        response.into_body().collect().await?;
        anyhow::ensure!(status.is_success(), "notifications/initialized: {status}");
        Ok(())
    }

    /// Sets the headers that a modern client copies from the body. A legacy client has none.
    pub(crate) fn about(&mut self, method: &str, name: Option<&str>) -> anyhow::Result<()> {
        if self.era == Era::Modern {
            self.set(METHOD.clone(), method)?;
            self.headers.remove(&NAME);
            if let Some(name) = name {
                self.set(NAME.clone(), name)?;
            }
        }
        Ok(())
    }

    /// Sets the bearer token of every request.
    pub(crate) fn authorize(&mut self, bearer: &str) -> anyhow::Result<()> {
        self.set(AUTHORIZATION, &format!("Bearer {bearer}"))
    }

    fn set(&mut self, name: http::HeaderName, value: &str) -> anyhow::Result<()> {
        self.headers.insert(name, HeaderValue::from_str(value)?);
        Ok(())
    }

    /// Posts `body` and returns the JSON-RPC response.
    ///
    /// # Errors
    ///
    /// The connection broke, or the status was not 200.
    pub(crate) async fn call(&mut self, body: Bytes) -> anyhow::Result<Bytes> {
        let response = self.send(body).await?;
        self.message(response).await
    }

    /// The names of all tools, from all pages.
    ///
    /// # Errors
    ///
    /// A page is not a list.
    pub(crate) async fn tools(&mut self) -> anyhow::Result<Vec<String>> {
        let mut names = Vec::new();
        let mut cursor = None;
        loop {
            let page = self.list(cursor.as_deref()).await?;
            let page: ListPage = serde_json::from_str(result_of(&page)?.get())?;
            names.extend(page.tools.into_iter().map(|tool| tool.name.into_owned()));
            anyhow::ensure!(names.len() <= 100_000, "over 100,000 tools are listed");
            cursor = page.next_cursor;
            if cursor.is_none() {
                return Ok(names);
            }
        }
    }

    /// One page of the tool list, as the complete JSON-RPC response.
    pub(crate) async fn list(&mut self, cursor: Option<&str>) -> anyhow::Result<Bytes> {
        self.about("tools/list", None)?;
        let mut params = Vec::new();
        if let Some(cursor) = cursor {
            params.push(format!(r#""cursor":{}"#, serde_json::to_string(cursor)?));
        }
        if self.era == Era::Modern {
            params.push(MODERN_META.to_owned());
        }
        let params = params.join(",");
        let body = format!(
            r#"{{"jsonrpc":"2.0","id":"list","method":"tools/list","params":{{{params}}}}}"#
        );
        self.call(body.into()).await
    }

    /// Opens the stream for messages from the server. Returns the body and the connection.
    ///
    /// # Errors
    ///
    /// The response is not an event stream.
    pub(crate) async fn into_stream(mut self) -> anyhow::Result<(Incoming, JoinSet<()>)> {
        self.headers.remove(CONTENT_TYPE);
        self.headers
            .insert(ACCEPT, HeaderValue::from_static("text/event-stream"));
        let mut request = Request::new(Full::default());
        *request.uri_mut() = self.uri;
        *request.headers_mut() = self.headers;
        self.sender.ready().await?;
        let response = self.sender.send_request(request).await?;
        anyhow::ensure!(
            response.status() == StatusCode::OK && is_stream(&response),
            "GET was answered with {}",
            response.status()
        );
        Ok((response.into_body(), self._connection))
    }

    async fn send(&mut self, body: Bytes) -> anyhow::Result<Response<Incoming>> {
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.uri.clone();
        *request.headers_mut() = self.headers.clone();
        self.sender.ready().await.context("the connection ended")?;
        self.sender
            .send_request(request)
            .await
            .context("the connection broke")
    }

    async fn message(&mut self, response: Response<Incoming>) -> anyhow::Result<Bytes> {
        let status = response.status();
        let stream = is_stream(&response);
        let body = response.into_body().collect().await?.to_bytes();
        anyhow::ensure!(
            status == StatusCode::OK,
            "status {status}: {}",
            String::from_utf8_lossy(&body[..body.len().min(500)])
        );
        if !stream {
            return Ok(body);
        }
        self.streamed += 1;
        answer_in_stream(&body).context("the event stream held no answer")
    }
}

/// The `result` of a JSON-RPC response.
///
/// # Errors
///
/// The text is not a response with a result.
pub(crate) fn result_of(answer: &[u8]) -> anyhow::Result<&RawValue> {
    serde_json::from_slice::<Reply>(answer)
        .ok()
        .and_then(|reply| reply.result)
        .with_context(|| {
            let start = &answer[..answer.len().min(500)];
            format!("not a result: {}", String::from_utf8_lossy(start))
        })
}

pub(super) async fn connect(uri: &Uri) -> anyhow::Result<(SendRequest<Full<Bytes>>, JoinSet<()>)> {
    let authority = uri.authority().context("the URL has no authority")?;
    let stream = TcpStream::connect(authority.as_str()).await?;
    stream.set_nodelay(true)?;
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let mut task = JoinSet::new();
    task.spawn(async move {
        // A request on a broken connection reports the error.
        let _ = connection.await;
    });
    Ok((sender, task))
}

fn is_stream(response: &Response<Incoming>) -> bool {
    response
        .headers()
        .get(CONTENT_TYPE)
        .is_some_and(|value| value.as_bytes().starts_with(b"text/event-stream"))
}

/// The last response in an event stream. Ignores priming events, notifications and requests.
pub(crate) fn answer_in_stream(stream: &[u8]) -> Option<Bytes> {
    let events = EventParser::default().push(stream);
    let is_answer = |event: &Event| {
        let envelope = serde_json::from_str::<Envelope>(&event.data);
        envelope.is_ok_and(|it| it.id.is_some() && it.method.is_none())
    };
    events
        .into_iter()
        .rfind(is_answer)
        .map(|event| event.data.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_is_found_among_other_events() {
        let stream =
            b"id: 1\ndata:\n\n: keep-alive\n\nevent: message\ndata: {\"method\":\"x\"}\n\n\
            data: {\"id\":1,\ndata: \"result\":{}}\r\n\r\ndata: {\"id\":2,\"method\":\"ping\"}\n\n";
        let answer = answer_in_stream(stream).unwrap();
        assert_eq!(answer, "{\"id\":1,\n\"result\":{}}");
        assert_eq!(answer_in_stream(b"data: \n\n: nothing\n\n"), None);
    }
}
