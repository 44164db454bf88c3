//! Responses as some servers send them: other content types, compression, redirects.

use std::io::Write;

use bytes::Bytes;
use flate2::{Compression, write::GzEncoder};
use http::Response;
use http_body_util::{BodyExt, Full};
use mcp::client::ConnectError;
use serde_json::json;

use crate::{
    calls::answer,
    server::{
        Hit, Reply, Server, discover_result, empty, initialize_result, json_reply, modern, result,
        soon, text,
    },
};

fn bytes(body: Vec<u8>, headers: &[(&'static str, &str)]) -> Reply {
    let mut response = Response::new(Full::new(Bytes::from(body)).boxed_unsync());
    for (name, value) in headers {
        let value = value.parse().expect("a header value");
        response.headers_mut().insert(*name, value);
    }
    response
}

fn gzip(text: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(text).expect("memory");
    encoder.finish().expect("memory")
}

#[tokio::test]
async fn json_is_read_however_it_is_sent() {
    type Send = fn(String) -> Reply;
    let ways: [Send; 5] = [
        |json| text(200, Some("text/plain; charset=utf-8"), &json),
        |json| text(200, Some("text/html"), &format!(" \n{json}")),
        |json| text(200, Some("application/json"), &format!("\u{feff}{json}")),
        |json| text(200, None, &json),
        |json| {
            let encoded = gzip(format!("\u{feff}{json}").as_bytes());
            bytes(
                encoded,
                &[("content-type", "text/plain"), ("content-encoding", "gzip")],
            )
        },
    ];
    for (at, send) in ways.into_iter().enumerate() {
        let server = modern(move |hit: Hit| async move {
            send(result(&hit, json!({"at": "home"})).to_string())
        })
        .await;
        let (client, _ambient) = soon(server.connect()).await.expect("a modern server");
        let frame = answer(&client).await;
        let frame = frame.unwrap_or_else(|error| panic!("{at}: {error}"));
        assert_eq!(frame.body(), br#"{"at":"home"}"#, "{at}");
    }
}

#[tokio::test]
async fn a_refusal_names_the_status_and_the_content_type_and_keeps_the_text() {
    type Send = fn() -> Reply;
    let ways: [(Send, &[&str]); 7] = [
        (
            || text(200, Some("text/plain"), "out of order"),
            &["neither JSON", "(HTTP 200, `text/plain`): out of order"],
        ),
        (
            || text(200, Some("text/html"), "<html><title>Sign in</title>"),
            &["(HTTP 200, `text/html`): Sign in"],
        ),
        (
            || text(201, Some("application/json"), "{\"status\":\"ok\"}"),
            &["(HTTP 201, `application/json`): {\"status\":\"ok\"}"],
        ),
        (
            || text(200, None, ""),
            &["empty (HTTP 200, no content type)"],
        ),
        (
            || bytes(gzip(&vec![b' '; 8 << 20]), &[("content-encoding", "gzip")]),
            &["longer than 1048576 bytes", "max_line_bytes"],
        ),
        (
            || bytes(b"x".to_vec(), &[("content-encoding", "br")]),
            &["encoded with \"br\""],
        ),
        (
            || {
                let headers = [
                    ("content-type", "text/event-stream"),
                    ("content-encoding", "gzip"),
                ];
                bytes(gzip(b"data: {}\n\n"), &headers)
            },
            &["event stream is encoded"],
        ),
    ];
    for (send, parts) in ways {
        let server = modern(move |_| async move { send() }).await;
        let (client, _ambient) = soon(server.connect()).await.expect("a modern server");
        let error = answer(&client).await.expect_err(parts[0]).to_string();
        for part in parts {
            assert!(error.contains(part), "{error} has no {part:?}");
        }
    }
}

fn moved(status: u16, to: &str) -> Reply {
    let mut reply = empty(status);
    let to = to.parse().expect("a header value");
    reply.headers_mut().insert("location", to);
    reply
}

/// A server whose `/mcp` redirects `hops` times.
async fn moving(status: u16, hops: usize, is_modern: bool) -> Server {
    Server::start(move |hit: Hit| async move {
        let hop = hit.path.len() - "/mcp".len();
        if hop < hops {
            return moved(status, &format!("{}x", hit.path));
        }
        match hit.rpc() {
            "server/discover" if is_modern => json_reply(200, &result(&hit, discover_result())),
            "server/discover" => empty(400),
            "initialize" if !is_modern => {
                json_reply(200, &result(&hit, initialize_result("2025-06-18")))
            }
            "notifications/initialized" => empty(202),
            "tools/call" => json_reply(200, &result(&hit, json!({}))),
            _ => empty(405),
        }
    })
    .await
}

#[tokio::test]
async fn redirects_are_followed_within_the_origin() {
    for (status, hops, is_modern) in [
        (307, 1, true),
        (308, 5, true),
        (308, 1, false),
        (307, 5, false),
    ] {
        let server = moving(status, hops, is_modern).await;
        let (client, _ambient) = soon(server.connect()).await.expect("it is followed");
        assert!(answer(&client).await.is_ok());
        // Calls go to the new URL at once.
        let hit = server.hit(|hit| hit.rpc() == "tools/call").await;
        assert_eq!(hit.path, format!("/mcp{}", "x".repeat(hops)));
        assert_eq!(server.count(|hit| hit.rpc() == "tools/call"), 1);
    }
    for (status, hops) in [(307, 6), (301, 1), (302, 1)] {
        let server = moving(status, hops, true).await;
        let error = soon(server.connect())
            .await
            .map(|_| ())
            .expect_err("refused");
        let target = format!("to {}x", server.url);
        assert!(
            error.to_string().contains(&target),
            "{error} has no {target}"
        );
    }
}

#[tokio::test]
async fn nothing_is_sent_to_another_origin() {
    let other = Server::start(|_| async { empty(202) }).await;
    let url = other.url.clone();
    let server = Server::start(move |_| {
        let to = format!("{url}?key=s3cret");
        async move { moved(307, &to) }
    })
    .await;
    let target = |sse| {
        let url = server.url.clone();
        let headers = vec![("authorization".to_owned(), "Bearer s3cret".to_owned())];
        match sse {
            true => mcp::client::Target::Sse { url, headers },
            false => mcp::client::Target::Http { url, headers },
        }
    };
    for sse in [false, true] {
        let connecting = mcp::client::Connector::new();
        let options = crate::server::options();
        let error = soon(connecting.connect(target(sse), &options)).await;
        let error: ConnectError = error.map(|_| ()).expect_err("refused");
        let error = error.to_string();
        let expect = format!("it redirects to {}?…: set that URL", other.url);
        assert!(error.contains(&expect), "{error} has no {expect}");
    }
    assert!(other.hits().is_empty());
}
