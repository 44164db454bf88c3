//! Protocol detection for a URL, from the server's responses.

use mcp::{Era, Version, client::ConnectError};
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
    check(moved, moved, Err("redirects to other.test:443: ")).await;
}

#[tokio::test]
async fn nobody_there() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    drop(listener);
    let target = mcp::client::Target::Http {
        url: format!("http://user:s3cret@{address}/mcp?key=s3cret"),
        headers: vec![],
    };
    let failed = soon(mcp::client::Connector::new().connect(target, &options())).await;
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
    let target = mcp::client::Target::Http {
        url: server.url.replace("://", "://u:p@"),
        headers: vec![
            ("X-Key".into(), "k".into()),
            ("accept".into(), "*/*".into()),
        ],
    };
    let connected = soon(mcp::client::Connector::new().connect(target, &options())).await;
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
    let get = server.hit(|hit| hit.method == http::Method::GET).await;
    assert_eq!(get.header("accept"), Some("text/event-stream"));
    assert_eq!(get.header("mcp-session-id"), Some("abc!~"));
    soon(client.close(std::time::Duration::from_secs(5))).await;
    let delete = server.hit(|hit| hit.method == http::Method::DELETE).await;
    assert_eq!(delete.header("mcp-session-id"), Some("abc!~"));
}
