//! URIs: of resources as clients see them, of message endpoints, of proxies, and URLs as they are shown.
//!
//! The parts of an input are the name of a server, a URI, and a second URI.

use bytes::Bytes;
use http::Uri;
use mcp::{
    client::http::resolve,
    json::{self, Object, Splice},
    uri,
};
use model::{NoProxy, Proxy, ServerName, origin_and_prefix, url_for_display};
use oauth::well_known;
use url::Url;

use crate::pieces;

pub(crate) const WORDS: &[&str] = &[
    "://",
    "http://",
    "https://",
    "resource://",
    "ui://",
    "skill://",
    "file:///",
    "localhost",
    "127.0.0.1",
    "[::1]",
    "[::ffff:10.0.0.1]",
    "user:password@",
    "@",
    ":80",
    ":65536",
    "//",
    "/../",
    "/./",
    "?a=b",
    "#c",
    "%2F",
    "{+path}",
    "10.0.0.0/8",
    "*.example.com",
    "xn--",
];

pub(crate) fn run(input: &[u8]) {
    let [server, one, other] = pieces::parts(input).map(pieces::text);
    if let Ok(server) = ServerName::parse(&server) {
        resource(&uri::prefix(&server), &one);
    }
    let _ = uri::split(&one);
    shown(&one);
    proxies(&one, &other);
    endpoint(&one, &other);
    if let Ok(issuer) = Url::parse(&one)
        && issuer.origin().is_tuple()
    {
        for place in well_known(&issuer) {
            assert_eq!(place.origin(), issuer.origin());
        }
    }
}

/// A native URI comes back, and is exposed in JSON as it is by itself.
fn resource(prefix: &str, native: &str) {
    let exposed = uri::exposed(prefix, native);
    let (label, found) = uri::split(&exposed).expect("an exposed URI");
    assert_eq!((label, &*found), (uri::label(prefix), native));
    let text = format!("{{\"uri\":{}}}", json::quote(native));
    // Slashes may be escaped.
    for text in [text.clone(), text.replace('/', "\\/")] {
        let text = Bytes::from(text);
        let object = Object::of(&text).expect("an object");
        let mut splice = Splice::new();
        uri::expose_at(&text, object.find("uri"), prefix, &mut splice);
        let spliced = splice.apply(&text);
        let inside = Object::of(&spliced).and_then(|object| object.string("uri"));
        assert_eq!(inside.as_deref(), Some(&*exposed));
    }
}

/// A URL is shown without its user and without its query.
fn shown(url: &str) {
    let shown = url_for_display(url);
    let (origin, prefix) = origin_and_prefix(url);
    assert_eq!(format!("{origin}{prefix}"), url);
    let Ok(parsed) = Url::parse(url) else { return };
    let is_web =
        ["http", "https"].contains(&parsed.scheme()) && !url.contains(['\\', '\t', '\n', '\r']);
    if is_web && url.starts_with("http") {
        let again = url_for_display(&shown);
        assert_eq!(again.trim_end_matches("?…"), shown.trim_end_matches("?…"));
    }
    if let Some(password) = parsed
        .password()
        .filter(|password| is_web && password.len() > 8 && url.matches(password).count() == 1)
    {
        assert!(!shown.contains(password), "{shown}");
    }
    if let Some(query) = parsed.query().filter(|query| query.len() > 8) {
        assert!(!shown.ends_with(query), "{shown}");
    }
}

fn proxies(one: &str, other: &str) {
    match Proxy::parse(one) {
        Ok(proxy) => {
            // Its own text is a proxy at the same place, without credentials.
            let again = Proxy::parse(&format!("http://{proxy}")).expect("a proxy");
            assert_eq!((again.host(), again.port()), (proxy.host(), proxy.port()));
            assert!(again.authorization().is_none());
            let authorization = proxy.authorization().unwrap_or_default();
            assert!(
                authorization
                    .bytes()
                    .all(|byte| (b' '..=b'~').contains(&byte))
            );
        }
        Err(why) => assert!(!why.contains(char::is_control), "{why:?}"),
    }
    let none = NoProxy::parse(other);
    let is_covered = none.covers(one, 443);
    let more = NoProxy::parse(&format!("{other},{other}"));
    assert_eq!(more.covers(one, 443), is_covered);
    assert!(NoProxy::parse("*").covers(one, 443));
    assert!(!NoProxy::parse("").covers(one, 443));
}

/// A message endpoint is at the server's own origin, and resolving it again changes nothing.
fn endpoint(base: &str, reference: &str) {
    let Ok(base) = base.parse::<Uri>() else {
        return;
    };
    if base.authority().is_none() || base.scheme().is_none() {
        return;
    }
    match resolve(&base, reference) {
        Ok(found) => {
            assert_eq!(found.scheme(), base.scheme());
            let hosts = (found.host(), base.host());
            assert!(
                hosts
                    .0
                    .zip(hosts.1)
                    .is_some_and(|(one, two)| one.eq_ignore_ascii_case(two)),
                "{hosts:?}"
            );
            let again = resolve(&base, &found.to_string());
            assert_eq!(again.as_ref(), Ok(&found));
        }
        Err(why) => assert!(!why.contains(char::is_control), "{why:?}"),
    }
}
