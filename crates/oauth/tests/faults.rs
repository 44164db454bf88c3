//! Issuers that are down, slow, misconfigured or malicious: each gives a clear error without secrets.

#![expect(clippy::unwrap_used, reason = "an unwrap that fails is a test failure")]

use std::{collections::HashMap, sync::Mutex};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{Request, Response, StatusCode};
use model::{Login, Pkce};
use oauth::{
    Attempt, Callback, Challenge, Client, Code, Device, Discovery, Error, Http, Identity, Tokens,
};
use serde_json::{Value, json};

const SERVER: &str = "https://files.example/mcp";
const ISSUER: &str = "https://issuer.example";
const RESOURCE: &str = "https://files.example/.well-known/oauth-protected-resource/mcp";
const METADATA: &str = "https://issuer.example/.well-known/oauth-authorization-server";
const TOKEN: &str = "https://issuer.example/token";
const REGISTER: &str = "https://issuer.example/register";
/// The code must not appear in any error.
const CODE: &str = "code-7be1";
const REFRESH: &str = "refresh-20ac";
const SECRET: &str = "secret-91fd";

/// Responses by URL. Unknown URLs get 404; `Err` means no response.
#[derive(Default)]
struct Script {
    answers: HashMap<String, Result<(u16, String), String>>,
    asked: Mutex<Vec<(String, String)>>,
}

impl Http for Script {
    fn send(&self, request: Request<Bytes>) -> BoxFuture<'_, Result<Response<Bytes>, String>> {
        let url = request.uri().to_string();
        let body = String::from_utf8_lossy(request.body()).into_owned();
        self.asked.lock().unwrap().push((url.clone(), body));
        let answer = match self.answers.get(&url) {
            None => Ok((404, String::new())),
            Some(answer) => answer.clone(),
        };
        let answer = answer.map(|(status, body)| {
            let mut response = Response::new(Bytes::from(body));
            *response.status_mut() = StatusCode::from_u16(status).unwrap();
            response
        });
        Box::pin(std::future::ready(answer))
    }
}

impl Script {
    /// A server and an issuer without faults.
    fn good() -> Self {
        Self::default()
            .with(
                RESOURCE,
                200,
                json!({ "resource": SERVER, "authorization_servers": [ISSUER] }),
            )
            .with(METADATA, 200, metadata())
            .with(REGISTER, 201, json!({ "client_id": "toolwharf" }))
            .with(
                TOKEN,
                200,
                json!({ "access_token": "a", "token_type": "Bearer", "expires_in": 60 }),
            )
    }

    fn with(mut self, url: &str, status: u16, body: Value) -> Self {
        let body = body
            .as_str()
            .map_or_else(|| body.to_string(), str::to_owned);
        self.answers.insert(url.to_owned(), Ok((status, body)));
        self
    }

    fn broken(mut self, url: &str, why: &str) -> Self {
        self.answers.insert(url.to_owned(), Err(why.to_owned()));
        self
    }

    fn asked(&self, url: &str) -> Option<String> {
        let asked = self.asked.lock().unwrap();
        let last = asked.iter().rev().find(|(at, _)| at == url);
        last.map(|(_, body)| body.clone())
    }
}

fn metadata() -> Value {
    json!({
        "issuer": ISSUER,
        "authorization_endpoint": "https://issuer.example/authorize",
        "token_endpoint": TOKEN,
        "registration_endpoint": REGISTER,
        "device_authorization_endpoint": "https://issuer.example/device",
        "code_challenge_methods_supported": ["S256"],
        "token_endpoint_auth_methods_supported": ["none"],
    })
}

fn without(mut value: Value, name: &str) -> Value {
    value.as_object_mut().unwrap().remove(name);
    value
}

fn and(mut value: Value, name: &str, other: Value) -> Value {
    value[name] = other;
    value
}

fn identity() -> Identity {
    Identity {
        redirect_uri: "http://127.0.0.1:6280/login/callback".to_owned(),
        metadata_url: None,
    }
}

async fn discovered(script: &Script, login: &Login) -> Result<Discovery, Error> {
    oauth::discover(script, SERVER, login, &Challenge::default()).await
}

/// Starts a sign-in. Returns the attempt and the URL for the browser.
async fn begun(script: &Script, login: &Login) -> Result<(Attempt, String), Error> {
    let discovery = discovered(script, login).await?;
    let client = oauth::identify(script, &discovery, login, &identity(), None).await?;
    Attempt::begin(discovery, client, login, &identity())
}

/// Completes a sign-in.
async fn signed_in(script: &Script, login: &Login) -> Result<Tokens, Error> {
    let (attempt, _) = begun(script, login).await?;
    let query = format!("code={CODE}&state={}", attempt.state());
    attempt.finish(script, Callback::parse(&query), login).await
}

fn tokens() -> Tokens {
    Tokens {
        access: "old".to_owned(),
        refresh: Some(REFRESH.to_owned()),
        expires_at: Some(0),
        scopes: Vec::new(),
        key: None,
    }
}

/// Returns the client chosen for the issuer.
async fn known(
    script: &Script,
    discovery: &Discovery,
    login: &Login,
    before: Option<Client>,
) -> Client {
    let client = oauth::identify(script, discovery, login, &identity(), before).await;
    client.unwrap()
}

async fn refreshed(script: &Script) -> Result<Tokens, Error> {
    let login = Login::default();
    let discovery = discovered(&Script::good(), &login).await.unwrap();
    let client = client(&discovery).await;
    oauth::token::refresh(script, &discovery, &client, &login, &tokens()).await
}

async fn client(discovery: &Discovery) -> Client {
    let login = Login {
        client_id: Some("toolwharf".to_owned()),
        client_secret: Some(SECRET.to_owned()),
        ..Login::default()
    };
    known(&Script::good(), discovery, &login, None).await
}

#[track_caller]
fn is<T>(found: Result<T, Error>, code: Code, part: &str) {
    let Err(error) = found else {
        panic!("no error, where {code} was expected: {part}");
    };
    let said = format!("{error} {error:?}");
    assert_eq!(error.code, code, "{said}");
    assert!(said.contains(part), "{part:?} is not in {said}");
    assert!(said.len() < 2000, "{said}");
    for secret in [CODE, REFRESH, SECRET] {
        assert!(!said.contains(secret), "{said}");
    }
}

#[tokio::test]
async fn a_good_issuer_signs_in() {
    let script = Script::good();
    let tokens = signed_in(&script, &Login::default()).await.unwrap();
    assert_eq!(tokens.access, "a");
    let form = script.asked(TOKEN).unwrap();
    assert!(
        form.contains("resource=https%3A%2F%2Ffiles.example%2Fmcp"),
        "{form}"
    );
    assert!(form.contains("code_verifier="), "{form}");
}

#[tokio::test]
async fn metadata_that_cannot_be_used() {
    let huge = "its response is longer than 262144 bytes";
    for (script, code, part) in [
        (Script::good().broken(METADATA, "no connection"), Code::Unreachable, "no connection"),
        (Script::good().broken(METADATA, huge), Code::Unreachable, "longer than 262144"),
        (Script::good().with(METADATA, 200, json!("<html>Log in</html>")), Code::Unreachable, "not the expected JSON document"),
        (Script::good().with(METADATA, 302, json!("")), Code::Unreachable, "HTTP 302"),
        (Script::good().with(METADATA, 503, json!("")), Code::Unreachable, "HTTP 503"),
        (Script::good().with(METADATA, 404, json!("")), Code::Unreachable, "well-known"),
        (
            Script::good().with(METADATA, 200, and(metadata(), "issuer", json!("https://evil.example"))),
            Code::Mismatch,
            "https://evil.example",
        ),
        // Issuers are compared character by character.
        (
            Script::good().with(METADATA, 200, and(metadata(), "issuer", json!("https://issuer.example/"))),
            Code::Mismatch,
            "https://issuer.example/",
        ),
        (
            Script::good().with(METADATA, 200, and(metadata(), "token_endpoint", json!("http://issuer.example/token"))),
            Code::Mismatch,
            "must begin with https://",
        ),
        (Script::good().with(METADATA, 200, without(metadata(), "token_endpoint")), Code::Unsupported, "token endpoint"),
        (Script::good().with(METADATA, 200, without(metadata(), "authorization_endpoint")), Code::Unsupported, "authorization endpoint"),
        (Script::good().with(METADATA, 200, without(metadata(), "registration_endpoint")), Code::NoClient, "clientId"),
        (
            Script::good().with(METADATA, 200, without(metadata(), "code_challenge_methods_supported")),
            Code::NoPkce,
            "\"pkce\": \"assume\"",
        ),
        (
            Script::good().with(METADATA, 200, and(metadata(), "code_challenge_methods_supported", json!(["plain"]))),
            Code::NoPkce,
            "PKCE",
        ),
        (Script::good().with(RESOURCE, 200, json!({ "resource": "https://evil.example/mcp", "authorization_servers": [ISSUER] })), Code::Mismatch, "evil.example"),
        (Script::good().with(RESOURCE, 200, json!({ "resource": SERVER })), Code::Unsupported, "authorization server"),
        (Script::good().with(RESOURCE, 200, json!({ "resource": SERVER, "authorization_servers": ["http://10.0.0.1"] })), Code::Mismatch, "https://"),
        (Script::good().with(RESOURCE, 500, json!("")), Code::Unreachable, "HTTP 500"),
        (Script::good().with(REGISTER, 403, json!({ "error": "access_denied", "error_description": "no\u{1b}[31m" })), Code::Registration, "no[31m"),
        (Script::good().with(REGISTER, 201, json!("<html>")), Code::Unreachable, "not a client registration"),
    ] {
        is(signed_in(&script, &Login::default()).await, code, part);
    }
}

#[tokio::test]
async fn an_entry_may_say_that_an_issuer_knows_pkce() {
    let silent = without(metadata(), "code_challenge_methods_supported");
    let login = Login {
        pkce: Pkce::Assume,
        ..Login::default()
    };
    let script = Script::good().with(METADATA, 200, silent);
    let (_, url) = begun(&script, &login).await.unwrap();
    assert!(url.contains("code_challenge_method=S256"), "{url}");
    // A sign-in is not allowed if the issuer declares only other methods.
    let plain = and(
        metadata(),
        "code_challenge_methods_supported",
        json!(["plain"]),
    );
    let script = Script::good().with(METADATA, 200, plain);
    is(begun(&script, &login).await, Code::NoPkce, "PKCE");
}

#[tokio::test]
async fn an_entry_may_say_that_an_issuer_takes_no_resource() {
    let entra = json!({ "error": "invalid_target", "error_description": "AADSTS9010010: the resource parameter does not match" });
    let script = Script::good().with(TOKEN, 400, entra);
    is(
        signed_in(&script, &Login::default()).await,
        Code::Denied,
        "AADSTS9010010",
    );
    let login = Login {
        resource: false,
        ..Login::default()
    };
    let script = Script::good();
    let (_, url) = begun(&script, &login).await.unwrap();
    assert!(!url.contains("resource="), "{url}");
    signed_in(&script, &login).await.unwrap();
    assert!(!script.asked(TOKEN).unwrap().contains("resource="));
}

/// Temporary failures keep the sign-in. Only a refusal by the issuer ends it.
#[tokio::test]
async fn answers_of_the_token_endpoint() {
    let long = "x".repeat(70_000);
    let good = json!({ "access_token": "a", "token_type": "Bearer" });
    let answer = |name: &str, value: &str| and(good.clone(), name, json!(value));
    let why = "no answer within 20 s";
    let silent = Script::good().broken(TOKEN, why);
    is(refreshed(&silent).await, Code::Unreachable, why);
    let check = async |status: u16, body: Value, code: Code, part: &str| {
        let script = Script::good().with(TOKEN, status, body);
        is(refreshed(&script).await, code, part);
    };
    for body in [
        json!("<html>Log in</html>"),
        answer("token_type", "DPoP"),
        answer("access_token", &long),
        answer("access_token", "a\r\nhost: evil"),
        answer("access_token", ""),
    ] {
        check(200, body, Code::Unreachable, "no bearer token").await;
    }
    for (status, body) in [
        (502, "<html>Bad gateway</html>"),
        (400, "<html>A proxy</html>"),
        (307, ""),
    ] {
        let part = format!("HTTP {status}");
        check(status, json!(body), Code::Unreachable, &part).await;
    }
    for (status, error, code) in [
        (429, "too_many_requests", Code::Unreachable),
        (400, "temporarily_unavailable", Code::Unreachable),
        (503, "server_error", Code::Unreachable),
        (400, "invalid_grant", Code::Refused),
        // GitHub sends errors with status 200.
        (200, "bad_refresh_token", Code::Refused),
        (401, "invalid_client", Code::Refused),
    ] {
        check(status, json!({ "error": error }), code, error).await;
    }
    let endless = json!({ "error": "x".repeat(5000), "error_description": "y".repeat(5000) });
    check(400, endless, Code::Refused, "xxx").await;
}

/// A client that its issuer does not know: the message says whose client it is, and what to do.
#[tokio::test]
async fn unknown_clients() {
    let unknown = json!({ "error": "invalid_client", "error_description": "client not found" });
    let script = Script::good().with(TOKEN, 401, unknown.clone());
    let script = script.with("https://issuer.example/device", 401, unknown);
    let login = Login::default();
    let discovery = discovered(&script, &login).await.unwrap();
    let registered = known(&script, &discovery, &login, None).await;
    let of_entry = Login {
        client_id: Some("toolwharf".to_owned()),
        client_secret: Some(SECRET.to_owned()),
        ..Login::default()
    };
    let document = Client {
        id: "https://tools.example/login/client.json".to_owned(),
        redirect_uri: None,
        ..registered.clone()
    };
    for (client, login, part) in [
        (
            &registered,
            &login,
            "sign in again, and Toolwharf registers again",
        ),
        (
            &client(&discovery).await,
            &of_entry,
            "cannot register it again: correct the client id",
        ),
        (&document, &login, "must be able to read this document"),
    ] {
        let refreshed = oauth::token::refresh(&script, &discovery, client, login, &tokens()).await;
        is(refreshed, Code::Refused, part);
        let device = Device::begin(&script, &discovery, client, login).await;
        is(device, Code::Denied, part);
    }
    is(
        signed_in(&script, &login).await,
        Code::Denied,
        "client not found",
    );
    is(
        signed_in(&script, &of_entry).await,
        Code::Denied,
        "client not found",
    );

    let forgets = async |script: Script| {
        oauth::token::is_forgotten(&script, &discovery, &registered, &login).await
    };
    assert!(forgets(script).await);
    for (status, error) in [
        (400, "invalid_grant"),
        (400, "unsupported_grant_type"),
        (503, "server_error"),
    ] {
        let script = Script::good().with(TOKEN, status, json!({ "error": error }));
        assert!(!forgets(script).await, "{error}");
    }
    assert!(!forgets(Script::good().broken(TOKEN, "no answer")).await);
}

#[tokio::test]
async fn lifetimes_of_all_kinds() {
    for (lasts, expect) in [
        (json!(60), Some(60)),
        (json!("60"), Some(60)),
        (json!(60.0), Some(60)),
        (json!(-5), Some(0)),
        (json!("soon"), None),
        (json!(null), None),
        (json!(u64::MAX), None),
        (json!(i64::MAX), Some(i64::MAX)),
    ] {
        let answer = json!({ "access_token": "a", "token_type": "bearer", "expires_in": lasts });
        let before = oauth::now();
        let tokens = refreshed(&Script::good().with(TOKEN, 200, answer))
            .await
            .unwrap();
        let ends = tokens.expires_at.map(|end| end.saturating_sub(before));
        let close = match (ends, expect) {
            (Some(ends), Some(expect)) => {
                (expect..=expect.saturating_add(2)).contains(&ends)
                    || tokens.expires_at == Some(expect)
            }
            (ends, expect) => ends == expect,
        };
        assert!(close, "{lasts}: {ends:?}");
        // The issuer sent no new refresh token.
        assert_eq!(tokens.refresh.as_deref(), Some(REFRESH));
    }
}

#[tokio::test]
async fn redirects_that_are_no_answer() {
    let login = Login::default();
    let named = and(
        metadata(),
        "authorization_response_iss_parameter_supported",
        json!(true),
    );
    let check = async |script: Script, query: &str, code: Code, part: &str| {
        let (attempt, _) = begun(&script, &login).await.unwrap();
        let query = query.replace("STATE", attempt.state());
        let callback = Callback::parse(&query);
        is(attempt.finish(&script, callback, &login).await, code, part);
        assert_eq!(script.asked(TOKEN), None, "{query}");
    };
    for (query, part) in [
        ("code=c", "another sign-in"),
        ("code=c&state=wrong", "another sign-in"),
        ("state=STATE", "neither a code"),
        (
            "code=c&state=STATE&iss=https%3A%2F%2Fevil.example",
            "evil.example",
        ),
        (
            "code=c&state=STATE&iss=https%3A%2F%2Fissuer.example%2F",
            "issuer.example/",
        ),
    ] {
        check(Script::good(), query, Code::WrongRedirect, part).await;
    }
    let (named, query) = (
        Script::good().with(METADATA, 200, named),
        "code=c&state=STATE",
    );
    let part = "does not name its issuer";
    check(named, query, Code::WrongRedirect, part).await;
    let query = "error=access_denied&error_description=not%20today%0A&state=STATE";
    check(Script::good(), query, Code::Denied, "not today").await;
}

/// A client that was registered for some scopes is registered again for more, and keeps its previous scopes.
#[tokio::test]
async fn more_scopes_take_another_registration() {
    let (script, login) = (Script::good(), Login::default());
    let asked = |scope: &str| Challenge {
        scope: Some(scope.to_owned()),
        ..Challenge::default()
    };
    let read = oauth::discover(&script, SERVER, &login, &asked("read")).await;
    let read = read.unwrap();
    let first = known(&script, &read, &login, None).await;
    let write = oauth::discover(&script, SERVER, &login, &asked("write")).await;
    let write = write.unwrap();
    let second = known(&script, &write, &login, Some(first)).await;
    let body: Value = serde_json::from_str(&script.asked(REGISTER).unwrap()).unwrap();
    assert_eq!(body["scope"], "read write");
    let script = Script::good();
    for discovery in [read, write] {
        let same = known(&script, &discovery, &login, Some(second.clone())).await;
        assert_eq!(same, second);
    }
    assert_eq!(script.asked(REGISTER), None);
}

#[tokio::test]
async fn codes_to_type_that_lead_astray() {
    let login = Login::default();
    let device = "https://issuer.example/device";
    let good = json!({ "device_code": "d", "user_code": "ABCD", "verification_uri": "https://issuer.example/go", "expires_in": 600 });
    let script = json!("javascript:alert(1)");
    let with = |name: &str| and(good.clone(), name, script.clone());
    let uri = "verification URI";
    let page = json!("<html>");
    for (answer, code, part) in [
        (with("verification_uri"), Code::Mismatch, uri),
        (with("verification_uri_complete"), Code::Mismatch, uri),
        (page, Code::Unreachable, "not a device authorization"),
    ] {
        let script = Script::good().with(device, 200, answer);
        let discovery = discovered(&script, &login).await.unwrap();
        let client = client(&discovery).await;
        let begun = Device::begin(&script, &discovery, &client, &login).await;
        is(begun.map(|_| ()), code, part);
    }
}
