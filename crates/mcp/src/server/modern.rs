//! Checks of a modern request against its headers (2026-07-28 basic/transports/streamable-http "Request Metadata").

use http::{HeaderMap, HeaderName};

use crate::{
    Frame, Kind, RpcError, Version,
    bridge::{self, ModernFace},
    error,
    headers::decode_header,
    json::quote,
    protocol::{meta, method},
};

pub const PROTOCOL_VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
pub const METHOD: HeaderName = HeaderName::from_static("mcp-method");
pub const NAME: HeaderName = HeaderName::from_static("mcp-name");
pub const SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");

/// Returns true if a message's `_meta` or version header shows the modern era. `initialize` exists only in the legacy
/// era, so the header does not matter for it: it may be left from another session.
#[must_use]
pub fn is_modern(headers: &HeaderMap, frame: &Frame) -> bool {
    if frame
        .meta()
        .is_some_and(|own| own.find(meta::PROTOCOL_VERSION).is_some())
    {
        return true;
    }
    if frame.kind() == Kind::Request && frame.method() == method::INITIALIZE {
        return false;
    }
    // Only the modern era defines a response to an unknown version without a session.
    let version = headers
        .get(PROTOCOL_VERSION)
        .and_then(|value| value.to_str().ok());
    match version.map(Version::parse) {
        Some(Some(version)) => version.era() == crate::Era::Modern,
        Some(None) => !headers.contains_key(SESSION_ID),
        None => false,
    }
}

fn mismatch(what: String) -> RpcError {
    RpcError::new(error::HEADER_MISMATCH, format!("Header mismatch: {what}"))
}

/// The single value of a header. Repeated headers are a mismatch.
fn only<'a>(
    headers: &'a HeaderMap,
    name: &HeaderName,
) -> Result<Option<&'a http::HeaderValue>, RpcError> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (_, Some(_)) => Err(mismatch(format!("header {name} is given more than once"))),
        (value, None) => Ok(value),
    }
}

/// Checks a modern message. Returns its client's description (`None` for a notification without `_meta`).
///
/// # Errors
/// -32602 (missing or invalid `_meta`), -32020 (headers), -32022 (version). Each means HTTP 400.
pub fn check<'a>(
    headers: &HeaderMap,
    frame: &'a Frame,
) -> Result<Option<ModernFace<'a>>, RpcError> {
    let face = match bridge::modern_face(frame) {
        Ok(face) => Some(face),
        Err(_) if frame.kind() == Kind::Notification => None,
        Err(error) => return Err(error),
    };
    let version = only(headers, &PROTOCOL_VERSION)?
        .ok_or_else(|| mismatch(format!("header {PROTOCOL_VERSION} is missing")))?
        .to_str()
        .map_err(|_| {
            mismatch(format!(
                "header {PROTOCOL_VERSION} has characters other than visible ASCII"
            ))
        })?;
    if let Some(face) = &face {
        if face.version != version {
            return Err(mismatch(format!(
                "header {PROTOCOL_VERSION} says {}, the body {}",
                quote(version),
                quote(&face.version)
            )));
        }
        check_version(&face.version)?;
    }
    let header =
        only(headers, &METHOD)?.ok_or_else(|| mismatch(format!("header {METHOD} is missing")))?;
    if header.as_bytes() != frame.method().as_bytes() {
        return Err(mismatch(format!(
            "header {METHOD} says {}, the body {}",
            quote(&String::from_utf8_lossy(header.as_bytes())),
            quote(frame.method())
        )));
    }
    let field = match frame.method() {
        method::TOOLS_CALL | method::PROMPTS_GET => "name",
        method::RESOURCES_READ => "uri",
        // The tasks extension (2026-07-28) routes by task.
        "tasks/get" | "tasks/update" | "tasks/cancel" => "taskId",
        _ => return Ok(face),
    };
    let Some(body) = frame.object().and_then(|params| params.string(field)) else {
        return Err(RpcError::invalid_params(format!(
            "Invalid params: `{field}` must be a string"
        )));
    };
    let header =
        only(headers, &NAME)?.ok_or_else(|| mismatch(format!("header {NAME} is missing")))?;
    let said = decode_header(header)
        .ok_or_else(|| mismatch(format!("header {NAME} cannot be decoded")))?;
    if said != body {
        return Err(mismatch(format!(
            "header {NAME} says {}, the body {}",
            quote(&said),
            quote(&body)
        )));
    }
    Ok(face)
}

/// Checks that a modern request may use `version`.
///
/// # Errors
/// -32022 with `supported` and `requested` (2026-07-28 basic/versioning "Protocol Version Negotiation").
pub fn check_version(version: &str) -> Result<(), RpcError> {
    if Version::parse(version).is_some_and(|version| version.era() == crate::Era::Modern) {
        return Ok(());
    }
    let data = format!(
        "{{\"supported\":{},\"requested\":{}}}",
        supported(),
        quote(version)
    );
    Err(
        RpcError::new(error::UNSUPPORTED_VERSION, "Unsupported protocol version")
            .with_data(data.into_bytes()),
    )
}

/// The supported versions, newest first: a JSON array.
#[must_use]
pub fn supported() -> String {
    format!(
        "[{}]",
        Version::ALL
            .map(|version| quote(version.as_str()))
            .join(",")
    )
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn the_era_of_a_request() {
        let modern = r#"{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}"#;
        for (method, params, version, session, expect) in [
            ("tools/list", modern, None, false, true),
            ("tools/list", "{}", Some("2026-07-28"), false, true),
            ("tools/list", "{}", Some("2099-01-01"), false, true),
            ("tools/list", "{}", Some("2099-01-01"), true, false),
            ("tools/list", "{}", Some("2025-06-18"), false, false),
            ("tools/list", "{}", None, false, false),
            ("initialize", "{}", Some("2026-07-28"), false, false),
            ("initialize", "{}", Some("2099-01-01"), false, false),
            ("initialize", modern, None, false, true),
        ] {
            let mut headers = HeaderMap::new();
            if let Some(version) = version {
                headers.insert(PROTOCOL_VERSION, HeaderValue::from_static(version));
            }
            if session {
                headers.insert(SESSION_ID, HeaderValue::from_static("s"));
            }
            let frame = Frame::request("1", method, Some(params.as_bytes()));
            let found = is_modern(&headers, &frame);
            assert_eq!(found, expect, "{method} {params} {version:?}");
        }
    }
}
