//! Log messages of servers, and which clients receive them.

mod common;

use common::{
    Gateway, Setup,
    steps::{conformant_http, conformant_stdio},
    with,
};
use serde_json::{Value, json};
use testkit::{DEADLINE, Peer};

const MESSAGE_METHOD: &str = "notifications/message";

async fn log_at(peer: &mut Peer, level: &str) {
    let arguments = json!({ "level": level, "message": level });
    let logged = peer.tool("log_at", arguments).await;
    assert_eq!(logged.text(), "logged", "{logged:?}");
}

async fn next(peer: &mut Peer) -> Value {
    let message = peer.notification(MESSAGE_METHOD, DEADLINE).await;
    message.expect("a log message")["params"]["data"].clone()
}

async fn gateway(entry: Value) -> Gateway {
    Setup::new().server("one", entry).connected().await
}

/// A log level applies to one session only. A session without a level gets all messages of the server.
#[tokio::test]
async fn a_level_is_one_sessions() {
    for sharing in ["shared", "session"] {
        let entry = with(conformant_stdio("legacy"), json!({ "sharing": sharing }));
        let gateway = gateway(entry).await;
        let mut strict = gateway.legacy().await;
        strict.log_level("error").await;
        strict.tool("test_simple_text", json!({})).await;
        let mut plain = gateway.legacy().await;
        log_at(&mut plain, "debug").await;
        assert_eq!(next(&mut plain).await, "debug", "{sharing}");
        let arguments = json!({ "level": "warning", "message": "too little" });
        strict.tool("log_at", arguments).await;
        log_at(&mut strict, "alert").await;
        assert_eq!(next(&mut strict).await, "alert", "{sharing}");
        // The level can be changed.
        strict.log_level("info").await;
        strict.tool("test_simple_text", json!({})).await;
        log_at(&mut strict, "notice").await;
        assert_eq!(next(&mut strict).await, "notice", "{sharing}");
    }
}

/// A legacy server sends log messages on a separate stream; a modern client gets them with its response.
#[tokio::test]
async fn a_modern_client_gets_the_messages_of_a_legacy_http_server() {
    let (_server, url) = conformant_http(&["--era", "legacy"]).await;
    let gateway = gateway(json!({ "type": "http", "url": url })).await;
    let mut peer = gateway.modern().await;
    peer.log_level("debug").await;
    for level in ["debug", "info", "warning", "error", "alert"] {
        log_at(&mut peer, level).await;
        assert_eq!(next(&mut peer).await, level);
    }
    // A client that requested no log messages gets none.
    let mut quiet = gateway.modern().await;
    log_at(&mut quiet, "alert").await;
    let all = quiet.tool("test_simple_text", json!({})).await;
    assert!(all.notifications.is_empty(), "{all:?}");
}

/// A server that sends log messages declares the capability.
#[tokio::test]
async fn logging_is_declared_in_both_eras() {
    let gateway = Setup::new().scripted("one", &[]).serve().await;
    let mut peer = gateway.modern().await;
    let discovered = peer.request("server/discover", json!({})).await;
    let capabilities = &discovered.result()["capabilities"];
    assert!(capabilities["logging"].is_object(), "{discovered:?}");
}
