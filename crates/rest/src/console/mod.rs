//! The console: the page at `/`, which uses only the REST API. Its source is `web/`.
//!
//! Invariants: the page needs no key, because it is the same for all users. All its data comes from the API, with the
//! session of the browser (`signin`). It runs only scripts served here, adds styles only with the nonce of its
//! response, creates no scripts from text (trusted types), and cannot be framed. It frames only the sandbox of Apps
//! (`apps`). The files are in the binary, compressed (`build.rs`). Files in `assets/` have a digest in their name, so
//! that browsers can cache them permanently; the page itself is fetched every time. The page names its files relative to
//! the root, so it works below any path. Deliberately absent: page paths, which `web/` interprets. For unknown
//! paths, browsers get status 404 with the page, which says that the path is unknown.

mod apps;

use std::sync::Arc;

use axum::{
    Router,
    http::{HeaderMap, HeaderName, StatusCode, Uri, header},
    response::{IntoResponse, Response},
    routing::get,
};
use backend::html::root;
use sha2::{Digest as _, Sha256};

pub use self::apps::Apps;

/// Path and gzip of each file of `web/dist`.
const FILES: &[(&str, &[u8])] = include!(concat!(env!("OUT_DIR"), "/console.rs"));
const PAGE: &str = include_str!("../../../../web/dist/index.html");
/// The placeholder of the nonce in the page, for libraries that add styles.
const NONCE: &str = "{nonce}";
/// The placeholder of the origin for Apps.
const APPS: &str = "{apps}";

/// The beginning of the address of each file that the page names. Vite writes it.
const RELATIVE: &str = "=\"./";

/// The typeface of the page, under a path without a digest: the sign-in page uses it, too.
const FONT: &str = "/inter.woff2";
/// The beginning of the path of its file.
const FONT_FILE: &str = "assets/inter-latin-wght-normal";

/// First segments of the console's paths. All of them return the page.
const PAGES: [&str; 11] = [
    "chat",
    "servers",
    "tools",
    "calls",
    "approvals",
    "projects",
    "keys",
    "install",
    "connect",
    "health",
    "settings",
];

/// `apps`: the origin on which Apps are drawn, if available. `prefix`: the path of the gateway's URL.
pub fn router(apps: Option<&str>, prefix: &str) -> Router {
    let (apps, prefix): (Arc<str>, Arc<str>) = (apps.unwrap_or_default().into(), prefix.into());
    let page = move |uri: Uri| page(apps.clone(), root(&prefix, uri.path()));
    let mut router = Router::new().route("/", get(page.clone()));
    for first in PAGES {
        router = router
            .route(&format!("/{first}"), get(page.clone()))
            .route(&format!("/{first}/{{*rest}}"), get(page.clone()));
    }
    for (path, _) in FILES.iter().filter(|(path, _)| *path != "index.html") {
        router = router.route(&format!("/{path}"), get(file));
    }
    router = router.route(FONT, get(font));
    let lost = move |headers: HeaderMap, uri: Uri| {
        let shown = is_browser(&headers).then(|| page(uri));
        async move {
            match shown {
                Some(shown) => (StatusCode::NOT_FOUND, shown.await).into_response(),
                None => StatusCode::NOT_FOUND.into_response(),
            }
        }
    };
    router.fallback(lost)
}

/// Returns whether a request comes from a user who opens a page.
fn is_browser(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(header::ACCEPT).iter();
    accepted
        .filter_map(|value| value.to_str().ok())
        .any(|value| value.contains("text/html"))
}

async fn page(apps: Arc<str>, root: String) -> Response {
    let nonce = hex::encode(rand::random::<[u8; 16]>());
    let frames = if apps.is_empty() { "'none'" } else { &*apps };
    let policy = format!(
        "default-src 'none'; script-src 'self'; style-src 'self' 'nonce-{nonce}'; img-src 'self' data:; font-src 'self'; \
         connect-src 'self'; frame-src {frames}; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; \
         require-trusted-types-for 'script'; trusted-types 'none'"
    );
    let headers: [(HeaderName, &str); 6] = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CONTENT_SECURITY_POLICY, &policy),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "same-origin"),
        (header::X_FRAME_OPTIONS, "DENY"),
        // The nonce is valid for one response only, so the page must not be cached.
        (header::CACHE_CONTROL, "no-store"),
    ];
    let page = PAGE.replace(NONCE, &nonce).replace(APPS, &apps);
    (headers, page.replace(RELATIVE, &format!("=\"{root}"))).into_response()
}

/// Always compressed: every browser that runs the console accepts gzip.
async fn file(uri: Uri, headers: HeaderMap) -> Response {
    let path = uri.path().trim_start_matches('/');
    let cached = match path.starts_with("assets/") {
        true => "public, max-age=31536000, immutable",
        false => "no-cache",
    };
    send(&headers, cached, |known| known == path)
}

async fn font(headers: HeaderMap) -> Response {
    send(&headers, "no-cache", |path| path.starts_with(FONT_FILE))
}

fn send(headers: &HeaderMap, cached: &str, is_it: impl Fn(&str) -> bool) -> Response {
    let Some((path, compressed)) = FILES.iter().find(|(path, _)| is_it(path)) else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let tag = format!("\"{}\"", hex::encode(&Sha256::digest(compressed)[..16]));
    let known = headers.get(header::IF_NONE_MATCH);
    if known.is_some_and(|known| known.as_bytes() == tag.as_bytes()) {
        return (StatusCode::NOT_MODIFIED, [(header::ETAG, tag)]).into_response();
    }
    let headers: [(HeaderName, &str); 5] = [
        (header::CONTENT_TYPE, kind(path)),
        (header::CONTENT_ENCODING, "gzip"),
        (header::CACHE_CONTROL, cached),
        (header::ETAG, &tag),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    (headers, *compressed).into_response()
}

fn kind(path: &str) -> &'static str {
    match path.rsplit_once('.').map_or("", |(_, end)| end) {
        "js" => "text/javascript; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "svg" => "image/svg+xml",
        "txt" => "text/plain; charset=utf-8",
        "woff2" => "font/woff2",
        _ => "application/octet-stream",
    }
}
