//! What a browser sees of a sign-in: the link, and the way back from the issuer.
//!
//! A link opens a page with one button, so that whoever looks at links in passing (a chat's preview) uses none up. Where others than this
//! machine's users can connect, the page asks for the key of the one who asked: a link that reaches somebody else signs nobody in.

use std::{fmt::Write as _, sync::Arc};

use axum::{
    Router,
    extract::{Path, RawForm, RawQuery, State},
    response::{IntoResponse, Redirect, Response},
    routing::get,
};
use http::{HeaderMap, StatusCode, header};
use oauth::Callback;

use super::{Logins, links::Bringer};

/// Before the ids of links in the names of cookies.
const COOKIE: &str = "twh_login_";

/// Who has this key, or the browser that sends these headers: what their calls are known by.
pub(crate) type Identify = Box<dyn Fn(&HeaderMap, Option<&str>) -> Option<Arc<str>> + Send + Sync>;

struct Pages {
    logins: Arc<Logins>,
    /// `None`: only this machine's users can connect, and the link alone shows that it is theirs.
    identify: Option<Identify>,
}

pub(crate) fn router(logins: Arc<Logins>, identify: Option<Identify>) -> Router {
    let pages = Arc::new(Pages { logins, identify });
    Router::new()
        .route("/login/callback", get(callback))
        .route("/login/client.json", get(client))
        .route("/login/{link}", get(show).post(follow))
        .with_state(pages)
}

impl Pages {
    /// Whether somebody has shown that they are the one who asked.
    fn is_theirs(&self, headers: &HeaderMap, key: Option<&str>, asked: &Arc<str>) -> bool {
        let identify = self.identify.as_ref();
        identify.is_none_or(|identify| identify(headers, key).as_ref() == Some(asked))
    }
}

async fn show(
    State(pages): State<Arc<Pages>>,
    Path(link): Path<String>,
    headers: HeaderMap,
) -> Response {
    let Some(found) = pages.logins.links.offered(&link) else {
        return gone();
    };
    let server = escape(found.credential.id.server.name.as_str());
    let mut body = format!(
        "<p>A client of yours wants to use the server <b>{server}</b>, which asks you to sign in. You go on to the page \
         where its owner has people do that.</p><form method=\"post\">"
    );
    if !pages.is_theirs(&headers, None, &found.principal) {
        body.push_str(
            "<p><label>Your key for Toolwharf, the one that your client has<br>\
             <input type=\"password\" name=\"key\" autocomplete=\"off\" required></label></p>\
             <p>Or <a href=\"/sign-in\">sign in to Toolwharf</a>, and open this link again.</p>",
        );
    }
    body.push_str("<p><button autofocus>Sign in</button></p></form>");
    page(StatusCode::OK, &format!("Sign in to {server}"), &body)
}

async fn follow(
    State(pages): State<Arc<Pages>>,
    Path(link): Path<String>,
    headers: HeaderMap,
    RawForm(form): RawForm,
) -> Response {
    let Some(found) = pages.logins.links.offered(&link) else {
        return gone();
    };
    let mut fields = url::form_urlencoded::parse(&form);
    let key = fields
        .find(|(name, _)| name == "key")
        .map(|(_, value)| value);
    if !pages.is_theirs(&headers, key.as_deref().map(str::trim), &found.principal) {
        let what = "<p>This is not the key of the client that asked for the sign-in. Nobody is signed in.</p>";
        return page(StatusCode::FORBIDDEN, "Not your sign-in", what);
    }
    match pages.logins.follow(&link, &found).await {
        Ok((url, cookie)) => {
            let secure = match pages.logins.base.get() {
                Some(base) if base.starts_with("https:") => "; Secure",
                _ => "",
            };
            let cookie = format!(
                "{COOKIE}{}={cookie}; Path=/login; HttpOnly; SameSite=Lax; Max-Age=600{secure}",
                link.get(..8).unwrap_or(&link)
            );
            let mut response = Redirect::to(&url).into_response();
            if let Ok(cookie) = cookie.parse() {
                response.headers_mut().insert(header::SET_COOKIE, cookie);
            }
            guard(response)
        }
        Err(error) => failed(&error),
    }
}

async fn callback(
    State(pages): State<Arc<Pages>>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Response {
    let callback = Callback::parse(&query.unwrap_or_default());
    let cookies = headers.get_all(header::COOKIE).iter();
    let cookies = cookies
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(';'))
        .filter_map(|pair| pair.trim().strip_prefix(COOKIE)?.split_once('='))
        .map(|(_, value)| value);
    match pages
        .logins
        .arrive(callback, Bringer::Browser(cookies.collect()))
        .await
    {
        Ok(server) => {
            let body = format!(
                "<p>You are signed in to <b>{}</b>. You can close this page and go back to your client.</p>",
                escape(&server)
            );
            page(StatusCode::OK, "Signed in", &body)
        }
        Err(error) => failed(&error),
    }
}

/// Our client metadata document (draft-ietf-oauth-client-id-metadata-document).
async fn client(State(pages): State<Arc<Pages>>) -> Response {
    let identity = pages.logins.identity();
    let Some((identity, id)) = identity.and_then(|it| Some((it.clone(), it.metadata_url?))) else {
        return gone();
    };
    axum::Json(serde_json::json!({
        "client_id": id,
        "client_name": "Toolwharf",
        "redirect_uris": [identity.redirect_uri],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": "none",
        "application_type": "web",
    }))
    .into_response()
}

fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            c => escaped.push(c),
        }
    }
    escaped
}

fn gone() -> Response {
    let what = "<p>This link was used already, or is older than ten minutes. Ask for another one: repeat the call, or run \
                <code>toolwharf login</code>.</p>";
    page(StatusCode::GONE, "This link is no more", what)
}

fn failed(error: &oauth::Error) -> Response {
    let body = format!(
        "<p>{}</p><p>Nobody is signed in. Ask for another link to try again.</p>",
        escape(&error.to_string())
    );
    page(StatusCode::BAD_REQUEST, "The sign-in failed", &body)
}

fn page(status: StatusCode, title: &str, body: &str) -> Response {
    const STYLE: &str = "body{font:16px/1.5 system-ui,sans-serif;max-width:30rem;margin:15vh auto;padding:0 1.5rem;color:#1d2330;background:#fff}\
        h1{font-size:1.4rem}button{font:inherit;padding:.5rem 1.4rem;border:0;border-radius:.5rem;background:#1f5fd0;color:#fff;cursor:pointer}\
        button:focus-visible,input:focus-visible{outline:3px solid #8db4ff}input{font:inherit;width:100%;padding:.5rem;box-sizing:border-box}\
        @media(prefers-color-scheme:dark){body{background:#14171d;color:#e6e8ee}input{background:#1f242d;color:inherit;border:1px solid #555}}";
    let mut html = String::new();
    let _ = write!(
        html,
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">\
         <title>{title} · Toolwharf</title><style>{STYLE}</style><main><h1>{title}</h1>{body}</main></html>"
    );
    let content = [(header::CONTENT_TYPE, "text/html; charset=utf-8")];
    guard((status, content, html).into_response())
}

/// The page is nobody's frame, runs nothing, is not kept, and tells nobody where it is.
fn guard(mut response: Response) -> Response {
    let headers = response.headers_mut();
    for (name, value) in [
        (
            header::CONTENT_SECURITY_POLICY,
            "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'",
        ),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-store"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ] {
        headers.insert(name, http::HeaderValue::from_static(value));
    }
    response
}
