//! A forward proxy, as company networks have: `CONNECT`, requests in absolute form, and Basic credentials.
//!
//! It reaches the hosts that it was given at addresses of the test's choice, and refuses all others with 403. Names are
//! therefore never resolved, and a test can use names and addresses that lead nowhere.

use std::{collections::HashMap, convert::Infallible, net::SocketAddr, sync::Arc};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use http::{
    HeaderValue, Method, Request, Response, StatusCode, Uri,
    header::{HOST, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION},
};
use http_body_util::{BodyExt as _, Empty, combinators::BoxBody};
use hyper::{body::Incoming, client, server, service::service_fn};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

type Answer = Response<BoxBody<Bytes, hyper::Error>>;

/// A forward proxy on loopback. Dropping it ends its connections.
pub struct ForwardProxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    _tasks: JoinSet<()>,
}

struct Shared {
    /// The expected `Proxy-Authorization`.
    authorization: Option<String>,
    /// `host:port` of a request, and the address that it leads to.
    hosts: HashMap<String, SocketAddr>,
    seen: Mutex<Vec<String>>,
    /// Tunnels, and connections to servers.
    connections: Mutex<JoinSet<()>>,
}

impl ForwardProxy {
    /// Starts a proxy that reaches these hosts, each given as `host:port`. `credentials` are `user:password`.
    ///
    /// # Panics
    /// If no port is free.
    pub async fn start(credentials: Option<&str>, hosts: &[(&str, SocketAddr)]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let hosts = hosts.iter();
        let shared = Arc::new(Shared {
            authorization: credentials.map(|text| format!("Basic {}", STANDARD.encode(text))),
            hosts: hosts.map(|(host, to)| ((*host).to_owned(), *to)).collect(),
            seen: Mutex::default(),
            connections: Mutex::default(),
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(accept(listener, shared.clone()));
        Self {
            address,
            shared,
            _tasks: tasks,
        }
    }

    /// The address that the proxy listens on.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The method and the target of each request so far, such as `CONNECT example.test:443`.
    #[must_use]
    pub fn seen(&self) -> Vec<String> {
        self.shared.seen.lock().clone()
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let mut clients = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let shared = shared.clone();
        let service = service_fn(move |request| {
            let shared = shared.clone();
            async move { Ok::<_, Infallible>(shared.answer(request).await) }
        });
        clients.spawn(async move {
            let connection = server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .with_upgrades();
            // A client may break off.
            let _ = connection.await;
        });
    }
}

impl Shared {
    async fn answer(&self, request: Request<Incoming>) -> Answer {
        let (method, uri) = (request.method().clone(), request.uri().clone());
        self.seen.lock().push(format!("{method} {uri}"));
        let sent = request.headers().get(PROXY_AUTHORIZATION);
        let sent = sent.map(HeaderValue::as_bytes);
        if sent != self.authorization.as_ref().map(String::as_bytes) {
            let mut answer = empty(StatusCode::PROXY_AUTHENTICATION_REQUIRED);
            let challenge = HeaderValue::from_static("Basic realm=\"test\"");
            answer.headers_mut().insert(PROXY_AUTHENTICATE, challenge);
            return answer;
        }
        let host = uri.host().unwrap_or_default();
        let place = format!("{host}:{}", uri.port_u16().unwrap_or(80));
        let Some(address) = self.hosts.get(&place) else {
            return empty(StatusCode::FORBIDDEN);
        };
        let Ok(server) = TcpStream::connect(address).await else {
            return empty(StatusCode::BAD_GATEWAY);
        };
        match method {
            Method::CONNECT => self.tunnel(request, server),
            _ => {
                let forwarded = self.forward(request, &uri, server).await;
                forwarded.unwrap_or_else(|_| empty(StatusCode::BAD_GATEWAY))
            }
        }
    }

    fn tunnel(&self, request: Request<Incoming>, mut server: TcpStream) -> Answer {
        self.connections.lock().spawn(async move {
            if let Ok(upgraded) = hyper::upgrade::on(request).await {
                // Either side may break off.
                let _ = copy_bidirectional(&mut TokioIo::new(upgraded), &mut server).await;
            }
        });
        empty(StatusCode::OK)
    }

    async fn forward(
        &self,
        request: Request<Incoming>,
        uri: &Uri,
        server: TcpStream,
    ) -> Result<Answer, Box<dyn std::error::Error + Send + Sync>> {
        let handshake = client::conn::http1::handshake(TokioIo::new(server));
        let (mut sender, connection) = handshake.await?;
        self.connections.lock().spawn(async move {
            // The response reports a failure.
            let _ = connection.await;
        });
        let (mut head, body) = request.into_parts();
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        head.uri = path.parse()?;
        head.headers.remove(PROXY_AUTHORIZATION);
        let authority = uri.authority().ok_or("the target has no host")?;
        head.headers.insert(HOST, authority.as_str().parse()?);
        let answer = sender.send_request(Request::from_parts(head, body)).await?;
        Ok(answer.map(|body| body.boxed()))
    }
}

fn empty(status: StatusCode) -> Answer {
    let mut answer = Response::new(Empty::new().map_err(|never| match never {}).boxed());
    *answer.status_mut() = status;
    answer
}
