//! Reading request bodies.

use axum::BoxError;
use bytes::Bytes;
use http::{HeaderMap, StatusCode, header};
use mcp::gather::{Unread, Whole};

use super::reply::refusal;
use crate::{guard::Refusal, room::NoRoom};

pub(super) fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers
        .get(header::CONTENT_TYPE)
        .and_then(|kind| kind.to_str().ok())
        .unwrap_or_default();
    kind.split(';')
        .next()
        .is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json"))
}

/// Reads a body of at most `limit` bytes.
pub async fn collect<B>(body: B, limit: usize) -> Result<Bytes, Refusal>
where
    B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Unpin,
{
    let too_large = || {
        let what = format!("the body is larger than {limit} bytes (`max_body_bytes`)");
        refusal(StatusCode::PAYLOAD_TOO_LARGE, &what)
    };
    match Whole::new(body, limit).read().await {
        Ok(text) => Ok(text),
        Err(Unread::TooLong) => Err(too_large()),
        Err(Unread::Broken(error)) => Err(broken(&*error.into())),
    }
}

fn broken(error: &(dyn std::error::Error + 'static)) -> Refusal {
    if NoRoom::caused(error) {
        return refusal(StatusCode::SERVICE_UNAVAILABLE, &NoRoom.to_string());
    }
    refusal(StatusCode::BAD_REQUEST, "the request body ended early")
}
