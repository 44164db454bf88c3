//! Protocol detection for a URL, from the server's responses.

use std::{
    future::pending,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::future::BoxFuture;
use http::{HeaderValue, Method};
use mcp::{
    Era, Version,
    client::{
        Access, Authorize, CallError, ConnectError, Connector, Options, SignIn, Target, Token,
    },
};
use serde_json::{Value, json};

use crate::server::{
    Hit, Reply, Server, discover_result, empty, error, event, events, initialize_result,
    json_reply, options, result, soon, text,
};

/// Connects to a server with these responses to `server/discover` and `initialize`.
async fn check(
    discover: impl Fn(&Hit) -> Reply + Send + Sync + 'static,
    initialize: impl Fn(&Hit) -> Reply + Send + Sync + 'static,
    expect: Result<Version, &str>,
) {
    let server = Server::start(move |hit| {
        let reply = match hit.rpc() {
            "server/discover" => discover(&hit),
            "initialize" => initialize(&hit),
            "notifications/initialized" => empty(202),
            _ => empty(405),
        };
        async { reply }
    })
    .await;
    let found = soon(server.connect())
        .await
        .map(|(client, _)| client.info().version);
    match (&found, expect) {
        (Ok(found), Ok(expect)) => assert_eq!(*found, expect),
        (Err(found), Err(expect)) => {
            assert!(
                found.to_string().contains(expect),
                "{found} has no {expect:?}"
            );
        }
        _ => panic!("{found:?} instead of {expect:?}"),
    }
}

fn initialized(hit: &Hit) -> Reply {
    json_reply(200, &result(hit, initialize_result("2025-06-18")))
}

fn refused(_: &Hit) -> Reply {
    empty(500)
}

#[tokio::test]
async fn a_modern_answer_decides() {
    let modern = Ok(Version::V2026_07_28);
    let plain = |hit: &Hit| json_reply(200, &result(hit, discover_result()));
    check(plain, refused, modern).await;
    let stream =
        |hit: &Hit| events(&[": hello\n\n".into(), event(&result(hit, discover_result()))]);
    check(stream, refused, modern).await;
}

#[tokio::test]
async fn a_modern_error_decides() {
    let unsupported = |supported: Value| {
        move |hit: &Hit| {
            let mut body = error(hit.id(), -32022, "Unsupported protocol version");
            body["error"]["data"] = json!({"supported": supported, "requested": "2026-07-28"});
            json_reply(400, &body)
        }
    };
    let newer = unsupported(json!(["2027-01-01"]));
    check(newer, initialized, Err("2027-01-01")).await;
    let both = unsupported(json!(["2027-01-01", "2025-06-18"]));
    check(both, initialized, Ok(Version::V2025_06_18)).await;
    for code in [-32020, -32021] {
        let discover = move |hit: &Hit| json_reply(400, &error(hit.id(), code, "it is modern"));
        check(discover, initialized, Err("it is modern")).await;
    }
}

#[tokio::test]
async fn anything_else_means_initialize() {
    let legacy = Ok(Version::V2025_06_18);
    for status in [400, 401, 404, 405, 406, 415, 500, 202] {
        check(move |_| empty(status), initialized, legacy).await;
    }
    for status in [200, 404] {
        let unknown =
            move |hit: &Hit| json_reply(status, &error(hit.id(), -32601, "Method not found"));
        check(unknown, initialized, legacy).await;
    }
    let early = |_: &Hit| json_reply(400, &error(&Value::Null, -32000, "Not initialized"));
    check(early, initialized, legacy).await;
    let page = |_: &Hit| text(200, Some("text/html"), "<html>");
    check(page, initialized, legacy).await;
    let nothing = |hit: &Hit| json_reply(200, &result(hit, json!({})));
    check(nothing, initialized, legacy).await;
    let stream = |hit: &Hit| {
        let answer = event(&result(hit, initialize_result("2025-11-25")));
        events(&["id: 1\ndata:\n\n".into(), answer])
    };
    check(|_| empty(400), stream, Ok(Version::V2025_11_25)).await;
}

#[tokio::test]
async fn both_refusals_are_told() {
    let refuse = |code, message: &'static str| {
        move |hit: &Hit| json_reply(400, &error(hit.id(), code, message))
    };
    for told in ["discover me not", "nor initialize"] {
        let discover = refuse(-32601, "discover me not");
        let initialize = refuse(-32602, "nor initialize");
        check(discover, initialize, Err(told)).await;
    }
}

#[tokio::test]
async fn authentication_and_redirects_are_named_without_secrets() {
    let unauthorized = |_: &Hit| {
        let mut reply = empty(401);
        let challenge = "Bearer realm=\"x\", token=\"t0ken\"";
        reply
            .headers_mut()
            .insert("www-authenticate", challenge.parse().expect("a value"));
        reply
    };
    check(unauthorized, unauthorized, Err("(Bearer): set `headers`")).await;
    let moved = |_: &Hit| {
        let mut reply = empty(307);
        let to = "https://u:p@other.test/x?secret=1";
        reply
            .headers_mut()
            .insert("location", to.parse().expect("a value"));
        reply
    };
    let target = "redirects to https://other.test/x?…: set that URL";
    check(moved, moved, Err(target)).await;
}

#[tokio::test]
async fn nobody_there() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    drop(listener);
    let target = Target::Http {
        url: format!("http://user:s3cret@{address}/mcp?key=s3cret"),
        headers: vec![],
    };
    let failed = soon(Connector::new().connect(target, &options())).await;
    let Err(ConnectError::Unreachable(why)) = failed.map(|_| ()) else {
        panic!("not unreachable");
    };
    assert!(
        why.contains(&address.to_string()) && !why.contains("s3cret"),
        "{why}"
    );
}

#[tokio::test]
async fn the_configured_era_is_the_only_one_tried() {
    let server = Server::start(|hit: Hit| async move {
        match hit.rpc() {
            "initialize" => initialized(&hit),
            "notifications/initialized" => empty(202),
            _ => empty(405),
        }
    })
    .await;
    let mut options = options();
    options.era = Some(Era::Modern);
    assert!(soon(server.connect_with(&options)).await.is_err());
    assert_eq!(server.count(|hit| hit.rpc() == "initialize"), 0);
    options.era = Some(Era::Legacy);
    assert!(soon(server.connect_with(&options)).await.is_ok());
    assert_eq!(server.count(|hit| hit.rpc() == "server/discover"), 1);
}

#[tokio::test]
async fn requests_say_their_version_and_their_headers() {
    let server = Server::start(|hit: Hit| async move {
        match hit.rpc() {
            "initialize" => {
                let mut reply = initialized(&hit);
                reply
                    .headers_mut()
                    .insert("mcp-session-id", "abc!~".parse().expect("a value"));
                reply
            }
            "notifications/initialized" => empty(202),
            _ => empty(405),
        }
    })
    .await;
    let target = Target::Http {
        url: server.url.replace("://", "://u:p@"),
        headers: vec![
            ("X-Key".into(), "k".into()),
            ("accept".into(), "*/*".into()),
        ],
    };
    let connected = soon(Connector::new().connect(target, &options())).await;
    let (client, _ambient) = connected.expect("a legacy server");
    let hits = server.hits();
    let discover = &hits[0];
    let both = Some("application/json, text/event-stream");
    for hit in &hits[..3] {
        assert_eq!(hit.header("accept"), both);
        assert_eq!(hit.header("content-type"), Some("application/json"));
        assert_eq!(hit.header("x-key"), Some("k"));
        assert_eq!(hit.header("authorization"), Some("Basic dTpw"));
    }
    assert_eq!(discover.header("mcp-protocol-version"), Some("2026-07-28"));
    assert_eq!(discover.header("mcp-method"), Some("server/discover"));
    assert_eq!(
        discover.body["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"],
        "2026-07-28"
    );
    assert_eq!(
        (hits[1].rpc(), hits[1].header("mcp-session-id")),
        ("initialize", None)
    );
    assert_eq!(hits[1].header("mcp-protocol-version"), None);
    assert_eq!(hits[2].header("mcp-session-id"), Some("abc!~"));
    assert_eq!(hits[2].header("mcp-protocol-version"), Some("2025-06-18"));
    let get = server.hit(|hit| hit.method == Method::GET).await;
    assert_eq!(get.header("accept"), Some("text/event-stream"));
    assert_eq!(get.header("mcp-session-id"), Some("abc!~"));
    soon(client.close(Duration::from_secs(5))).await;
    let delete = server.hit(|hit| hit.method == Method::DELETE).await;
    assert_eq!(delete.header("mcp-session-id"), Some("abc!~"));
}

/// A modern server at a URL whose answer to `initialize` is `initialize`.
async fn modern_with(initialize: impl Fn(&Hit) -> Reply + Send + Sync + 'static) -> Server {
    Server::start(move |hit| {
        let reply = match (&hit.method, hit.rpc()) {
            (_, "server/discover") => json_reply(200, &result(&hit, discover_result())),
            (_, "initialize") => initialize(&hit),
            (_, "notifications/initialized") => empty(202),
            (_, "tools/list") => json_reply(200, &result(&hit, json!({"tools": []}))),
            (&Method::DELETE, _) => empty(200),
            _ => empty(405),
        };
        async { reply }
    })
    .await
}

/// The second conversation has its own session, at the same URL and with the same headers.
#[tokio::test]
async fn u14_a_modern_server_that_also_accepts_initialize() {
    let server = modern_with(|hit| {
        let mut reply = initialized(hit);
        let session = "s-1".parse().expect("a value");
        reply.headers_mut().insert("mcp-session-id", session);
        reply
    })
    .await;
    let target = Target::Http {
        url: server.url.clone(),
        headers: vec![("authorization".to_owned(), "Bearer t".to_owned())],
    };
    let connected = soon(Connector::new().connect(target, &options())).await;
    let (modern, _) = connected.expect("it is modern");
    assert!(modern.may_be_legacy_too());
    let opened = soon(modern.legacy_too(Duration::from_secs(5))).await;
    let (legacy, _ambient) = opened.expect("it answers").expect("it accepts");
    assert_eq!(legacy.info().version, Version::V2025_06_18);
    assert!(!legacy.may_be_legacy_too());
    for client in [&modern, &legacy] {
        soon(client.ask("tools/list", "")).await.expect("a list");
    }
    let asked = |hit: &Hit| hit.rpc() == "tools/list";
    let seen: Vec<_> = server.hits().into_iter().filter(asked).collect();
    let headers = ["mcp-protocol-version", "mcp-session-id", "authorization"];
    let seen = seen.iter().map(|hit| headers.map(|name| hit.header(name)));
    assert_eq!(
        seen.collect::<Vec<_>>(),
        [
            [Some("2026-07-28"), None, Some("Bearer t")],
            [Some("2025-06-18"), Some("s-1"), Some("Bearer t")],
        ]
    );
    for _ in 0..2 {
        soon(legacy.close(Duration::from_secs(5))).await;
        assert!(legacy.is_closed() && !modern.is_closed());
    }
    assert_eq!(server.count(|hit| hit.method == Method::DELETE), 1);
}

#[tokio::test]
async fn u14_a_modern_server_that_refuses_initialize() {
    for status in [200, 400, 404] {
        let refusing = move |hit: &Hit| json_reply(status, &error(hit.id(), -32601, "unknown"));
        let server = modern_with(refusing).await;
        let (modern, _) = soon(server.connect()).await.expect("it is modern");
        let opened = soon(modern.legacy_too(Duration::from_secs(5))).await;
        assert!(opened.expect("a refusal is an answer").is_none());
        // A refusal says nothing about HTTP+SSE, since the server is known to be modern.
        assert_eq!(server.count(|hit| hit.method == Method::GET), 0);
    }
    // It may accept later.
    for status in [429, 503] {
        let server = modern_with(move |_| empty(status)).await;
        let (modern, _) = soon(server.connect()).await.expect("it is modern");
        let opened = soon(modern.legacy_too(Duration::from_secs(5))).await;
        assert!(opened.is_err());
    }
    // The configuration names the era.
    let server = modern_with(initialized).await;
    let only = Options {
        era: Some(Era::Modern),
        ..options()
    };
    let (modern, _) = soon(server.connect_with(&only))
        .await
        .expect("it is modern");
    assert!(!modern.may_be_legacy_too());
}

#[tokio::test]
async fn the_highest_listed_version_is_tried() {
    type Refuse = fn(&Hit) -> Reply;
    let refusals: [Refuse; 3] = [
        |_| {
            let why = "Unsupported protocol version (supported versions: 2025-06-18, 2025-03-26, 2024-11-05, 2024-10-07)";
            text(400, Some("text/plain"), &format!("Bad Request: {why}"))
        },
        |_| {
            let why = "Unsupported protocol version 2025-11-25 (supported: 2024-11-05, 2025-06-18)";
            json_reply(400, &error(&Value::Null, -32000, why))
        },
        |hit| {
            let mut body = error(hit.id(), -32602, "Unsupported protocol version");
            body["error"]["data"] = json!({"supported": ["2025-06-18"], "requested": "2025-11-25"});
            json_reply(200, &body)
        },
    ];
    for refuse in refusals {
        let initialize = move |hit: &Hit| match hit.body["params"]["protocolVersion"].as_str() {
            Some("2025-06-18") => initialized(hit),
            _ => refuse(hit),
        };
        check(refuse, initialize, Ok(Version::V2025_06_18)).await;
    }
    // Versions that are named but refused as well are tried once.
    let refuse = |hit: &Hit| {
        let mut body = error(hit.id(), -32602, "no");
        body["error"]["data"] = json!({"supported": ["2025-06-18", "2024-11-05"]});
        json_reply(200, &body)
    };
    check(refuse, refuse, Err("no (-32602)")).await;
}

/// Connects over a shared connector, with these time and access tokens.
async fn connect(
    connector: &Connector,
    server: &Server,
    timeout: Duration,
    authorize: Option<Arc<dyn Authorize>>,
) -> Result<Version, ConnectError> {
    let target = Target::Http {
        url: server.url.clone(),
        headers: vec![],
    };
    let mut options = options();
    (options.timeout, options.authorize) = (timeout, authorize);
    let connected = soon(connector.connect(target, &options)).await;
    connected.map(|(client, _)| client.info().version)
}

fn asked(server: &Server, method: &str) -> usize {
    server.count(|hit| hit.rpc() == method)
}

#[tokio::test]
async fn a_url_that_never_answers_discover_is_remembered() {
    let is_replaced = Arc::new(AtomicUsize::new(0));
    let replaced = is_replaced.clone();
    let server = Server::start(move |hit: Hit| {
        let is_modern = replaced.load(Ordering::SeqCst) == 1;
        async move {
            match hit.rpc() {
                "server/discover" if is_modern => json_reply(200, &result(&hit, discover_result())),
                "server/discover" => pending().await,
                "initialize" if is_modern => empty(400),
                "initialize" => initialized(&hit),
                "notifications/initialized" => empty(202),
                _ => empty(405),
            }
        }
    })
    .await;
    let connector = Connector::new();
    // Half of this time is for `server/discover`.
    let timeout = Duration::from_millis(600);
    let first = connect(&connector, &server, Duration::from_secs(4), None).await;
    assert_eq!(first.expect("a legacy server"), Version::V2025_06_18);
    for _ in 0..2 {
        let again = connect(&connector, &server, timeout, None).await;
        assert_eq!(again.expect("a legacy server"), Version::V2025_06_18);
    }
    assert_eq!(asked(&server, "server/discover"), 1);
    // The URL leads to another server now.
    is_replaced.store(1, Ordering::SeqCst);
    let modern = connect(&connector, &server, Duration::from_secs(4), None).await;
    assert_eq!(modern.expect("a modern server"), Version::V2026_07_28);
}

/// A slow modern server that refuses `initialize` is still found.
#[tokio::test]
async fn a_modern_server_may_be_slow() {
    let server = Server::start(|hit: Hit| async move {
        match hit.rpc() {
            "server/discover" => {
                tokio::time::sleep(Duration::from_millis(500)).await;
                json_reply(200, &result(&hit, discover_result()))
            }
            _ => pending().await,
        }
    })
    .await;
    let options_time = Duration::from_millis(800);
    let found = connect(&Connector::new(), &server, options_time, None).await;
    assert_eq!(found.expect("a modern server"), Version::V2026_07_28);
}

/// The tokens of a sign-in: the current one, and the one that replaces it when the server refuses it.
#[derive(Debug, Default)]
struct Tokens {
    current: Mutex<Option<&'static str>>,
    next: Option<&'static str>,
    refused: AtomicUsize,
}

#[derive(Debug)]
struct Login(Arc<Tokens>);

fn access(token: &'static str) -> Access {
    Access {
        header: HeaderValue::from_static(token),
        prover: None,
    }
}

impl Authorize for Login {
    fn token(&self) -> Token {
        Token::Is(self.0.current.lock().expect("unharmed").map(access))
    }

    fn refused(&self, _: Option<Access>, _: String) -> BoxFuture<'static, Result<Access, SignIn>> {
        let tokens = self.0.clone();
        Box::pin(async move {
            tokens.refused.fetch_add(1, Ordering::SeqCst);
            let mut current = tokens.current.lock().expect("unharmed");
            match tokens.next.filter(|next| *current != Some(*next)) {
                Some(next) => {
                    *current = Some(next);
                    Ok(access(next))
                }
                None => Err(SignIn {
                    reason: "nobody has signed in".into(),
                    is_needed: true,
                }),
            }
        })
    }
}

fn unauthorized() -> Reply {
    let mut reply = empty(401);
    let challenge = HeaderValue::from_static("Bearer");
    reply.headers_mut().insert("www-authenticate", challenge);
    reply
}

#[tokio::test]
async fn a_401_to_discover_alone_needs_no_sign_in() {
    for current in [None, Some("Bearer old")] {
        let server = Server::start(|hit: Hit| async move {
            match hit.rpc() {
                "initialize" => initialized(&hit),
                "notifications/initialized" => empty(202),
                _ => unauthorized(),
            }
        })
        .await;
        let tokens = Arc::new(Tokens {
            current: Mutex::new(current),
            ..Tokens::default()
        });
        let login = Arc::new(Login(tokens.clone()));
        let timeout = Duration::from_secs(5);
        let found = connect(&Connector::new(), &server, timeout, Some(login)).await;
        assert_eq!(found.expect("a legacy server"), Version::V2025_06_18);
        assert_eq!(asked(&server, "server/discover"), 1);
    }
    // A server that asks every request for a sign-in needs one.
    let server = Server::start(|_| async { unauthorized() }).await;
    let login = Arc::new(Login(Arc::default()));
    let found = connect(
        &Connector::new(),
        &server,
        Duration::from_secs(5),
        Some(login),
    )
    .await;
    let Err(ConnectError::Call(CallError::SignIn(why))) = found else {
        panic!("{found:?}");
    };
    assert_eq!(&*why.reason, "nobody has signed in");
}

/// A modern server is still found if the token has to be replaced first.
#[tokio::test]
async fn a_replaced_token_does_not_change_the_era() {
    for accepts_both in [false, true] {
        let server = Server::start(move |hit: Hit| async move {
            match hit.rpc() {
                _ if hit.header("authorization") != Some("Bearer new") => unauthorized(),
                "server/discover" => json_reply(200, &result(&hit, discover_result())),
                "initialize" if accepts_both => initialized(&hit),
                "notifications/initialized" => empty(202),
                _ => empty(400),
            }
        })
        .await;
        let tokens = Arc::new(Tokens {
            current: Mutex::new(Some("Bearer old")),
            next: Some("Bearer new"),
            ..Tokens::default()
        });
        let login = Arc::new(Login(tokens.clone()));
        let timeout = Duration::from_secs(5);
        let found = connect(&Connector::new(), &server, timeout, Some(login)).await;
        assert_eq!(found.expect("a modern server"), Version::V2026_07_28);
        assert_eq!(tokens.refused.load(Ordering::SeqCst), 1);
    }
}

/// A token that the server refuses later is replaced.
#[tokio::test]
async fn a_token_is_replaced_after_the_detection() {
    let is_revoked = Arc::new(AtomicUsize::new(0));
    let revoked = is_revoked.clone();
    let server = Server::start(move |hit: Hit| {
        let wanted = match revoked.load(Ordering::SeqCst) {
            0 => "Bearer old",
            _ => "Bearer new",
        };
        async move {
            match hit.rpc() {
                _ if hit.header("authorization") != Some(wanted) => unauthorized(),
                "server/discover" => json_reply(200, &result(&hit, discover_result())),
                _ => json_reply(200, &result(&hit, json!({}))),
            }
        }
    })
    .await;
    let tokens = Arc::new(Tokens {
        current: Mutex::new(Some("Bearer old")),
        next: Some("Bearer new"),
        ..Tokens::default()
    });
    let mut options = options();
    options.authorize = Some(Arc::new(Login(tokens.clone())));
    let (client, _ambient) = soon(server.connect_with(&options)).await.expect("a server");
    is_revoked.store(1, Ordering::SeqCst);
    let answer = crate::calls::answer(&client).await;
    answer.expect("the token is replaced");
    assert_eq!(tokens.refused.load(Ordering::SeqCst), 1);
}
