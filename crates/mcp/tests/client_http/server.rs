//! A scripted server on a real socket.

use std::{
    collections::HashSet,
    convert::Infallible,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures_util::stream;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    body::{Frame, Incoming},
    service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::mpsc, task::JoinSet, time::timeout};

use mcp::client::{Ambient, Client, ConnectError, Connector, Identity, Options, Target};

pub(crate) type Reply = Response<UnsyncBoxBody<Bytes, Infallible>>;
type Handler = dyn Fn(Hit) -> Pin<Box<dyn Future<Output = Reply> + Send>> + Send + Sync;

/// One request that the server received.
#[derive(Debug, Clone)]
pub(crate) struct Hit {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Value,
    pub(crate) connection: usize,
}

impl Hit {
    pub(crate) fn rpc(&self) -> &str {
        self.body["method"].as_str().unwrap_or_default()
    }

    pub(crate) fn id(&self) -> &Value {
        &self.body["id"]
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }
}

pub(crate) struct Server {
    pub(crate) url: String,
    hits: Arc<Mutex<Vec<Hit>>>,
    _tasks: JoinSet<()>,
}

impl Server {
    pub(crate) async fn start<F, R>(handler: F) -> Self
    where
        F: Fn(Hit) -> R + Send + Sync + 'static,
        R: Future<Output = Reply> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}/mcp", listener.local_addr().expect("an address"));
        let hits: Arc<Mutex<Vec<Hit>>> = Arc::default();
        let handler: Arc<Handler> = Arc::new(move |hit| Box::pin(handler(hit)));
        let mut tasks = JoinSet::new();
        tasks.spawn(serve(listener, hits.clone(), handler));
        Self {
            url,
            hits,
            _tasks: tasks,
        }
    }

    pub(crate) fn hits(&self) -> Vec<Hit> {
        self.hits.lock().expect("no test panics with it").clone()
    }

    pub(crate) fn count(&self, wanted: impl Fn(&Hit) -> bool) -> usize {
        self.hits().iter().filter(|hit| wanted(hit)).count()
    }

    /// Waits for a matching request.
    pub(crate) async fn hit(&self, wanted: impl Fn(&Hit) -> bool) -> Hit {
        wait_for(|| self.hits().into_iter().find(&wanted)).await
    }

    pub(crate) fn connections(&self) -> usize {
        let all: HashSet<usize> = self.hits().iter().map(|hit| hit.connection).collect();
        all.len()
    }

    pub(crate) async fn connect(&self) -> Result<(Client, Ambient), ConnectError> {
        self.connect_with(&options()).await
    }

    pub(crate) async fn connect_with(
        &self,
        options: &Options,
    ) -> Result<(Client, Ambient), ConnectError> {
        let target = Target::Http {
            url: self.url.clone(),
            headers: vec![],
        };
        Connector::new().connect(target, options).await
    }
}

async fn serve(listener: TcpListener, hits: Arc<Mutex<Vec<Hit>>>, handler: Arc<Handler>) {
    let connections = AtomicUsize::new(0);
    let mut tasks = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let connection = connections.fetch_add(1, Ordering::Relaxed);
        let (hits, handler) = (hits.clone(), handler.clone());
        let service = service_fn(move |request: Request<Incoming>| {
            let (hits, handler) = (hits.clone(), handler.clone());
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect().await?.to_bytes();
                let hit = Hit {
                    method: parts.method,
                    path: parts
                        .uri
                        .path_and_query()
                        .map_or_else(String::new, ToString::to_string),
                    headers: parts.headers,
                    body: serde_json::from_slice(&body).unwrap_or(Value::Null),
                    connection,
                };
                hits.lock()
                    .expect("no test panics with it")
                    .push(hit.clone());
                Ok::<_, hyper::Error>(handler(hit).await)
            }
        });
        tasks.spawn(async move {
            let builder = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
            // Some tests close the client's side, so errors are ignored.
            let _ = builder
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

pub(crate) fn empty(status: u16) -> Reply {
    text(status, None, "")
}

pub(crate) fn text(status: u16, media: Option<&str>, body: &str) -> Reply {
    let mut response = Response::new(Full::new(Bytes::from(body.to_owned())).boxed_unsync());
    *response.status_mut() = StatusCode::from_u16(status).expect("a status");
    if let Some(media) = media {
        response
            .headers_mut()
            .insert("content-type", media.parse().expect("a header value"));
    }
    response
}

pub(crate) fn json_reply(status: u16, body: &Value) -> Reply {
    text(status, Some("application/json"), &body.to_string())
}

pub(crate) fn result(hit: &Hit, result: Value) -> Value {
    json!({"jsonrpc": "2.0", "id": hit.id(), "result": result})
}

pub(crate) fn error(id: &Value, code: i64, message: &str) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message}})
}

/// An event stream that the test writes to. It ends when the sender is dropped.
pub(crate) fn stream() -> (mpsc::Sender<String>, Reply) {
    let (sender, receiver) = mpsc::channel::<String>(64);
    let chunks = stream::unfold(receiver, |mut receiver| async {
        let chunk = receiver.recv().await?;
        Some((Ok(Frame::data(Bytes::from(chunk))), receiver))
    });
    let mut response = Response::new(StreamBody::new(chunks).boxed_unsync());
    response.headers_mut().insert(
        "content-type",
        "text/event-stream; charset=utf-8".parse().expect("a value"),
    );
    (sender, response)
}

pub(crate) fn events(chunks: &[String]) -> Reply {
    let mut reply = text(200, Some("text/event-stream"), &chunks.concat());
    reply
        .headers_mut()
        .insert("cache-control", "no-store".parse().expect("a value"));
    reply
}

pub(crate) fn event(message: &Value) -> String {
    format!("event: message\ndata: {message}\n\n")
}

pub(crate) fn discover_result() -> Value {
    json!({"resultType": "complete", "supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}},
           "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "test", "version": "1"}}})
}

pub(crate) fn initialize_result(version: &str) -> Value {
    json!({"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": {"name": "test", "version": "1"}})
}

/// A legacy server with a session. `handler` answers its calls.
pub(crate) async fn legacy<F, R>(version: &'static str, handler: F) -> Server
where
    F: Fn(Hit) -> R + Send + Sync + 'static,
    R: Future<Output = Reply> + Send + 'static,
{
    let handler = Arc::new(handler);
    Server::start(move |hit| {
        let handler = handler.clone();
        async move {
            match (&hit.method, hit.rpc()) {
                (_, "server/discover") => empty(400),
                (_, "initialize") => {
                    let mut reply = json_reply(200, &result(&hit, initialize_result(version)));
                    reply
                        .headers_mut()
                        .insert("mcp-session-id", "s-1".parse().expect("a value"));
                    reply
                }
                (_, "notifications/initialized") => empty(202),
                (&Method::DELETE, _) => empty(200),
                _ => handler(hit).await,
            }
        }
    })
    .await
}

/// A modern server. `handler` answers its calls.
pub(crate) async fn modern<F, R>(handler: F) -> Server
where
    F: Fn(Hit) -> R + Send + Sync + 'static,
    R: Future<Output = Reply> + Send + 'static,
{
    let handler = Arc::new(handler);
    Server::start(move |hit| {
        let handler = handler.clone();
        async move {
            match hit.rpc() {
                "server/discover" => json_reply(200, &result(&hit, discover_result())),
                _ => handler(hit).await,
            }
        }
    })
    .await
}

pub(crate) fn options() -> Options {
    Options {
        label: "test".into(),
        identity: Identity {
            name: "tester".into(),
            version: "1".into(),
            chain: None,
        },
        capabilities: "{}".into(),
        era: None,
        max_message: 1 << 20,
        max_depth: 64,
        timeout: Duration::from_secs(20),
        public_only: false,
        authorize: None,
        sign: None,
    }
}

/// Polls for a value, for at most 10 seconds.
pub(crate) async fn wait_for<T>(mut look: impl FnMut() -> Option<T>) -> T {
    timeout(Duration::from_secs(10), async {
        loop {
            if let Some(found) = look() {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .expect("it came about within 10 seconds")
}

/// Awaits a future, for at most 10 seconds.
pub(crate) async fn soon<T>(future: impl Future<Output = T>) -> T {
    timeout(Duration::from_secs(10), future)
        .await
        .expect("it is done within 10 seconds")
}
