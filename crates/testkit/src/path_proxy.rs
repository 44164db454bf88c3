//! A reverse proxy that serves an HTTP server below a path of its own address.

use std::sync::{Arc, OnceLock};

use axum::{
    Router,
    body::Body,
    extract::{Request, State},
    http::{StatusCode, Uri},
    response::{IntoResponse as _, Response},
};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::{net::TcpStream, task::JoinSet};

use crate::serve::serve;

/// A proxy. Dropping it stops the proxy.
///
/// It passes on requests to paths below its own, and those to `/.well-known/…`. Every other path gets 404.
pub struct PathProxy {
    url: String,
    way: Arc<Way>,
    _tasks: JoinSet<()>,
}

struct Way {
    path: &'static str,
    /// Whether the path is removed from requests.
    removes: bool,
    /// Host and port of the server.
    server: OnceLock<String>,
    connections: Mutex<JoinSet<()>>,
}

impl PathProxy {
    /// Starts a proxy that keeps its path in the requests that it passes on.
    pub async fn keeping(path: &'static str) -> Self {
        Self::start(path, false).await
    }

    /// Starts a proxy that removes its path from the requests that it passes on.
    pub async fn removing(path: &'static str) -> Self {
        Self::start(path, true).await
    }

    async fn start(path: &'static str, removes: bool) -> Self {
        let way = Arc::new(Way {
            path,
            removes,
            server: OnceLock::new(),
            connections: Mutex::default(),
        });
        let state = way.clone();
        let (origin, tasks) = serve(|_| Router::new().fallback(pass_on).with_state(state)).await;
        Self {
            url: format!("{origin}{path}"),
            way,
            _tasks: tasks,
        }
    }

    /// The address of the server for clients, without a slash at the end.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Sets the server, by its URL without a path. Before that, every request gets 502.
    ///
    /// # Panics
    /// If it was set before.
    pub fn leads_to(&self, server: &str) {
        let server = server.trim_start_matches("http://").to_owned();
        self.way.server.set(server).expect("there is one server");
    }
}

async fn pass_on(State(way): State<Arc<Way>>, mut request: Request) -> Response {
    let asked = request.uri().path_and_query().map_or("/", |it| it.as_str());
    let below = asked.strip_prefix(way.path);
    let below = below.filter(|rest| rest.is_empty() || rest.starts_with(['/', '?']));
    let path = match below {
        Some(rest) if way.removes => format!("/{}", rest.strip_prefix('/').unwrap_or(rest)),
        None if !asked.starts_with("/.well-known/") => {
            return StatusCode::NOT_FOUND.into_response();
        }
        _ => asked.to_owned(),
    };
    *request.uri_mut() = path.parse::<Uri>().expect("a path of a request");
    match send(&way, request).await {
        Some(response) => response,
        None => StatusCode::BAD_GATEWAY.into_response(),
    }
}

/// Sends a request on a new connection; `None` if the server does not respond.
async fn send(way: &Way, request: Request) -> Option<Response> {
    let stream = TcpStream::connect(way.server.get()?).await.ok()?;
    let io = TokioIo::new(stream);
    let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await.ok()?;
    way.connections.lock().spawn(async move {
        // Errors show in the response.
        let _ = connection.await;
    });
    let response = sender.send_request(request).await.ok()?;
    Some(response.map(Body::new))
}
