//! Requests to a model's endpoint, and the event streams in response.
//!
//! A [`Client`] pools the connections to one endpoint. [`Client::ask`] makes a request, retries it as long as no
//! content was passed on ([`super::Retry`]), and passes the events to a [`Decoder`] for the API. Deliberately absent:
//! redirects (they would send the key elsewhere) and proxies.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    sync::Arc,
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, Uri, header};
use http_body_util::BodyExt as _;
use http_client::{Incoming, Options};
use mcp::sse::{self, Parser};
use serde::Deserialize;
use serde_json::Value;
use tokio::time::{Instant, timeout};

use super::{
    ApiKey, ModelError, ModelEvent, Retry,
    retry::{self, millis},
};
use crate::generate::{Emitter, generate};

/// Maximum bytes of an event: far more than one block of an answer needs.
const MAX_EVENT_BYTES: usize = 16 * 1024 * 1024;
/// Maximum bytes read of an error body.
const MAX_ERROR_BODY_BYTES: usize = 64 * 1024;
/// Timeout for reading an error body.
const ERROR_BODY_TIMEOUT: Duration = Duration::from_secs(10);
const MAX_IDLE_CONNECTIONS: usize = 8;
/// Timeout for the end of a body after the last event.
const LAST_CHUNK_TIMEOUT: Duration = Duration::from_millis(25);
/// Maximum characters of a provider's message that are shown.
const MAX_MESSAGE_CHARS: usize = 600;

/// A model's endpoint, with its timeouts and retries.
#[derive(Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Endpoint {
    /// The base URL, for example `https://api.anthropic.com`. The API's path is appended, before any query.
    pub base_url: String,
    /// Additional headers, for example `anthropic-beta`. Their values are never logged.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    #[serde(default)]
    pub timeouts: Timeouts,
    #[serde(default)]
    pub retry: Retry,
    /// Maximum bytes of an answer as sent.
    #[serde(default = "max_answer")]
    pub max_answer_bytes: usize,
}

fn max_answer() -> usize {
    32 * 1024 * 1024
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint")
            .field("base_url", &model::url_for_display(&self.base_url))
            .field("headers", &self.headers.keys())
            .field("timeouts", &self.timeouts)
            .field("retry", &self.retry)
            .field("max_answer_bytes", &self.max_answer_bytes)
            .finish()
    }
}

/// Timeouts, each in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Timeouts {
    /// Timeout for connecting.
    #[serde(with = "millis")]
    pub connect: Duration,
    /// Timeout for the head of the response, including connecting. A local model sends nothing while it reads its
    /// prompt.
    #[serde(with = "millis")]
    pub answer: Duration,
    /// Timeout for the next piece of the response. Providers send pings while the model is busy.
    #[serde(with = "millis")]
    pub idle: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            answer: Duration::from_secs(300),
            idle: Duration::from_secs(120),
        }
    }
}

impl Endpoint {
    pub fn new(base_url: impl Into<String>) -> Self {
        Self {
            base_url: base_url.into(),
            headers: BTreeMap::new(),
            timeouts: Timeouts::default(),
            retry: Retry::default(),
            max_answer_bytes: max_answer(),
        }
    }
}

/// Decodes the answers of one API.
pub(super) trait Decoder: Default + Send + 'static {
    /// Handles one event.
    fn event(&mut self, event: Event, out: &mut VecDeque<ModelEvent>) -> Result<(), Fault>;
    /// Handles the end of the stream.
    fn end(&mut self, out: &mut VecDeque<ModelEvent>) -> Result<(), Fault>;
    /// Returns true if content was passed on, so that the request cannot be retried.
    fn begun(&self) -> bool;
}

/// One event of an answer.
#[derive(Debug)]
pub(super) struct Event {
    /// The event's name. Empty means `message`.
    pub(super) name: String,
    pub(super) data: String,
}

impl Event {
    /// Returns `None` for an event that only controls the stream.
    fn new(event: sse::Event) -> Result<Option<Self>, Fault> {
        if event.retry.is_some() && event.data.is_empty() {
            return Ok(None);
        }
        let data = String::from_utf8(event.data.into())
            .map_err(|_| protocol("an event is not UTF-8".to_owned()))?;
        let name = event.event;
        Ok(Some(Self { name, data }))
    }
}

/// Why an attempt failed.
#[derive(Debug)]
pub(super) enum Fault {
    /// A temporary fault: a retry may succeed.
    Passing {
        kind: String,
        message: String,
        /// The error to return if there are no more attempts.
        broken: Broken,
    },
    Lasting(ModelError),
}

impl Fault {
    fn connection(message: String, broken: Broken) -> Self {
        Self::Passing {
            kind: "connection".to_owned(),
            message,
            broken,
        }
    }

    /// The stream ended too early.
    pub(super) fn cut() -> Self {
        let message = "the stream ended before the answer was complete".to_owned();
        Self::connection(message, Broken::Cut)
    }

    /// An error that the provider sent within its answer.
    pub(super) fn in_answer(is_passing: bool, kind: String, message: String) -> Self {
        match is_passing {
            true => Self::Passing {
                kind,
                message,
                broken: Broken::Overloaded,
            },
            false => Self::Lasting(ModelError::Refused {
                status: 200,
                kind,
                message,
            }),
        }
    }
}

/// The kind of error after the last attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Broken {
    Overloaded,
    Unreachable,
    Cut,
}

/// A client for one endpoint.
#[derive(Clone)]
pub struct Client(Arc<Inner>);

struct Inner {
    http: http_client::Client,
    uri: Uri,
    headers: HeaderMap,
    key: Option<ApiKey>,
    timeouts: Timeouts,
    retry: Retry,
    max_answer: usize,
}

impl Client {
    /// Creates a client that posts to `path` below the base URL. `key` is the API key, its header, and the prefix of
    /// the header's value.
    pub(super) fn new(
        endpoint: &Endpoint,
        path: &str,
        key: Option<(ApiKey, HeaderName, &str)>,
    ) -> Result<Self, ModelError> {
        let settings = |what: String| ModelError::Settings(what);
        let shown = model::url_for_display(&endpoint.base_url);
        let (base, query) = match endpoint.base_url.split_once('?') {
            Some((base, query)) => (base, format!("?{query}")),
            None => (endpoint.base_url.as_str(), String::new()),
        };
        let url = format!("{}{path}{query}", base.trim_end_matches('/'));
        let uri: Uri = url.parse().map_err(|error| {
            settings(format!(
                "the model's base URL {shown} is not a URL: {error}"
            ))
        })?;
        if !matches!(uri.scheme_str(), Some("http" | "https")) || uri.host().is_none() {
            return Err(settings(format!(
                "the model's base URL {shown} must begin with http:// or https:// and name a host"
            )));
        }
        let mut headers = HeaderMap::new();
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/json"),
        );
        headers.insert(
            header::ACCEPT,
            HeaderValue::from_static("text/event-stream"),
        );
        headers.insert(
            header::USER_AGENT,
            HeaderValue::from_static(concat!("toolwharf/", env!("CARGO_PKG_VERSION"))),
        );
        for (name, value) in &endpoint.headers {
            let name: HeaderName = name.parse().map_err(|_| {
                settings(format!("the model's header {name:?} has an invalid name"))
            })?;
            // Leave the value out of the error, because it may be a secret.
            let mut value = HeaderValue::from_str(value).map_err(|_| {
                settings(format!(
                    "the value of the model's header {name} has characters that are not allowed in a header"
                ))
            })?;
            value.set_sensitive(true);
            headers.insert(name, value);
        }
        if let Some((key, name, prefix)) = &key {
            headers.insert(name.clone(), key.header(prefix));
        }
        Ok(Self(Arc::new(Inner {
            http: http_client::Client::new(Options {
                connect_timeout: endpoint.timeouts.connect,
                max_idle: MAX_IDLE_CONNECTIONS,
                ..Options::default()
            }),
            uri,
            headers,
            key: key.map(|(key, ..)| key),
            timeouts: endpoint.timeouts,
            retry: endpoint.retry,
            max_answer: endpoint.max_answer_bytes,
        })))
    }

    /// Sets a header that the API needs.
    pub(super) fn with_header(mut self, name: &'static str, value: &'static str) -> Self {
        if let Some(inner) = Arc::get_mut(&mut self.0) {
            inner
                .headers
                .entry(name)
                .or_insert(HeaderValue::from_static(value));
        }
        self
    }

    /// Makes the request and decodes the answer.
    pub(super) fn ask<D: Decoder>(
        &self,
        body: Result<Bytes, ModelError>,
    ) -> impl futures_util::Stream<Item = Result<ModelEvent, ModelError>> + use<D> {
        let inner = Arc::clone(&self.0);
        generate(|out| async move {
            let ended = match body {
                Ok(body) => inner.attempts::<D>(body, &out).await,
                Err(error) => Err(error),
            };
            if let Err(error) = ended {
                out.emit(Err(error)).await;
            }
        })
    }
}

type Out = Emitter<Result<ModelEvent, ModelError>>;

impl Inner {
    async fn attempts<D: Decoder>(&self, body: Bytes, out: &Out) -> Result<(), ModelError> {
        let begun = Instant::now();
        let mut failed = 0;
        loop {
            let mut decoder = D::default();
            let mut asked = None;
            let fault = match self
                .attempt(&mut decoder, body.clone(), &mut asked, out)
                .await
            {
                Ok(()) => return Ok(()),
                Err(fault) => fault,
            };
            let (kind, message, broken) = match fault {
                Fault::Lasting(ModelError::Refused {
                    status,
                    kind,
                    message,
                }) => {
                    let message = self.tame(&message);
                    return Err(ModelError::Refused {
                        status,
                        kind,
                        message,
                    });
                }
                Fault::Lasting(error) => return Err(error),
                Fault::Passing {
                    kind,
                    message,
                    broken,
                } => (kind, self.tame(&message), broken),
            };
            if decoder.begun() {
                return Err(match broken {
                    Broken::Overloaded => ModelError::Overloaded {
                        kind,
                        when: "in the middle of the answer".to_owned(),
                        message,
                    },
                    Broken::Unreachable | Broken::Cut => ModelError::Cut(message),
                });
            }
            failed += 1;
            let random = rand::random::<f64>();
            let Some(pause) = self.retry.pause(failed, asked, begun.elapsed(), random) else {
                let when = match (failed, asked) {
                    (_, Some(asked)) if failed < self.retry.attempts => format!(
                        "after {failed} of {} attempts (it asks to wait {} s, but all attempts together may take only {} s)",
                        self.retry.attempts,
                        asked.as_secs_f32(),
                        self.retry.total.as_secs_f32()
                    ),
                    (1, _) => "after 1 attempt".to_owned(),
                    _ => format!("after {failed} attempts"),
                };
                return Err(match broken {
                    Broken::Overloaded => ModelError::Overloaded {
                        kind,
                        when,
                        message,
                    },
                    Broken::Unreachable => ModelError::Unreachable {
                        url: model::url_for_display(&self.uri.to_string()),
                        why: format!("{message} ({when})"),
                    },
                    Broken::Cut => ModelError::Cut(format!("{message} ({when})")),
                });
            };
            let why = format!("{kind}: {message}");
            tracing::info!(failed, ?pause, "retrying the request to the model: {why}");
            out.emit(Ok(ModelEvent::Retrying { pause, why })).await;
            tokio::time::sleep(pause).await;
        }
    }

    async fn attempt<D: Decoder>(
        &self,
        decoder: &mut D,
        body: Bytes,
        asked: &mut Option<Duration>,
        out: &Out,
    ) -> Result<(), Fault> {
        let response = self.send(body).await?;
        if !response.status().is_success() {
            *asked = retry::asked(response.headers(), SystemTime::now());
            return Err(self.refusal(response).await);
        }
        let mut body = response.into_body();
        let mut parser = Parser::new(MAX_EVENT_BYTES);
        let mut events = VecDeque::new();
        let mut bytes = 0;
        loop {
            let Ok(frame) = timeout(self.timeouts.idle, body.frame()).await else {
                return Err(Fault::Lasting(ModelError::Stalled {
                    after: self.timeouts.idle,
                    during: "in the middle of its answer",
                }));
            };
            let ended = match frame {
                None => {
                    decoder.end(&mut events)?;
                    true
                }
                Some(Ok(frame)) => {
                    if let Ok(chunk) = frame.into_data() {
                        bytes += chunk.len();
                        if bytes > self.max_answer {
                            let most = self.max_answer;
                            return Err(protocol(format!(
                                "it is longer than `max_answer_bytes` ({most})"
                            )));
                        }
                        parser.push(chunk);
                    }
                    let mut fault = Ok(());
                    while let (Ok(()), Some(event)) = (
                        &fault,
                        parser
                            .next_event()
                            .map_err(|error| protocol(error.to_string()))?,
                    ) {
                        if let Some(event) = Event::new(event)? {
                            fault = decoder.event(event, &mut events);
                        }
                    }
                    // Events before the fault are still passed on.
                    if fault.is_err() {
                        pass_on(&mut events, out).await;
                        fault?;
                    }
                    false
                }
                Some(Err(error)) => {
                    let why = format!("the connection broke: {}", model::with_causes(&error));
                    return Err(Fault::connection(why, Broken::Cut));
                }
            };
            if events
                .iter()
                .any(|event| matches!(event, ModelEvent::Done(_)))
            {
                // The connection can be reused once its body is read to the end.
                let _ = timeout(LAST_CHUNK_TIMEOUT, body.frame()).await;
            }
            let done = pass_on(&mut events, out).await;
            if done || ended {
                return Ok(());
            }
        }
    }

    async fn send(&self, body: Bytes) -> Result<Response<Incoming>, Fault> {
        let mut request = Request::new(body);
        *request.method_mut() = http::Method::POST;
        *request.uri_mut() = self.uri.clone();
        *request.headers_mut() = self.headers.clone();
        match timeout(self.timeouts.answer, self.http.send(request)).await {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(error)) => {
                let why = model::with_causes(&error);
                Err(Fault::connection(why, Broken::Unreachable))
            }
            Err(_) => Err(Fault::Lasting(ModelError::Stalled {
                after: self.timeouts.answer,
                during: "before its answer began",
            })),
        }
    }

    /// Reads an error response: `{"error": {"type", "code", "message"}}` or `{"error": "…"}`.
    async fn refusal(&self, response: Response<Incoming>) -> Fault {
        #[derive(Deserialize)]
        struct Body {
            error: Told,
        }
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Told {
            Object {
                r#type: Option<Value>,
                code: Option<Value>,
                message: String,
            },
            Text(String),
        }
        let word = |value: Option<Value>| match value {
            Some(Value::String(word)) if !word.is_empty() => Some(word),
            Some(Value::Number(number)) => Some(number.to_string()),
            _ => None,
        };
        let status = response.status();
        let again = response
            .headers()
            .get("x-should-retry")
            .and_then(|word| word.to_str().ok()?.parse::<bool>().ok());
        let body = http_client::collect(response.into_body(), MAX_ERROR_BODY_BYTES);
        let text = match timeout(ERROR_BODY_TIMEOUT, body).await {
            Ok(Ok(body)) => body,
            _ => Bytes::new(),
        };
        let (kind, message) = match serde_json::from_slice::<Body>(&text).map(|body| body.error) {
            Ok(Told::Object {
                r#type,
                code,
                message,
            }) => (word(r#type).or(word(code)), message),
            Ok(Told::Text(message)) => (None, message),
            Err(_) => (None, String::new()),
        };
        let reason = || status.canonical_reason().unwrap_or("unknown").to_owned();
        let kind = kind.unwrap_or_else(reason);
        let message = match message.is_empty() {
            true => format!("a body of {} bytes without an error message", text.len()),
            false => message,
        };
        let passing = status == StatusCode::TOO_MANY_REQUESTS
            || status == StatusCode::REQUEST_TIMEOUT
            || status.is_server_error();
        if again.unwrap_or(passing) {
            Fault::Passing {
                kind: format!("{} {kind}", status.as_u16()),
                message,
                broken: Broken::Overloaded,
            }
        } else {
            Fault::Lasting(ModelError::Refused {
                status: status.as_u16(),
                kind,
                message,
            })
        }
    }

    /// A provider's message, shortened and without the key.
    fn tame(&self, text: &str) -> String {
        let text = match &self.key {
            Some(key) => key.scrub(text),
            None => text.to_owned(),
        };
        match text.char_indices().nth(MAX_MESSAGE_CHARS) {
            Some((at, _)) => format!("{}…", &text[..at]),
            None => text,
        }
    }
}

/// The error for an answer that violates its API.
fn protocol(why: String) -> Fault {
    Fault::Lasting(ModelError::Protocol(why))
}

/// Passes events to the reader. Returns true if [`ModelEvent::Done`] was among them.
async fn pass_on(events: &mut VecDeque<ModelEvent>, out: &Out) -> bool {
    let mut done = false;
    for event in events.drain(..) {
        done |= matches!(event, ModelEvent::Done(_));
        out.emit(Ok(event)).await;
    }
    done
}
