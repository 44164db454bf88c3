//! Sessions that were opened by another gateway, or before a restart.

use rustix::process::Signal;
use serde_json::{Value, json};
use testkit::{DEADLINE, RawClient, Reply, postgres::Database};

use crate::common::{Gateway, Setup, scripted, with};

/// The protocol versions with sessions over streamable HTTP.
pub(crate) const VERSIONS: [&str; 3] = ["2025-03-26", "2025-06-18", "2025-11-25"];
pub(crate) const ACCEPT_STREAM: (&str, &str) = ("accept", "text/event-stream");

pub(crate) fn request(id: u64, method: &str, params: Value) -> String {
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string()
}

pub(crate) fn call(tool: &str, arguments: Value) -> String {
    request(
        7,
        "tools/call",
        json!({"name": tool, "arguments": arguments}),
    )
}

pub(crate) fn ping() -> String {
    request(1, "ping", json!({}))
}

/// Opens a session and returns its id.
pub(crate) async fn open(client: RawClient, version: &str) -> String {
    let params = json!({
        "protocolVersion": version, "capabilities": {"elicitation": {}},
        "clientInfo": {"name": "t", "version": "1"},
    });
    let reply = client.post(request(0, "initialize", params)).await;
    let id = reply.header("mcp-session-id").unwrap().to_owned();
    assert!(id.len() <= 512 && id.bytes().all(|byte| byte.is_ascii_graphic()));
    id
}

pub(crate) fn in_session(client: RawClient, id: &str) -> RawClient {
    client.with("mcp-session-id", id)
}

/// Asserts that the session still knows its version and client capabilities: a server request reaches the client, and
/// the answer reaches the server.
pub(crate) async fn goes_on(client: &RawClient, version: &str) {
    let reply = client.post(call("echo", json!({"text": "x"}))).await;
    assert_eq!(reply.status, 200, "{version}: {}", reply.text());
    assert!(reply.response().get("result").is_some(), "{version}");
    let asked = json!({
        "method": "elicitation/create",
        "params": {"message": "?", "requestedSchema": {"type": "object", "properties": {}}},
    });
    let both = ("accept", "application/json, text/event-stream");
    let mut stream = client
        .send(http::Method::POST, &[both], call("server_request", asked))
        .await;
    assert!(
        stream.is_event_stream(),
        "{version}: {:?}",
        stream.collect(DEADLINE).await.text()
    );
    let question = loop {
        // A stream of 2025-11-25 begins with an event without data.
        let event = stream.next_event(DEADLINE).await.unwrap();
        if let Some(question) = event.json() {
            break question;
        }
    };
    assert_eq!(question["method"], "elicitation/create", "{version}");
    let answer = json!({
        "jsonrpc": "2.0", "id": question["id"], "result": {"action": "accept", "content": {}},
    });
    assert_eq!(client.post(answer.to_string()).await.status, 202);
    let answer = stream.next_json(DEADLINE).await.unwrap();
    assert!(answer.to_string().contains("accept"), "{version}: {answer}");
}

/// Returns the first messages on the session's stream.
async fn news(client: &RawClient) -> Vec<String> {
    let mut stream = client.get(&[ACCEPT_STREAM]).await;
    assert_eq!(stream.status, 200);
    let mut methods = Vec::new();
    while methods.len() < 3 {
        let event = stream.next_event(DEADLINE).await.unwrap();
        methods.extend(
            event
                .json()
                .map(|it| it["method"].as_str().unwrap().to_owned()),
        );
    }
    methods
}

fn setup() -> Setup {
    let options = json!({"maxConcurrency": 100});
    Setup::new().server("one", with(scripted("one", &[]), options))
}

/// Returns whether the response says that the session is unknown.
pub(crate) fn is_unknown(reply: &Reply) -> bool {
    reply.status == 404 && reply.text().contains("Session not found")
}

/// After SIGKILL and a restart, sessions continue. Clients are notified that the lists may have changed.
#[tokio::test]
async fn d02_a_session_survives_a_restart() {
    let gateway = setup().connected().await;
    let mut sessions = Vec::new();
    for version in VERSIONS {
        sessions.push((version, open(gateway.client(), version).await));
    }
    let gateway = gateway.restarted_after(Signal::KILL).await;
    gateway.up("one").await;
    for (version, id) in &sessions {
        let client = in_session(gateway.client(), id);
        goes_on(&client, version).await;
        let news = news(&client).await;
        assert!(
            news.contains(&"notifications/tools/list_changed".to_owned()),
            "{version}: {news:?}"
        );
    }
    assert_eq!(gateway.metric("sessions", None).await, Some(3));
    // A session that the client ended stays ended.
    let (_, id) = &sessions[0];
    let client = in_session(gateway.client(), id);
    assert_eq!(client.delete(&[]).await.status, 204);
    assert!(is_unknown(&client.post(ping()).await));
}

/// A modified id, or one of another key, project or installation, is not accepted.
#[tokio::test]
async fn d02_a_foreign_session_is_not_taken_up() {
    let gateway = setup().connected().await;
    let id = open(gateway.client(), "2025-11-25").await;
    let other = setup().connected().await;
    let foreign = open(other.client(), "2025-11-25").await;
    let gateway = gateway.restarted().await;
    let mut changed = id.clone().into_bytes();
    changed[60] = if changed[60] == b'A' { b'B' } else { b'A' };
    let changed = String::from_utf8(changed).unwrap();
    let (long, short) = ("A".repeat(5000), &id[..30]);
    for wrong in [&changed, &foreign, &long, short, "AAAA", "ü"] {
        let reply = in_session(gateway.client(), wrong).post(ping()).await;
        assert!(is_unknown(&reply), "{wrong}: {}", reply.text());
    }
    let token = format!("Bearer {}", gateway.token());
    let admin = gateway.client().with("authorization", &token);
    assert!(is_unknown(&in_session(admin, &id).post(ping()).await));
    let of_one = in_session(gateway.at("/mcp/-/one"), &id).post(ping()).await;
    assert!(is_unknown(&of_one), "{}", of_one.text());
    assert_eq!(
        gateway.metric("sessions", None).await,
        Some(1),
        "the id's own"
    );
    let reply = in_session(gateway.client(), &id).post(ping()).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
}

/// Simultaneous requests after a restart restore the session only once.
#[tokio::test]
async fn d02_requests_at_once_take_a_session_up_once() {
    let gateway = setup().connected().await;
    let mut ids = Vec::new();
    for _ in 0..20 {
        ids.push(open(gateway.client(), "2025-11-25").await);
    }
    let gateway = gateway.restarted().await;
    for id in &ids {
        let client = in_session(gateway.client(), id);
        let pings = (0..16).map(|_| client.post(ping()));
        for reply in futures_util::future::join_all(pings).await {
            assert_eq!(reply.status, 200, "{}", reply.text());
        }
    }
    assert_eq!(gateway.metric("sessions", None).await, Some(20));
}

/// A replica on this Postgres with a shared master key and the first replica's administrator token.
pub(crate) async fn replica(database: &Database, first: Option<&Gateway>) -> Gateway {
    let setup = setup().of_replica(database.url(), first);
    setup.connected().await
}

/// The gateway that opened the sessions is killed. Another one, which does not know them, continues them.
#[tokio::test]
async fn d02_another_gateway_takes_a_session_up() {
    let database = Database::create().await;
    let first = replica(&database, None).await;
    let second = replica(&database, Some(&first)).await;
    for version in VERSIONS {
        let id = open(first.client(), version).await;
        goes_on(&in_session(first.client(), &id), version).await;
        goes_on(&in_session(second.client(), &id), version).await;
    }
    let id = open(first.client(), "2025-11-25").await;
    drop(first);
    goes_on(&in_session(second.client(), &id), "2025-11-25").await;
}
