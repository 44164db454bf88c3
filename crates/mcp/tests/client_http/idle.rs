//! Idle connections that the server closes.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use mcp::client::{CallError, Client, Connector, Target};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

use crate::{
    calls::answer,
    server::{Hit, discover_result, json_reply, modern, options, result, soon},
};

/// Reads one request. `None` at the end of the connection.
async fn request(stream: &mut TcpStream) -> Option<Value> {
    let mut got = Vec::new();
    loop {
        let mut chunk = [0; 4096];
        let count = stream
            .read(&mut chunk)
            .await
            .ok()
            .filter(|count| *count > 0)?;
        got.extend_from_slice(&chunk[..count]);
        let text = String::from_utf8_lossy(&got);
        let body = text.split_once("\r\n\r\n").map(|(_, body)| body);
        if let Some(Ok(body)) = body.map(serde_json::from_str) {
            return Some(body);
        }
    }
}

/// A modern server that answers the first request of each connection, and closes the connection when it has received
/// the second one: as if it had just decided to close it. Counts the calls that it received.
async fn closing() -> (Client, Arc<AtomicUsize>, JoinSet<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}/mcp", listener.local_addr().expect("an address"));
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let count = |request: &Option<Value>| {
                let is_call = request
                    .as_ref()
                    .is_some_and(|it| it["method"] == "tools/call");
                counted.fetch_add(usize::from(is_call), Ordering::SeqCst);
            };
            let first = request(&mut stream).await;
            count(&first);
            let Some(first) = first else { continue };
            let id = &first["id"];
            let reply =
                json!({"jsonrpc": "2.0", "id": id, "result": discover_result()}).to_string();
            let head = format!(
                "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
                reply.len()
            );
            let _ = stream.write_all(format!("{head}{reply}").as_bytes()).await;
            count(&request(&mut stream).await);
        }
    });
    let headers = Vec::new();
    let (connector, options) = (Connector::new(), options());
    let connected = connector.connect(Target::Http { url, headers }, &options);
    let (client, _ambient) = soon(connected).await.expect("a modern server");
    (client, calls, tasks)
}

#[tokio::test]
async fn a_list_is_sent_again_over_another_connection() {
    let (client, _, _tasks) = closing().await;
    // Each one finds the connection of the one before.
    for _ in 0..5 {
        let listed = soon(client.ask("tools/list", "")).await;
        listed.expect("it is sent again");
    }
}

#[tokio::test]
async fn a_call_is_not() {
    let (client, calls, _tasks) = closing().await;
    let failed = answer(&client).await.map(|_| ());
    assert!(matches!(failed, Err(CallError::Closed(_))), "{failed:?}");
    assert_eq!(calls.load(Ordering::SeqCst), 1);
    assert!(answer(&client).await.is_ok());
    assert_eq!(calls.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn a_connection_is_not_used_beyond_the_limit_that_its_server_states() {
    for (limit, connections) in [("timeout=0", 4), ("timeout=60", 1)] {
        let server = modern(move |hit: Hit| async move {
            let mut reply = json_reply(200, &result(&hit, json!({})));
            let limit = limit.parse().expect("a header value");
            reply.headers_mut().insert("keep-alive", limit);
            reply
        })
        .await;
        let (client, _ambient) = soon(server.connect()).await.expect("a modern server");
        for _ in 0..4 {
            assert!(answer(&client).await.is_ok());
        }
        assert_eq!(server.connections(), connections, "{limit}");
    }
}
