//! The tools of this server over streamable HTTP (`--http`) and HTTP+SSE (`--sse-http`).
//!
//! A call is answered with JSON if its first frame is a response, and with an event stream otherwise. Deliberately
//! absent: resumption, and validation of headers and origins.

use std::{
    collections::HashMap,
    convert::Infallible,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::{DefaultBodyLimit, Query, State},
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use futures_util::stream;
use parking_lot::Mutex;
use serde_json::{Value, json};
use testkit::{peer::MODERN, serve::listen};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::{
    Era, Options,
    server::{Server, Session},
    wire::{Frame, Out},
};

const SESSION_HEADER: &str = "mcp-session-id";
const VERSION_HEADER: &str = "mcp-protocol-version";
/// Large, so that tests reach the gateway's own limit first.
const BODY_LIMIT: usize = 256 * 1024 * 1024;

struct Front {
    server: Arc<Server>,
    /// With `--both`: gets the modern requests.
    modern: Option<Arc<Server>>,
    sessions: Mutex<HashMap<String, Arc<Session>>>,
    next: AtomicU64,
}

/// Serves until the process is killed.
pub(crate) fn run(server: Arc<Server>) -> ExitCode {
    let front = Arc::new(Front {
        server: Arc::clone(&server),
        modern: server.options.both.then(|| {
            let mut modern = Server::new(Options {
                era: Era::Modern,
                ..server.options.clone()
            });
            modern.listed = Arc::clone(&server.listed);
            Arc::new(modern)
        }),
        sessions: Mutex::default(),
        next: AtomicU64::new(1),
    });
    let options = &server.options;
    let (address, path, router) = match (options.http, options.sse_http) {
        (Some(address), _) => {
            let route = post(mcp_post).get(mcp_get).delete(mcp_delete);
            (address, "/mcp", Router::new().route("/mcp", route))
        }
        (None, address) => {
            let address = address.expect("--http or --sse-http is set");
            let router = Router::new().route("/sse", get(sse_open));
            (address, "/sse", router.route("/message", post(sse_message)))
        }
    };
    let router = router
        .layer(DefaultBodyLimit::max(BODY_LIMIT))
        .with_state(front);
    let served = tokio::runtime::Runtime::new()
        .and_then(|runtime| runtime.block_on(listen(address, path, router)));
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("testkit-scripted: {error}");
            ExitCode::FAILURE
        }
    }
}

impl Front {
    fn open(&self) -> (String, Arc<Session>) {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let id = format!("session-{}-{number}", std::process::id());
        let session = Arc::new(Session::default());
        self.sessions
            .lock()
            .insert(id.clone(), Arc::clone(&session));
        (id, session)
    }

    /// The server for a request: with `--both`, its version decides.
    fn server(&self, headers: &HeaderMap) -> &Arc<Server> {
        let is_modern = headers
            .get(VERSION_HEADER)
            .is_some_and(|version| version == MODERN);
        match &self.modern {
            Some(modern) if is_modern => modern,
            _ => &self.server,
        }
    }

    /// Returns the session that the request names, or the status to respond with.
    fn session(&self, headers: &HeaderMap) -> Result<Arc<Session>, StatusCode> {
        let id = headers
            .get(SESSION_HEADER)
            .and_then(|id| id.to_str().ok())
            .ok_or(StatusCode::BAD_REQUEST)?;
        let session = self.sessions.lock().get(id).cloned();
        session.ok_or(StatusCode::NOT_FOUND)
    }
}

async fn mcp_post(State(front): State<Arc<Front>>, headers: HeaderMap, body: Bytes) -> Response {
    let Ok(frame) = serde_json::from_slice::<Frame<'_>>(&body) else {
        return StatusCode::BAD_REQUEST.into_response();
    };
    let method = frame.method.as_deref().unwrap_or_default();
    let is_request = frame.id.is_some() && frame.method.is_some();
    let mut opened = None;
    let server = front.server(&headers);
    let session = if server.options.era == Era::Modern {
        Arc::default()
    } else if method == "initialize" {
        let (id, session) = front.open();
        opened = Some(id);
        session
    } else if method == "server/discover" {
        // Legacy servers check the session before the method.
        return StatusCode::BAD_REQUEST.into_response();
    } else {
        match front.session(&headers) {
            Ok(session) => session,
            Err(status) => return status.into_response(),
        }
    };
    *session.headers.lock() = described(&headers);
    let (sender, receiver) = unbounded_channel();
    server.receive(&body, &Out::Channel(sender), &session);
    if !is_request {
        return StatusCode::ACCEPTED.into_response();
    }
    let mut response = answer(receiver, session).await;
    if let Some(id) = opened {
        let id = id.parse().expect("made of visible ASCII");
        response.headers_mut().insert(SESSION_HEADER, id);
    }
    response
}

/// JSON if the first frame is a response, else a stream.
async fn answer(mut frames: UnboundedReceiver<Bytes>, session: Arc<Session>) -> Response {
    let Some(first) = frames.recv().await else {
        // The tool never answers, so there is no response either.
        return std::future::pending().await;
    };
    let parsed = serde_json::from_slice::<Value>(&first);
    let more = parsed
        .as_ref()
        .is_ok_and(|frame| frame.get("method").is_some());
    if more {
        return events(Some(message(&first)), frames, (session, None));
    }
    let unknown = parsed.is_ok_and(|frame| frame["error"]["code"] == -32601);
    let status = if unknown {
        StatusCode::NOT_FOUND
    } else {
        StatusCode::OK
    };
    (status, [(header::CONTENT_TYPE, "application/json")], first).into_response()
}

async fn mcp_get(State(front): State<Arc<Front>>, headers: HeaderMap) -> Response {
    match front.session(&headers) {
        Ok(session) => {
            let (sender, receiver) = unbounded_channel();
            *session.stream.lock() = Some(Out::Channel(sender));
            events(None, receiver, (session, None))
        }
        Err(status) => status.into_response(),
    }
}

async fn mcp_delete(State(front): State<Arc<Front>>, headers: HeaderMap) -> Response {
    let id = headers.get(SESSION_HEADER).and_then(|id| id.to_str().ok());
    match id.and_then(|id| front.sessions.lock().remove(id)) {
        Some(_) => StatusCode::OK.into_response(),
        None => StatusCode::NOT_FOUND.into_response(),
    }
}

/// Removes an HTTP+SSE session when its stream ends.
struct Forget(Arc<Front>, String);

impl Drop for Forget {
    fn drop(&mut self) {
        self.0.sessions.lock().remove(&self.1);
    }
}

async fn sse_open(State(front): State<Arc<Front>>) -> Response {
    let (id, session) = front.open();
    let (sender, receiver) = unbounded_channel();
    *session.stream.lock() = Some(Out::Channel(sender));
    let first = format!("event: endpoint\ndata: /message?sessionId={id}\n\n");
    let forget = Forget(front, id);
    events(Some(first.into()), receiver, (session, Some(forget)))
}

async fn sse_message(
    State(front): State<Arc<Front>>,
    Query(query): Query<HashMap<String, String>>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let id = query.get("sessionId").cloned().unwrap_or_default();
    let Some(session) = front.sessions.lock().get(&id).cloned() else {
        return StatusCode::NOT_FOUND.into_response();
    };
    *session.headers.lock() = described(&headers);
    let Some(stream) = session.stream.lock().clone() else {
        return StatusCode::NOT_FOUND.into_response();
    };
    front.server.receive(&body, &stream, &session);
    (StatusCode::ACCEPTED, "Accepted").into_response()
}

/// Returns an event stream of `first` and then every frame. The stream keeps `held` alive until it ends.
fn events(
    first: Option<Bytes>,
    frames: UnboundedReceiver<Bytes>,
    held: (Arc<Session>, Option<Forget>),
) -> Response {
    let body = stream::unfold((first, frames, held), async |mut state| {
        let event = match state.0.take() {
            Some(first) => first,
            None => match state.1.recv().await? {
                // An empty frame means: cut the stream (`drop_stream`).
                frame if frame.is_empty() => return None,
                frame => message(&frame),
            },
        };
        Some((Ok::<_, Infallible>(event), state))
    });
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (headers, Body::from_stream(body)).into_response()
}

fn message(frame: &[u8]) -> Bytes {
    let mut event = b"event: message\ndata: ".to_vec();
    event.extend_from_slice(frame);
    event.extend_from_slice(b"\n\n");
    event.into()
}

fn described(headers: &HeaderMap) -> Value {
    let mut described = json!({});
    for (name, value) in headers {
        described[name.as_str()] = json!(String::from_utf8_lossy(value.as_bytes()));
    }
    described
}
