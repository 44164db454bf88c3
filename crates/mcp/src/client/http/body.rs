//! Classifies HTTP responses by their headers and status.

use http::{
    HeaderMap,
    header::{CONTENT_TYPE, LOCATION, WWW_AUTHENTICATE},
};

/// The kind of a body, from its `Content-Type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::client) enum Media {
    Json,
    Events,
    /// Without `Content-Type`.
    Unknown,
    Other,
}

pub(in crate::client) fn media(headers: &HeaderMap) -> Media {
    let Some(value) = headers.get(CONTENT_TYPE) else {
        return Media::Unknown;
    };
    let value = value.as_bytes();
    let end = memchr::memchr(b';', value).unwrap_or(value.len());
    let essence = value[..end].trim_ascii();
    if essence.eq_ignore_ascii_case(b"application/json") {
        Media::Json
    } else if essence.eq_ignore_ascii_case(b"text/event-stream") {
        Media::Events
    } else {
        Media::Other
    }
}

/// The authentication scheme that a server asks for, without its parameters.
pub(in crate::client) fn auth_scheme(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(WWW_AUTHENTICATE)?.to_str().ok()?;
    let scheme = value.split([' ', ',']).next()?;
    let token = !scheme.is_empty()
        && scheme.len() <= 20
        && scheme
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    token.then_some(scheme)
}

/// Extra text for an error with this status, taken from the headers.
pub(in crate::client) fn status_hint(
    status: http::StatusCode,
    headers: &HeaderMap,
) -> Option<String> {
    match status.as_u16() {
        401 | 403 => {
            let scheme = auth_scheme(headers).map(|scheme| format!(" ({scheme})"));
            let verb = if status.as_u16() == 401 {
                "it asks for authentication"
            } else {
                "it denies access"
            };
            Some(format!(
                ": {verb}{}: set `headers` for this server",
                scheme.unwrap_or_default()
            ))
        }
        300..=399 => {
            let host = headers
                .get(LOCATION)
                .and_then(|location| location.to_str().ok()?.parse::<http::Uri>().ok())
                .filter(|uri| uri.host().is_some())
                .map(|uri| format!(" to {}", super::endpoint::peer(&uri)));
            Some(format!(
                ": it redirects{}: set the URL that it moved to",
                host.unwrap_or_default()
            ))
        }
        _ => None,
    }
}
