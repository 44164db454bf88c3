//! The baseline for responses from memory: every `POST` gets the same result, with the id of the request.

use std::path::Path;

use ::bytes::buf::Chain;
use ::bytes::{Buf as _, Bytes};
use ::http::{Method, Request, Response, StatusCode};
use anyhow::Context as _;
use http_body_util::Full;
use hyper::body::Incoming;

use crate::frame::IdOnly;
use crate::serve;

/// Serves the JSON value in `file` as the result of every request, until the process exits.
pub(crate) async fn run(file: &Path, listen: &str) -> anyhow::Result<()> {
    let result = std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    let tail: Bytes = [br#","result":"#.as_slice(), &result, b"}"].concat().into();
    serve::serve(listen, move |request| answer(request, tail.clone())).await
}

async fn answer(request: Request<Incoming>, tail: Bytes) -> Response<Full<Chain<Bytes, Bytes>>> {
    if request.method() != Method::POST {
        return empty(StatusCode::METHOD_NOT_ALLOWED);
    }
    let Some(body) = serve::whole(request.into_body()).await else {
        return empty(StatusCode::BAD_REQUEST);
    };
    let id = serde_json::from_slice::<IdOnly>(&body)
        .ok()
        .and_then(|envelope| envelope.id);
    let Some(id) = id else {
        return empty(StatusCode::ACCEPTED);
    };
    let head = [br#"{"jsonrpc":"2.0","id":"#, id.get().as_bytes()].concat();
    // The two parts are chained, so that the large part is sent from memory without a copy.
    serve::json(Full::new(Bytes::from(head).chain(tail)))
}

fn empty(status: StatusCode) -> Response<Full<Chain<Bytes, Bytes>>> {
    serve::empty(status).map(|_| Full::new(Bytes::new().chain(Bytes::new())))
}
