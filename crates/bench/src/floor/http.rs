//! The baseline for an HTTP server: forwards requests and responses unchanged, through a pooled client.

use ::bytes::Bytes;
use ::http::header::{CONNECTION, CONTENT_LENGTH, HOST, TRANSFER_ENCODING};
use ::http::{Request, Response, StatusCode, Uri};
use anyhow::Context as _;
use http_body_util::{Either, Full};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};

use crate::serve;

type Upstream = Client<HttpConnector, Full<Bytes>>;

/// Serves on `listen` in front of `upstream` until the process exits.
pub(crate) async fn run(upstream: &str, listen: &str) -> anyhow::Result<()> {
    let uri: Uri = upstream
        .parse()
        .with_context(|| format!("not a URL: {upstream}"))?;
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    let client: Upstream = Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_max_idle_per_host(1024)
        .build(connector);
    serve::serve(listen, move |request| {
        forward(request, uri.clone(), client.clone())
    })
    .await
}

async fn forward(
    request: Request<Incoming>,
    uri: Uri,
    client: Upstream,
) -> Response<Either<Full<Bytes>, Incoming>> {
    let (mut head, body) = request.into_parts();
    let Some(body) = serve::whole(body).await else {
        return serve::empty(StatusCode::BAD_REQUEST).map(Either::Left);
    };
    head.uri = uri;
    for name in [HOST, CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING] {
        head.headers.remove(name);
    }
    match client
        .request(Request::from_parts(head, Full::new(body)))
        .await
    {
        Ok(mut response) => {
            response.headers_mut().remove(CONNECTION);
            response.map(Either::Right)
        }
        Err(_) => serve::empty(StatusCode::BAD_GATEWAY).map(Either::Left),
    }
}
