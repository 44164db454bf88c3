//! OAuth: a whole sign-in with documents of a hostile server and issuer.
//!
//! The first part of an input has a line with the server's URL, a challenge, and the query of the redirect. Each further
//! part is a response to one request, with its status on the first line.

use std::{cell::RefCell, collections::VecDeque, sync::Mutex};

use bytes::Bytes;
use futures_util::{FutureExt, future::BoxFuture};
use http::{Request, Response, StatusCode};
use model::{Login, Pkce};
use oauth::{
    Attempt, Callback, Challenge, Client, Device, Discovery, Error, Http, Identity, Metadata,
    discover, identify, token,
};
use url::Url;

use crate::pieces;

pub(crate) const WORDS: &[&str] = &[
    "https://example.com",
    "https://as.example.com/tenant",
    "http://127.0.0.1:1",
    "Bearer resource_metadata=\"",
    "DPoP algs=\"ES256\"",
    "scope=\"a b\"",
    "\n--\n200\n{",
    "\n--\n404\n",
    "\n--\n400\n{\"error\":\"",
    "\"issuer\":\"https://as.example.com\"",
    "\"resource\":\"https://example.com/\"",
    "\"authorization_servers\":[\"https://as.example.com\"]",
    "\"authorization_endpoint\":\"https://as.example.com/a\"",
    "\"token_endpoint\":\"https://as.example.com/t\"",
    "\"registration_endpoint\":\"https://as.example.com/r\"",
    "\"device_authorization_endpoint\":\"https://as.example.com/d\"",
    "\"revocation_endpoint\":\"https://as.example.com/v\"",
    "\"scopes_supported\":[\"offline_access\"]",
    "\"grant_types_supported\":[\"refresh_token\"]",
    "\"code_challenge_methods_supported\":[\"S256\"]",
    "\"dpop_signing_alg_values_supported\":[\"ES256\"]",
    "\"client_id\":\"c\"",
    "\"client_secret\":\"s\"",
    "\"access_token\":\"t\"",
    "\"token_type\":\"Bearer\"",
    "\"expires_in\":3600",
    "\"refresh_token\":\"r\"",
    "\"error\":\"use_dpop_nonce\"",
    "\"device_code\":\"d\",\"user_code\":\"u\",\"verification_uri\":\"https://",
    "code=c&",
    "iss=https%3A%2F%2Fas.example.com",
    "error=access_denied",
];

/// Never part of an error.
const SECRET: &str = "a-secret-of-the-client";
/// Maximum requests of a sign-in with all that is tried afterwards.
const MAX_REQUESTS: usize = 24;

pub(crate) fn run(input: &[u8]) {
    if pieces::mentions(input, SECRET) {
        return;
    }
    let (head, rest) = pieces::split(input);
    let head = pieces::text(head);
    let mut lines = head.lines();
    let mut line = || lines.next().unwrap_or_default();
    let (url, challenge, query) = (line(), Challenge::parse(line()), line());
    if let Ok(metadata) = serde_json::from_slice::<Metadata>(rest) {
        match Callback::parse(query).code(&metadata) {
            Ok(code) => assert!(query.contains("code") || query.contains('%'), "{code}"),
            Err(error) => told(&error),
        }
    }
    let Ok(server) = Url::parse(url) else { return };
    // Connections to other URLs are refused before.
    if !["http", "https"].contains(&server.scheme()) {
        return;
    }
    let hostile = Hostile::new(server, rest);
    let signed_in = sign_in(&hostile, url, &challenge, query);
    if let Some(Err(error)) = signed_in.now_or_never() {
        told(&error);
    }
}

async fn sign_in(
    hostile: &Hostile,
    url: &str,
    challenge: &Challenge,
    query: &str,
) -> Result<(), Error> {
    let mut login = Login {
        client_id: None,
        client_secret: Some(SECRET.to_owned()),
        pkce: Pkce::Required,
        ..Login::default()
    };
    let discovery = discover(hostile, url, &login, challenge).await?;
    discovered(&discovery);
    let identity = Identity {
        redirect_uri: "http://127.0.0.1:1/callback".to_owned(),
        metadata_url: None,
    };
    let client = match identify(hostile, &discovery, &login, &identity, None).await {
        Ok(client) => client,
        Err(error) => {
            told(&error);
            login.client_id = Some("ours".to_owned());
            identify(hostile, &discovery, &login, &identity, None).await?
        }
    };
    assert!(!format!("{client:?}").contains(SECRET));
    let device = Device::begin(hostile, &discovery, &client, &login).await;
    if let Ok(device) = &device {
        assert!((1..=60).contains(&device.interval()));
        assert!(!device.user_code.contains(char::is_control));
    }
    browser(hostile, &discovery, &client, &login, &identity, query).await
}

async fn browser(
    hostile: &Hostile,
    discovery: &Discovery,
    client: &Client,
    login: &Login,
    identity: &Identity,
    query: &str,
) -> Result<(), Error> {
    let (attempt, place) = Attempt::begin(discovery.clone(), client.clone(), login, identity)?;
    let place = Url::parse(&place).expect("a URL for the browser");
    is_allowed(&place);
    let sent = |name: &str| {
        place
            .query_pairs()
            .filter(|(key, _)| key == name)
            .last()
            .map(|(_, value)| value)
    };
    assert_eq!(sent("code_challenge_method").as_deref(), Some("S256"));
    assert_eq!(sent("state").as_deref(), Some(attempt.state()));
    assert_eq!(
        sent("redirect_uri").as_deref(),
        Some(&*identity.redirect_uri)
    );
    let forged = attempt
        .clone()
        .finish(hostile, Callback::parse(query), login)
        .await;
    assert!(
        forged.is_err(),
        "a redirect with another state was accepted"
    );
    let query = format!("state={}&{query}", attempt.state());
    let tokens = attempt
        .finish(hostile, Callback::parse(&query), login)
        .await?;
    let is_fine =
        |token: &str| !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic());
    assert!(is_fine(&tokens.access) && tokens.refresh.as_deref().is_none_or(is_fine));
    if let Err(error) = token::revoke(hostile, discovery, client, login, &tokens).await {
        told(&error);
    }
    token::refresh(hostile, discovery, client, login, &tokens).await?;
    Ok(())
}

fn discovered(discovery: &Discovery) {
    let text = serde_json::to_string(discovery).expect("JSON");
    let again: Discovery = serde_json::from_str(&text).expect("what was written");
    assert_eq!(again, *discovery);
    let mut scopes = discovery.scopes.clone();
    scopes.sort();
    scopes.dedup();
    assert_eq!(scopes.len(), discovery.scopes.len(), "a scope twice");
}

/// An error is short and printable, and has no secret.
fn told(error: &Error) {
    let said = error.to_string();
    assert!(
        said.chars().count() < 2000 && !said.contains(char::is_control),
        "{said:?}"
    );
    assert!(!said.contains(SECRET), "{said}");
}

/// Plain HTTP is for this machine only.
fn is_allowed(url: &Url) {
    let host = url.host_str().unwrap_or_default();
    let is_here = host == "localhost"
        || host.ends_with(".localhost")
        || host.starts_with("127.")
        || host == "[::1]";
    assert!(
        url.scheme() == "https" || url.scheme() == "http" && is_here,
        "{url}"
    );
}

/// The responses, in the order in which they are given.
struct Hostile {
    server: Url,
    answers: Mutex<Answers>,
}

struct Answers {
    left: VecDeque<Response<Bytes>>,
    requests: usize,
}

impl Hostile {
    fn new(server: Url, input: &[u8]) -> Self {
        let rest = RefCell::new(input);
        let parts = std::iter::from_fn(|| {
            let part;
            let whole = *rest.borrow();
            (part, *rest.borrow_mut()) = pieces::split(whole);
            (!whole.is_empty()).then_some(part)
        });
        let left = parts.take(MAX_REQUESTS).map(answer).collect();
        Self {
            server,
            answers: Mutex::new(Answers { left, requests: 0 }),
        }
    }
}

fn answer(part: &[u8]) -> Response<Bytes> {
    let end = part
        .iter()
        .position(|byte| *byte == b'\n')
        .unwrap_or_default();
    let (status, body) = part.split_at(end);
    let status = StatusCode::from_bytes(status).unwrap_or(StatusCode::OK);
    let body = Bytes::copy_from_slice(body.trim_ascii_start());
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let nonce = http::HeaderValue::from_static("a-nonce");
    response.headers_mut().insert("dpop-nonce", nonce);
    response
}

impl Http for Hostile {
    fn send(&self, request: Request<Bytes>) -> BoxFuture<'_, Result<Response<Bytes>, String>> {
        let url = Url::parse(&request.uri().to_string()).expect("a URL");
        // The server's own metadata is where the server is.
        if url.origin() != self.server.origin() {
            is_allowed(&url);
        }
        let mut answers = self.answers.lock().expect("no panic");
        answers.requests += 1;
        assert!(answers.requests <= MAX_REQUESTS, "too many requests");
        let answer = answers.left.pop_front();
        let answer = answer.ok_or_else(|| "there is no response".to_owned());
        std::future::ready(answer).boxed()
    }
}
