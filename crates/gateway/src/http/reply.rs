//! Responses without a stream.

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use mcp::{Frame, frame::Invalid};

use crate::{Body, guard::Refusal};

pub(crate) fn refusal(status: StatusCode, what: &str) -> Refusal {
    Refusal::new(status, what)
}

pub(crate) fn unreadable(invalid: &Invalid) -> Response<Body> {
    let id = if invalid.response {
        Bytes::new()
    } else {
        invalid.id.clone().unwrap_or_default()
    };
    json(
        StatusCode::BAD_REQUEST,
        Frame::error(&id, &invalid.to_rpc()).text().clone(),
    )
}

pub(crate) fn json(status: StatusCode, text: Bytes) -> Response<Body> {
    json_body(status, Body::text(text))
}

pub fn json_body(status: StatusCode, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    );
    response
}

pub(crate) fn empty(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(Body::Text(None));
    *response.status_mut() = status;
    response
}

pub(crate) fn method_not_allowed() -> Response<Body> {
    let mut response = empty(StatusCode::METHOD_NOT_ALLOWED);
    response
        .headers_mut()
        .insert(header::ALLOW, HeaderValue::from_static("POST"));
    response
}
