//! HTTP responses: what their headers and status say, and how their bodies are encoded.

use std::io::Read;

use bytes::Bytes;
use flate2::read::GzDecoder;
use http::{
    HeaderMap, HeaderValue, StatusCode, Uri,
    header::{CONTENT_TYPE, LOCATION, WWW_AUTHENTICATE},
};

use super::endpoint::{is_same_origin, resolved};

/// Redirects that are followed for one request.
pub(in crate::client) const MAX_REDIRECTS: usize = 5;

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

/// Extra text for an error with this status, as far as the headers give it. `base`: the URL of the request.
pub(in crate::client) fn status_hint(
    status: StatusCode,
    headers: &HeaderMap,
    base: &Uri,
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
            let target = target(headers, base).map(|uri| model::url_for_display(&uri.to_string()));
            let target = target.map_or_else(
                || ": set the URL that it moved to".to_owned(),
                |target| format!(" to {target}: set that URL for this server"),
            );
            Some(format!(": it redirects{target}"))
        }
        _ => None,
    }
}

/// The target of a redirect that is followed: the same request, at the same origin, because the configured headers and
/// tokens are meant for that.
pub(in crate::client) fn redirect(
    status: StatusCode,
    headers: &HeaderMap,
    base: &Uri,
) -> Option<Uri> {
    let keeps_method = matches!(
        status,
        StatusCode::TEMPORARY_REDIRECT | StatusCode::PERMANENT_REDIRECT
    );
    let target = keeps_method.then(|| target(headers, base)).flatten();
    target.filter(|uri| is_same_origin(base, uri))
}

fn target(headers: &HeaderMap, base: &Uri) -> Option<Uri> {
    let location = headers.get(LOCATION)?.to_str().ok()?;
    resolved(base, location).filter(|uri| uri.host().is_some())
}

/// Decompresses a body with this `Content-Encoding`, and removes a byte order mark from its beginning.
///
/// # Errors
/// It cannot be decompressed, or is longer than `max` bytes.
pub(super) fn decoded(
    encoding: Option<&HeaderValue>,
    text: Bytes,
    max: usize,
) -> Result<Bytes, String> {
    const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
    let text = match encoding.map(HeaderValue::as_bytes) {
        None | Some(b"" | b"identity") => text,
        Some(b"gzip" | b"x-gzip") => gunzip(&text, max)?,
        Some(other) => {
            let other = String::from_utf8_lossy(&other[..other.len().min(20)]).into_owned();
            return Err(format!(
                "it is encoded with {other:?}, which the request did not accept"
            ));
        }
    };
    Ok(match text.starts_with(BYTE_ORDER_MARK) {
        true => text.slice(BYTE_ORDER_MARK.len()..),
        false => text,
    })
}

fn gunzip(text: &[u8], max: usize) -> Result<Bytes, String> {
    let mut out = Vec::new();
    let limit = u64::try_from(max).unwrap_or(u64::MAX).saturating_add(1);
    GzDecoder::new(text)
        .take(limit)
        .read_to_end(&mut out)
        .map_err(|error| format!("it cannot be decompressed: {error}"))?;
    if out.len() > max {
        return Err(format!("it is longer than {max} bytes when decompressed"));
    }
    Ok(out.into())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn gzipped(text: &[u8]) -> Bytes {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(text).expect("memory");
        encoder.finish().expect("memory").into()
    }

    #[test]
    fn a_body_is_decompressed_within_the_bound() {
        let encoded = |encoding: &'static str, text: Bytes| {
            decoded(Some(&HeaderValue::from_static(encoding)), text, 1000)
        };
        assert_eq!(encoded("gzip", gzipped(b"{}")).as_deref(), Ok(&b"{}"[..]));
        let marked = gzipped("\u{feff}{}".as_bytes());
        assert_eq!(encoded("gzip", marked).as_deref(), Ok(&b"{}"[..]));
        let whole = encoded("gzip", gzipped(&[b' '; 1000]));
        assert_eq!(whole.map(|text| text.len()), Ok(1000));
        for (encoding, text, why) in [
            ("gzip", gzipped(&[b' '; 1001]), "longer than 1000 bytes"),
            ("gzip", gzipped(&vec![b' '; 10 << 20]), "longer than 1000"),
            ("gzip", Bytes::from_static(b"{}"), "decompressed"),
            ("br", Bytes::from_static(b"{}"), "\"br\""),
        ] {
            let error = encoded(encoding, text).expect_err(why);
            assert!(error.contains(why), "{error}");
        }
        let plain = Bytes::from_static("\u{feff}[]".as_bytes());
        let plain = decoded(None, plain, 1000);
        assert_eq!(plain.as_deref(), Ok(&b"[]"[..]));
    }

    #[test]
    fn redirects_stay_within_the_origin() {
        let base: Uri = "http://a.test:8000/mcp?k=v".parse().expect("a URL");
        let at = |status: u16, location: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(LOCATION, location.parse().expect("a value"));
            let status = StatusCode::from_u16(status).expect("a status");
            let hint = status_hint(status, &headers, &base).expect("a hint");
            let followed = redirect(status, &headers, &base);
            (followed.map(|uri| uri.to_string()), hint)
        };
        let here = "http://a.test:8000/mcp/";
        for status in [307, 308] {
            assert_eq!(at(status, "/mcp/").0.as_deref(), Some(here));
            assert_eq!(at(status, here).0.as_deref(), Some(here));
        }
        for (status, location, shown) in [
            (301, "/mcp/", here),
            (302, "mcp/", here),
            (307, "https://a.test:8000/mcp/", "https://a.test:8000/mcp/"),
            (308, "http://a.test/mcp?key=1", "http://a.test/mcp?…"),
            (307, "//b.test/mcp", "http://b.test/mcp"),
            (307, "http://u:p@a.test:8000/", "http://a.test:8000/"),
        ] {
            let (followed, hint) = at(status, location);
            assert_eq!(followed, None, "{location}");
            let expect = format!(": it redirects to {shown}: set that URL for this server");
            assert_eq!(hint, expect);
        }
    }
}
