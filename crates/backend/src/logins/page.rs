//! The web pages of a sign-in to a server: the link, and the redirect back from the issuer.
//!
//! A link opens a page with one button, so that a program that only previews links does not use up the link. If other
//! machines can connect, the page asks for the key of the caller who requested the sign-in: for anyone else the link is
//! useless.
//!
//! Users reach these pages by navigation, so a session is identified by its cookie alone. A `POST` contains the
//! one-time form token of a page that was shown for this link to the same session.

use std::{fmt::Write as _, sync::Arc};

use axum::{
    Router,
    extract::{Path, RawForm, RawQuery, State},
    response::{IntoResponse, Redirect, Response},
    routing::get,
};
use futures_util::future::BoxFuture;
use http::{HeaderMap, StatusCode, header};
use model::{LoginMode, ProjectId};
use oauth::Callback;

use super::{
    Logins,
    links::{Bringer, Link},
    mode,
};
use crate::{html::escaped, projects::Projects};

/// Prefix of cookie names. The beginning of the link's id follows.
const COOKIE_PREFIX: &str = "twh_login_";

/// An identified user.
pub struct Shown {
    /// Principal id.
    pub id: Arc<str>,
    /// Set if the user may change the servers of the project, or (without a project) those of the configuration file.
    pub manages: bool,
}

/// Identifies a user by this key, or by the headers of their browser. The project is the server's.
pub type Identify = Box<
    dyn Fn(HeaderMap, Option<String>, Option<ProjectId>) -> BoxFuture<'static, Option<Shown>>
        + Send
        + Sync,
>;

struct Pages {
    logins: Arc<Logins>,
    projects: Arc<Projects>,
    /// `None`: only users of this machine can connect, and the link alone proves that the sign-in is theirs.
    identify: Option<Identify>,
}

pub fn router(logins: Arc<Logins>, projects: Arc<Projects>, identify: Option<Identify>) -> Router {
    let pages = Arc::new(Pages {
        logins,
        projects,
        identify,
    });
    Router::new()
        .route("/login/callback", get(callback))
        .route("/login/client.json", get(client))
        .route("/login/{link}", get(show).post(follow))
        .with_state(pages)
}

impl Pages {
    /// Looks up a link. The error is the page to show instead.
    async fn link(&self, id: &str) -> Result<Link, Response> {
        if let Some(project) = self.logins.project_of(id)
            && let Err(error) = self.projects.known(&project).await
        {
            tracing::warn!(%project, "cannot load the project of a sign-in link: {error}");
        }
        match self.logins.offered(id).await {
            Ok(Some(link)) => Ok(link),
            Ok(None) => Err(gone()),
            Err(error) => Err(failed(&error)),
        }
    }
}

/// The user who is signed in at the browser.
async fn session(pages: &Pages, headers: HeaderMap) -> Option<Shown> {
    let identify = pages.identify.as_ref()?;
    identify(headers, None, None).await
}

/// The session that a form token of the page is bound to.
fn bound_to(session: Option<&Shown>) -> &str {
    session.map_or("", |who| &who.id)
}

async fn show(
    State(pages): State<Arc<Pages>>,
    Path(link): Path<String>,
    headers: HeaderMap,
) -> Response {
    match pages.link(&link).await {
        Ok(found) => {
            let session = session(&pages, headers).await;
            form(&pages, (&link, &found), session.as_ref(), None)
        }
        Err(page) => page,
    }
}

/// The page with the button. `refused`: why the form was rejected.
fn form(
    pages: &Pages,
    (link, found): (&str, &Link),
    session: Option<&Shown>,
    refused: Option<&str>,
) -> Response {
    let is_theirs = match &pages.identify {
        Some(_) => session.is_some_and(|who| *who.id == *found.principal()),
        None => true,
    };
    let Ok(tickets) = pages.logins.tickets() else {
        return gone();
    };
    let token = tickets.form_token(link, bound_to(session));
    let server = escaped(found.credential.id.server.name.as_str());
    let mut body = String::new();
    if let Some(why) = refused {
        let _ = write!(body, "<p role=\"alert\">{why}</p>");
    }
    let _ = write!(
        body,
        "<p>A client of yours wants to use the server <b>{server}</b>, which needs you to sign in. The button takes you to \
         its sign-in page.</p><form method=\"post\"><input type=\"hidden\" name=\"form\" value=\"{token}\">"
    );
    if !is_theirs {
        body.push_str(
            "<label>Your Toolwharf key (the key that your client uses)\
             <input type=\"password\" name=\"key\" autocomplete=\"off\" required autofocus></label>\
             <p>Or <a href=\"../sign-in\">sign in to Toolwharf</a>, and open this link again.</p>",
        );
    }
    body.push_str("<button>Sign in</button></form>");
    let status = match refused {
        Some(_) => StatusCode::FORBIDDEN,
        None => StatusCode::OK,
    };
    page(status, &format!("Sign in to {server}"), &body)
}

async fn follow(
    State(pages): State<Arc<Pages>>,
    Path(link): Path<String>,
    headers: HeaderMap,
    RawForm(sent): RawForm,
) -> Response {
    let found = match pages.link(&link).await {
        Ok(found) => found,
        Err(page) => return page,
    };
    let field = |wanted: &str| {
        let mut fields = url::form_urlencoded::parse(&sent);
        let found = fields.find(|(name, _)| name == wanted);
        found.map(|(_, value)| value.trim().to_owned())
    };
    let session = session(&pages, headers.clone()).await;
    let token = field("form").unwrap_or_default();
    let Ok(tickets) = pages.logins.tickets() else {
        return gone();
    };
    let used = tickets.use_form_token(&link, bound_to(session.as_ref()), &token);
    match used.await {
        Ok(true) => {}
        Ok(false) => {
            let why = "This form was sent before, is older than ten minutes, or is not from this page. Try again.";
            return form(&pages, (&link, &found), session.as_ref(), Some(why));
        }
        Err(error) => {
            let why = format!("Nothing was changed: {error}. Try again.");
            return form(
                &pages,
                (&link, &found),
                session.as_ref(),
                Some(&escaped(&why)),
            );
        }
    }
    if let Some(identify) = &pages.identify {
        let key = field("key");
        let credential = &found.credential;
        let owner = credential.id.server.owner.clone();
        let who = identify(headers, key, owner).await;
        let refuse = |what| page(StatusCode::FORBIDDEN, "Not your sign-in", what);
        let Some(who) = who.filter(|who| *who.id == *found.principal()) else {
            return refuse(
                "<p>This is not the key of the client that requested the sign-in. You are not signed in.</p>",
            );
        };
        if mode(&credential.place.login) == LoginMode::Shared && !who.manages {
            return refuse(
                "<p>All users of the server share this sign-in. It requires a key that may manage the server: ask an \
                 administrator to run <code>toolwharf login</code>. You are not signed in.</p>",
            );
        }
    }
    match pages.logins.follow(found).await {
        Ok((url, cookie)) => {
            let secure = match pages.logins.base() {
                Some(base) if base.starts_with("https:") => "; Secure",
                _ => "",
            };
            // Without `Path`, the cookie is for the folder of this page as the browser sees it, which contains `callback`.
            let cookie = format!(
                "{COOKIE_PREFIX}{}={cookie}; HttpOnly; SameSite=Lax; Max-Age=600{secure}",
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
        .filter_map(|pair| pair.trim().strip_prefix(COOKIE_PREFIX)?.split_once('='))
        .map(|(_, value)| value);
    let bringer = Bringer::Browser(cookies.collect());
    match pages
        .logins
        .arrive(callback, bringer, &pages.projects)
        .await
    {
        Ok(server) => {
            let body = format!(
                "<p>You are signed in to <b>{}</b>. You can close this page and go back to your client.</p>",
                escaped(&server)
            );
            page(StatusCode::OK, "Signed in", &body)
        }
        Err(error) => failed(&error),
    }
}

/// The client metadata document (draft-ietf-oauth-client-id-metadata-document).
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

fn gone() -> Response {
    let what = "<p>This link was used already, or is older than ten minutes. Ask for another one: repeat the call, or run \
                <code>toolwharf login</code>.</p>";
    page(StatusCode::GONE, "This link has expired", what)
}

fn failed(error: &oauth::Error) -> Response {
    let body = format!(
        "<p>{}</p><p>You are not signed in. Request another link to try again.</p>",
        escaped(&error.to_string())
    );
    page(StatusCode::BAD_REQUEST, "The sign-in failed", &body)
}

fn page(status: StatusCode, title: &str, body: &str) -> Response {
    // The colours and shapes of the console (`web/src/app.css`).
    const STYLE: &str = ":root{color-scheme:light dark;--page:light-dark(#f7f8fa,#0d0f12);--card:light-dark(#fff,#13161a);\
        --line:light-dark(#e3e6ea,#23282f);--edge:light-dark(#c9ced6,#39414b);--text:light-dark(#15181c,#e8ebef);\
        --soft:light-dark(#505863,#a3acb8);--accent:light-dark(#0b6a61,#45c9b8);--solid:light-dark(#0f6b62,#107a6f);\
        --over:light-dark(#0b5850,#138a7d)}*{box-sizing:border-box}body{margin:0;min-height:100dvh;display:grid;place-items:center;\
        padding:1rem;font:0.875rem/1.5 Inter,system-ui,sans-serif;color:var(--text);background:var(--page)}\
        main{width:100%;max-width:25rem;padding:1.5rem;background:var(--card);border:1px solid var(--line);border-radius:.75rem;overflow-wrap:anywhere}\
        header{font-weight:600}h1{margin:1rem 0;font-size:1.1875rem;line-height:1.3;font-weight:600}p{margin:0 0 1rem}p:last-child{margin:0}\
        label{display:block;font-size:.8125rem;font-weight:500}input{display:block;width:100%;margin:.25rem 0 1rem;padding:.5rem .75rem;font:inherit;color:inherit;\
        background:var(--card);border:1px solid var(--edge);border-radius:.375rem}a{color:var(--accent)}\
        button{width:100%;padding:.5rem .75rem;font:inherit;font-weight:500;color:#fff;background:var(--solid);border:0;border-radius:.375rem;cursor:pointer}\
        button:hover{background:var(--over)}button:focus-visible,input:focus-visible,a:focus-visible{outline:2px solid var(--accent);outline-offset:2px}";
    let mut html = String::new();
    let _ = write!(
        html,
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">\
         <title>{title} · Toolwharf</title><style>{STYLE}</style><main><header>Toolwharf</header><h1>{title}</h1>{body}</main></html>"
    );
    let content = [(header::CONTENT_TYPE, "text/html; charset=utf-8")];
    guard((status, content, html).into_response())
}

/// The page cannot be framed, runs no scripts, is not cached, and sends no referrer to other origins.
fn guard(mut response: Response) -> Response {
    let headers = response.headers_mut();
    for (name, value) in [
        (
            header::CONTENT_SECURITY_POLICY,
            "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'",
        ),
        // With `no-referrer`, browsers would also hide the form's origin from this gateway.
        (header::REFERRER_POLICY, "same-origin"),
        (header::CACHE_CONTROL, "no-store"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ] {
        headers.insert(name, http::HeaderValue::from_static(value));
    }
    response
}
