//! The `/sign-in` page: people sign in with a one-time link, a key, or at an issuer. The result is a browser session
//! (`auth::Browsers`).
//!
//! The page's script posts the form and gets JSON. The response that opens a session sets its cookie and contains its
//! page secret, which the script puts into the storage of this origin. No later response contains that secret.
//!
//! Invariants: a session is opened only by a page of this gateway (`Origin`) with a form token, or with an issuer's
//! response that this tab waited for. Keys and links are sent in request bodies, never in URLs. Redirects lead only to
//! this gateway or to an issuer. The secret of a link follows the `#`, which browsers do not send. An issuer's redirect
//! (`/sign-in/callback`) only shows the page: its script posts the parameters, together with the secret that it put
//! into its tab's session storage when the sign-in began.

use std::{fmt::Write as _, sync::Arc};

use axum::{
    Json, Router,
    extract::{DefaultBodyLimit, Path, Query, State},
    http::{HeaderMap, StatusCode, Uri, header},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use serde::Deserialize;
use serde_json::json;

use crate::HttpGateway;
use auth::{Principal, Refused};
use backend::html::{escaped, root};

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; font-src 'self'; \
                      connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";
/// Maximum bytes of a form.
const MAX_FORM_BYTES: usize = 16 << 10;
/// The purpose of the page's form tokens.
const FORM_PURPOSE: &str = "/sign-in";

type SignIn = State<Arc<HttpGateway>>;

pub(super) fn router(front: Arc<HttpGateway>) -> Router {
    let part = |kind: &'static str, text: &'static str| {
        get(async move || page(StatusCode::OK, kind, text.to_owned()))
    };
    Router::new()
        .route("/sign-in", get(form).post(enter))
        .route("/sign-in/with/{issuer}", post(begin))
        .route("/sign-in/callback", get(form).post(finish))
        .route("/sign-out", post(leave))
        .route(
            "/sign-in/sign-in.css",
            part("text/css", include_str!("sign-in.css")),
        )
        .route(
            "/sign-in/sign-in.js",
            part("text/javascript", include_str!("sign-in.js")),
        )
        .layer(DefaultBodyLimit::max(MAX_FORM_BYTES))
        .with_state(front)
}

#[derive(Default, Deserialize)]
struct Entered {
    /// The key. Ignored if `link`, the secret part of a one-time link, is not empty.
    #[serde(default)]
    key: String,
    #[serde(default)]
    link: String,
    #[serde(default)]
    next: String,
    /// The form token.
    #[serde(default)]
    form: String,
}

impl Entered {
    fn parse(body: &str) -> Self {
        let mut entered = Self::default();
        for (name, value) in url::form_urlencoded::parse(body.as_bytes()) {
            match &*name {
                "key" => entered.key = value.trim().to_owned(),
                "link" => entered.link = value.into_owned(),
                "next" => entered.next = value.into_owned(),
                "form" => entered.form = value.into_owned(),
                _ => {}
            }
        }
        entered
    }
}

/// A refusal, as shown on the page.
struct No(StatusCode, String);

impl No {
    fn answer(self, front: &HttpGateway) -> Response {
        let Self(status, why) = self;
        let form = front
            .guard()
            .identities()
            .tickets
            .form_token(FORM_PURPOSE, "");
        let body = Json(json!({ "why": why, "form": form }));
        (status, [(header::CACHE_CONTROL, "no-store")], body).into_response()
    }

    fn of_database(error: &store::Error) -> Self {
        let why = format!("Nothing was changed: {error}. Try again.");
        Self(StatusCode::SERVICE_UNAVAILABLE, why)
    }

    fn of(refused: Refused) -> Self {
        let (status, why) = match refused {
            Refused::Invalid(why) => (StatusCode::BAD_REQUEST, format!("Sign-in failed: {why}.")),
            Refused::Scope => (
                StatusCode::FORBIDDEN,
                "Sign-in failed: the token lacks a required scope.".to_owned(),
            ),
            Refused::Nobody(id) => (
                StatusCode::FORBIDDEN,
                format!(
                    "{id} is signed in at the issuer, but no rule in `access` grants a role on this gateway: ask an administrator."
                ),
            ),
            Refused::Away(why) => (
                StatusCode::SERVICE_UNAVAILABLE,
                format!("Sign-in failed: {why}."),
            ),
        };
        Self(status, why)
    }
}

async fn form(State(front): SignIn, uri: Uri, Query(entered): Query<Entered>) -> Response {
    let next = next(&entered.next);
    let identities = front.guard().identities();
    let mut issuers = String::new();
    for name in identities.tokens.sign_ins() {
        let _ = write!(
            issuers,
            "<button class=\"issuer\" data-issuer=\"{name}\">Sign in with {name}</button>"
        );
    }
    let html = include_str!("sign-in.html")
        .replace("{form}", &identities.tickets.form_token(FORM_PURPOSE, ""))
        .replace("{next}", &escaped(&next))
        .replace("{root}", &root(front.guard().prefix(), uri.path()))
        .replace("{issuers}", &issuers);
    page(StatusCode::OK, "text/html", html)
}

/// Opens a session with a key or a link.
async fn enter(State(front): SignIn, headers: HeaderMap, body: String) -> Response {
    let entered = Entered::parse(&body);
    let entering = async {
        own_page(&front, &headers)?;
        let identities = front.guard().identities();
        let (who, why) = match entered.link.is_empty() {
            true => {
                let who = identities.keys.identify(&entered.key);
                let why = "This key is unknown, revoked or expired.";
                // A wrong key changes nothing, so it does not use up the form token.
                if who.is_some() {
                    use_form(&front, &entered.form).await?;
                }
                (who, why)
            }
            false => {
                use_form(&front, &entered.form).await?;
                let who = identities.browsers.redeem(&entered.link).await;
                let why = "This link was used before, or is older than ten minutes. Run toolwharf open for another one.";
                (who.map_err(|error| No::of_database(&error))?, why)
            }
        };
        let who = who.ok_or_else(|| No(StatusCode::UNAUTHORIZED, why.to_owned()))?;
        open(&front, &headers, &who, &next(&entered.next)).await
    };
    entering.await.unwrap_or_else(|no| no.answer(&front))
}

async fn leave(State(front): SignIn, headers: HeaderMap) -> Response {
    let leaving = async {
        own_page(&front, &headers)?;
        let closed = front.guard().identities().browsers.close(&headers).await;
        let cookie = closed.map_err(|error| No::of_database(&error))?;
        Ok::<_, No>((StatusCode::NO_CONTENT, [(header::SET_COOKIE, cookie)]).into_response())
    };
    leaving.await.unwrap_or_else(|no| no.answer(&front))
}

/// Returns the issuer's URL to open and the secret to keep until the redirect.
async fn begin(
    State(front): SignIn,
    Path(issuer): Path<String>,
    headers: HeaderMap,
    body: String,
) -> Response {
    let entered = Entered::parse(&body);
    let beginning = async {
        own_page(&front, &headers)?;
        use_form(&front, &entered.form).await?;
        let identities = front.guard().identities();
        let base = front.guard().base(&headers);
        let begun = identities
            .codes
            .begin(&identities.tokens, base, &issuer, next(&entered.next));
        let (url, browser) = begun.await.map_err(No::of)?;
        let body = Json(json!({ "url": url, "browser": browser }));
        Ok::<_, No>(([(header::CACHE_CONTROL, "no-store")], body).into_response())
    };
    beginning.await.unwrap_or_else(|no| no.answer(&front))
}

/// Opens a session with an issuer's response. No form token is needed: the response's state and the tab's secret can
/// each be used only once.
async fn finish(State(front): SignIn, headers: HeaderMap, body: String) -> Response {
    let finishing = async {
        own_page(&front, &headers)?;
        let identities = front.guard().identities();
        let base = front.guard().base(&headers);
        let finished = identities.codes.finish(&identities.tokens, base, &body);
        let finished = finished.await;
        let (who, next) = finished.map_err(No::of)?;
        open(&front, &headers, &who, &next).await
    };
    finishing.await.unwrap_or_else(|no| no.answer(&front))
}

fn own_page(front: &HttpGateway, headers: &HeaderMap) -> Result<(), No> {
    match front.guard().is_own_page(headers) {
        true => Ok(()),
        false => Err(No(
            StatusCode::FORBIDDEN,
            "This request did not come from a page of this Toolwharf. Sign in or out on its own pages.".to_owned(),
        )),
    }
}

async fn use_form(front: &HttpGateway, token: &str) -> Result<(), No> {
    let tickets = &front.guard().identities().tickets;
    let used = tickets.use_form_token(FORM_PURPOSE, "", token).await;
    match used.map_err(|error| No::of_database(&error))? {
        true => Ok(()),
        false => Err(No(
            StatusCode::FORBIDDEN,
            "This form was sent before, or is older than ten minutes. Try again.".to_owned(),
        )),
    }
}

/// Opens a session: sets the cookie and returns the page secret.
async fn open(
    front: &HttpGateway,
    headers: &HeaderMap,
    who: &Principal,
    next: &str,
) -> Result<Response, No> {
    let browsers = &front.guard().identities().browsers;
    let opened = browsers.open(who, headers).await;
    let opened = opened.map_err(|error| No::of_database(&error))?;
    let headers = [
        (header::CACHE_CONTROL, "no-store".to_owned()),
        (header::SET_COOKIE, opened.cookie),
    ];
    let body = Json(json!({ "session": opened.page_secret, "next": next }));
    Ok((headers, body).into_response())
}

/// Checks the path to open after the sign-in, without the prefix. Paths outside this gateway become `/`.
fn next(asked: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/?=&%".contains(&byte);
    let ours = asked.starts_with('/') && !asked.starts_with("//") && asked.bytes().all(plain);
    match ours && asked.len() <= 1024 {
        true => asked.to_owned(),
        false => "/".to_owned(),
    }
}

fn page(status: StatusCode, kind: &'static str, text: String) -> Response {
    let kind = format!("{kind}; charset=utf-8");
    let headers = [
        (header::CONTENT_TYPE, kind.as_str()),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "same-origin"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::CACHE_CONTROL, "no-store"),
    ];
    (status, headers, text).into_response()
}
