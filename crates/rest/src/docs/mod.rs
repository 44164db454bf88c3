//! `/docs`: Scalar, which renders `/openapi.json`.
//!
//! Invariants: neither page needs a key, since their content is the same on every gateway. Nothing is loaded from
//! another host. The only scripts are those served here. Styles are inline, because Scalar creates them at run time.
//! Deliberately absent: a build step. `scalar.js.gz` is a compressed file of the npm package `@scalar/api-reference`.
//! To update it, run these commands and change the version in `docs.html`:
//!
//! ```sh
//! npm pack @scalar/api-reference@1.72.1
//! tar xzfO scalar-api-reference-1.72.1.tgz package/dist/browser/standalone.js |
//!     sed '/^\/\/# sourceMappingURL=/d' | gzip -9n > scalar.js.gz
//! ```

use std::sync::{Arc, LazyLock};

use axum::{
    Router,
    http::{HeaderMap, HeaderName, HeaderValue, header},
    response::{IntoResponse, Response},
    routing::get,
};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use bytes::Bytes;
use parking_lot::Mutex;
use sha2::{Digest, Sha256};

use super::openapi::document;
use auth::base_of;
use model::origin_and_prefix;

const PAGE: &str = include_str!("docs.html");
const SCALAR: &[u8] = include_bytes!("scalar.js.gz");

/// `prefix`: the path of the gateway's URL.
pub(super) fn router<S: Clone + Send + Sync + 'static>(prefix: &str) -> Router<S> {
    let prefix = prefix.to_owned();
    let text = Arc::new(LazyLock::new(move || text_below(prefix)));
    // The text below the last prefix that a trusted proxy named. Usually there is only one.
    let proxied = Arc::new(Mutex::new((String::new(), Bytes::new())));
    let document = move |headers: HeaderMap| {
        let text = match base_of(&headers).map(|base| origin_and_prefix(base).1) {
            Some(prefix) => {
                let mut last = proxied.lock();
                if last.1.is_empty() || last.0 != prefix {
                    *last = (prefix.to_owned(), text_below(prefix.to_owned()));
                }
                last.1.clone()
            }
            None => Bytes::clone(&text),
        };
        std::future::ready(serve_document(text))
    };
    Router::new()
        .route("/openapi.json", get(document))
        .route("/docs", get(serve_page))
        .route("/docs/scalar.js", get(serve_scalar))
}

/// The text of the document. Its server is the gateway, below this prefix.
fn text_below(prefix: String) -> Bytes {
    let mut document = document();
    if !prefix.is_empty() {
        document["servers"][0]["url"] = prefix.into();
    }
    document.to_string().into()
}

fn serve_document(text: Bytes) -> Response {
    let kind = HeaderValue::from_static("application/json");
    ([(header::CONTENT_TYPE, kind)], text).into_response()
}

async fn serve_page() -> Response {
    static POLICY: LazyLock<String> = LazyLock::new(|| {
        let script = PAGE.split_once("<script>").map_or("", |(_, rest)| rest);
        let script = script
            .split_once("</script>")
            .map_or("", |(script, _)| script);
        let digest = BASE64_STANDARD.encode(Sha256::digest(script));
        format!(
            "default-src 'none'; script-src 'self' 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:; \
             connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
    });
    let headers = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CONTENT_SECURITY_POLICY, POLICY.as_str()),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
    ];
    (headers, PAGE).into_response()
}

/// The response is always compressed. Every browser that can run the script accepts gzip.
async fn serve_scalar() -> Response {
    let headers: [(HeaderName, &str); 4] = [
        (header::CONTENT_TYPE, "text/javascript; charset=utf-8"),
        (header::CONTENT_ENCODING, "gzip"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        // The page's URL contains the version, so a new version is fetched again.
        (header::CACHE_CONTROL, "public, max-age=31536000, immutable"),
    ];
    (headers, SCALAR).into_response()
}
