//! Sessions that the server has forgotten, and servers that refuse everything.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use http::Method;
use mcp::{
    Kind,
    client::{CallError, Client},
};
use serde_json::{Value, json};

use crate::{
    calls::answer,
    server::{
        Hit, Reply, Server, empty, error, event, json_reply, legacy, modern, result, soon, stream,
        text,
    },
};

type Answer = fn(&Hit) -> Reply;

fn done(hit: &Hit) -> Reply {
    json_reply(200, &result(hit, json!({})))
}

fn calls(server: &Server) -> usize {
    server.count(|hit| hit.rpc() == "tools/call")
}

/// A legacy server that answers with `refuse` once the flag is set, except for a GET and what `answers` says.
async fn forgetful(refuse: Answer, answers: &'static str) -> (Server, Arc<AtomicBool>) {
    let forgot = Arc::new(AtomicBool::new(false));
    let flag = forgot.clone();
    let server = legacy("2025-06-18", move |hit: Hit| {
        let forgot = flag.load(Ordering::SeqCst) && hit.rpc() != answers;
        async move {
            match hit.method {
                Method::GET => empty(405),
                _ if forgot => refuse(&hit),
                _ => done(&hit),
            }
        }
    })
    .await;
    (server, forgot)
}

/// Connects and makes one call, before the server forgets the session.
async fn used(server: &Server, forgot: &AtomicBool) -> Client {
    let (client, _ambient) = soon(server.connect()).await.expect("a legacy server");
    assert!(answer(&client).await.is_ok());
    forgot.store(true, Ordering::SeqCst);
    client
}

fn rpc(status: u16, code: i64, message: &str) -> Reply {
    json_reply(status, &error(&Value::Null, code, message))
}

#[tokio::test]
async fn u09_a_session_is_lost_whatever_the_server_answers() {
    let refusals: [Answer; 12] = [
        |_| rpc(404, -32001, "Session not found"),
        |_| text(404, Some("text/plain"), "Not Found"),
        |_| rpc(400, -32000, "Bad Request: No valid session ID provided"),
        |_| rpc(400, -32000, "Bad Request: Server not initialized"),
        |_| {
            text(
                400,
                Some("text/plain; charset=utf-8"),
                "No valid session ID",
            )
        },
        |_| rpc(400, -32600, "Session not found"),
        |_| json_reply(400, &json!({"error": "Invalid or expired session"})),
        |_| rpc(410, -32001, "Session terminated"),
        |_| rpc(503, -32001, "MCP session is unknown on this instance"),
        |_| rpc(401, -32001, "Session not found"),
        |hit| json_reply(200, &error(hit.id(), -32001, "Session not found")),
        |hit| {
            json_reply(
                500,
                &error(hit.id(), -32603, "Internal error: session does not exist"),
            )
        },
    ];
    for (at, refuse) in refusals.into_iter().enumerate() {
        // A ping that is answered changes nothing: the refusal itself names the session.
        let (server, forgot) = forgetful(refuse, "ping").await;
        let client = used(&server, &forgot).await;
        let lost = answer(&client).await.map(|_| ());
        assert_eq!(lost, Err(CallError::SessionExpired), "{at}");
        assert_eq!(calls(&server), 2, "{at}");
        assert!(client.is_closed(), "{at}");
        let why = soon(client.closed()).await;
        assert!(
            why.starts_with("the server no longer knows this session: "),
            "{at}: {why}"
        );
        forgot.store(false, Ordering::SeqCst);
        let (fresh, _ambient) = soon(server.connect()).await.expect("a new session");
        assert!(answer(&fresh).await.is_ok(), "{at}");
    }
}

#[tokio::test]
async fn u09_a_server_that_refuses_a_ping_too_gets_a_new_session() {
    let refusals: [Answer; 4] = [
        |_| empty(500),
        |_| text(502, Some("text/html"), "<title>Bad Gateway</title>"),
        |hit| json_reply(200, &error(hit.id(), -32603, "Internal error")),
        |_| rpc(400, -32000, "Bad Request"),
    ];
    for (at, refuse) in refusals.into_iter().enumerate() {
        let (server, forgot) = forgetful(refuse, "").await;
        let client = used(&server, &forgot).await;
        // The server may have processed the call, so its own refusal is the outcome.
        let refused = answer(&client).await.map(|frame| frame.kind());
        assert!(
            matches!(refused, Ok(Kind::Error) | Err(CallError::Http { .. })),
            "{at}: {refused:?}"
        );
        assert_eq!(server.count(|hit| hit.rpc() == "ping"), 1, "{at}");
        assert!(client.is_closed(), "{at}");
        let why = soon(client.closed()).await;
        assert!(why.starts_with("it refuses every request: "), "{at}: {why}");
        // Nothing more is sent, so it is safe to try again.
        let next = client.ask("tools/list", "").await.map(|_| ());
        assert_eq!(next, Err(CallError::SessionExpired), "{at}");
        assert_eq!(calls(&server), 2, "{at}");
        // A list may be repeated, whatever the refusal.
        forgot.store(false, Ordering::SeqCst);
        let client = used(&server, &forgot).await;
        let list = soon(client.ask("tools/list", "")).await.map(|_| ());
        assert_eq!(list, Err(CallError::SessionExpired), "{at}");
    }
}

#[tokio::test]
async fn a_refusal_that_concerns_one_request_keeps_the_session() {
    let refusals: [Answer; 5] = [
        |_| empty(500),
        |_| empty(429),
        |hit| json_reply(200, &error(hit.id(), -32603, "Internal error")),
        |hit| json_reply(200, &error(hit.id(), -32602, "Unknown session")),
        |hit| json_reply(500, &error(hit.id(), -32603, "Browser session not found")),
    ];
    for (at, refuse) in refusals.into_iter().enumerate() {
        let (server, forgot) = forgetful(refuse, "ping").await;
        let client = used(&server, &forgot).await;
        for _ in 0..2 {
            let refused = answer(&client).await.map(|frame| frame.kind());
            assert!(
                matches!(refused, Ok(Kind::Error) | Err(CallError::Http { .. })),
                "{at}: {refused:?}"
            );
        }
        assert!(!client.is_closed(), "{at}");
    }
    // A ping that the server does not know was accepted.
    let (server, forgot) = forgetful(
        |hit| match hit.rpc() {
            "ping" => json_reply(404, &error(hit.id(), -32601, "Method not found")),
            _ => empty(500),
        },
        "",
    )
    .await;
    let client = used(&server, &forgot).await;
    assert!(answer(&client).await.is_err());
    assert!(!client.is_closed());
}

/// A call that is refused in a new session too is not a sign of a lost session.
#[tokio::test]
async fn a_refusal_that_comes_again_in_a_new_session_is_the_outcome() {
    let server = legacy("2025-06-18", |hit: Hit| async move {
        match (&hit.method, hit.rpc()) {
            (&Method::GET, _) => empty(405),
            (_, "tools/call") => rpc(400, -32000, "Your session has expired"),
            _ => done(&hit),
        }
    })
    .await;
    let (client, _ambient) = soon(server.connect()).await.expect("a legacy server");
    let refused = answer(&client).await.expect("an error is an answer");
    assert_eq!(refused.kind(), Kind::Error);
    assert!(!client.is_closed());
}

#[tokio::test]
async fn a_modern_server_that_refuses_everything_is_noticed() {
    let broken = Arc::new(AtomicBool::new(false));
    let flag = broken.clone();
    let server = Server::start(move |hit: Hit| {
        let is_broken = flag.load(Ordering::SeqCst);
        async move {
            match hit.rpc() {
                _ if is_broken => text(503, Some("text/plain"), "out of order"),
                "server/discover" => {
                    json_reply(200, &result(&hit, crate::server::discover_result()))
                }
                _ => done(&hit),
            }
        }
    })
    .await;
    let (client, _ambient) = soon(server.connect()).await.expect("a modern server");
    assert!(answer(&client).await.is_ok());
    broken.store(true, Ordering::SeqCst);
    assert!(matches!(
        answer(&client).await,
        Err(CallError::Http { status: 503, .. })
    ));
    assert!(soon(client.closed()).await.contains("out of order"));
    // One whose other requests work is kept.
    let server = modern(|_| async { empty(503) }).await;
    let (client, _ambient) = soon(server.connect()).await.expect("a modern server");
    assert!(answer(&client).await.is_err());
    assert!(!client.is_closed());
}

#[tokio::test]
async fn u09_a_refused_event_stream_ends_a_lost_session() {
    let refusals: [Answer; 3] = [
        |_| empty(404),
        |_| text(400, Some("text/plain"), "Invalid or missing session ID"),
        |_| empty(500),
    ];
    for (at, refuse) in refusals.into_iter().enumerate() {
        let open = Arc::new(Mutex::new(None));
        let held = open.clone();
        let server = legacy("2025-06-18", move |hit: Hit| {
            let held = held.clone();
            async move {
                let mut open = held.lock().expect("unharmed");
                if hit.method == Method::GET && open.is_none() {
                    let (sender, reply) = stream();
                    *open = Some(sender);
                    return reply;
                }
                drop(open);
                refuse(&hit)
            }
        })
        .await;
        let (client, mut ambient) = soon(server.connect()).await.expect("a legacy server");
        server.hit(|hit| hit.method == Method::GET).await;
        let sender = open.lock().expect("unharmed").clone().expect("a stream");
        let changed = json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"});
        sender.send("retry: 5\n\n".into()).await.expect("a reader");
        sender.send(event(&changed)).await.expect("a reader");
        assert!(soon(ambient.recv()).await.is_some(), "{at}");
        // The stream ends once both senders are gone; a closed one stays in its place.
        let (closed, _) = tokio::sync::mpsc::channel(1);
        *open.lock().expect("unharmed") = Some(closed);
        drop(sender);
        let why = soon(client.closed()).await;
        assert!(why.contains("HTTP "), "{at}: {why}");
        soon(client.close(Duration::ZERO)).await;
    }
}
