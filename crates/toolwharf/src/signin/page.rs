//! `/sign-in`: with a one-time link, a key, or at an issuer. The outcome is a session of the browser (`auth::Browsers`).
//!
//! Invariants: a session is opened only by a page of this gateway or by an issuer's answer that this browser waited for; keys and links
//! are in bodies, never in the address that is sent; nobody is sent to another site, but to an issuer. What a link's secret is
//! stands behind the `#`, which browsers do not send.

use std::{fmt::Write as _, sync::Arc};

use axum::{
    Router,
    extract::{DefaultBodyLimit, Path, Query, State},
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use serde::Deserialize;

use crate::{
    auth::{Answer, Principal, Refused},
    gateway::Front,
    html::escaped,
    tickets::LINK,
};

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; form-action 'self'; base-uri 'none'; \
                      frame-ancestors 'none'";
/// The cookie of a sign-in at an issuer that is under way.
const WAITING: &str = "toolwharf-sign-in";
/// Largest form, in bytes.
const FORM_BYTES: usize = 16 << 10;

type SignIn = State<Arc<Front>>;

pub(super) fn router(front: Arc<Front>) -> Router {
    let part = |kind: &'static str, text: &'static str| {
        get(async move || page(StatusCode::OK, kind, text.to_owned()))
    };
    Router::new()
        .route("/sign-in", get(form).post(enter))
        .route("/sign-in/with/{issuer}", get(begin))
        .route("/sign-in/callback", get(finish))
        .route("/sign-out", post(leave))
        .route(
            "/sign-in/sign-in.css",
            part("text/css", include_str!("sign-in.css")),
        )
        .route(
            "/sign-in/sign-in.js",
            part("text/javascript", include_str!("sign-in.js")),
        )
        .layer(DefaultBodyLimit::max(FORM_BYTES))
        .with_state(front)
}

#[derive(Default, Deserialize)]
struct Entered {
    /// A key, or the secret part of a link.
    #[serde(default)]
    key: String,
    #[serde(default)]
    link: String,
    #[serde(default)]
    next: String,
}

async fn form(State(front): SignIn, Query(entered): Query<Entered>) -> Response {
    shown(&front, StatusCode::OK, "", &next(&entered.next))
}

/// Opens a session with a key or a link.
async fn enter(State(front): SignIn, headers: HeaderMap, body: String) -> Response {
    if !front.guard().is_own_page(&headers) {
        let why = "Sign in on this page only.";
        return shown(&front, StatusCode::FORBIDDEN, why, "/");
    }
    let mut entered = Entered::default();
    for (name, value) in url::form_urlencoded::parse(body.as_bytes()) {
        match &*name {
            "key" => entered.key = value.trim().to_owned(),
            "link" => entered.link = value.into_owned(),
            "next" => entered.next = value.into_owned(),
            _ => {}
        }
    }
    let next = next(&entered.next);
    let identities = front.guard().identities();
    let (who, why) = match entered.link.is_empty() {
        true => (
            Ok(identities.keys.identify(&entered.key)),
            "This key opens nothing here: it is unknown, revoked or expired.",
        ),
        false => (
            identities.browsers.redeem(&entered.link).await,
            "This link was used before, or is too old. Run toolwharf open for another one.",
        ),
    };
    match who {
        Ok(Some(who)) => enter_as(&front, &who, &next).await,
        Ok(None) => shown(&front, StatusCode::UNAUTHORIZED, why, &next),
        Err(error) => away(&front, &error, &next),
    }
}

/// Opens a session for them.
async fn enter_as(front: &Front, who: &Principal, next: &str) -> Response {
    match front.guard().identities().browsers.open(who).await {
        Ok(cookie) => opened(cookie, next),
        Err(error) => away(front, &error, next),
    }
}

/// Ends the session.
async fn leave(State(front): SignIn, headers: HeaderMap) -> Response {
    if !front.guard().is_own_page(&headers) {
        return StatusCode::FORBIDDEN.into_response();
    }
    match front.guard().identities().browsers.close(&headers).await {
        Ok(cookie) => opened(cookie, "/sign-in"),
        Err(error) => away(&front, &error, "/"),
    }
}

/// Sends the browser to an issuer.
async fn begin(
    State(front): SignIn,
    Path(issuer): Path<String>,
    Query(entered): Query<Entered>,
) -> Response {
    let identities = front.guard().identities();
    let begun = identities
        .codes
        .begin(&identities.tokens, &issuer, next(&entered.next));
    match begun.await {
        Ok((url, waiting)) => {
            let secure = if url.starts_with("https://")
                && identities.tokens.base().starts_with("https://")
            {
                "; Secure"
            } else {
                ""
            };
            let seconds = LINK.as_secs();
            // Lax: the issuer sends the browser back from another site.
            let cookie = format!(
                "{WAITING}={waiting}; Path=/sign-in; Max-Age={seconds}; HttpOnly; SameSite=Lax{secure}"
            );
            let headers = [(header::LOCATION, url), (header::SET_COOKIE, cookie)];
            (StatusCode::SEE_OTHER, headers).into_response()
        }
        Err(refused) => failed(&front, &refused),
    }
}

/// Takes in the issuer's answer.
async fn finish(
    State(front): SignIn,
    Query(answer): Query<Answer>,
    headers: HeaderMap,
) -> Response {
    let cookies = headers.get_all(header::COOKIE).into_iter();
    let cookies = cookies.filter_map(|cookies| cookies.to_str().ok());
    let mut cookies = cookies.flat_map(|cookies| cookies.split(';'));
    let waiting = cookies.find_map(|cookie| {
        let (name, value) = cookie.trim().split_once('=')?;
        (name == WAITING).then_some(value)
    });
    let identities = front.guard().identities();
    let finished = identities
        .codes
        .finish(&identities.tokens, answer, waiting.unwrap_or_default());
    match finished.await {
        Ok((who, next)) => enter_as(&front, &who, &next).await,
        Err(refused) => failed(&front, &refused),
    }
}

fn away(front: &Front, error: &store::Error, next: &str) -> Response {
    let why = format!("Nothing was changed: {error}. Try again.");
    shown(front, StatusCode::SERVICE_UNAVAILABLE, &why, next)
}

fn failed(front: &Front, refused: &Refused) -> Response {
    let (status, why) = match refused {
        Refused::Invalid(why) => (
            StatusCode::BAD_REQUEST,
            format!("Nobody is signed in: {why}."),
        ),
        Refused::Scope => (
            StatusCode::FORBIDDEN,
            "Nobody is signed in: scopes are missing.".to_owned(),
        ),
        Refused::Nobody(id) => (
            StatusCode::FORBIDDEN,
            format!(
                "{id} is signed in at the issuer, and no rule of `access` gives them a role here: ask an administrator."
            ),
        ),
        Refused::Away(why) => (
            StatusCode::SERVICE_UNAVAILABLE,
            format!("Nobody is signed in: {why}."),
        ),
    };
    shown(front, status, &why, "/")
}

/// A path of this gateway to go on at.
fn next(asked: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/?=&%".contains(&byte);
    let ours = asked.starts_with('/') && !asked.starts_with("//") && asked.bytes().all(plain);
    match ours && asked.len() <= 1024 {
        true => asked.to_owned(),
        false => "/".to_owned(),
    }
}

/// Sets the cookie and goes on. By a page and not by a redirect: browsers send a strict cookie only where a page of the same site leads.
fn opened(cookie: String, next: &str) -> Response {
    let html = format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>Toolwharf</title>\
         <meta http-equiv=\"refresh\" content=\"0;url={}\"><p><a href=\"{0}\">Go on</a></p></html>",
        escaped(next)
    );
    let mut response = page(StatusCode::OK, "text/html", html);
    if let Ok(cookie) = HeaderValue::try_from(cookie) {
        response.headers_mut().insert(header::SET_COOKIE, cookie);
    }
    response
}

fn shown(front: &Front, status: StatusCode, why: &str, next: &str) -> Response {
    let mut issuers = String::new();
    let query = url::form_urlencoded::byte_serialize(next.as_bytes()).collect::<String>();
    for name in front.guard().identities().tokens.sign_ins() {
        let _ = write!(
            issuers,
            "<p><a class=\"button\" href=\"/sign-in/with/{name}?next={query}\">Sign in with {name}</a></p>"
        );
    }
    let html = include_str!("sign-in.html")
        .replace("{why}", &escaped(why))
        .replace("{next}", &escaped(next))
        .replace("{issuers}", &issuers);
    page(status, "text/html", html)
}

fn page(status: StatusCode, kind: &'static str, text: String) -> Response {
    let headers: [(HeaderName, String); 6] = [
        (header::CONTENT_TYPE, format!("{kind}; charset=utf-8")),
        (header::CONTENT_SECURITY_POLICY, POLICY.to_owned()),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff".to_owned()),
        (header::REFERRER_POLICY, "same-origin".to_owned()),
        (header::X_FRAME_OPTIONS, "DENY".to_owned()),
        (header::CACHE_CONTROL, "no-store".to_owned()),
    ];
    (status, headers, text).into_response()
}
