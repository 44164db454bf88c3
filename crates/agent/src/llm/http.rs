//! Requests to a model's endpoint, and the event streams that answer them.
//!
//! One [`Client`] keeps connections for one endpoint. [`Client::ask`] makes a request, repeats it while nothing of the
//! answer was passed on ([`super::Retry`]), and gives the events to a [`Decoder`], which knows the API.
//! Deliberately absent: redirects (they would carry the key elsewhere) and proxies.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    sync::Arc,
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, Uri, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{self, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use mcp::sse::{self, Parser};
use serde::Deserialize;
use serde_json::Value;
use tokio::time::{Instant, timeout};

use super::{
    ApiKey, ModelError, ModelEvent, Retry,
    retry::{self, millis},
};
use crate::generate::{Emitter, generate};

/// The longest event, in bytes: far beyond what one block of an answer takes.
const MAX_EVENT: usize = 16 * 1024 * 1024;
/// How much of an error's body is read, in bytes.
const ERROR_BODY: usize = 64 * 1024;
/// How long that may take.
const ERROR_TIME: Duration = Duration::from_secs(10);
/// How long a connection is kept for the next request, and how many.
const IDLE_CONNECTION: Duration = Duration::from_secs(60);
const IDLE_CONNECTIONS: usize = 8;
/// How long the end of a body that was understood is waited for.
const LAST_CHUNK: Duration = Duration::from_millis(25);
/// How much of a provider's message is repeated, in characters.
const MESSAGE: usize = 600;

/// Where a model is, and how patient to be with it.
#[derive(Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Endpoint {
    /// `https://api.anthropic.com`, for instance; the API's own path is put behind it, before a query.
    pub base_url: String,
    /// Headers to send besides, `anthropic-beta` for instance. Their values are in no log.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    #[serde(default)]
    pub timeouts: Timeouts,
    #[serde(default)]
    pub retry: Retry,
    /// The longest answer, in bytes as they are sent.
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

/// How long to wait, each in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Timeouts {
    /// For a connection.
    #[serde(with = "millis")]
    pub connect: Duration,
    /// For the head of the answer, connecting included. A local model may read its prompt for that long.
    #[serde(with = "millis")]
    pub answer: Duration,
    /// For the next piece of the answer. Providers send pings.
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

/// Reads one API's answer.
pub(super) trait Decoder: Default + Send + 'static {
    /// Takes an event of the stream.
    fn event(&mut self, event: Event, out: &mut VecDeque<ModelEvent>) -> Result<(), Fault>;
    /// The stream is at its end.
    fn end(&mut self, out: &mut VecDeque<ModelEvent>) -> Result<(), Fault>;
    /// Whether content was passed on, so that the request cannot be repeated.
    fn begun(&self) -> bool;
}

/// One event of an answer.
#[derive(Debug)]
pub(super) struct Event {
    /// Empty: `message`.
    pub(super) name: String,
    pub(super) data: String,
}

impl Event {
    /// `None`: it is about the stream and not of the answer.
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

/// What ends an attempt.
#[derive(Debug)]
pub(super) enum Fault {
    /// It may go better the next time.
    Passing {
        kind: String,
        message: String,
        /// The error if it does not.
        broken: Broken,
    },
    Lasting(ModelError),
}

/// What an error is called once there are no more attempts.
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
    http: Http,
    uri: Uri,
    headers: HeaderMap,
    key: Option<ApiKey>,
    timeouts: Timeouts,
    retry: Retry,
    max_answer: usize,
}

enum Http {
    Plain(legacy::Client<HttpConnector, Full<Bytes>>),
    Tls(legacy::Client<HttpsConnector<HttpConnector>, Full<Bytes>>),
}

impl Http {
    async fn request(
        &self,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, legacy::Error> {
        match self {
            Self::Plain(client) => client.request(request).await,
            Self::Tls(client) => client.request(request).await,
        }
    }
}

impl Client {
    /// A client that posts to `path` below the base URL. `auth` is the header of the key and what stands before it.
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
            settings(format!("the model's base URL {shown} is no URL: {error}"))
        })?;
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.enforce_http(false);
        connector.set_connect_timeout(Some(endpoint.timeouts.connect));
        let mut builder = legacy::Client::builder(TokioExecutor::new());
        builder
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_CONNECTION)
            .pool_max_idle_per_host(IDLE_CONNECTIONS);
        let http = match (uri.scheme_str(), uri.host()) {
            (Some("http"), Some(_)) => Http::Plain(builder.build(connector)),
            (Some("https"), Some(_)) => {
                let tls = HttpsConnectorBuilder::new()
                    .with_provider_and_native_roots(rustls::crypto::ring::default_provider())
                    .map_err(|error| {
                        settings(format!(
                            "the platform's root certificates cannot be read: {error}"
                        ))
                    })?
                    .https_only()
                    .enable_http1()
                    .wrap_connector(connector);
                Http::Tls(builder.build(tls))
            }
            _ => {
                return Err(settings(format!(
                    "the model's base URL {shown} must begin with http:// or https:// and name a host"
                )));
            }
        };
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
            let name: HeaderName = name
                .parse()
                .map_err(|_| settings(format!("{name:?} is no name of a header")))?;
            // The value may be a secret.
            let mut value = HeaderValue::from_str(value).map_err(|_| {
                settings(format!(
                    "the value of the header {name} cannot stand in a header"
                ))
            })?;
            value.set_sensitive(true);
            headers.insert(name, value);
        }
        if let Some((key, name, prefix)) = &key {
            headers.insert(name.clone(), key.header(prefix));
        }
        Ok(Self(Arc::new(Inner {
            http,
            uri,
            headers,
            key: key.map(|(key, ..)| key),
            timeouts: endpoint.timeouts,
            retry: endpoint.retry,
            max_answer: endpoint.max_answer_bytes,
        })))
    }

    /// Sets a header of the API's own.
    pub(super) fn with_header(mut self, name: &'static str, value: &'static str) -> Self {
        if let Some(inner) = Arc::get_mut(&mut self.0) {
            inner
                .headers
                .entry(name)
                .or_insert(HeaderValue::from_static(value));
        }
        self
    }

    /// Makes the request and reads its answer.
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
                        "after {failed} of {} attempts, and asks to wait {} s, longer than the settings allow",
                        self.retry.attempts,
                        asked.as_secs_f32()
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
            tracing::info!(
                failed,
                ?pause,
                "the request to the model is made again: {why}"
            );
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
        let mut parser = Parser::new(MAX_EVENT);
        let mut events = VecDeque::new();
        let mut bytes = 0;
        loop {
            let Ok(frame) = timeout(self.timeouts.idle, body.frame()).await else {
                return Err(Fault::Lasting(ModelError::Stalled {
                    after: self.timeouts.idle,
                    during: "its answer had begun",
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
                                "it is longer than {most} bytes (`max_answer_bytes`)"
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
                    // What came before what is wrong is the reader's.
                    if fault.is_err() {
                        pass_on(&mut events, out).await;
                        fault?;
                    }
                    false
                }
                Some(Err(error)) => {
                    return Err(Fault::Passing {
                        kind: "connection".to_owned(),
                        message: format!("the connection broke: {}", model::with_causes(&error)),
                        broken: Broken::Cut,
                    });
                }
            };
            if events
                .iter()
                .any(|event| matches!(event, ModelEvent::Done(_)))
            {
                // With its end read, the connection can be used again.
                let _ = timeout(LAST_CHUNK, body.frame()).await;
            }
            let done = pass_on(&mut events, out).await;
            if done || ended {
                return Ok(());
            }
        }
    }

    async fn send(&self, body: Bytes) -> Result<Response<Incoming>, Fault> {
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = http::Method::POST;
        *request.uri_mut() = self.uri.clone();
        *request.headers_mut() = self.headers.clone();
        match timeout(self.timeouts.answer, self.http.request(request)).await {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(error)) => Err(Fault::Passing {
                kind: "connection".to_owned(),
                message: model::with_causes(&error),
                broken: Broken::Unreachable,
            }),
            Err(_) => Err(Fault::Lasting(ModelError::Stalled {
                after: self.timeouts.answer,
                during: "its answer had not begun",
            })),
        }
    }

    /// Reads an answer that is an error: `{"error": {"type", "code", "message"}}` or `{"error": "…"}`.
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
        let body = Limited::new(response.into_body(), ERROR_BODY).collect();
        let text = match timeout(ERROR_TIME, body).await {
            Ok(Ok(body)) => body.to_bytes(),
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
            true => format!("{} bytes that are no error of its API", text.len()),
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

    /// A provider's words, short and without the key.
    fn tame(&self, text: &str) -> String {
        let text = match &self.key {
            Some(key) => key.scrub(text),
            None => text.to_owned(),
        };
        match text.char_indices().nth(MESSAGE) {
            Some((at, _)) => format!("{}…", &text[..at]),
            None => text,
        }
    }
}

/// The answer is not what its API says.
fn protocol(why: String) -> Fault {
    Fault::Lasting(ModelError::Protocol(why))
}

/// Gives the events to the reader; whether the last of all was among them.
async fn pass_on(events: &mut VecDeque<ModelEvent>, out: &Out) -> bool {
    let mut done = false;
    for event in events.drain(..) {
        done |= matches!(event, ModelEvent::Done(_));
        out.emit(Ok(event)).await;
    }
    done
}
