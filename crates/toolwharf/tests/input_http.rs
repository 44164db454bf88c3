//! Invalid client requests are refused as specified, and none of them reaches a server.

mod common;

use std::time::Duration;

use common::{
    Gateway, LEGACY, Setup, body,
    rpc::{self, initialize, session},
    says, wire, with,
};
use serde_json::{Value, json};
use testkit::{DEADLINE, Process, RawClient, Reply, peer::MODERN, wait_for, within};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

async fn gateway() -> Gateway {
    Setup::new()
        .settings("allowed_origins = [\"https://chat.example.com\"]\nallowed_hosts = [\"tools.example.com\"]\n[projects.red]\n")
        .server("one", with(common::scripted("one", &["--resources", "1"]), json!({"maxConcurrency": 8})))
        .connected()
        .await
}

fn call(name: &str) -> String {
    rpc::call(7, name, json!({}))
}

/// A modern call of `echo` with its headers.
fn modern_call() -> (Value, [(&'static str, &'static str); 3]) {
    let body = rpc::modern_call(7, "echo", json!({}));
    (body, rpc::call_headers("echo"))
}

/// Asserts that no call has reached the server.
async fn nothing_forwarded(gateway: &Gateway) {
    let calls = gateway.metric("calls_total", Some("one")).await;
    assert_eq!(calls, Some(0), "a request was forwarded");
}

fn check(reply: &Reply, status: u16, code: i64, what: &str) {
    let text: String = reply.text().chars().take(300).collect();
    assert_eq!(reply.status, status, "{what}: {text}");
    let error = &body(reply)["error"];
    assert_eq!(error["code"], code, "{what}: {text}");
    let message = error["message"].as_str().unwrap_or_default();
    assert!(message.len() > 10, "{what}: {text}");
}

#[tokio::test]
async fn frames_that_parsers_disagree_about_are_refused() {
    let gateway = gateway().await;
    let legacy = session(gateway.client(), LEGACY).await;
    let deep = format!(
        r#"{{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{{"name":"echo","arguments":{{"a":{}{}}}}}}}"#,
        "[".repeat(10_000),
        "]".repeat(10_000)
    );
    let long_key = "k".repeat(1000);
    let long_keys = format!(
        r#"{{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{{"name":"echo","arguments":{{"{long_key}":1,"{long_key}":2}}}}}}"#
    );
    let cases: &[(&str, &[u8], i64)] = &[
        ("duplicate id", br#"{"jsonrpc":"2.0","id":7,"id":8,"method":"tools/call","params":{"name":"echo"}}"#, -32600),
        ("duplicate method", br#"{"jsonrpc":"2.0","id":7,"method":"ping","method":"tools/call","params":{"name":"echo"}}"#, -32600),
        ("duplicate name", br#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"echo","name":"crash"}}"#, -32600),
        ("duplicate name, escaped", br#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"echo","n\u0061me":"crash"}}"#, -32600),
        ("duplicate deep inside", br#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"echo","arguments":{"x":[{"a":1,"b":2,"a":3}]}}}"#, -32600),
        ("duplicate long key", long_keys.as_bytes(), -32600),
        ("folded method", br#"{"jsonrpc":"2.0","id":7,"Method":"tools/call","method":"ping","params":{"name":"echo"}}"#, -32600),
        ("folded params", br#"{"jsonrpc":"2.0","id":7,"method":"tools/call","PARAMS":{"name":"echo"}}"#, -32600),
        ("folded name", br#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"Name":"crash","name":"echo"}}"#, -32600),
        ("folded arguments", br#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"echo","Arguments":{}}}"#, -32600),
        ("folded with another alphabet", "{\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"tools/call\",\"param\u{17f}\":{\"name\":\"echo\"}}".as_bytes(), -32600),
        ("depth 10,000", deep.as_bytes(), -32600),
        ("invalid UTF-8", b"{\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"tools/call\",\"params\":{\"name\":\"echo\xff\"}}", -32700),
        ("overlong UTF-8", b"{\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"tools/call\",\"params\":{\"name\":\"ech\xc1\xaf\"}}", -32700),
        ("UTF-16 surrogates as UTF-8", b"{\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"tools/call\",\"params\":{\"name\":\"\xed\xa0\x80\"}}", -32700),
        ("a byte order mark", b"\xef\xbb\xbf{\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"ping\"}", -32700),
        ("empty", b"", -32700),
        ("cut off", br#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"echo""#, -32700),
        ("two texts", br#"{"jsonrpc":"2.0","id":7,"method":"ping"}{"jsonrpc":"2.0","id":8,"method":"ping"}"#, -32700),
        ("a trailing comma", br#"{"jsonrpc":"2.0","id":7,"method":"ping",}"#, -32700),
        ("NaN", br#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"echo","arguments":{"a":NaN}}}"#, -32700),
        ("a control character", b"{\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"tools/call\",\"params\":{\"name\":\"ec\x01ho\"}}", -32700),
        ("no object", b"\"ping\"", -32600),
        ("no version", br#"{"id":7,"method":"tools/call","params":{"name":"echo"}}"#, -32600),
        ("another version", br#"{"jsonrpc":"1.0","id":7,"method":"tools/call","params":{"name":"echo"}}"#, -32600),
        ("an id that is an object", br#"{"jsonrpc":"2.0","id":{},"method":"tools/call","params":{"name":"echo"}}"#, -32600),
        ("an id of null", br#"{"jsonrpc":"2.0","id":null,"method":"tools/call","params":{"name":"echo"}}"#, -32600),
        ("an id with an exponent", br#"{"jsonrpc":"2.0","id":1e3,"method":"tools/call","params":{"name":"echo"}}"#, -32600),
        ("an id that is a fraction", br#"{"jsonrpc":"2.0","id":1.5,"method":"tools/call","params":{"name":"echo"}}"#, -32600),
        ("params that are a list", br#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":["echo"]}"#, -32600),
        ("a method that is a number", br#"{"jsonrpc":"2.0","id":7,"method":7}"#, -32600),
    ];
    // A client that claims to be modern gets the same errors.
    let (_, headers) = modern_call();
    for (what, body, code) in cases {
        check(&legacy.post(body.to_vec()).await, 400, *code, what);
        let reply = gateway.client().post_with(&headers, body.to_vec()).await;
        check(&reply, 400, *code, what);
    }
    nothing_forwarded(&gateway).await;
    assert!(gateway.memory_peak() < 200 * 1024);
}

/// The same messages are refused over stdio, which has no status codes.
#[tokio::test]
async fn bad_lines_of_a_pipe_are_answered_and_the_next_is_read() {
    let (mut client, _dir) = Setup::new()
        .scripted("one", &[])
        .settings("[limits]\nmax_body_bytes = \"1MiB\"\n")
        .stdio();
    client.ask(rpc::hello(LEGACY)).await;
    let long = format!(
        r#"{{"jsonrpc":"2.0","id":"long","method":"tools/call","params":{{"name":"echo","arguments":{{"a":"{}"}}}}}}"#,
        "a".repeat(3 << 20)
    );
    let cases: [(&[u8], Value, i64); 7] = [
        (b"not json", Value::Null, -32700),
        (br#"{"jsonrpc":"2.0","id":"dup","method":"tools/call","params":{"name":"echo","name":"crash"}}"#, json!("dup"), -32600),
        (br#"{"jsonrpc":"2.0","id":5,"METHOD":"tools/call","method":"ping"}"#, json!(5), -32600),
        (b"\xff\xfe", Value::Null, -32700),
        (b"[]", Value::Null, -32600),
        (br#"{"jsonrpc":"2.0","id":6,"method":"tools/call","params":{"name":"echo""#, Value::Null, -32700),
        (long.as_bytes(), json!("long"), -32600),
    ];
    for (line, id, code) in cases {
        client.send(line).await;
        let what = String::from_utf8_lossy(&line[..line.len().min(80)]).into_owned();
        let answer = within(&what, DEADLINE, async {
            let mut message = client.receive_json().await;
            // Notifications, such as changed lists, may arrive at any time.
            while message.get("method").is_some() {
                message = client.receive_json().await;
            }
            message
        })
        .await;
        assert_eq!(answer["error"]["code"], code, "{what}: {answer}");
        if !id.is_null() {
            assert_eq!(answer["id"], id, "{what}: {answer}");
        }
        let answer = client.ask(rpc::message(100, "ping", json!({}))).await;
        assert_eq!(answer["result"], json!({}), "{what}");
    }
}

/// A body of 100 MB is refused by its declared length. Without a length, it is refused before all of it is read.
#[tokio::test]
async fn a_huge_body_is_refused_without_reading_it() {
    let gateway = gateway().await;
    let before = gateway.memory_peak();
    let host = gateway.url.strip_prefix("http://").unwrap();
    for announced in [true, false] {
        let mut socket = TcpStream::connect(host).await.unwrap();
        let length = if announced {
            "content-length: 100000000"
        } else {
            "transfer-encoding: chunked"
        };
        let head = format!(
            "POST /mcp HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\naccept: application/json, text/event-stream\r\n{length}\r\n\r\n"
        );
        socket.write_all(head.as_bytes()).await.unwrap();
        let (mut reader, mut writer) = socket.into_split();
        let mut sent = 0usize;
        let writing = async {
            if announced {
                return std::future::pending::<()>().await;
            }
            let chunk = format!("{:x}\r\n{}\r\n", 1 << 20, " ".repeat(1 << 20));
            while sent < 100 << 20 && writer.write_all(chunk.as_bytes()).await.is_ok() {
                sent += 1 << 20;
            }
            std::future::pending().await
        };
        let mut answer = vec![0; 4096];
        let count = tokio::select! {
            count = within("the refusal", DEADLINE, reader.read(&mut answer)) => count.unwrap(),
            () = writing => unreachable!(),
        };
        let answer = String::from_utf8_lossy(&answer[..count]).into_owned();
        assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
        assert!(answer.contains("max_body_bytes"), "{answer}");
        assert!(sent < 60 << 20, "{sent} bytes were read");
    }
    nothing_forwarded(&gateway).await;
    let grown = gateway.memory_peak() - before;
    assert!(grown < 80 * 1024, "memory grew by {grown} KiB");
}

/// A header that contradicts the body, is missing or is repeated gives -32020, and nothing is forwarded.
#[tokio::test]
async fn headers_that_contradict_the_body_are_refused() {
    let gateway = gateway().await;
    let client = gateway.client();
    let (call, headers) = modern_call();
    let with = |name: &str, value: &'static str| {
        headers.map(|(header, own)| (header, if header == name { value } else { own }))
    };
    let cases = [
        ("mcp-protocol-version", "2025-11-25"),
        ("mcp-protocol-version", "2026-07-29"),
        ("mcp-protocol-version", ""),
        ("mcp-method", "tools/list"),
        ("mcp-method", "Tools/Call"),
        ("mcp-method", ""),
        ("mcp-name", "crash"),
        ("mcp-name", "Echo"),
        ("mcp-name", "=?base64?Y3Jhc2g=?="),
        ("mcp-name", "=?base64?%%%?="),
        ("mcp-name", ""),
    ];
    for (name, value) in cases {
        let reply = client.post_with(&with(name, value), call.to_string()).await;
        check(&reply, 400, -32020, &format!("{name}: {value:?}"));
        assert_eq!(body(&reply)["id"], 7, "{name}: {value:?}");
    }
    let resource = "resource://one/scripted://";
    for (method, key, name, other) in [
        (
            "resources/read",
            "uri",
            format!("{resource}0"),
            format!("{resource}1"),
        ),
        ("prompts/get", "name", "prompt_0".into(), "prompt_1".into()),
    ] {
        let mut request = call.clone();
        request["method"] = json!(method);
        request["params"][key] = json!(name);
        let headers = [&rpc::headers(method)[..], &[("mcp-name", &*other)]].concat();
        let reply = client.post_with(&headers, request.to_string()).await;
        check(&reply, 400, -32020, method);
    }
    // A repeated header is refused, even if both values are the same.
    for (twice, value) in headers {
        let all = [&headers[..], &[(twice, value), ("connection", "close")]].concat();
        let text = wire::post("/mcp", &all, &call.to_string());
        let mut socket = TcpStream::connect(wire::address(&gateway)).await.unwrap();
        socket.write_all(text.as_bytes()).await.unwrap();
        let mut answer = String::new();
        let read = within("an answer", DEADLINE, socket.read_to_string(&mut answer));
        read.await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 400 "), "{twice}: {answer}");
        assert!(answer.contains("-32020"), "{twice}: {answer}");
    }
    nothing_forwarded(&gateway).await;
    // The name in the header may be base64-encoded.
    let same = with("mcp-name", "=?base64?ZWNobw==?=");
    let reply = client.post_with(&same, call.to_string()).await;
    assert!(reply.response().get("result").is_some(), "{}", reply.text());
}

#[tokio::test]
async fn unknown_and_missing_versions_are_refused() {
    let gateway = gateway().await;
    let client = gateway.client();
    let (modern, headers) = modern_call();
    for version in ["2099-01-01", "1.0", LEGACY] {
        let mut call = modern.clone();
        call["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"] = json!(version);
        let mut headers = headers;
        headers[0].1 = version;
        let reply = client.post_with(&headers, call.to_string()).await;
        check(&reply, 400, -32022, version);
        let data = &body(&reply)["error"]["data"];
        assert_eq!(data["requested"], version, "{data}");
        let supported = data["supported"].as_array().unwrap();
        assert!(supported.contains(&json!(MODERN)), "{data}");
    }
    // The header claims the modern era, but the body lacks its metadata.
    for (within, missing) in [
        ("/params/_meta", "io.modelcontextprotocol/protocolVersion"),
        (
            "/params/_meta",
            "io.modelcontextprotocol/clientCapabilities",
        ),
        ("/params", "_meta"),
    ] {
        let mut call = modern.clone();
        let object = call.pointer_mut(within).unwrap().as_object_mut();
        object.unwrap().remove(missing);
        let reply = client.post_with(&headers, call.to_string()).await;
        check(&reply, 400, -32602, missing);
    }
    // A legacy session is refused if its header has an unknown protocol version.
    let legacy = session(gateway.client(), LEGACY).await;
    for version in ["2099-01-01", "nonsense"] {
        let unknown = [("mcp-protocol-version", version)];
        let reply = legacy.post_with(&unknown, call("echo")).await;
        assert_eq!(reply.status, 400, "{version}: {}", reply.text());
    }
    nothing_forwarded(&gateway).await;
    // A legacy client that requests an unknown version is offered a known one.
    let reply = initialize(&client, "1999-01-01").await;
    assert_eq!(reply.response()["result"]["protocolVersion"], "2025-11-25");
}

#[tokio::test]
async fn foreign_hosts_and_origins_are_refused() {
    let gateway = gateway().await;
    let client = session(gateway.client(), LEGACY).await;
    let refused = [
        ("origin", "https://evil.example.com"),
        ("origin", "http://localhost.evil.example.com"),
        ("origin", "null"),
        ("origin", "https://chat.example.com.evil.example"),
        ("origin", "http://chat.example.com"),
        ("origin", "http://127.0.0.1@evil.example.com"),
        ("host", "evil.example.com"),
        ("host", "127.0.0.1.evil.example.com"),
        ("host", "10.1.2.3"),
        ("host", "tools.example.com.evil.example"),
    ];
    let (body, headers) = modern_call();
    for (name, value) in refused {
        let reply = client.post_with(&[(name, value)], call("echo")).await;
        check(&reply, 403, -32600, value);
        let modern = [headers.as_slice(), &[(name, value)]].concat();
        let reply = gateway.client().post_with(&modern, body.to_string()).await;
        check(&reply, 403, -32600, value);
        for path in ["/mcp", "/sse", "/healthz", "/metrics"] {
            let reply = gateway.at(path).get(&[(name, value)]).await;
            assert_eq!(reply.status, 403, "{path} {name}: {value}");
        }
        let reply = client.delete(&[(name, value)]).await;
        assert_eq!(reply.status, 403, "DELETE {name}: {value}");
    }
    nothing_forwarded(&gateway).await;
    for (name, value) in [
        ("origin", "https://chat.example.com"),
        ("origin", "http://localhost:3000"),
        ("host", "tools.example.com"),
        ("host", "tools.example.com:8080"),
        ("host", "localhost"),
    ] {
        let reply = client.post_with(&[(name, value)], call("echo")).await;
        assert_eq!(reply.status, 200, "{name}: {value}: {}", reply.text());
    }
}

/// Asserts that every request of this client is refused, because it has no session.
async fn has_no_session(client: &RawClient, what: &str) {
    check(&client.post(call("echo")).await, 404, -32600, what);
    assert_eq!(client.get(&[]).await.status, 404, "{what:?}");
    let events = client.get(&[("accept", "text/event-stream")]).await;
    assert_eq!(events.status, 404, "{what:?}");
    assert_eq!(client.delete(&[]).await.status, 404, "{what:?}");
}

#[tokio::test]
async fn sessions_are_bound_and_end() {
    let gateway = gateway().await;
    let plain = gateway.client();
    let reply = plain.post(call("echo")).await;
    check(&reply, 400, -32600, "no session");
    let text = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
    let status = plain.post(text).await.status;
    assert_eq!(status, 400, "a notification without a session");
    for id in ["made-up", "0", "../../etc/passwd", &"x".repeat(4000)] {
        let client = plain.clone().with("mcp-session-id", id);
        has_no_session(&client, id).await;
    }
    // A session is bound to the key that opened it.
    let key = "Bearer alice-token-0123456789";
    let alice = session(plain.clone().with("authorization", key), LEGACY).await;
    for principal in ["Bearer bob-token-0123456789", ""] {
        let other = alice.clone().with("authorization", principal);
        has_no_session(&other, principal).await;
    }
    let anonymous = session(plain.clone(), LEGACY).await;
    let taken = anonymous.clone().with("authorization", key);
    assert_eq!(taken.post(call("echo")).await.status, 404);
    // A session is also bound to its project.
    let reply = anonymous.at("/mcp/red").post(call("echo")).await;
    check(&reply, 404, -32600, "another project");
    let reply = anonymous.at("/mcp/-/one").post(call("echo")).await;
    check(&reply, 404, -32600, "another view");
    nothing_forwarded(&gateway).await;
    assert_eq!(alice.post(call("echo")).await.status, 200);
    assert_eq!(alice.delete(&[]).await.status, 204);
    has_no_session(&alice, "after its end").await;
    assert_eq!(gateway.metric("calls_total", Some("one")).await, Some(1));
    assert_eq!(gateway.metric("sessions", None).await, Some(1));
}

#[tokio::test]
async fn paths_methods_and_types_that_do_not_exist() {
    let gateway = gateway().await;
    let client = gateway.client();
    let hello = rpc::hello(LEGACY).to_string();
    let (body, headers) = modern_call();
    for path in [
        "/mcp/nobody",
        "/mcp/red/nobody",
        "/mcp/-/nobody",
        "/mcp/a/b/c",
        "/mcp/..%2f",
        "/mcp/red%00",
    ] {
        let reply = gateway.at(path).post(hello.clone()).await;
        assert_eq!(reply.status, 404, "{path}");
        let reply = gateway.at(path).post_with(&headers, body.to_string()).await;
        let text = reply.text();
        let refused = reply.status == 404 || text.contains("error");
        assert!(refused, "{path}: {text}");
    }
    for (path, project, status) in [("/mcp", "nobody", 404), ("/mcp/red", "blue", 400)] {
        let project = [("x-project-id", project)];
        let reply = gateway.at(path).post_with(&project, hello.clone()).await;
        assert_eq!(reply.status, status, "{path}");
    }
    for kind in [
        "text/plain",
        "",
        "application/x-www-form-urlencoded",
        "multipart/form-data",
        "application/jsonp",
    ] {
        let header = [("content-type", kind)];
        let reply = client.post_with(&header, hello.clone()).await;
        assert_eq!(reply.status, 415, "{kind}");
    }
    let legacy = session(client.clone(), LEGACY).await;
    let reply = legacy.get(&[("accept", "application/json")]).await;
    assert_eq!(reply.status, 406);
    assert_eq!(legacy.get(&[("accept", "")]).await.status, 406);
    assert_eq!(client.get(&[]).await.status, 405, "GET without a session");
    for method in [http::Method::PUT, http::Method::PATCH] {
        let reply = client.send(method, &[], "{}").await;
        assert_eq!(reply.status, 405);
    }
    nothing_forwarded(&gateway).await;
    let stream = legacy.get(&[("accept", "text/event-stream")]).await;
    assert_eq!(stream.status, 200);
    assert!(stream.is_event_stream());
}

/// Returns the responses to a batch.
fn answers(reply: &Reply) -> Vec<Value> {
    serde_json::from_slice(&reply.body).expect("an array")
}

/// Batches exist only in 2025-03-26. Each part of a batch is checked separately.
#[tokio::test]
async fn batches_only_where_they_exist() {
    let gateway = gateway().await;
    let batch = format!(
        "[{},{}]",
        call("echo"),
        call("echo").replace("\"id\":7", "\"id\":8")
    );
    for version in ["2024-11-05", "2025-06-18", "2025-11-25"] {
        let client = session(gateway.client(), version).await;
        let reply = client.post(batch.clone()).await;
        assert_eq!(reply.status, 400, "{version}: {}", reply.text());
    }
    let (body, headers) = modern_call();
    let batch = format!("[{body}]");
    let reply = gateway.client().post_with(&headers, batch).await;
    assert_eq!(reply.status, 400, "{}", reply.text());
    let client = session(gateway.client(), "2025-03-26").await;
    for broken in [
        "[",
        "[1]",
        r#"[{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo"}},"#,
    ] {
        let reply = client.post(broken).await;
        let text = reply.text();
        let refused = reply.status == 400 || text.contains("-32600");
        assert!(refused, "{broken}: {text}");
    }
    check(&client.post("[ ]").await, 400, -32600, "an empty batch");
    nothing_forwarded(&gateway).await;
    let mixed = format!(
        r#"[{},{{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{{"Name":"x","name":"echo"}}}},{{"jsonrpc":"2.0","method":"notifications/x"}},{{"jsonrpc":"2.0","id":"p","method":"ping"}}]"#,
        call("echo")
    );
    let reply = client.post(mixed).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    let answers = answers(&reply);
    assert_eq!(answers.len(), 3, "{answers:?}");
    let of = |id: Value| {
        let found = answers.iter().find(|answer| answer["id"] == id);
        found.unwrap_or_else(|| panic!("{id}: {answers:?}"))
    };
    assert!(of(json!(7)).get("result").is_some());
    assert_eq!(of(json!(9))["error"]["code"], -32600);
    assert_eq!(of(json!("p"))["result"], json!({}));
}

/// Progress of the calls in a batch arrives before the responses, on the same stream.
#[tokio::test]
async fn progress_of_a_batch_is_kept() {
    let gateway = gateway().await;
    let client = session(gateway.client(), "2025-03-26").await;
    let progress = |id: u64| {
        let (own, arguments) = (json!({"progressToken": id}), json!({"count": 2}));
        let params = json!({"name": "progress", "arguments": arguments, "_meta": own});
        rpc::message(id, "tools/call", params).to_string()
    };
    let batch = format!("[{},{}]", progress(1), progress(2));
    let reply = client.post(batch).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    let mut messages = reply.messages();
    let answers = messages.pop().expect("the responses");
    assert_eq!(answers.as_array().map(Vec::len), Some(2), "{answers}");
    let mut seen: Vec<_> = messages
        .iter()
        .map(|message| {
            assert_eq!(message["method"], "notifications/progress");
            let params = &message["params"];
            (
                params["progressToken"].as_u64(),
                params["progress"].as_u64(),
            )
        })
        .collect();
    seen.sort_unstable();
    let all = [(1, 1), (1, 2), (2, 1), (2, 2)].map(|(token, done)| (Some(token), Some(done)));
    assert_eq!(seen, all);
}

/// A call that its client cancelled gets no response.
#[tokio::test]
async fn a_cancelled_call_gets_no_response() {
    let gateway = gateway().await;
    let client = session(gateway.client(), "2025-06-18").await;
    let slow = client.post(rpc::call(7, "slow", json!({"ms": 600_000})));
    let cancel = async {
        wait_for("the call", DEADLINE, async || {
            gateway.metric("calls_total", Some("one")).await == Some(1)
        })
        .await;
        let params = json!({"requestId": 7});
        let cancelled =
            json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params});
        assert_eq!(client.post(cancelled.to_string()).await.status, 202);
    };
    let (reply, ()) = within("both", DEADLINE, async { tokio::join!(slow, cancel) }).await;
    assert_eq!(reply.status, 202);
    assert_eq!(reply.text(), "");
}

/// `initialize` exists only in the legacy era. Its version header may be left from another session.
#[tokio::test]
async fn initialize_is_recognised_with_any_version_header() {
    let gateway = gateway().await;
    let hello = rpc::hello(LEGACY).to_string();
    for version in [MODERN, LEGACY, "2099-01-01", "nonsense", ""] {
        let header = [("mcp-protocol-version", version)];
        let reply = gateway.client().post_with(&header, hello.clone()).await;
        assert_eq!(reply.status, 200, "{version}: {}", reply.text());
        let result = &reply.response()["result"];
        assert_eq!(result["protocolVersion"], LEGACY, "{version}");
        assert!(reply.header("mcp-session-id").is_some(), "{version}");
    }
}

/// Headers for parameters that no tool declares are forwarded to modern servers, and no other header is.
#[tokio::test]
async fn headers_of_undeclared_parameters_are_forwarded() {
    let options = ["--http", "127.0.0.1:0", "--era", "modern"];
    let mut upstream = Process::bin("testkit-scripted", options);
    let entry = json!({"url": upstream.url().await});
    let gateway = Setup::new().server("up", entry).connected().await;
    let body = rpc::modern_call(7, "headers", json!({})).to_string();
    let own = [("mcp-param-region", "=?base64?w6k=?="), ("x-other", "1")];
    let headers = [&rpc::call_headers("headers")[..], &own].concat();
    let reply = gateway.client().post_with(&headers, body).await;
    let text = reply.response()["result"]["content"][0]["text"].clone();
    let seen: Value = serde_json::from_str(text.as_str().unwrap()).unwrap();
    assert_eq!(seen["mcp-param-region"], "=?base64?w6k=?=", "{seen}");
    assert!(seen.get("x-other").is_none(), "{seen}");
}

/// Sessions beyond the limit are refused if all are in use. A session that ends makes room.
#[tokio::test]
async fn sessions_are_bounded() {
    let settings = "[limits]\nmax_sessions = 3\nsession_idle = \"1s\"\n";
    let gateway = Setup::new().settings(settings).serve().await;
    let client = gateway.client();
    let (mut open, mut streams) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        let client = session(client.clone(), LEGACY).await;
        let stream = client.get(&[("accept", "text/event-stream")]).await;
        assert_eq!(stream.status, 200);
        streams.push(stream);
        open.push(client);
    }
    let reply = initialize(&client, LEGACY).await;
    check(&reply, 503, -32600, "one more");
    assert!(reply.header("retry-after").is_some());
    streams.clear();
    assert_eq!(open.pop().unwrap().delete(&[]).await.status, 204);
    open.push(session(client.clone(), LEGACY).await);
    // Idle sessions expire, except for the one with an open stream.
    let stream = open[0].get(&[("accept", "text/event-stream")]).await;
    assert_eq!(stream.status, 200);
    let limit = Duration::from_secs(20);
    wait_for("the idle sessions' end", limit, async || {
        gateway.metric("sessions", None).await == Some(1)
    })
    .await;
    let ping = rpc::message(1, "ping", json!({})).to_string();
    assert_eq!(open[0].post(ping.clone()).await.status, 200);
    assert_eq!(open[1].post(ping).await.status, 404);
}

/// A batch of too many messages is refused as a whole. If the responses are too long together, those that fit are
/// returned, and the rest are errors.
#[tokio::test]
async fn batches_are_bounded_in_messages_and_in_bytes_of_their_answers() {
    let count = if testkit::soak() { 100_000 } else { 10_000 };
    let gateway = gateway().await;
    let client = session(gateway.client(), "2025-03-26").await;
    let before = gateway.memory_peak();
    let list = |id: usize| json!({"jsonrpc": "2.0", "id": id, "method": "tools/list"}).to_string();
    let batch = |count: usize| format!("[{}]", (0..count).map(list).collect::<Vec<_>>().join(","));
    let reply = client.post(batch(count)).await;
    check(&reply, 413, -32600, "a batch of many lists");
    let reply = client.post(batch(200)).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    let lists = answers(&reply);
    assert_eq!(lists.len(), 200);
    for list in lists {
        assert!(list["result"]["tools"].is_array(), "{list}");
    }
    // Together, the responses are 40 MB long.
    let big = |id: usize| rpc::call(id, "big", json!({"bytes": 2_000_000}));
    let batch = format!("[{}]", (0..20).map(big).collect::<Vec<_>>().join(","));
    let reply = client.post(batch).await;
    assert_eq!(reply.status, 200);
    assert!(reply.body.len() < 17 << 20, "{} bytes", reply.body.len());
    let answers = answers(&reply);
    let mut ids: Vec<u64> = answers.iter().flat_map(|a| a["id"].as_u64()).collect();
    ids.sort_unstable();
    assert_eq!(ids, (0..20).collect::<Vec<_>>(), "each has its answer");
    let refused = answers
        .iter()
        .filter(|answer| answer.get("error").is_some());
    let refused: Vec<&Value> = refused.collect();
    assert!((10..20).contains(&refused.len()), "{}", refused.len());
    for answer in refused {
        says(answer, &["send this request on its own"]);
    }
    let grown = gateway.memory_peak() - before;
    assert!(grown < 200 * 1024, "memory grew by {grown} KiB");
}
