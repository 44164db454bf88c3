//! Invalid client requests are refused as specified, and none of them reaches a server.

mod common;

use std::time::Duration;

use common::{
    Gateway, Setup,
    rpc::{self, initialize, session},
    with,
};
use serde_json::{Value, json};
use testkit::{DEADLINE, Reply, peer::MODERN, within};
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
    assert_eq!(
        gateway.metric("calls_total", Some("one")).await,
        Some(0),
        "something was forwarded"
    );
}

fn check(reply: &Reply, status: u16, code: i64, what: &str) {
    let text: String = reply.text().chars().take(300).collect();
    assert_eq!(reply.status, status, "{what}: {text}");
    let body: Value =
        serde_json::from_slice(&reply.body).unwrap_or_else(|_| panic!("{what}: {text}"));
    assert_eq!(body["error"]["code"], code, "{what}: {text}");
    assert!(
        body["error"]["message"]
            .as_str()
            .is_some_and(|message| message.len() > 10),
        "{what}: {text}"
    );
}

#[tokio::test]
async fn frames_that_parsers_disagree_about_are_refused() {
    let gateway = gateway().await;
    let legacy = session(gateway.client(), "2025-11-25").await;
    let deep = format!(
        r#"{{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{{"name":"echo","arguments":{{"a":{}{}}}}}}}"#,
        "[".repeat(10_000),
        "]".repeat(10_000)
    );
    let long_key = "k".repeat(1000);
    let cases: Vec<(&str, Vec<u8>, i64)> = vec![
        ("duplicate id", br#"{"jsonrpc":"2.0","id":7,"id":8,"method":"tools/call","params":{"name":"echo"}}"#.to_vec(), -32600),
        ("duplicate method", br#"{"jsonrpc":"2.0","id":7,"method":"ping","method":"tools/call","params":{"name":"echo"}}"#.to_vec(), -32600),
        ("duplicate name", br#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"echo","name":"crash"}}"#.to_vec(), -32600),
        ("duplicate name, escaped", br#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"echo","n\u0061me":"crash"}}"#.to_vec(), -32600),
        ("duplicate deep inside", br#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"echo","arguments":{"x":[{"a":1,"b":2,"a":3}]}}}"#.to_vec(), -32600),
        ("duplicate long key", format!(r#"{{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{{"name":"echo","arguments":{{"{long_key}":1,"{long_key}":2}}}}}}"#).into_bytes(), -32600),
        ("folded method", br#"{"jsonrpc":"2.0","id":7,"Method":"tools/call","method":"ping","params":{"name":"echo"}}"#.to_vec(), -32600),
        ("folded params", br#"{"jsonrpc":"2.0","id":7,"method":"tools/call","PARAMS":{"name":"echo"}}"#.to_vec(), -32600),
        ("folded name", br#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"Name":"crash","name":"echo"}}"#.to_vec(), -32600),
        ("folded arguments", br#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"echo","Arguments":{}}}"#.to_vec(), -32600),
        ("folded with another alphabet", "{\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"tools/call\",\"param\u{17f}\":{\"name\":\"echo\"}}".as_bytes().to_vec(), -32600),
        ("depth 10,000", deep.into_bytes(), -32600),
        ("invalid UTF-8", b"{\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"tools/call\",\"params\":{\"name\":\"echo\xff\"}}".to_vec(), -32700),
        ("overlong UTF-8", b"{\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"tools/call\",\"params\":{\"name\":\"ech\xc1\xaf\"}}".to_vec(), -32700),
        ("UTF-16 surrogates as UTF-8", b"{\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"tools/call\",\"params\":{\"name\":\"\xed\xa0\x80\"}}".to_vec(), -32700),
        ("a byte order mark", b"\xef\xbb\xbf{\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"ping\"}".to_vec(), -32700),
        ("empty", Vec::new(), -32700),
        ("cut off", br#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"echo""#.to_vec(), -32700),
        ("two texts", br#"{"jsonrpc":"2.0","id":7,"method":"ping"}{"jsonrpc":"2.0","id":8,"method":"ping"}"#.to_vec(), -32700),
        ("a trailing comma", br#"{"jsonrpc":"2.0","id":7,"method":"ping",}"#.to_vec(), -32700),
        ("NaN", br#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"echo","arguments":{"a":NaN}}}"#.to_vec(), -32700),
        ("a control character", b"{\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"tools/call\",\"params\":{\"name\":\"ec\x01ho\"}}".to_vec(), -32700),
        ("no object", b"\"ping\"".to_vec(), -32600),
        ("no version", br#"{"id":7,"method":"tools/call","params":{"name":"echo"}}"#.to_vec(), -32600),
        ("another version", br#"{"jsonrpc":"1.0","id":7,"method":"tools/call","params":{"name":"echo"}}"#.to_vec(), -32600),
        ("an id that is an object", br#"{"jsonrpc":"2.0","id":{},"method":"tools/call","params":{"name":"echo"}}"#.to_vec(), -32600),
        ("an id of null", br#"{"jsonrpc":"2.0","id":null,"method":"tools/call","params":{"name":"echo"}}"#.to_vec(), -32600),
        ("an id that is a fraction", br#"{"jsonrpc":"2.0","id":1.5,"method":"tools/call","params":{"name":"echo"}}"#.to_vec(), -32600),
        ("params that are a list", br#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":["echo"]}"#.to_vec(), -32600),
        ("a method that is a number", br#"{"jsonrpc":"2.0","id":7,"method":7}"#.to_vec(), -32600),
    ];
    for (what, body, code) in cases {
        let reply = legacy.post(body.clone()).await;
        check(&reply, 400, code, what);
        // The same for a client that claims to be modern.
        let (_, headers) = modern_call();
        check(
            &gateway.client().post_with(&headers, body).await,
            400,
            code,
            what,
        );
    }
    nothing_forwarded(&gateway).await;
    assert!(gateway.memory_peak() < 200 * 1024);
}

/// The same over stdio, which has no status codes.
#[tokio::test]
async fn bad_lines_of_a_pipe_are_answered_and_the_next_is_read() {
    let (mut client, _dir) = Setup::new()
        .scripted("one", &[])
        .settings("[limits]\nmax_body_bytes = \"1MiB\"\n")
        .stdio();
    client.ask(rpc::hello("2025-11-25")).await;
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
        // Notifications, such as changed lists, may arrive at any time.
        let answer = within(&what, DEADLINE, async {
            loop {
                let message = client.receive_json().await;
                if message.get("method").is_none() {
                    break message;
                }
            }
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
            let chunk = [
                format!("{:x}\r\n", 1 << 20).into_bytes(),
                vec![b' '; 1 << 20],
                b"\r\n".to_vec(),
            ]
            .concat();
            while sent < 100 << 20 && writer.write_all(&chunk).await.is_ok() {
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
    assert!(grown < 80 * 1024, "{grown} KiB more");
}

/// A header that contradicts the body, is missing or is repeated gives -32020, and nothing is forwarded.
#[tokio::test]
async fn headers_that_contradict_the_body_are_refused() {
    let gateway = gateway().await;
    let client = gateway.client();
    let (body, headers) = modern_call();
    let with = |name: &str, value: &'static str| {
        headers.map(|(header, own)| {
            if header == name {
                (header, value)
            } else {
                (header, own)
            }
        })
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
        let reply = client.post_with(&with(name, value), body.to_string()).await;
        check(&reply, 400, -32020, &format!("{name}: {value:?}"));
        let answer: Value = serde_json::from_slice(&reply.body).unwrap();
        assert_eq!(answer["id"], 7, "{name}: {value:?}: {answer}");
    }
    for (method, params, header) in [
        (
            "resources/read",
            json!({"uri": "resource://one/scripted://0"}),
            "resource://one/scripted://1",
        ),
        ("prompts/get", json!({"name": "prompt_0"}), "prompt_1"),
    ] {
        let mut request = body.clone();
        request["method"] = json!(method);
        for (key, value) in params.as_object().unwrap() {
            request["params"][key] = value.clone();
        }
        let headers = [
            ("mcp-protocol-version", MODERN),
            ("mcp-method", method),
            ("mcp-name", header),
        ];
        let reply = client.post_with(&headers, request.to_string()).await;
        check(&reply, 400, -32020, method);
    }
    // Repeated, although both values are the same.
    let host = gateway.url.strip_prefix("http://").unwrap();
    for (twice, value) in headers {
        let text = body.to_string();
        let mut head = format!(
            "POST /mcp HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\naccept: application/json, text/event-stream\r\nconnection: close\r\ncontent-length: {}\r\n",
            text.len()
        );
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str(&format!("{twice}: {value}\r\n\r\n{text}"));
        let mut socket = TcpStream::connect(host).await.unwrap();
        socket.write_all(head.as_bytes()).await.unwrap();
        let mut answer = String::new();
        within("an answer", DEADLINE, socket.read_to_string(&mut answer))
            .await
            .unwrap();
        assert!(
            answer.starts_with("HTTP/1.1 400 ") && answer.contains("-32020"),
            "{twice}: {answer}"
        );
    }
    nothing_forwarded(&gateway).await;
    // An encoded name with the same meaning is not a contradiction.
    let reply = client
        .post_with(&with("mcp-name", "=?base64?ZWNobw==?="), body.to_string())
        .await;
    assert!(reply.response().get("result").is_some(), "{}", reply.text());
}

#[tokio::test]
async fn unknown_and_missing_versions_are_refused() {
    let gateway = gateway().await;
    let client = gateway.client();
    let (body, headers) = modern_call();
    for version in ["2099-01-01", "1.0", "2025-11-25"] {
        let mut body = body.clone();
        body["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"] = json!(version);
        let mut headers = headers;
        headers[0].1 = version;
        let reply = client.post_with(&headers, body.to_string()).await;
        check(&reply, 400, -32022, version);
        let answer: Value = serde_json::from_slice(&reply.body).unwrap();
        let data = &answer["error"]["data"];
        assert_eq!(data["requested"], version, "{answer}");
        assert!(
            data["supported"]
                .as_array()
                .unwrap()
                .contains(&json!(MODERN)),
            "{answer}"
        );
    }
    // The header claims the modern era, but the body lacks its metadata.
    for missing in [
        "io.modelcontextprotocol/protocolVersion",
        "io.modelcontextprotocol/clientCapabilities",
    ] {
        let mut body = body.clone();
        body["params"]["_meta"]
            .as_object_mut()
            .unwrap()
            .remove(missing);
        let reply = client.post_with(&headers, body.to_string()).await;
        check(&reply, 400, -32602, missing);
    }
    let mut bare = body.clone();
    bare["params"].as_object_mut().unwrap().remove("_meta");
    let reply = client.post_with(&headers, bare.to_string()).await;
    check(&reply, 400, -32602, "no _meta");
    // A legacy session with a protocol version that it does not speak.
    let legacy = session(gateway.client(), "2025-11-25").await;
    for version in ["2099-01-01", "nonsense"] {
        let reply = legacy
            .post_with(&[("mcp-protocol-version", version)], call("echo"))
            .await;
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
    let client = session(gateway.client(), "2025-11-25").await;
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

#[tokio::test]
async fn sessions_are_bound_and_end() {
    let gateway = gateway().await;
    let plain = gateway.client();
    let reply = plain.post(call("echo")).await;
    check(&reply, 400, -32600, "no session");
    let text = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
    assert_eq!(
        plain.post(text).await.status,
        400,
        "a notification without a session"
    );
    for id in ["made-up", "0", "../../etc/passwd", &"x".repeat(4000)] {
        let client = plain.clone().with("mcp-session-id", id);
        check(&client.post(call("echo")).await, 404, -32600, id);
        assert_eq!(client.get(&[]).await.status, 404, "{id}");
        assert_eq!(client.delete(&[]).await.status, 404, "{id}");
    }
    // A session is bound to the key that opened it …
    let alice = session(
        plain
            .clone()
            .with("authorization", "Bearer alice-token-0123456789"),
        "2025-11-25",
    )
    .await;
    for principal in ["Bearer bob-token-0123456789", ""] {
        let other = alice.clone().with("authorization", principal);
        check(&other.post(call("echo")).await, 404, -32600, principal);
        assert_eq!(
            other.get(&[("accept", "text/event-stream")]).await.status,
            404,
            "{principal:?}"
        );
        assert_eq!(other.delete(&[]).await.status, 404, "{principal:?}");
    }
    let anonymous = session(plain.clone(), "2025-11-25").await;
    let taken = anonymous
        .clone()
        .with("authorization", "Bearer alice-token-0123456789");
    assert_eq!(taken.post(call("echo")).await.status, 404);
    // … and to its project.
    let reply = anonymous.at("/mcp/red").post(call("echo")).await;
    check(&reply, 404, -32600, "another project");
    let reply = anonymous.at("/mcp/-/one").post(call("echo")).await;
    check(&reply, 404, -32600, "another view");
    nothing_forwarded(&gateway).await;
    assert_eq!(alice.post(call("echo")).await.status, 200);
    assert_eq!(alice.delete(&[]).await.status, 204);
    let reply = alice.post(call("echo")).await;
    check(&reply, 404, -32600, "after its end");
    assert_eq!(alice.get(&[]).await.status, 404);
    assert_eq!(alice.delete(&[]).await.status, 404);
    assert_eq!(gateway.metric("calls_total", Some("one")).await, Some(1));
    assert_eq!(gateway.metric("sessions", None).await, Some(1));
}

#[tokio::test]
async fn paths_methods_and_types_that_do_not_exist() {
    let gateway = gateway().await;
    let client = gateway.client();
    let hello = rpc::hello("2025-11-25").to_string();
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
        assert!(
            reply.status == 404 || reply.text().contains("error"),
            "{path}: {}",
            reply.text()
        );
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
        let reply = client
            .post_with(&[("content-type", kind)], hello.clone())
            .await;
        assert_eq!(reply.status, 415, "{kind}");
    }
    let legacy = session(client.clone(), "2025-11-25").await;
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

/// Batches exist only in 2025-03-26. There, each part is checked separately.
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
    let reply = gateway
        .client()
        .post_with(&headers, format!("[{body}]"))
        .await;
    assert_eq!(reply.status, 400, "{}", reply.text());
    let client = session(gateway.client(), "2025-03-26").await;
    for broken in [
        "[",
        "[1]",
        r#"[{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo"}},"#,
    ] {
        let reply = client.post(broken).await;
        assert!(
            reply.status == 400 || reply.text().contains("-32600"),
            "{broken}: {}",
            reply.text()
        );
    }
    nothing_forwarded(&gateway).await;
    let mixed = format!(
        r#"[{},{{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{{"Name":"x","name":"echo"}}}},{{"jsonrpc":"2.0","method":"notifications/x"}},{{"jsonrpc":"2.0","id":"p","method":"ping"}}]"#,
        call("echo")
    );
    let reply = client.post(mixed).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    let answers: Vec<Value> = serde_json::from_slice(&reply.body).unwrap();
    assert_eq!(answers.len(), 3, "{answers:?}");
    let of = |id: Value| {
        answers
            .iter()
            .find(|answer| answer["id"] == id)
            .unwrap_or_else(|| panic!("{id}: {answers:?}"))
    };
    assert!(of(json!(7)).get("result").is_some());
    assert_eq!(of(json!(9))["error"]["code"], -32600);
    assert_eq!(of(json!("p"))["result"], json!({}));
}

/// Sessions beyond the limit are refused if all are in use. A session that ends makes room.
#[tokio::test]
async fn sessions_are_bounded() {
    let gateway = Setup::new()
        .settings("[limits]\nmax_sessions = 3\nsession_idle = \"1s\"\n")
        .serve()
        .await;
    let client = gateway.client();
    let (mut open, mut streams) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        let client = session(client.clone(), "2025-11-25").await;
        let stream = client.get(&[("accept", "text/event-stream")]).await;
        assert_eq!(stream.status, 200);
        streams.push(stream);
        open.push(client);
    }
    let reply = initialize(&client, "2025-11-25").await;
    check(&reply, 503, -32600, "one more");
    assert!(reply.header("retry-after").is_some());
    streams.clear();
    assert_eq!(open.pop().unwrap().delete(&[]).await.status, 204);
    open.push(session(client.clone(), "2025-11-25").await);
    // Idle sessions expire, except for the one with an open stream.
    let stream = open[0].get(&[("accept", "text/event-stream")]).await;
    assert_eq!(stream.status, 200);
    testkit::wait_for(
        "the idle sessions' end",
        Duration::from_secs(20),
        async || gateway.metric("sessions", None).await == Some(1),
    )
    .await;
    let ping = json!({"jsonrpc": "2.0", "id": 1, "method": "ping"}).to_string();
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
    let answers: Vec<Value> = serde_json::from_slice(&reply.body).unwrap();
    assert_eq!(answers.len(), 200);
    assert!(
        answers
            .iter()
            .all(|answer| answer["result"]["tools"].is_array())
    );
    // 40 MB of responses.
    let big = |id: usize| rpc::call(id, "big", json!({"bytes": 2_000_000}));
    let batch = format!("[{}]", (0..20).map(big).collect::<Vec<_>>().join(","));
    let reply = client.post(batch).await;
    assert_eq!(reply.status, 200);
    assert!(reply.body.len() < 17 << 20, "{} bytes", reply.body.len());
    let answers: Vec<Value> = serde_json::from_slice(&reply.body).unwrap();
    let mut ids: Vec<u64> = answers.iter().flat_map(|a| a["id"].as_u64()).collect();
    ids.sort_unstable();
    assert_eq!(ids, (0..20).collect::<Vec<_>>(), "each has its answer");
    let refused: Vec<&Value> = answers
        .iter()
        .filter(|a| a.get("error").is_some())
        .collect();
    assert!((10..20).contains(&refused.len()), "{}", refused.len());
    for answer in refused {
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(message.contains("send this request by itself"), "{message}");
    }
    let grown = gateway.memory_peak() - before;
    assert!(grown < 200 * 1024, "{grown} KiB more");
}
