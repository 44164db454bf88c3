//! Renewal and registration at an issuer that answers when the test lets it.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use axum::{
    Json, Router,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::post,
};
use bytes::Bytes;
use futures_util::{FutureExt as _, future::BoxFuture};
use mcp::client::{Access, Authorize, SignIn, Token};
use model::{Login, ServerKey, Settings};
use oauth::{Discovery, Identity};
use parking_lot::Mutex;
use serde_json::{Value, json};
use store::{Location, Store};
use tempfile::TempDir;
use tokio::{
    net::TcpListener,
    sync::{Semaphore, watch},
    task::JoinSet,
};

use super::{EVERYBODY, Id, Logins, Place, Stored, credential::Authorizing};
use crate::master::Master;

/// The state of the issuer, and the rules for its responses.
struct Rules {
    /// Lifetimes of the next access tokens, the last one first. After that, an hour.
    lifetimes: Mutex<Vec<u64>>,
    /// Each token request takes a permit.
    gate: Semaphore,
    asked: watch::Sender<usize>,
    clients: Mutex<HashSet<String>>,
    registered: AtomicUsize,
}

struct Issuer {
    url: String,
    rules: Arc<Rules>,
    _tasks: JoinSet<()>,
}

async fn token(State(rules): State<Arc<Rules>>, body: Bytes) -> Response {
    let form: HashMap<String, String> = url::form_urlencoded::parse(&body).into_owned().collect();
    if !rules.clients.lock().contains(&form["client_id"]) {
        let refusal = json!({ "error": "invalid_client", "error_description": "unknown" });
        return (StatusCode::UNAUTHORIZED, Json(refusal)).into_response();
    }
    let number = |token: &String| token.strip_prefix('r')?.parse::<usize>().ok();
    let is_issued = form.get("refresh_token").and_then(number).is_some();
    if !is_issued {
        let refusal = json!({ "error": "invalid_grant" });
        return (StatusCode::BAD_REQUEST, Json(refusal)).into_response();
    }
    let mut count = 0;
    rules.asked.send_modify(|asked| {
        *asked += 1;
        count = *asked;
    });
    rules.gate.acquire().await.expect("it is open").forget();
    let lifetime = rules.lifetimes.lock().pop().unwrap_or(3600);
    Json(json!({
        "access_token": format!("t{count}"), "token_type": "Bearer", "expires_in": lifetime,
        "refresh_token": format!("r{count}"),
    }))
    .into_response()
}

async fn register(State(rules): State<Arc<Rules>>) -> (StatusCode, Json<Value>) {
    let id = format!("c{}", rules.registered.fetch_add(1, Ordering::SeqCst) + 1);
    rules.clients.lock().insert(id.clone());
    (StatusCode::CREATED, Json(json!({ "client_id": id })))
}

impl Issuer {
    async fn start(lifetimes: &[u64]) -> Self {
        let rules = Arc::new(Rules {
            lifetimes: Mutex::new(lifetimes.iter().rev().copied().collect()),
            gate: Semaphore::new(0),
            asked: watch::Sender::new(0),
            clients: Mutex::new(HashSet::from(["known".to_owned()])),
            registered: AtomicUsize::new(0),
        });
        let router = Router::new()
            .route("/token", post(token))
            .route("/register", post(register))
            .with_state(rules.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let _ = axum::serve(listener, router).await;
        });
        Self {
            url,
            rules,
            _tasks: tasks,
        }
    }

    fn answer_one(&self) {
        self.rules.gate.add_permits(1);
    }

    /// Waits until it got this many requests for a token.
    async fn asked(&self, count: usize) {
        let mut asked = self.rules.asked.subscribe();
        asked
            .wait_for(|asked| *asked == count)
            .await
            .expect("it runs");
    }

    fn discovery(&self) -> Value {
        let url = &self.url;
        json!({
            "resource": null, "scopes": [], "metadata": {
                "issuer": url, "token_endpoint": format!("{url}/token"),
                "registration_endpoint": format!("{url}/register"),
                "token_endpoint_auth_methods_supported": ["none"],
            },
        })
    }
}

/// Processes with one database.
struct Installation {
    store: Store,
    master: Arc<Master>,
    _dir: TempDir,
}

impl Installation {
    async fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let location = Location::Sqlite(dir.path().join("wharf.db"));
        let store = Box::pin(Store::open(&location)).await.expect("a database");
        let master = Master::open(&store, dir.path(), &|_| None).await;
        Self {
            master: Arc::new(master.expect("a new key")),
            store,
            _dir: dir,
        }
    }

    fn process(&self) -> Arc<Logins> {
        Logins::new(
            self.store.clone(),
            self.master.clone(),
            &Settings::default(),
        )
    }
}

fn id() -> Id {
    Id {
        server: ServerKey {
            owner: None,
            name: "files".parse().expect("a name"),
        },
        principal: EVERYBODY.into(),
    }
}

fn place() -> Place {
    Place {
        url: Some("http://127.0.0.1:1/mcp".to_owned()),
        login: Login::default(),
        public_only: false,
    }
}

/// The credential of a process, as the source of tokens.
fn credential(logins: &Arc<Logins>) -> Authorizing {
    Authorizing(logins.credential(&id(), &place()))
}

/// Signs in, with the access token `t0`.
async fn signed_in(logins: &Arc<Logins>, issuer: &Issuer) -> Authorizing {
    let stored = json!({
        "tokens": { "access": "t0", "refresh": "r0", "expires_at": null, "scopes": [] },
        "discovery": issuer.discovery(),
        "client": { "id": "known", "secret": null, "auth": "none", "redirect_uri": null, "expires_at": null },
    });
    let stored: Stored = serde_json::from_value(stored).expect("a sign-in");
    logins
        .keep(&id(), 1, &stored, None)
        .await
        .expect("it is kept");
    let credential = credential(logins);
    credential.0.begin(&stored.tokens);
    credential
}

fn access(token: &str) -> Access {
    Access {
        header: format!("Bearer {token}").parse().expect("a header"),
        prover: None,
    }
}

/// The server refuses a request with this token.
fn refused(credential: &Authorizing, token: &str) -> BoxFuture<'static, Result<Access, SignIn>> {
    credential.refused(Some(access(token)), "Bearer".to_owned())
}

/// The renewal of a token that is due.
fn due(credential: &Authorizing) -> BoxFuture<'static, Result<Option<Access>, SignIn>> {
    match credential.token() {
        Token::Comes(coming) => coming,
        Token::Is(token) => panic!("{token:?} is not due"),
    }
}

/// The issuer revokes a token when it issues the next one, so the server refuses it before its expiry. Calls that were
/// sent with it wait for the renewal. The token had been issued after an earlier refusal.
#[tokio::test]
async fn s06_a_token_that_is_refused_during_its_renewal_is_waited_for() {
    let issuer = Issuer::start(&[0]).await;
    let installation = Installation::new().await;
    let logins = installation.process();
    let credential = signed_in(&logins, &issuer).await;
    issuer.answer_one();
    assert_eq!(refused(&credential, "t0").await, Ok(access("t1")));
    let renewing = due(&credential);
    let in_flight = async {
        issuer.asked(2).await;
        let mut in_flight = refused(&credential, "t1");
        assert_eq!((&mut in_flight).now_or_never(), None);
        issuer.answer_one();
        in_flight.await
    };
    let (renewed, in_flight) = tokio::join!(renewing, in_flight);
    assert_eq!(renewed, Ok(Some(access("t2"))));
    assert_eq!(in_flight, Ok(access("t2")));
    // A response that arrives after the renewal.
    assert_eq!(refused(&credential, "t1").await, Ok(access("t2")));
    assert_eq!(*issuer.rules.asked.borrow(), 2);
}

/// The same, if another process renews the token.
#[tokio::test]
async fn s06_a_token_that_another_process_renews_is_waited_for() {
    let issuer = Issuer::start(&[]).await;
    let installation = Installation::new().await;
    let (one, two) = (installation.process(), installation.process());
    let first = signed_in(&one, &issuer).await;
    issuer.answer_one();
    assert_eq!(refused(&first, "t0").await, Ok(access("t1")));
    let second = credential(&two);
    assert_eq!(due(&second).await, Ok(Some(access("t1"))));
    let in_flight = async {
        issuer.asked(2).await;
        let mut in_flight = refused(&first, "t1");
        assert_eq!((&mut in_flight).now_or_never(), None);
        issuer.answer_one();
        in_flight.await
    };
    let (renewed, in_flight) = tokio::join!(refused(&second, "t1"), in_flight);
    assert_eq!(renewed, Ok(access("t2")));
    assert_eq!(in_flight, Ok(access("t2")));
    assert_eq!(*issuer.rules.asked.borrow(), 2);
}

/// A server that refuses every token does not make the gateway ask the issuer for each request.
#[tokio::test]
async fn s07_a_server_that_refuses_a_new_token_asks_for_a_sign_in() {
    let issuer = Issuer::start(&[]).await;
    let installation = Installation::new().await;
    let logins = installation.process();
    let credential = signed_in(&logins, &issuer).await;
    issuer.answer_one();
    assert_eq!(refused(&credential, "t0").await, Ok(access("t1")));
    for _ in 0..2 {
        let why = refused(&credential, "t1")
            .await
            .expect_err("no token is left");
        assert!(
            why.is_needed && why.reason.contains("has just issued"),
            "{why}"
        );
    }
    assert_eq!(*issuer.rules.asked.borrow(), 1);
}

/// If the renewal itself fails, all calls that waited for it say why. The sign-in is not over.
#[tokio::test]
async fn s07_a_renewal_that_fails_fails_for_all_that_wait() {
    let issuer = Issuer::start(&[]).await;
    let installation = Installation::new().await;
    let logins = installation.process();
    let credential = signed_in(&logins, &issuer).await;
    let (url, rules) = (issuer.url.clone(), issuer.rules.clone());
    drop(issuer);
    let (one, two) = tokio::join!(refused(&credential, "t0"), refused(&credential, "t0"));
    for failed in [one, two] {
        let why = failed.expect_err("the issuer is gone");
        assert!(!why.is_needed && why.reason.contains(&url), "{why}");
    }
    let row = installation.store.login_get(&id().server, EVERYBODY).await;
    let row = row.expect("the database answers").expect("it is kept");
    assert_eq!((row.version, row.needs_login), (1, None));
    assert_eq!(*rules.asked.borrow(), 0);
}

/// The issuer has forgotten the client: the user has to sign in again, and the message says why.
#[tokio::test]
async fn s07_a_renewal_by_a_forgotten_client_asks_for_a_sign_in() {
    let issuer = Issuer::start(&[]).await;
    let installation = Installation::new().await;
    let logins = installation.process();
    let credential = signed_in(&logins, &issuer).await;
    issuer.rules.clients.lock().clear();
    let why = refused(&credential, "t0")
        .await
        .expect_err("no token is left");
    assert!(
        why.is_needed && why.reason.contains("invalid_client"),
        "{why}"
    );
}

/// A registration is used as long as the issuer knows it. After that, the gateway registers again.
#[tokio::test]
async fn s07_a_forgotten_client_is_registered_again() {
    let issuer = Issuer::start(&[]).await;
    let installation = Installation::new().await;
    let logins = installation.process();
    let discovery: Discovery = serde_json::from_value(issuer.discovery()).expect("metadata");
    let identity = Identity {
        redirect_uri: "http://127.0.0.1:6280/login/callback".to_owned(),
        metadata_url: None,
    };
    let place = place();
    let client = async || {
        let http = logins.http(&place);
        let client = logins
            .client(&http, &discovery, &place.login, &identity, true)
            .await;
        client.expect("a client").id
    };
    assert_eq!((client().await, client().await), ("c1".into(), "c1".into()));
    issuer.rules.clients.lock().clear();
    assert_eq!((client().await, client().await), ("c2".into(), "c2".into()));
}
