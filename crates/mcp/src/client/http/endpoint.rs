//! A server's endpoint: the URL without its secrets, and the configured headers.

use std::sync::Arc;

use base64::{Engine, engine::general_purpose::STANDARD};
use http::{
    HeaderMap, HeaderName, HeaderValue, Uri,
    header::{ACCEPT, AUTHORIZATION, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, TRANSFER_ENCODING},
    uri::{Authority, Parts, Scheme},
};
use percent_encoding::percent_decode_str;

use super::super::{Authorize, ConnectError, Sign};

pub(in crate::client) const PROTOCOL_VERSION: HeaderName =
    HeaderName::from_static("mcp-protocol-version");
pub(in crate::client) const SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");

/// Headers that the configuration cannot set.
const RESERVED_HEADERS: [HeaderName; 7] = [
    ACCEPT,
    CONNECTION,
    CONTENT_LENGTH,
    CONTENT_TYPE,
    TRANSFER_ENCODING,
    PROTOCOL_VERSION,
    SESSION_ID,
];

/// A server's validated URL and headers.
#[derive(Clone)]
pub(in crate::client) struct Endpoint {
    pub(in crate::client) uri: Uri,
    /// The parts of `uri` that requests need.
    pub(in crate::client) origin: Arc<Origin>,
    /// Host and port for messages, never userinfo, path or query.
    pub(in crate::client) peer: Arc<str>,
    /// Headers that the configuration adds to every request.
    pub(in crate::client) headers: HeaderMap,
    pub(in crate::client) authorize: Option<Arc<dyn Authorize>>,
    pub(in crate::client) sign: Option<Arc<dyn Sign>>,
}

/// A URL split into the parts that requests need.
pub(in crate::client) struct Origin {
    pub(in crate::client) uri: Uri,
    pub(in crate::client) tls: bool,
    pub(in crate::client) authority: Arc<str>,
    /// Origin form (RFC 9112, 3.2.1).
    pub(in crate::client) target: Uri,
    /// The `Host` header, unless the configuration sets it.
    pub(in crate::client) host: Option<HeaderValue>,
}

impl Origin {
    pub(in crate::client) fn new(uri: &Uri) -> Arc<Self> {
        let authority = uri.authority().map_or("", Authority::as_str);
        let tls = uri.scheme() == Some(&Scheme::HTTPS);
        let mut parts = Parts::default();
        parts.path_and_query = uri.path_and_query().cloned();
        let host = authority.strip_suffix(":80").filter(|_| !tls);
        Arc::new(Self {
            uri: uri.clone(),
            tls,
            authority: authority.into(),
            target: Uri::from_parts(parts).unwrap_or_default(),
            host: HeaderValue::from_str(host.unwrap_or(authority)).ok(),
        })
    }
}

impl Endpoint {
    /// Validates a URL and its headers.
    pub(in crate::client) fn new(
        url: &str,
        headers: &[(String, String)],
    ) -> Result<Self, ConnectError> {
        let refuse = |why: String| Err(ConnectError::Unreachable(why));
        let url = url.trim();
        let starts = |scheme: &str| {
            url.get(..scheme.len())
                .is_some_and(|start| start.eq_ignore_ascii_case(scheme))
        };
        if !starts("http://") && !starts("https://") {
            return refuse("the URL must start with http:// or https://".to_owned());
        }
        let Ok(uri) = url.parse::<Uri>() else {
            return refuse("the URL is invalid".to_owned());
        };
        let Some(authority) = uri.authority() else {
            return refuse("the URL has no host".to_owned());
        };
        let mut map = HeaderMap::with_capacity(headers.len() + 8);
        for (name, value) in headers {
            let Ok(key) = HeaderName::from_bytes(name.as_bytes()) else {
                let name: String = name.chars().take(80).collect();
                return refuse(format!("{name:?} is not a valid header name"));
            };
            // Configurations copied from other clients often contain these headers. The protocol sets them, so they are
            // ignored.
            if RESERVED_HEADERS.contains(&key) {
                tracing::debug!(header = %key, "ignored a configured header that the protocol sets");
                continue;
            }
            let Ok(mut value) = HeaderValue::from_str(value.trim()) else {
                return refuse(format!(
                    "the value of header {key} has characters that are not allowed in a header"
                ));
            };
            value.set_sensitive(true);
            map.append(key, value);
        }
        let host = authority.host();
        let mut bare = host.to_owned();
        if let Some(port) = authority.port() {
            bare = format!("{host}:{port}");
        }
        if let Some((userinfo, _)) = authority.as_str().rsplit_once('@')
            && !map.contains_key(AUTHORIZATION)
        {
            let basic = format!(
                "Basic {}",
                STANDARD.encode(percent_decode_str(userinfo).collect::<Vec<u8>>())
            );
            let mut value = HeaderValue::from_str(&basic).expect("Base64 is plain ASCII");
            value.set_sensitive(true);
            map.insert(AUTHORIZATION, value);
        }
        let mut parts = uri.clone().into_parts();
        let Ok(authority) = bare.parse::<Authority>() else {
            return refuse(format!("the URL's host {bare:?} is invalid"));
        };
        parts.authority = Some(authority);
        let Ok(uri) = Uri::from_parts(parts) else {
            return refuse("the URL is invalid".to_owned());
        };
        let peer = peer(&uri).into();
        Ok(Self {
            origin: Origin::new(&uri),
            uri,
            peer,
            headers: map,
            authorize: None,
            sign: None,
        })
    }

    /// Adds access tokens, unless the configuration sets `Authorization`.
    pub(in crate::client) fn authorized(self, authorize: Option<&Arc<dyn Authorize>>) -> Self {
        let authorize = authorize.filter(|_| !self.headers.contains_key(AUTHORIZATION));
        Self {
            authorize: authorize.cloned(),
            ..self
        }
    }

    /// The endpoint of another URL on the same server, with the same headers.
    pub(in crate::client) fn at(&self, uri: Uri) -> Self {
        Self {
            origin: Origin::new(&uri),
            uri,
            ..self.clone()
        }
    }

    /// [`Endpoint::excerpt`] as the end of a message: `: …`, or nothing.
    pub(in crate::client) fn detail(&self, text: &[u8]) -> String {
        let text = self.excerpt(text);
        match text.is_empty() {
            true => text,
            false => format!(": {text}"),
        }
    }

    /// A short, printable excerpt of a server's text, without any headers that we sent. Of a page, the title.
    pub(in crate::client) fn excerpt(&self, text: &[u8]) -> String {
        const MAX_EXCERPT_CHARS: usize = 200;
        let text = String::from_utf8_lossy(&text[..text.len().min(4 * MAX_EXCERPT_CHARS)]);
        let text = match text.trim_start().starts_with('<') {
            true => title(&text),
            false => &text,
        };
        let echoed = self.headers.values().any(|value| {
            let value = value.to_str().unwrap_or_default();
            let secret = value.rsplit(' ').next().unwrap_or_default();
            secret.len() >= 4 && text.contains(secret)
        });
        if echoed {
            return String::new();
        }
        let printable = text
            .chars()
            .map(|c| if c.is_control() { ' ' } else { c })
            .take(MAX_EXCERPT_CHARS)
            .collect::<String>();
        printable.trim().to_owned()
    }
}

/// The title of an HTML page, or nothing.
fn title(page: &str) -> &str {
    let lower = page.to_ascii_lowercase();
    let Some(from) = lower.find("<title") else {
        return "";
    };
    let Some(start) = lower[from..].find('>').map(|at| from + at + 1) else {
        return "";
    };
    let end = lower[start..].find('<').map_or(page.len(), |at| start + at);
    &page[start..end]
}

/// Host and port of a URL, with the scheme's default port if it has none.
pub(in crate::client) fn peer(uri: &Uri) -> String {
    let host = uri.host().unwrap_or_default();
    format!("{host}:{}", port(uri))
}

fn port(uri: &Uri) -> u16 {
    let default = if uri.scheme() == Some(&Scheme::HTTPS) {
        443
    } else {
        80
    };
    uri.port_u16().unwrap_or(default)
}

/// Resolves the message endpoint that a server announced. It must have the server's origin, because the messages and
/// the configured headers go there.
pub fn resolve(base: &Uri, reference: &str) -> Result<Uri, String> {
    let shown = || {
        reference
            .trim()
            .chars()
            .filter(|c| !c.is_control())
            .take(80)
            .collect::<String>()
    };
    let uri = resolved(base, reference)
        .ok_or_else(|| format!("the message endpoint {:?} is not a URL", shown()))?;
    if !is_same_origin(base, &uri) {
        return Err(format!(
            "the message endpoint {:?} is not at the server's own origin",
            shown()
        ));
    }
    Ok(uri)
}

/// Resolves a reference (RFC 3986, 5.2), without its fragment.
pub(super) fn resolved(base: &Uri, reference: &str) -> Option<Uri> {
    let scheme = base.scheme_str().unwrap_or("http");
    let authority = base.authority().map_or("", Authority::as_str);
    let reference = reference.trim().split('#').next().unwrap_or_default();
    let head = reference.split(['/', '?']).next().unwrap_or_default();
    let text = if head.contains(':') {
        reference.to_owned()
    } else if reference.starts_with("//") {
        format!("{scheme}:{reference}")
    } else if reference.starts_with('/') {
        format!("{scheme}://{authority}{}", without_dots(reference))
    } else if reference.starts_with('?') || reference.is_empty() {
        format!("{scheme}://{authority}{}{reference}", base.path())
    } else {
        let folder = base
            .path()
            .rsplit_once('/')
            .map_or("", |(folder, _)| folder);
        format!(
            "{scheme}://{authority}{}",
            without_dots(&format!("{folder}/{reference}"))
        )
    };
    text.parse().ok()
}

/// Returns true if a URL has the origin of `base` and no userinfo.
pub(super) fn is_same_origin(base: &Uri, uri: &Uri) -> bool {
    let same_host = uri
        .host()
        .zip(base.host())
        .is_some_and(|(one, other)| one.eq_ignore_ascii_case(other));
    let userinfo = uri
        .authority()
        .is_some_and(|authority| authority.as_str().contains('@'));
    uri.scheme() == base.scheme() && same_host && port(uri) == port(base) && !userinfo
}

/// Removes `.` and `..` segments from a path (RFC 3986, 5.2.4).
fn without_dots(path_and_query: &str) -> String {
    let (path, query) = match path_and_query.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (path_and_query, None),
    };
    let mut out: Vec<&str> = Vec::new();
    let mut segments = path.split('/').skip(1).peekable();
    while let Some(segment) = segments.next() {
        let last = segments.peek().is_none();
        match segment {
            "." => {}
            ".." => drop(out.pop()),
            other => {
                out.push(other);
                continue;
            }
        }
        if last {
            out.push("");
        }
    }
    let mut text = format!("/{}", out.join("/"));
    if let Some(query) = query {
        text.push('?');
        text.push_str(query);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_userinfo_out_of_the_url() {
        let endpoint =
            Endpoint::new("http://al%20:s3cret@example.test:8080/mcp?k=v", &[]).expect("a URL");
        assert_eq!(endpoint.uri, "http://example.test:8080/mcp?k=v");
        assert_eq!(&*endpoint.peer, "example.test:8080");
        let basic = endpoint.headers[AUTHORIZATION].to_str().expect("ASCII");
        assert_eq!(basic, "Basic YWwgOnMzY3JldA==");
        assert_eq!(endpoint.excerpt(basic.as_bytes()), "");
        assert_eq!(endpoint.excerpt(b"no\r\nway"), "no  way");
        let page = b"<!doctype html><head><Title lang=en>Sign in</title></head>";
        assert_eq!(endpoint.excerpt(page), "Sign in");
        assert_eq!(endpoint.excerpt(b"<html><body>text"), "");
    }

    #[test]
    fn refuses_bad_urls_and_headers() {
        let header = |name: &str, value: &str| vec![(name.to_owned(), value.to_owned())];
        for (url, headers, why) in [
            ("example.test/mcp", vec![], "http://"),
            ("ftp://example.test/", vec![], "http://"),
            ("http://", vec![], "URL"),
            ("http://a/", header("a b", "c"), "not a valid header name"),
            ("http://a/", header("A", "b\nc"), "characters"),
        ] {
            let error = Endpoint::new(url, &headers).map(|_| ()).expect_err(url);
            assert!(error.to_string().contains(why), "{url}: {error}");
        }
    }

    #[test]
    fn resolves_only_within_the_origin() {
        let base: Uri = "http://Example.test:80/a/sse?x=1".parse().expect("a URL");
        for (reference, expect) in [
            ("/m?s=1", "http://Example.test:80/m?s=1"),
            ("m", "http://Example.test:80/a/m"),
            ("../m/./n/..", "http://Example.test:80/m/"),
            ("?s=a/../b", "http://Example.test:80/a/sse?s=a/../b"),
            ("http://example.test/m", "http://example.test/m"),
            ("//example.test:80/m", "http://example.test:80/m"),
        ] {
            assert_eq!(
                resolve(&base, reference).map(|uri| uri.to_string()),
                Ok(expect.to_owned())
            );
        }
        for foreign in [
            "http://other.test/m",
            "https://example.test/m",
            "http://example.test:81/m",
            "//other.test/m",
            "http://u:p@example.test/m",
            "javascript:alert(1)",
            "http:///m",
            "\u{0}",
        ] {
            assert!(resolve(&base, foreign).is_err(), "{foreign}");
        }
    }
}
