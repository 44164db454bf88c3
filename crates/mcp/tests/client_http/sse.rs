//! HTTP+SSE of 2024-11-05.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use http::Method;
use mcp::{
    Kind, Version,
    client::{Ambient, CallError, Client, ConnectError, Connector, Outgoing, Target},
};
use serde_json::json;
use tokio::sync::mpsc;

use crate::{
    calls::{answer, call_frame, start},
    server::{
        Hit, Reply, Server, empty, error, event, events, initialize_result, json_reply, options,
        result, soon, stream, text,
    },
};

type Out = Arc<Mutex<Option<mpsc::Sender<String>>>>;

/// A server whose stream begins with `endpoint`. `on_call` answers its calls.
async fn sse<F>(endpoint: &'static str, out: Out, on_call: F) -> Server
where
    F: Fn(&Hit) -> Reply + Send + Sync + 'static,
{
    let on_post = move |hit: &Hit| (hit.rpc() == "tools/call").then(|| on_call(hit));
    sse_refusing(endpoint, out, on_post).await
}

/// Like [`sse`]. `on_post` answers any message.
async fn sse_refusing<F>(endpoint: &'static str, out: Out, on_post: F) -> Server
where
    F: Fn(&Hit) -> Option<Reply> + Send + Sync + 'static,
{
    let on_post = Arc::new(on_post);
    Server::start(move |hit: Hit| {
        let (out, on_post) = (out.clone(), on_post.clone());
        async move {
            if hit.method == Method::GET {
                let (sender, reply) = stream();
                let first = format!(": hi\n\nevent: endpoint\ndata: {endpoint}\n\n");
                sender.send(first).await.expect("room for one");
                *out.lock().expect("unharmed") = Some(sender);
                return reply;
            }
            if !hit.path.starts_with("/messages") {
                return empty(405);
            }
            let say = |message| {
                let sender = out.lock().expect("unharmed").clone();
                let sender = sender.expect("an open stream");
                async move { sender.send(event(&message)).await.expect("a reader") }
            };
            let reply = on_post(&hit).unwrap_or_else(|| empty(202));
            if reply.status().is_success() {
                match hit.rpc() {
                    "initialize" => say(result(&hit, initialize_result("2024-11-05"))).await,
                    "tools/call" => say(result(&hit, json!({"via": "sse"}))).await,
                    _ => {}
                }
            }
            reply
        }
    })
    .await
}

async fn connect(server: &Server) -> Result<(Client, Ambient), ConnectError> {
    let target = Target::Sse {
        url: server.url.clone(),
        headers: vec![("x-key".into(), "k".into())],
    };
    soon(Connector::new().connect(target, &options())).await
}

#[tokio::test]
async fn calls_go_by_post_and_come_by_the_stream() {
    let out = Out::default();
    let server = sse("/messages?s=1", out.clone(), |_| empty(202)).await;
    let (client, _ambient) = connect(&server).await.expect("an SSE server");
    assert_eq!(client.info().version, Version::V2024_11_05);
    for _ in 0..50 {
        assert_eq!(
            answer(&client).await.expect("an answer").body(),
            b"{\"via\":\"sse\"}"
        );
    }
    let mut posts = server.hits();
    assert!(posts.iter().all(|hit| hit.header("x-key") == Some("k")));
    posts.retain(|hit| hit.method == Method::POST);
    assert!(posts.iter().all(|hit| hit.path == "/messages?s=1"));
    let order: Vec<&str> = posts.iter().take(3).map(Hit::rpc).collect();
    assert_eq!(
        order,
        ["initialize", "notifications/initialized", "tools/call"]
    );
    assert!(server.connections() <= 3);
    // Scenario P07: calls fail at once when the stream drops.
    *out.lock().expect("unharmed") = None;
    let why = soon(client.closed()).await;
    assert!(why.contains("ended the event stream"), "{why}");
    let failed = soon(client.call(Outgoing::new(&call_frame()))).await;
    let failed = failed.err();
    assert!(matches!(failed, Some(CallError::Closed(_))), "{failed:?}");
}

#[tokio::test]
async fn it_is_found_by_asking() {
    let server = sse("messages", Out::default(), |_| empty(202)).await;
    let (client, _ambient) = soon(server.connect()).await.expect("an SSE server");
    assert_eq!(client.info().version, Version::V2024_11_05);
    assert!(answer(&client).await.is_ok());
    soon(client.close(Duration::from_secs(1))).await;
}

#[tokio::test]
async fn a_refused_post_ends_its_own_call() {
    let refuse = Mutex::new(true);
    let server = sse("/messages", Out::default(), move |_| {
        let refused = std::mem::take(&mut *refuse.lock().expect("unharmed"));
        if refused { empty(503) } else { empty(202) }
    })
    .await;
    let (client, _ambient) = connect(&server).await.expect("an SSE server");
    let refused = answer(&client).await.expect("an error is an answer");
    assert_eq!(refused.kind(), Kind::Error);
    assert!(String::from_utf8_lossy(refused.body()).contains("HTTP 503"));
    assert!(answer(&client).await.is_ok());
    let server = sse("/messages", Out::default(), |hit| {
        json_reply(404, &error(hit.id(), 1, "gone"))
    })
    .await;
    let (client, _ambient) = connect(&server).await.expect("an SSE server");
    let mut call = start(&client).await;
    assert_eq!(
        soon(call.next()).await.map(|_| ()),
        Err(CallError::SessionExpired)
    );
}

#[tokio::test]
async fn u09_a_lost_session_ends_the_connection() {
    type Refuse = fn() -> Reply;
    let ways: [(Refuse, &str, &str); 3] = [
        (
            || text(400, None, "No transport found for sessionId"),
            "tools/call",
            "no longer knows this session: the server answered HTTP 400: No transport",
        ),
        (
            || json_reply(401, &json!({"error": "session_not_found"})),
            "tools/call",
            "no longer knows this session",
        ),
        (
            || empty(500),
            "",
            "it refuses every request: the server answered HTTP 500",
        ),
    ];
    for (refuse, only, expect) in ways {
        let out = Out::default();
        let server = {
            let is_refused = move |hit: &Hit| {
                let method = hit.rpc();
                matches!(method, "tools/call" | "ping") && (only.is_empty() || method == only)
            };
            sse_refusing("/messages", out, move |hit| is_refused(hit).then(refuse)).await
        };
        let (client, _ambient) = connect(&server).await.expect("an SSE server");
        let call = answer(&client).await.map(|_| ());
        match only {
            "" => assert!(matches!(call, Err(CallError::Closed(_))), "{call:?}"),
            _ => assert_eq!(call, Err(CallError::SessionExpired)),
        }
        let why = soon(client.closed()).await;
        assert!(why.contains(expect), "{why} has no {expect:?}");
    }
}

#[tokio::test]
async fn a_foreign_endpoint_is_refused() {
    let foreign = Server::start(|_| async { empty(202) }).await;
    let url: &'static str = Box::leak(foreign.url.clone().into_boxed_str());
    for endpoint in [url, "//other.test/messages", "https://127.0.0.1/messages"] {
        let server = sse(endpoint, Out::default(), |_| empty(202)).await;
        for connected in [connect(&server).await, soon(server.connect()).await] {
            let error = connected.map(|_| ()).expect_err("foreign").to_string();
            assert!(error.contains("not at the server's own origin"), "{error}");
        }
    }
    assert!(foreign.hits().is_empty());
}

#[tokio::test]
async fn what_is_no_sse_server_is_told() {
    let check = |reply: fn() -> Reply, expect: &'static str| async move {
        let server = Server::start(move |_| async move { reply() }).await;
        let error = connect(&server)
            .await
            .map(|_| ())
            .expect_err("no SSE server");
        assert!(error.to_string().contains(expect), "{error}");
    };
    check(|| empty(404), "HTTP 404").await;
    check(|| empty(401), "set `headers`").await;
    let none = || json_reply(200, &json!({}));
    check(none, "does not return an event stream").await;
    let other = || events(&["data: {}\n\n".into()]);
    check(other, "does not begin with").await;
    check(|| events(&[]), "ended the event stream").await;
}
