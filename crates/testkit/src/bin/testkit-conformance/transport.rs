//! stdio, streamable HTTP and HTTP+SSE in front of the same server.
//!
//! The SDK no longer has HTTP+SSE, and it cannot act as a server that does not know the modern era. Both are adapters
//! here that move lines between the network and the SDK's byte-stream transport.

use std::{
    collections::HashMap,
    convert::Infallible,
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::{DefaultBodyLimit, Query, Request, State},
    http::{HeaderMap, Method, StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use parking_lot::Mutex;
use rmcp::{
    ServiceExt,
    transport::{
        StreamableHttpServerConfig, StreamableHttpService,
        streamable_http_server::session::local::LocalSessionManager,
    },
};
use serde_json::{Value, json};
use testkit::serve::listen;
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader},
    sync::mpsc,
    task::JoinSet,
};

use crate::{Era, server::Server, shared::Shared};

/// The newest revision that a legacy server supports.
const NEWEST_LEGACY: &str = "2025-11-25";
/// Buffer size between an adapter and the SDK.
const PIPE_BYTES: usize = 64 * 1024;
/// The largest request body that is accepted.
const BODY_LIMIT: usize = 16 * 1024 * 1024;
/// Queued messages per SSE client. A slow client delays only its own session.
const STREAM_DEPTH: usize = 64;

/// Serves on stdin and stdout until stdin is closed or the SDK ends the conversation.
pub(crate) async fn stdio(shared: Arc<Shared>) -> io::Result<()> {
    let (outgoing, mut lines) = mpsc::channel(STREAM_DEPTH);
    let (input, mut tasks) = start(shared, outgoing);
    tasks.spawn(async move {
        let mut stdout = tokio::io::stdout();
        while let Some(line) = lines.recv().await {
            let line = format!("{line}\n");
            if stdout.write_all(line.as_bytes()).await.is_err() || stdout.flush().await.is_err() {
                break;
            }
        }
    });
    let mut stdin = BufReader::new(tokio::io::stdin()).lines();
    loop {
        let line = tokio::select! {
            line = stdin.next_line() => line?,
            // The SDK ends the conversation if it refuses `initialize`.
            _ = tasks.join_next() => break,
        };
        let Some(line) = line else { break };
        if input.send(line).await.is_err() {
            break;
        }
    }
    // Closing the input first ends the SDK's service, and then the writer.
    drop(input);
    let finish = async { while tasks.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(Duration::from_secs(2), finish).await;
    Ok(())
}

/// Starts an SDK server behind a byte stream. The server's lines go to `to_client`. Returns the channel for the
/// client's lines, and the tasks of the SDK's service and of both directions.
fn start(
    shared: Arc<Shared>,
    to_client: mpsc::Sender<String>,
) -> (mpsc::Sender<String>, JoinSet<()>) {
    let refuse_modern = shared.era == Era::Legacy;
    let (input, mut from_client) = mpsc::channel::<String>(STREAM_DEPTH);
    let (mut to_sdk, sdk_input) = tokio::io::duplex(PIPE_BYTES);
    let (sdk_output, from_sdk) = tokio::io::duplex(PIPE_BYTES);
    let mut tasks = JoinSet::new();
    tasks.spawn(serve(shared, sdk_input, sdk_output));
    let refusals = to_client.clone();
    tasks.spawn(async move {
        while let Some(line) = from_client.recv().await {
            let is_passed = match refusal(refuse_modern, &line) {
                Some(refusal) => refusals.send(refusal).await.is_ok(),
                None => to_sdk
                    .write_all(format!("{line}\n").as_bytes())
                    .await
                    .is_ok(),
            };
            if !is_passed {
                break;
            }
        }
    });
    tasks.spawn(async move {
        let mut lines = BufReader::new(from_sdk).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            if to_client.send(line).await.is_err() {
                break;
            }
        }
    });
    (input, tasks)
}

async fn serve(
    shared: Arc<Shared>,
    input: impl AsyncRead + Send + Unpin + 'static,
    output: impl AsyncWrite + Send + Unpin + 'static,
) {
    match Server::new(shared, None).serve((input, output)).await {
        Ok(running) => {
            let _ = running.waiting().await;
        }
        Err(error) => eprintln!("testkit-conformance: {error}"),
    }
}

/// The error that a legacy-only server returns for a modern request.
fn refusal(refuse_modern: bool, line: &str) -> Option<String> {
    if !refuse_modern {
        return None;
    }
    let message: Value = serde_json::from_str(line).ok()?;
    let id = message.get("id")?;
    let method = message["method"].as_str()?;
    (method == "server/discover").then(|| {
        json!({
            "jsonrpc": "2.0",
            "id": id,
            "error": { "code": -32601, "message": "Method not found" },
        })
        .to_string()
    })
}

/// Serves streamable HTTP at `/mcp`.
pub(crate) async fn http(shared: Arc<Shared>, address: SocketAddr, json: bool) -> io::Result<()> {
    let era = shared.era;
    let sessions = Arc::new(LocalSessionManager::default());
    let config = StreamableHttpServerConfig::default()
        .with_allowed_origins(["http://localhost:*", "http://127.0.0.1:*", "http://[::1]:*"])
        .with_max_request_body_bytes(BODY_LIMIT)
        .with_legacy_session_mode(era != Era::Modern && !json)
        .with_stateless_protocol_metadata_required(era == Era::Modern)
        .with_json_response(json);
    let factory = {
        let sessions = Arc::clone(&sessions);
        move || {
            Ok(Server::new(
                Arc::clone(&shared),
                Some(Arc::clone(&sessions)),
            ))
        }
    };
    let service = StreamableHttpService::new(factory, sessions, config);
    let mut router = Router::new().route_service("/mcp", service);
    if era == Era::Legacy {
        router = router.layer(middleware::from_fn(refuse_modern_http));
    }
    listen(address, "/mcp", router).await
}

/// Answers a modern request like a server from before that era: such servers check the version header and the session,
/// never `_meta`.
async fn refuse_modern_http(request: Request, next: Next) -> Response {
    let newer = request
        .headers()
        .get("mcp-protocol-version")
        .and_then(|version| version.to_str().ok())
        .is_some_and(|version| version > NEWEST_LEGACY);
    if newer && request.method() == Method::POST {
        let error = json!({
            "jsonrpc": "2.0",
            "id": null,
            "error": { "code": -32000, "message": "Bad Request: Unsupported protocol version" },
        });
        let headers = [(header::CONTENT_TYPE, "application/json")];
        return (StatusCode::BAD_REQUEST, headers, error.to_string()).into_response();
    }
    next.run(request).await
}

/// Serves HTTP+SSE (2024-11-05): the stream at `/sse`, messages to `/message`.
pub(crate) async fn sse(shared: Arc<Shared>, address: SocketAddr) -> io::Result<()> {
    let state = Arc::new(SseState {
        shared,
        next: AtomicU64::new(1),
        inputs: Mutex::default(),
    });
    let router = Router::new()
        .route("/sse", get(sse_open))
        .route("/message", post(sse_message))
        .layer(DefaultBodyLimit::max(BODY_LIMIT))
        .with_state(state);
    listen(address, "/sse", router).await
}

struct SseState {
    shared: Arc<Shared>,
    next: AtomicU64,
    /// The message channel of each open stream.
    inputs: Mutex<HashMap<String, mpsc::Sender<String>>>,
}

/// Removes a session when its stream is dropped.
struct Forget(Arc<SseState>, String);

impl Drop for Forget {
    fn drop(&mut self) {
        self.0.inputs.lock().remove(&self.1);
    }
}

async fn sse_open(State(state): State<Arc<SseState>>) -> Response {
    // The id is predictable on purpose: tests may need it, and a hijacked test session does no harm.
    let id = format!("sse-{}", state.next.fetch_add(1, Ordering::Relaxed));
    let (outgoing, to_client) = mpsc::channel::<String>(STREAM_DEPTH);
    let (input, tasks) = start(Arc::clone(&state.shared), outgoing);
    state.inputs.lock().insert(id.clone(), input);
    let first = format!("event: endpoint\ndata: /message?sessionId={id}\n\n");
    // The stream owns the session: when the client disconnects, the whole session is dropped.
    let held = (
        Some(first),
        to_client,
        tasks,
        Forget(Arc::clone(&state), id),
    );
    let body = futures_util::stream::unfold(held, async |mut held| {
        let event = match held.0.take() {
            Some(first) => first,
            None => format!("event: message\ndata: {}\n\n", held.1.recv().await?),
        };
        Some((Ok::<_, Infallible>(event), held))
    });
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (headers, Body::from_stream(body)).into_response()
}

async fn sse_message(
    State(state): State<Arc<SseState>>,
    Query(query): Query<HashMap<String, String>>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let json = headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .is_some_and(|value| value.starts_with("application/json"));
    if !json {
        return StatusCode::UNSUPPORTED_MEDIA_TYPE.into_response();
    }
    // The body is parsed and serialized again, because it may span several lines and the SDK reads one message per
    // line.
    let Ok(message) = serde_json::from_slice::<Value>(&body) else {
        return StatusCode::BAD_REQUEST.into_response();
    };
    let session = query.get("sessionId").cloned().unwrap_or_default();
    let input = state.inputs.lock().get(&session).cloned();
    match input {
        Some(input) if input.send(message.to_string()).await.is_ok() => {
            (StatusCode::ACCEPTED, "Accepted").into_response()
        }
        _ => (StatusCode::NOT_FOUND, "Session not found").into_response(),
    }
}
