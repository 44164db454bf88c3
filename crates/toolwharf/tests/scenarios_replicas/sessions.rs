//! Sessions that were opened by another gateway, or before a restart.

use rustix::process::Signal;
use serde_json::{Value, json};
use testkit::{DEADLINE, RawClient, Reply, Streaming, postgres::Database};

use crate::common::{Gateway, Setup, rpc, scripted, with};

/// The protocol versions with sessions over streamable HTTP.
pub(crate) const VERSIONS: [&str; 3] = ["2025-03-26", "2025-06-18", "2025-11-25"];
pub(crate) const ACCEPT_STREAM: (&str, &str) = ("accept", "text/event-stream");

pub(crate) fn call(tool: &str, arguments: Value) -> String {
    call_as(7, tool, arguments)
}

/// Like [`call`], with this id.
pub(crate) fn call_as(id: u64, tool: &str, arguments: Value) -> String {
    rpc::call(id, tool, arguments)
}

/// The arguments of `server_request` that make a server ask the client.
pub(crate) fn elicitation() -> Value {
    json!({
        "method": "elicitation/create",
        "params": {"message": "?", "requestedSchema": {"type": "object", "properties": {}}},
    })
}

/// Accepts a server's elicitation request.
pub(crate) async fn accept(client: &RawClient, question: &Value) {
    let answer = json!({
        "jsonrpc": "2.0", "id": question["id"], "result": {"action": "accept", "content": {}},
    });
    assert_eq!(client.post(answer.to_string()).await.status, 202);
}

pub(crate) async fn post(client: &RawClient, body: String) -> Streaming {
    let both = ("accept", "application/json, text/event-stream");
    client.send(http::Method::POST, &[both], body).await
}

/// Returns the next message. Skips events without data, with which a stream of 2025-11-25 begins.
pub(crate) async fn message(stream: &mut Streaming) -> Value {
    loop {
        let event = stream.next_event(DEADLINE).await.expect("the stream ended");
        if let Some(message) = event.json() {
            return message;
        }
    }
}

/// Asserts that a request in this session succeeds.
pub(crate) async fn pings(client: RawClient, id: &str) {
    let reply = in_session(client, id).post(ping()).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
}

pub(crate) fn ping() -> String {
    rpc::message(1, "ping", json!({})).to_string()
}

/// Opens a session and returns its id.
pub(crate) async fn open(client: RawClient, version: &str) -> String {
    let params = json!({
        "protocolVersion": version, "capabilities": {"elicitation": {}},
        "clientInfo": {"name": "t", "version": "1"},
    });
    let hello = rpc::message(0, "initialize", params);
    let reply = client.post(hello.to_string()).await;
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
    let mut stream = post(client, call("server_request", elicitation())).await;
    assert!(
        stream.is_event_stream(),
        "{version}: {:?}",
        stream.collect(DEADLINE).await.text()
    );
    let question = message(&mut stream).await;
    assert_eq!(question["method"], "elicitation/create", "{version}");
    accept(client, &question).await;
    let answer = stream.next_json(DEADLINE).await.unwrap();
    assert!(answer.to_string().contains("accept"), "{version}: {answer}");
}

/// Returns the first messages on the session's stream.
async fn news(client: &RawClient) -> Vec<String> {
    let mut stream = client.get(&[ACCEPT_STREAM]).await;
    assert_eq!(stream.status, 200);
    let mut methods = Vec::new();
    while methods.len() < 3 {
        let message = message(&mut stream).await;
        methods.push(message["method"].as_str().unwrap().to_owned());
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
        let changed = "notifications/tools/list_changed".to_owned();
        assert!(news.contains(&changed), "{version}: {news:?}");
    }
    assert_eq!(gateway.metric("sessions", None).await, Some(3));
    // A session that the client ended stays ended.
    let (_, id) = &sessions[0];
    let client = in_session(gateway.client(), id);
    assert_eq!(client.delete(&[]).await.status, 204);
    assert!(is_unknown(&client.post(ping()).await));
}

/// A modified session id, or the id of another key, project or installation, is not accepted.
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
    let sessions = gateway.metric("sessions", None).await;
    assert_eq!(sessions, Some(1), "the id's own");
    pings(gateway.client(), &id).await;
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
        let all = (0..16).map(|_| pings(gateway.client(), id));
        futures_util::future::join_all(all).await;
    }
    assert_eq!(gateway.metric("sessions", None).await, Some(20));
}

/// A replica on this Postgres with a shared master key and the first replica's administrator token.
pub(crate) async fn replica(database: &Database, first: Option<&Gateway>) -> Gateway {
    let setup = setup().of_replica(database.url(), first);
    setup.connected().await
}

/// Three replicas on one database.
pub(crate) async fn three() -> (Database, [Gateway; 3]) {
    let database = Database::create().await;
    let first = replica(&database, None).await;
    let second = replica(&database, Some(&first)).await;
    let third = replica(&database, Some(&first)).await;
    (database, [first, second, third])
}

/// The gateway that opened the sessions is killed. Another gateway, which does not know these sessions, continues them.
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
