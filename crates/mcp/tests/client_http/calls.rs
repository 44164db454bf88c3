//! Calls with a single response body, and their failures.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use mcp::{
    Frame, Kind,
    client::{Call, CallError, Client, Event, Outgoing},
    headers::{ParamHeaders, mcp_name},
};
use serde_json::{Value, json};

use crate::server::{
    Hit, Reply, empty, error, json_reply, legacy, modern, result, soon, text, wait_for,
};

pub(crate) fn call_frame() -> Frame {
    let text = br#"{"jsonrpc":"2.0","id":"client-7","method":"tools/call","params":{"name":"roll","arguments":{"n":9007199254740993}}}"#;
    Frame::parse(Bytes::from_static(text), 64).expect("a request")
}

pub(crate) async fn start(client: &Client) -> Call {
    client
        .call(Outgoing::new(&call_frame()))
        .await
        .expect("a call")
}

pub(crate) async fn answer(client: &Client) -> Result<Frame, CallError> {
    let mut call = start(client).await;
    loop {
        if let Event::Response(frame) = soon(call.next()).await? {
            return Ok(frame);
        }
    }
}

fn value(frame: &Frame) -> Value {
    serde_json::from_slice(frame.text()).expect("JSON")
}

#[tokio::test]
async fn frames_go_and_come_unchanged_but_for_the_id() {
    let server = modern(|hit: Hit| async move {
        let text_of = format!(
            "{{\"result\":{{\"z\":1.50,\"big\":123456789012345678901234567890}} ,\"id\":{}, \"jsonrpc\":\"2.0\"}}",
            hit.id()
        );
        text(200, Some("application/json; charset=utf-8"), &text_of)
    })
    .await;
    let (client, _ambient) = soon(server.connect()).await.expect("a modern server");
    let frame = call_frame();
    let annotated =
        br#"{"inputSchema":{"properties":{"w":{"type":"string","x-mcp-header":"Where"}}}}"#;
    let params = ParamHeaders::from_tool(annotated).expect("valid annotations");
    let mut outgoing = Outgoing::new(&frame);
    outgoing.headers = params.extract(Some(br#"{"w":"Bern "}"#));
    outgoing.headers.push((
        http::HeaderName::from_static("mcp-name"),
        mcp_name("würfel"),
    ));
    let mut call = client.call(outgoing).await.expect("a call");
    let Event::Response(frame) = soon(call.next()).await.expect("an answer") else {
        panic!("no response");
    };
    assert_eq!(
        frame.body(),
        br#"{"z":1.50,"big":123456789012345678901234567890}"#
    );
    assert_eq!(frame.numeric_id(), Some(call.upstream_id()));
    assert!(matches!(soon(call.next()).await, Err(CallError::Closed(_))));
    let hit = server.hit(|hit| hit.rpc() == "tools/call").await;
    assert_eq!(hit.header("mcp-method"), Some("tools/call"));
    assert_eq!(hit.header("mcp-name"), Some("=?base64?d8O8cmZlbA==?="));
    assert_eq!(hit.header("mcp-param-where"), Some("=?base64?QmVybiA=?="));
    assert_eq!(hit.header("mcp-protocol-version"), Some("2026-07-28"));
    assert_eq!(
        hit.body["params"]["arguments"]["n"],
        9_007_199_254_740_993_u64
    );
}

#[tokio::test]
async fn unacceptable_answers_end_the_call() {
    async fn check(reply: impl Fn(&Hit) -> Reply + Send + Sync + 'static, expect: &str) {
        let server = modern(move |hit: Hit| {
            let reply = reply(&hit);
            async { reply }
        })
        .await;
        let (client, _ambient) = soon(server.connect()).await.expect("a modern server");
        let Err(error) = answer(&client).await else {
            panic!("answered instead of {expect:?}");
        };
        assert!(
            error.to_string().contains(expect),
            "{error} has no {expect:?}"
        );
    }
    let plain = |body: &'static str| move |_: &Hit| text(200, Some("application/json"), body);
    for (body, expect) in [
        (r#"{"jsonrpc":"2.0","id":999,"result":{}}"#, "id 999"),
        (r#"{"jsonrpc":"2.0","id":"3","result":{}}"#, "id \"3\""),
        (r#"{"id":3,"result":{}}"#, "id 3"),
        (r#"{"id":true,"result":{}}"#, "`jsonrpc`"),
        (
            r#"{"jsonrpc":"2.0","id":2,"result":{},"error":"x"}"#,
            "`result` or `error`",
        ),
        (
            r#"{"jsonrpc":"2.0","id":2,"id":2,"result":{}}"#,
            "duplicate key",
        ),
        (
            r#"{"jsonrpc":"2.0","id":2,"method":"ping"}"#,
            "not a response",
        ),
        ("[]", "object"),
        ("{", "is invalid"),
        ("", "empty"),
    ] {
        check(plain(body), expect).await;
    }
    check(|_| text(200, Some("text/html"), "<html>"), "neither JSON").await;
    check(|_| empty(202), "HTTP 202 instead").await;
    let busy = |_: &Hit| text(503, Some("text/plain"), "try\r\nlater");
    check(busy, "HTTP 503: try  later").await;
    check(|_| text(502, Some("text/html"), "<html>"), "HTTP 502").await;
    let foreign = |_: &Hit| json_reply(500, &error(&json!(999), -1, "not yours"));
    check(foreign, "HTTP 500: not yours").await;
}

/// A response to the only request of its exchange is clear even if it breaks rules of JSON-RPC.
#[tokio::test]
async fn unambiguous_answers_are_accepted() {
    for (body, kind) in [
        (r#"{"jsonrpc":"2.0","id":"2","result":{}}"#, Kind::Result),
        (r#"{"jsonrpc":"2.0","id":2.0,"result":{}}"#, Kind::Result),
        (r#"{"id":2,"result":{}}"#, Kind::Result),
        (r#"{"result":{}}"#, Kind::Result),
        (r#"{"jsonrpc":"2.0","id":null,"result":{}}"#, Kind::Result),
        (
            r#"{"jsonrpc":"2.0","id":2,"result":{},"error":null}"#,
            Kind::Result,
        ),
        (r#"[{"jsonrpc":"2.0","id":2,"result":{}}]"#, Kind::Result),
        (
            "\u{feff}{\"jsonrpc\":\"2.0\",\"id\":2,\"result\":{}}",
            Kind::Result,
        ),
        (r#"{"jsonrpc":"2.0","id":2,"error":"boom"}"#, Kind::Error),
        (r#"{"error":"boom"}"#, Kind::Error),
    ] {
        let streamed = format!("data: {body}\n\n");
        for (media, sent) in [("application/json", body), ("text/event-stream", &streamed)] {
            let sent = sent.to_owned();
            let server = modern(move |_| {
                let reply = text(200, Some(media), &sent);
                async { reply }
            })
            .await;
            let (client, _ambient) = soon(server.connect()).await.expect("a modern server");
            let frame = answer(&client).await.expect(body);
            assert_eq!(
                (frame.kind(), frame.numeric_id()),
                (kind, Some(2)),
                "{body}"
            );
            if kind == Kind::Error {
                assert_eq!(value(&frame)["error"]["message"], "boom", "{body}");
            }
        }
    }
    // An error status with a body that is not JSON-RPC is not a response of the server's application.
    let server = modern(|_| {
        let reply = text(403, Some("application/json"), r#"{"error":"forbidden"}"#);
        async { reply }
    })
    .await;
    let (client, _ambient) = soon(server.connect()).await.expect("a modern server");
    let error = answer(&client).await.expect_err("a status");
    assert!(
        matches!(error, CallError::Http { status: 403, .. }),
        "{error}"
    );
}

#[tokio::test]
async fn errors_with_a_status_are_answers() {
    for id in [
        json!(null),
        json!("server-error"),
        json!("ours"),
        json!("none"),
    ] {
        let sent = id.clone();
        let server = modern(move |hit: Hit| {
            let mut body = error(&sent, -32602, "odd");
            body["error"]["extra"] = json!(1);
            match sent.as_str() {
                Some("ours") => body["id"] = hit.id().clone(),
                Some("none") => drop(body.as_object_mut().expect("an object").remove("id")),
                _ => {}
            }
            async move { json_reply(400, &body) }
        })
        .await;
        let (client, _ambient) = soon(server.connect()).await.expect("a modern server");
        let frame = answer(&client).await.expect("an error is an answer");
        assert_eq!(
            (frame.kind(), frame.numeric_id()),
            (Kind::Error, Some(2)),
            "{id}"
        );
        assert_eq!(value(&frame)["error"]["extra"], 1);
    }
}

#[tokio::test]
async fn an_endless_body_is_refused_within_the_bound() {
    let server =
        modern(|_| async {
            let (sender, mut reply) = crate::server::stream();
            let media = "application/json".parse().expect("a value");
            reply.headers_mut().insert("content-type", media);
            // Writes 64 KiB at a time until the reader is gone.
            tokio::task::spawn_blocking(move || {
                while sender.blocking_send("x".repeat(64 * 1024)).is_ok() {}
            });
            reply
        })
        .await;
    let (client, _ambient) = soon(server.connect()).await.expect("a modern server");
    let error = answer(&client).await.expect_err("too long").to_string();
    assert!(error.contains("longer than 1048576 bytes"), "{error}");

    let server =
        modern(|_| async { text(200, Some("application/json"), &" ".repeat(2 << 20)) }).await;
    let (client, _ambient) = soon(server.connect()).await.expect("a modern server");
    let error = answer(&client).await.expect_err("too long").to_string();
    assert!(error.contains("longer than 1048576 bytes"), "{error}");
}

#[tokio::test]
async fn a_forgotten_session_ends_the_conversation() {
    let forgetful: [fn(&Hit) -> Reply; 3] = [
        |_| empty(404),
        |_| json_reply(404, &error(&Value::Null, -32001, "Session not found")),
        |hit| {
            let why = "Bad Request: No valid session ID provided";
            json_reply(400, &error(hit.id(), -32000, why))
        },
    ];
    for reply in forgetful {
        let server = legacy("2025-06-18", move |hit: Hit| async move {
            if hit.method == http::Method::GET {
                empty(405)
            } else {
                reply(&hit)
            }
        })
        .await;
        let (client, _ambient) = soon(server.connect()).await.expect("a legacy server");
        assert_eq!(
            answer(&client).await.map(|_| ()),
            Err(CallError::SessionExpired)
        );
        assert!(soon(client.closed()).await.contains("session"));
        let again = client.call(Outgoing::new(&call_frame())).await.map(|_| ());
        assert_eq!(again, Err(CallError::SessionExpired));
        soon(client.close(Duration::from_secs(5))).await;
        assert_eq!(server.count(|hit| hit.method == http::Method::DELETE), 0);
    }
    // An unknown method does not mean a lost session.
    let server = legacy("2025-06-18", |hit: Hit| async move {
        json_reply(404, &error(hit.id(), -32601, "Method not found"))
    })
    .await;
    let (client, _ambient) = soon(server.connect()).await.expect("a legacy server");
    assert_eq!(
        answer(&client).await.map(|frame| frame.kind()),
        Ok(Kind::Error)
    );
}

/// A call that the server works on gets its response, even if another call of the session gets the error that the
/// session is lost. The call must not look safe to retry.
#[tokio::test]
async fn a_call_in_flight_outlives_a_forgotten_session() {
    let (go, going) = tokio::sync::watch::channel(false);
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let server = legacy("2025-06-18", move |hit: Hit| {
        let (mut going, counted) = (going.clone(), counted.clone());
        async move {
            let is_call = hit.rpc() == "tools/call";
            match is_call.then(|| counted.fetch_add(1, Ordering::SeqCst)) {
                Some(0) => {
                    let _ = going.wait_for(|go| *go).await;
                    json_reply(200, &result(&hit, json!({})))
                }
                Some(_) => empty(404),
                None if hit.method == http::Method::GET => empty(405),
                None => empty(202),
            }
        }
    })
    .await;
    let (client, _ambient) = soon(server.connect()).await.expect("a legacy server");
    let mut first = start(&client).await;
    let answered = async {
        loop {
            if let Event::Response(frame) = soon(first.next()).await? {
                return Ok::<_, CallError>(frame.kind());
            }
        }
    };
    let turned_away = async {
        wait_for(|| (calls.load(Ordering::SeqCst) == 1).then_some(())).await;
        let other = answer(&client).await.map(|_| ());
        assert_eq!(other, Err(CallError::SessionExpired));
        soon(client.close(Duration::ZERO)).await;
        go.send_replace(true);
    };
    let (answered, ()) = tokio::join!(answered, turned_away);
    assert_eq!(answered, Ok(Kind::Result));
}

#[tokio::test]
async fn connections_are_used_again() {
    let server = modern(|hit: Hit| async move {
        let answer = result(&hit, json!({"n": hit.id()}));
        // Every third response is a stream, whose connection must be reusable as well.
        if hit.id().as_u64().is_some_and(|id| id % 3 == 0) {
            let (sender, reply) = crate::server::stream();
            sender
                .send(crate::server::event(&answer))
                .await
                .expect("room for one");
            return reply;
        }
        json_reply(200, &answer)
    })
    .await;
    let (client, _ambient) = soon(server.connect()).await.expect("a modern server");
    let workers = (0..8).map(|_| async {
        for _ in 0..125 {
            let mut call = start(&client).await;
            let Event::Response(frame) = soon(call.next()).await.expect("an answer") else {
                panic!("no response");
            };
            assert_eq!(value(&frame)["result"]["n"], call.upstream_id());
        }
    });
    futures_util::future::join_all(workers).await;
    assert_eq!(server.count(|hit| hit.rpc() == "tools/call"), 1000);
    let connections = server.connections();
    assert!(
        connections <= 40,
        "{connections} connections for 1,000 calls by 8 callers"
    );
    assert_eq!(client.stray_answers(), 0);
}

#[tokio::test]
async fn a_connection_that_died_while_idle_is_no_error() {
    // The server closes the connection after every response, without announcing it.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("a port");
    let url = format!("http://{}/mcp", listener.local_addr().expect("an address"));
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn(async move {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        loop {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            let mut got = Vec::new();
            let body = loop {
                let mut chunk = [0; 4096];
                let n = stream.read(&mut chunk).await.expect("a request");
                got.extend_from_slice(&chunk[..n]);
                let text = String::from_utf8_lossy(&got).into_owned();
                let body = text.split_once("\r\n\r\n").map(|(_, body)| body.to_owned());
                match body.as_deref().map(serde_json::from_str::<Value>) {
                    Some(Ok(body)) => break body,
                    _ if n == 0 => break Value::Null,
                    _ => {}
                }
            };
            let result = crate::server::discover_result();
            let reply = json!({"jsonrpc": "2.0", "id": body["id"], "result": result}).to_string();
            let head = format!(
                "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
                reply.len()
            );
            let _ = stream.write_all(format!("{head}{reply}").as_bytes()).await;
        }
    });
    let target = mcp::client::Target::Http {
        url,
        headers: vec![],
    };
    let connected =
        soon(mcp::client::Connector::new().connect(target, &crate::server::options())).await;
    let (client, _ambient) = connected.expect("a modern server");
    for _ in 0..20 {
        assert!(answer(&client).await.is_ok());
        // Gives the close time to arrive before the next call, so that the connection is closed while idle.
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn closing_ends_calls_in_flight() {
    let server = legacy("2025-06-18", |_| async {
        std::future::pending::<Reply>().await
    })
    .await;
    let (client, _ambient) = soon(server.connect()).await.expect("a legacy server");
    let mut call = start(&client).await;
    let asked = async {
        server.hit(|hit| hit.rpc() == "tools/call").await;
        client.close(Duration::from_secs(5)).await;
    };
    let (ended, ()) = soon(async { tokio::join!(call.next(), asked) }).await;
    assert!(matches!(ended, Err(CallError::Closed(_))), "{ended:?}");
    assert!(matches!(
        client.call(Outgoing::new(&call_frame())).await,
        Err(CallError::Closed(_))
    ));
    assert!(soon(client.closed()).await.contains("gateway"));
    wait_for(|| (server.count(|hit| hit.method == http::Method::DELETE) == 1).then_some(())).await;
}
