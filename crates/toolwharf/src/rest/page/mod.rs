//! `/chat`: a page to talk to the agent with.
//!
//! Invariants: the page needs no key, because it says nothing; all that it shows comes over the API, with the key of
//! whoever looks. It runs only what is served here (no script or style of its own in the HTML, nothing from
//! elsewhere), and may not be framed. Without a key the session of the browser counts (`signin`). Deliberately absent: a build step, a framework. What models, tools and
//! web pages say is untrusted; `chat.js` says how it is drawn.

use axum::{
    Router,
    extract::State,
    http::{HeaderName, StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};

use super::AppState;

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'";

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

pub(super) fn router() -> Router<AppState> {
    let part = |kind, text| get(async move || file(kind, text));
    Router::new()
        .route("/chat", get(page))
        .route("/chat/chat.css", part(CSS, include_str!("chat.css")))
        .route("/chat/chat.js", part(SCRIPT, include_str!("chat.js")))
        .route("/chat/icon.svg", part(SVG, include_str!("icon.svg")))
}

/// The page, or what to do where there is no agent.
async fn page(State(rest): State<AppState>) -> Response {
    match rest.gateway.settings().agent {
        Some(_) => file(HTML, include_str!("chat.html")),
        None => (StatusCode::NOT_FOUND, file(HTML, include_str!("none.html"))).into_response(),
    }
}

fn file(kind: &'static str, text: &'static str) -> Response {
    let headers: [(HeaderName, &str); 6] = [
        (header::CONTENT_TYPE, kind),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::X_FRAME_OPTIONS, "DENY"),
        // Another version may be served at this address a minute later.
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (headers, text).into_response()
}
