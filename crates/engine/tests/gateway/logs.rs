//! Log messages that a server sends outside of calls, and the clients that receive them.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use engine::{Logins, Scope, hub::Registration};
use mcp::{
    Era, Version,
    outbox::Bounds,
    server::{ClientInfo, Session},
};
use model::{ServerSpec, Sharing};
use serde_json::{Value, json};

use crate::support::{World, client::Client, quiet, server_name, stdio};

const MESSAGE: &str = "notifications/message";

/// The `logger` and `data` of the messages that a client has received.
fn received(client: &Client) -> Vec<(Value, Value)> {
    let messages = client.notifications(MESSAGE).into_iter();
    let parts = messages.map(|message| {
        let params = &message["params"];
        (params["logger"].clone(), params["data"].clone())
    });
    parts.collect()
}

async fn set_level(client: &Client, level: &str) {
    let level = json!({ "level": level });
    client.request("logging/setLevel", level).await.result();
}

/// The session of a client that does not read.
fn stalled(world: &World, principal: &str) -> (Arc<Session>, Registration) {
    let bounds = Bounds {
        messages: 256,
        bytes: 32 << 20,
    };
    let session = Session::new(principal.into(), bounds);
    session.introduce(ClientInfo {
        version: Version::V2025_11_25,
        info: Bytes::from_static(b"{}"),
        capabilities: Bytes::from_static(b"{}"),
        is_gateway: false,
    });
    let registration = world.gateway.attach(Scope::default(), &session);
    (session, registration)
}

/// The messages that wait for a client.
fn waiting(session: &Session) -> Vec<Value> {
    let messages = std::iter::from_fn(|| session.outbox().take());
    let parsed = messages.map(|(_, text)| serde_json::from_slice(&text).unwrap());
    parsed.collect()
}

#[tokio::test(start_paused = true)]
async fn g15_log_messages_outside_of_calls() {
    let world = World::new();
    let one = world.scripted("one");
    world.configure(&[stdio("one"), stdio("two")]);
    world.up(&["one", "two"]).await;
    let all = world.legacy().await;
    let single = world.client_at(Era::Legacy, "one").await;
    let other = world.client_at(Era::Legacy, "two").await;
    let strict = world.legacy().await;
    set_level(&strict, "error").await;
    let modern = world.modern().await;
    let _listening = modern.listen(&[]).await;
    one.log(None, &json!({ "level": "warning", "data": "warm" }));
    one.log(
        None,
        &json!({ "level": "error", "logger": "db", "data": "hot" }),
    );
    quiet().await;
    let [warm, hot, none] = [json!("warm"), json!("hot"), Value::Null];
    let exposed_hot = (json!("one/db"), hot.clone());
    let expect = [(json!("one"), warm.clone()), exposed_hot.clone()];
    assert_eq!(received(&all), expect);
    assert_eq!(received(&single), [(none, warm), (json!("db"), hot)]);
    assert!(received(&other).is_empty());
    assert_eq!(received(&strict), [exposed_hot]);
    // 2026-07-28 server/utilities/logging: only with the response to a request that asks for them.
    assert!(received(&modern).is_empty());
    // Within calls, the server is named in the same way.
    one.tools(&["log"]).changed("tools");
    quiet().await;
    all.tool("log", json!({})).await.result();
    let expect = [(json!("one"), json!("it is warm"))];
    assert_eq!(received(&all), expect);
}

#[tokio::test(start_paused = true)]
async fn g15_log_messages_of_an_instance_are_its_sessions() {
    let mut spec = stdio("one");
    spec.sharing = Sharing::Session;
    let (world, one) = World::running(spec, |_| {}).await;
    let (ada, bob) = (world.legacy().await, world.legacy().await);
    ada.tool("echo", json!({})).await.result();
    bob.tool("echo", json!({})).await.result();
    let called = one.heard("tools/call");
    let (of_ada, of_bob) = (called[0].instance, called[1].instance);
    set_level(&bob, "error").await;
    for instance in [1, of_ada, of_bob] {
        one.log(
            Some(instance),
            &json!({ "level": "info", "data": instance }),
        );
    }
    quiet().await;
    assert_eq!(received(&ada), [(json!("one"), json!(of_ada))]);
    assert!(received(&bob).is_empty());
    one.log(Some(of_bob), &json!({ "level": "alert", "data": "fire" }));
    quiet().await;
    assert!(received(&ada).is_empty());
    assert_eq!(received(&bob), [(json!("one"), json!("fire"))]);
}

/// Another gateway of the installation passes messages on to its own clients.
#[tokio::test(start_paused = true)]
async fn g15_log_messages_for_another_gateway() {
    let (world, one) = World::running(stdio("one"), |_| {}).await;
    let scope = Scope {
        server: Some(server_name("one")),
        is_bare: true,
        ..Scope::default()
    };
    let gateway = world.client_of(Era::Modern, scope).await;
    let _listening = gateway.listen(&[]).await;
    one.log(None, &json!({ "level": "debug", "data": "cold" }));
    quiet().await;
    assert_eq!(received(&gateway), [(Value::Null, json!("cold"))]);
}

/// A level that a client set applies to connections that are opened later.
#[tokio::test(start_paused = true)]
async fn g15_a_restarted_server_is_asked_for_its_log_messages() {
    let (world, one) = World::running(stdio("one"), |_| {}).await;
    let client = world.legacy().await;
    assert!(one.heard("logging/setLevel").is_empty());
    set_level(&client, "warning").await;
    quiet().await;
    assert_eq!(one.heard("logging/setLevel").len(), 1);
    one.exit(1);
    quiet().await;
    world.up(&["one"]).await;
    let asked = one.heard("logging/setLevel");
    assert_eq!(asked.last().unwrap().instance, 2);
    // The messages of a shared server are filtered by the gateway.
    assert_eq!(asked.last().unwrap().frame["params"]["level"], "debug");
}

/// A server that floods its clients with log messages displaces nothing else, and only a few wait for a slow client.
#[tokio::test(start_paused = true)]
async fn g15_a_flood_of_log_messages_displaces_nothing() {
    let world = World::new();
    let (one, two) = (world.scripted("one"), world.scripted("two"));
    world.configure(&[stdio("one"), stdio("two")]);
    world.up(&["one", "two"]).await;
    let (slow, _registration) = stalled(&world, "tester");
    let client = world.client_at(Era::Legacy, "two").await;
    client.tools().await;
    two.tools(&["echo", "more"]).changed("tools");
    tokio::time::sleep(Duration::from_secs(2)).await;
    for second in 0..5 {
        for number in 0..1000 {
            one.log(None, &json!({ "level": "info", "data": [second, number] }));
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        client.tool("echo", json!({})).await.result();
    }
    let waiting = waiting(&slow);
    let changed = waiting.first().unwrap();
    assert_eq!(changed["method"], "notifications/tools/list_changed");
    assert_eq!(waiting.len(), 1 + 128);
    assert!(!slow.over().is_cancelled());
    // The newest are kept. The server may send a hundred per second.
    assert_eq!(waiting.last().unwrap()["params"]["data"], json!([4, 99]));
}

/// Each caller signs in to each server.
struct Personal;

impl Logins for Personal {
    fn is_personal(&self, _: &ServerSpec) -> bool {
        true
    }
}

#[tokio::test(start_paused = true)]
async fn s05_log_messages_of_an_instance_are_its_callers() {
    let world = World::with_logins(Arc::new(Personal));
    let one = world.scripted("one");
    world.configure(&[stdio("one")]);
    world.up(&["one"]).await;
    let (first, second) = (world.legacy().await, world.legacy().await);
    let (other, _registration) = stalled(&world, "other");
    first.tool("echo", json!({})).await.result();
    let of_tester = one.heard("tools/call")[0].instance;
    one.log(
        Some(of_tester),
        &json!({ "level": "info", "data": "yours" }),
    );
    quiet().await;
    for client in [&first, &second] {
        assert_eq!(received(client), [(json!("one"), json!("yours"))]);
    }
    assert!(waiting(&other).is_empty());
}
