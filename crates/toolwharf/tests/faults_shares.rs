//! Clients that use more than their share, and revoked keys: other clients keep their share, and everything opened with
//! a revoked key ends.

mod common;

use std::time::Duration;

use common::{
    Gateway, LEGACY, Setup, body, holds,
    rpc::{self, listen},
};
use serde_json::{Value, json};
use testkit::{DEADLINE, RawClient, Reply, wait_for, within};

const ACCEPT_STREAM: [(&str, &str); 1] = [("accept", "text/event-stream")];

/// A client that is identified by its bearer token.
fn client(gateway: &Gateway, who: &str) -> RawClient {
    let bearer = format!("Bearer {who}");
    gateway.client().with("authorization", &bearer)
}

async fn session(client: &RawClient) -> RawClient {
    rpc::session(client.clone(), LEGACY).await
}

async fn ask(client: &RawClient, method: &str, params: Value) -> Reply {
    let message = rpc::message(2, method, params);
    client.post(message.to_string()).await
}

/// A client that opens session after session loses its own sessions, the longest unused first. Other clients keep
/// theirs, and new clients find room.
#[tokio::test]
async fn whoever_opens_most_sessions_loses_them_first() {
    const MAX_SESSIONS: usize = 40;
    let count = if testkit::soak() { 20_000 } else { 200 };
    let settings = format!("[limits]\nmax_sessions = {MAX_SESSIONS}\n");
    let gateway = Setup::new().settings(&settings).serve().await;
    let honest = client(&gateway, "honest");
    let quiet = session(&honest).await;
    let greedy = client(&gateway, "greedy");
    let first = session(&greedy).await;
    let listening = session(&greedy).await;
    let _stream = listening.get(&ACCEPT_STREAM).await;
    let mut last = first.clone();
    for _ in 0..count {
        last = session(&greedy).await;
    }
    let status = async |client: &RawClient| ask(client, "ping", json!({})).await.status;
    assert_eq!(status(&quiet).await, 200);
    assert_eq!(status(&first).await, 404);
    assert_eq!(status(&last).await, 200);
    assert_eq!(status(&listening).await, 200, "a session in use was closed");
    let open = gateway.metric("sessions", None).await.unwrap();
    let expected = 20..=MAX_SESSIONS as u64;
    assert!(expected.contains(&open), "{open} sessions");
    // Other clients get all free sessions, and then those of the greedy client.
    for _ in 0..15 {
        session(&client(&gateway, "third")).await;
    }
    assert_eq!(status(&quiet).await, 200);
    let open = gateway.metric("sessions", None).await.unwrap();
    assert!(open <= MAX_SESSIONS as u64, "{open} sessions");
}

/// One client cannot use up the limit for subscribed resources.
#[tokio::test]
async fn watched_resources_are_shared_out() {
    let gateway = Setup::new()
        .scripted("one", &["--resources", "60"])
        .settings("[limits]\nmax_subscriptions = 50\n")
        .connected()
        .await;
    // Returns whether the limit allowed the request.
    let asked = async |client: &RawClient, verb: &str, n: usize| {
        let uri = json!({"uri": format!("resource://one/scripted://{n}")});
        let reply = ask(client, &format!("resources/{verb}"), uri).await.text();
        let refused = reply.contains("max_subscriptions");
        assert!(refused || reply.contains("result"), "{reply}");
        !refused
    };
    let greedy = session(&client(&gateway, "greedy")).await;
    let mut watched = 0;
    while watched < 60 && asked(&greedy, "subscribe", watched).await {
        watched += 1;
    }
    assert_eq!(watched, 40);
    // Another session of the same client has no separate share.
    let second = session(&client(&gateway, "greedy")).await;
    assert!(!asked(&second, "subscribe", 0).await);
    let other = session(&client(&gateway, "other")).await;
    assert!(asked(&other, "subscribe", 0).await);
    // Subscriptions that end make room for others.
    assert!(asked(&greedy, "unsubscribe", 1).await);
    assert_eq!(greedy.delete(&[]).await.status, 204);
    assert!(asked(&second, "subscribe", 0).await);
}

/// One client cannot use up all event streams.
#[tokio::test]
async fn open_streams_are_shared_out() {
    let settings = "[limits]\nmax_connections = 40\n";
    let gateway = Setup::new().settings(settings).serve().await;
    let greedy = client(&gateway, "greedy");
    let mut open = Vec::new();
    let refused = loop {
        let stream = listen(&greedy).await;
        if stream.status != 200 {
            break stream.collect(DEADLINE).await;
        }
        open.push(stream);
        assert!(open.len() < 40, "one client has all streams");
    };
    assert_eq!(refused.status, 503);
    holds(&refused.text(), &["event streams"]);
    assert_eq!(open.len(), 32);
    let other = session(&client(&gateway, "other")).await;
    assert_eq!(other.get(&ACCEPT_STREAM).await.status, 200);
    drop(open);
    wait_for("a stream", DEADLINE, async || {
        listen(&greedy).await.status == 200
    })
    .await;
}

/// All streams that were opened with a key end within a second of its revocation: in both eras, and in the REST API.
#[tokio::test]
async fn a_revoked_key_ends_its_streams() {
    let gateway = Setup::new().scripted("one", &[]).connected().await;
    let keys = gateway.admin("/keys");
    let made = keys.post(r#"{"name": "short-lived"}"#).await;
    assert_eq!(made.status, 201, "{}", made.text());
    let made = body(&made);
    let token = made["token"].as_str().unwrap();
    let key = client(&gateway, token);
    let legacy = session(&key).await;
    let oldest = key.at("/sse");
    let logs = key.at("/api/v1/mcp/servers/one/logs?follow=true");
    let mut streams = vec![
        ("a session's stream", legacy.get(&ACCEPT_STREAM).await),
        ("HTTP+SSE", oldest.get(&ACCEPT_STREAM).await),
        ("subscriptions/listen", listen(&key).await),
        ("followed logs", logs.get(&ACCEPT_STREAM).await),
    ];
    let other = client(&gateway, &gateway.token());
    let mut kept = listen(&other).await;
    for (what, stream) in &mut streams {
        assert_eq!(stream.status, 200, "{what}");
        assert!(stream.is_event_stream(), "{what}");
    }
    let id = made["id"].as_str().unwrap();
    let revoked = keys.at(&format!("/api/v1/keys/{id}")).delete(&[]).await;
    assert_eq!(revoked.status, 204, "{}", revoked.text());
    for (what, stream) in streams {
        within(what, Duration::from_secs(1), stream.collect(DEADLINE)).await;
    }
    assert_eq!(ask(&legacy, "ping", json!({})).await.status, 401);
    // Streams of other keys stay open.
    assert!(kept.next_event(DEADLINE).await.is_some());
    wait_for("the end of all others", DEADLINE, async || {
        gateway.metric("listeners", None).await == Some(1)
    })
    .await;
    drop(kept);
    assert_eq!(listen(&other).await.status, 200);
}
