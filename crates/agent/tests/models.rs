//! The model clients against a scripted model with the real wire formats.

mod shared;

use agent::{
    Raw,
    llm::{
        ApiKey, Endpoint, Model, ModelError, ModelEvent, ModelRequest, Options, Reply, Stop, Usage,
        anthropic::Anthropic,
    },
    message::{Block, Message},
};
use futures_util::StreamExt as _;
use serde_json::{Value, json};
use shared::{KEY, endpoint, function, pick, within};
use std::{sync::Arc, time::Duration};
use testkit::llm::{Llm, expecting, says, turns};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
};

fn anthropic(llm: &Llm) -> Anthropic {
    anthropic_at(&endpoint(llm.url()))
}

fn anthropic_at(endpoint: &Endpoint) -> Anthropic {
    let key = ApiKey::new(KEY).expect("a key");
    Anthropic::new(endpoint, key, Options::new("claude-test")).expect("a client")
}

fn request(text: &str) -> ModelRequest {
    ModelRequest {
        system: Some("You are a test.".into()),
        messages: vec![Arc::new(Message::user(vec![Block::text(text)]))],
        tools: Arc::new([function("add"), function("echo")]),
    }
}

/// Returns all events of a request, and its final result.
async fn all(
    model: &impl Model,
    request: ModelRequest,
) -> (Vec<ModelEvent>, Result<Reply, ModelError>) {
    let mut stream = model.stream(request);
    let mut events = Vec::new();
    while let Some(event) = within("an event of the model", stream.next()).await {
        match event {
            Ok(ModelEvent::Done(reply)) => {
                assert!(stream.next().await.is_none(), "nothing after the end");
                return (events, Ok(reply));
            }
            Ok(event) => events.push(event),
            Err(error) => {
                assert!(stream.next().await.is_none(), "nothing after the error");
                return (events, Err(error));
            }
        }
    }
    panic!("the stream ended with neither a reply nor an error: {events:?}");
}

/// Returns the text of the error that ends a request, and all events before the error.
async fn failure(model: &impl Model) -> (Vec<ModelEvent>, String) {
    let (events, reply) = all(model, request("go")).await;
    (events, reply.expect_err("no reply").to_string())
}

async fn answer(model: &impl Model) -> Reply {
    all(model, request("go")).await.1.expect("a reply")
}

fn texts(events: &[ModelEvent]) -> String {
    pick(events, |event| match event {
        ModelEvent::Text(text) => Some(text.as_str()),
        _ => None,
    })
}

#[tokio::test]
async fn a_text_streams_with_the_headers_and_marks_of_the_api() {
    let expect = json!({
        "last_text": "hello",
        "tools": ["add", "echo"],
        "system": "You are a test.",
        "headers": { "x-api-key": KEY, "anthropic-version": "2023-06-01" },
        "body": {
            "/stream": true,
            "/model": "claude-test",
            "/max_tokens": 8192,
            "/system/0/cache_control": { "type": "ephemeral" },
            "/tools/1/cache_control": { "type": "ephemeral" },
            "/messages/0/content/0/cache_control": { "type": "ephemeral" },
        },
        "absent": ["/tools/0/cache_control"],
    });
    let mut turn = expecting(says("Grüße aus dem Test"), expect);
    turn["reply"]["usage"] = json!({
        "input_tokens": 7, "output_tokens": 9, "cache_read_input_tokens": 100, "cache_creation_input_tokens": 20,
    });
    let llm = Llm::with_key(KEY, &turns(&[turn])).await;
    let (events, reply) = all(&anthropic(&llm), request("hello")).await;
    let reply = reply.expect("a reply");
    assert_eq!(texts(&events), "Grüße aus dem Test");
    let pieces = events.iter().filter(|e| matches!(e, ModelEvent::Text(_)));
    assert_eq!(pieces.count(), 3);
    assert_eq!(reply.content, [Block::text("Grüße aus dem Test")]);
    assert_eq!(reply.stop, Stop::EndTurn);
    let usage = Usage {
        input: 7,
        output: 9,
        cache_read: 100,
        cache_write: 20,
    };
    assert_eq!(reply.usage, usage);
    assert_eq!(usage.input_total(), 127);
}

#[tokio::test]
async fn every_kind_of_block_is_received_whole_however_the_stream_is_cut() {
    let odd =
        r#"{"q": "a \"quoted\" ü \\ 😀", "n": 12345678901234567890123, "f": 1.50, "deep": [[{}]]}"#;
    let blocks = json!([
        { "thinking": "first I think, then I ask", "signature": "c2lnbmF0dXJlIG9mIGEgdGhvdWdodA==", "deltas": 4 },
        { "redacted_thinking": "b3BhcXVl" },
        { "text": "see [1]", "deltas": 2, "citations": [{ "type": "char_location", "cited_text": "x" }, { "n": 2 }] },
        { "raw": { "type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {} },
          "raw_deltas": [{ "type": "input_json_delta", "partial_json": "{\"query\":" },
                         { "type": "input_json_delta", "partial_json": "\"x\"}" }] },
        { "raw": { "type": "web_search_tool_result", "tool_use_id": "srv_1", "content": [{ "u": 1 }] } },
        { "tool_use": "add", "id": "toolu_a", "input_raw": odd, "deltas": 25 },
        { "tool_use": "echo", "id": "toolu_b" },
        { "text": "" },
    ]);
    let expect_raw = [
        r#"{"type":"thinking","thinking":"first I think, then I ask","signature":"c2lnbmF0dXJlIG9mIGEgdGhvdWdodA=="}"#,
        r#"{"type":"redacted_thinking","data":"b3BhcXVl"}"#,
        r#"{"type":"text","text":"see [1]","citations":[{"type":"char_location","cited_text":"x"},{"n":2}]}"#,
        r#"{"type":"server_tool_use","id":"srv_1","name":"web_search","input":{"query":"x"}}"#,
        r#"{"type":"web_search_tool_result","tool_use_id":"srv_1","content":[{"u":1}]}"#,
        &format!(r#"{{"type":"tool_use","id":"toolu_a","name":"add","input":{odd}}}"#),
        r#"{"type":"tool_use","id":"toolu_b","name":"echo","input":{}}"#,
    ];
    for (pings, noise, bytes) in [
        (false, false, 0),
        (true, true, 0),
        (true, true, 1),
        (false, true, 7),
        (true, false, 65536),
    ] {
        let reply = json!({ "blocks": blocks, "pings": pings, "noise": noise, "bytes": bytes });
        let llm = Llm::start(&turns(&[json!({ "reply": reply })])).await;
        let (events, reply) = all(&anthropic(&llm), request("go")).await;
        let reply = reply.expect("a reply");
        let got: Vec<String> = reply
            .content
            .iter()
            .map(|block| serde_json::to_string(block).expect("a block"))
            .collect();
        assert_eq!(got, expect_raw);
        assert_eq!(reply.stop, Stop::ToolUse);
        let calls = reply.calls.iter();
        let calls = calls.map(|call| (&*call.id, &*call.name, call.arguments.clone()));
        let expect = [
            ("toolu_a", "add", Ok(Raw::parse(odd).expect("JSON"))),
            ("toolu_b", "echo", Ok(Raw::empty_object())),
        ];
        assert_eq!(calls.collect::<Vec<_>>(), expect);
        let thought: String = pick(&events, |event| match event {
            ModelEvent::Thinking(text) => Some(text.as_str()),
            _ => None,
        });
        assert_eq!(thought, "first I think, then I ask");

        // The replay keeps the provider's own blocks, so that the provider recognises them.
        let mut again = request("go");
        let results = ["toolu_a", "toolu_b"].map(|id| Block::ToolResult {
            tool_use_id: id.to_owned(),
            content: Vec::new(),
            is_error: false,
        });
        again
            .messages
            .push(Arc::new(Message::assistant(reply.content)));
        again.messages.push(Arc::new(Message::user(results.into())));
        let mut expected = serde_json::Map::new();
        for (at, raw) in expect_raw.iter().enumerate() {
            let value: Value = serde_json::from_str(raw).expect("JSON");
            expected.insert(format!("/messages/1/content/{at}"), value);
        }
        let turn = expecting(says("ok"), json!({ "body": expected }));
        llm.script(&turns(&[turn])).await;
        let (_, reply) = all(&anthropic(&llm), again).await;
        reply.expect("the replay is taken");
    }
}

fn failing(fail: &Value) -> Value {
    json!({ "fail": fail })
}

/// A turn that streams a text in four pieces, and fails as `then` says after this number of events.
fn broken(events: usize, then: &str) -> Value {
    json!({ "reply": {
        "blocks": [{ "text": "one two three four", "deltas": 4 }],
        "after": { "events": events, "then": then, "kind": "overloaded_error", "message": "Overloaded" },
    } })
}

fn retries(events: &[ModelEvent]) -> Vec<(Duration, &str)> {
    pick(events, |event| match event {
        ModelEvent::Retrying { pause, why } => Some((*pause, why.as_str())),
        _ => None,
    })
}

#[tokio::test]
async fn requests_that_fail_before_anything_came_are_made_again() {
    let asked = json!({ "status": 429, "kind": "rate_limit_error", "message": "Slow down", "headers": { "retry-after": "0.05" } });
    let overloaded = json!({ "status": 529, "kind": "overloaded_error", "message": "Overloaded" });
    let no_json = json!({ "status": 502, "body": "<html>bad gateway</html>" });
    for (turn, why, pause) in [
        (failing(&asked), "429 rate_limit_error: Slow down", 50),
        (failing(&overloaded), "529 overloaded_error: Overloaded", 0),
        (
            failing(&json!({ "status": 500 })),
            "500 api_error: Internal server error",
            0,
        ),
        (
            failing(&no_json),
            "502 Bad Gateway: a body of 24 bytes without an error message",
            0,
        ),
        (failing(&json!({ "hang_up": true })), "connection: ", 0),
        (broken(0, "cut"), "connection: the connection broke", 0),
        (
            broken(0, "eof"),
            "connection: the stream ended before the answer was complete",
            0,
        ),
        // The stream breaks after `message_start`, but before any content.
        (broken(1, "cut"), "connection: the connection broke", 0),
        (broken(1, "error"), "overloaded_error: Overloaded", 0),
    ] {
        let llm = Llm::start(&turns(&[turn, says("at last")])).await;
        let (events, reply) = all(&anthropic(&llm), request("go")).await;
        assert_eq!(reply.expect(why).content, [Block::text("at last")], "{why}");
        let retries = retries(&events);
        let [(waited, told)] = retries.as_slice() else {
            panic!("{why}: {retries:?}");
        };
        assert!(told.starts_with(why), "{told}");
        assert!(*waited >= Duration::from_millis(pause), "{why}: {waited:?}");
        assert_eq!(llm.requests().await.len(), 2);
    }
}

#[tokio::test]
async fn attempts_have_an_end_and_a_wait_that_is_too_long_is_not_begun() {
    let overloaded =
        failing(&json!({ "status": 529, "kind": "overloaded_error", "message": "Overloaded" }));
    let llm = Llm::start(&json!({ "turns": [overloaded], "repeat_last": true })).await;
    let (events, error) = failure(&anthropic(&llm)).await;
    assert_eq!(
        error,
        "the model's provider is overloaded or failing (529 overloaded_error), after 5 attempts: Overloaded"
    );
    assert_eq!(retries(&events).len(), 4);
    assert_eq!(llm.requests().await.len(), 5);

    let hour = json!({ "status": 429, "kind": "rate_limit_error", "message": "Slow down", "headers": { "retry-after": "3600" } });
    llm.script(&turns(&[failing(&hour)])).await;
    let (events, error) = failure(&anthropic(&llm)).await;
    assert!(
        error.contains("asks to wait 3600 s, but all attempts together may take only 120 s"),
        "{error}"
    );
    assert!(events.is_empty());

    // The retry header takes precedence over the status.
    let never = json!({ "status": 529, "kind": "overloaded_error", "message": "Overloaded", "headers": { "x-should-retry": "false" } });
    llm.script(&turns(&[failing(&never)])).await;
    let (events, reply) = all(&anthropic(&llm), request("go")).await;
    assert!(events.is_empty() && reply.is_err());
}

#[tokio::test]
async fn what_ends_in_the_middle_is_an_error_that_says_so_and_is_not_repeated() {
    let mut endpoint = endpoint("");
    endpoint.timeouts.idle = Duration::from_millis(300);
    for (then, why) in [
        (
            "error",
            "the model's provider is overloaded or failing (overloaded_error), in the middle of the answer: Overloaded",
        ),
        (
            "cut",
            "the model's answer was cut off: the connection broke",
        ),
        (
            "eof",
            "the model's answer was cut off: the stream ended before the answer was complete",
        ),
        (
            "stall",
            "the model sent nothing for 0.3 s, in the middle of its answer",
        ),
    ] {
        // The four events are `message_start`, `content_block_start`, and two of the four pieces.
        let llm = Llm::start(&turns(&[broken(4, then)])).await;
        endpoint.base_url = format!("{}/?api-version=1", llm.url());
        let (events, error) = failure(&anthropic_at(&endpoint)).await;
        assert!(error.starts_with(why), "{then}: {error}");
        assert_eq!(texts(&events), "one two th", "{then}");
        assert!(retries(&events).is_empty());
        assert!(
            events
                .iter()
                .any(|event| matches!(event, ModelEvent::Usage(usage) if usage.input == 10))
        );
        assert_eq!(llm.requests().await.len(), 1);
    }
}

#[tokio::test]
async fn what_is_refused_is_told_without_the_key_and_not_repeated() {
    // The error response repeats the key that the client sent.
    let llm = Llm::with_key("another key", &turns(&[])).await;
    let (events, reply) = all(&anthropic(&llm), request("go")).await;
    let error = reply.expect_err("no reply");
    assert_eq!(
        error.to_string(),
        "the model's provider refused the request (401 authentication_error): invalid x-api-key [the key]"
    );
    assert!(!format!("{error:?}").contains(KEY));
    assert!(events.is_empty());

    let mut wrong = request("go");
    wrong
        .messages
        .push(Arc::new(Message::user(vec![Block::text("twice")])));
    let llm = Llm::start(&turns(&[])).await;
    let (_, reply) = all(&anthropic(&llm), wrong).await;
    let error = reply.expect_err("no reply").to_string();
    assert!(
        error.contains("(400 invalid_request_error): messages.1: roles must alternate"),
        "{error}"
    );
}

#[tokio::test]
async fn nobody_there_and_nobody_who_answers() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let mut endpoint = endpoint(&url);
    endpoint.timeouts.answer = Duration::from_millis(200);
    // This endpoint accepts connections, but never responds.
    let (_, error) = failure(&anthropic_at(&endpoint)).await;
    assert_eq!(
        error,
        "the model sent nothing for 0.2 s, before its answer began"
    );
    drop(listener);
    let (events, error) = failure(&anthropic_at(&endpoint)).await;
    let begin = format!("the model at {url}/v1/messages cannot be reached: ");
    assert!(
        error.starts_with(&begin) && error.contains("refused"),
        "{error}"
    );
    assert!(error.ends_with("(after 5 attempts)"), "{error}");
    assert_eq!(retries(&events).len(), 4);
}

#[tokio::test]
async fn a_stream_that_is_none_is_refused() {
    let long = format!("data: {}", "x".repeat(16 << 20)).into_bytes();
    for (stream, why) in [
        (b"data: \xff\n\n".to_vec(), "an event is not UTF-8"),
        ([&long[..], b"x"].concat(), "longer than 16777216 bytes"),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let serving = async {
            let (mut socket, _) = listener.accept().await.expect("a client");
            let read = socket.read(&mut [0; 4096]).await;
            assert!(read.expect("a request") > 0);
            let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n";
            let _ = socket.write_all(head.as_bytes()).await;
            // The client may hang up before the end.
            let _ = socket.write_all(&stream).await;
            socket
        };
        let model = anthropic_at(&endpoint(&url));
        let ((_, reply), _socket) = tokio::join!(all(&model, request("go")), serving);
        let error = reply.expect_err("no reply").to_string();
        assert!(error.contains(why), "{error}");
    }
}

#[test]
fn settings_that_cannot_work_are_refused_at_once() {
    let key = || ApiKey::new(KEY).expect("a key");
    let check = |endpoint: &Endpoint, options: Options, why: &str| {
        let error = Anthropic::new(endpoint, key(), options)
            .err()
            .expect(why)
            .to_string();
        assert!(error.contains(why), "{error}");
    };
    let options = || Options::new("x");
    for url in ["", "nonsense", "ftp://x", "http://", "api.anthropic.com"] {
        check(&Endpoint::new(url), options(), "base URL");
    }
    let mut endpoint = Endpoint::new("http://127.0.0.1:1");
    endpoint
        .headers
        .insert("x-secret".to_owned(), "line\nbreak".to_owned());
    check(
        &endpoint,
        options(),
        "the value of the model's header x-secret has characters that are not allowed in a header",
    );
    let mut extra = options();
    extra.extra.insert("messages".to_owned(), json!([]));
    check(&Endpoint::new("http://127.0.0.1:1"), extra, "`messages`");
    // A client for an https endpoint can be created, because its root certificates are found.
    Anthropic::new(
        &Endpoint::new(agent::llm::anthropic::BASE_URL),
        key(),
        options(),
    )
    .expect("a client");
}

#[tokio::test]
async fn max_tokens_ends_with_what_there_is() {
    let cut_text = json!({ "reply": { "blocks": [{ "text": "and so", "unfinished": true }], "stop_reason": "max_tokens" } });
    let cut_call = json!({ "reply": { "blocks": [
        { "thinking": "hm", "signature": "c2ln" },
        { "tool_use": "add", "id": "t1", "input_raw": "{\"a\": 1", "unfinished": true },
    ], "stop_reason": "max_tokens" } });
    let cut_thought = json!({ "reply": { "blocks": [{ "thinking": "hm", "signature": "c2ln", "unfinished": true }], "stop_reason": "max_tokens" } });
    let llm = Llm::start(&turns(&[cut_text, cut_call, cut_thought])).await;
    let model = anthropic(&llm);
    let reply = answer(&model).await;
    assert_eq!(
        (reply.stop, reply.content),
        (Stop::MaxTokens, vec![Block::text("and so")])
    );
    let reply = answer(&model).await;
    assert_eq!(reply.stop, Stop::MaxTokens);
    assert!(reply.calls[0].arguments.is_err(), "{reply:?}");
    assert_eq!(answer(&model).await.content, []);
}

#[tokio::test]
async fn an_answer_has_a_longest_length() {
    let llm = Llm::start(&turns(&[says(&"x".repeat(20_000))])).await;
    let mut endpoint = endpoint(llm.url());
    endpoint.max_answer_bytes = 10_000;
    let (_, error) = failure(&anthropic_at(&endpoint)).await;
    assert_eq!(
        error,
        "the model's answer cannot be read: it is longer than `max_answer_bytes` (10000)"
    );
}

#[test]
fn an_endpoint_shows_no_secrets() {
    let mut endpoint = endpoint("https://user:hidden1@example.org/?key=hidden2");
    endpoint
        .headers
        .insert("x-token".to_owned(), "hidden3".to_owned());
    let shown = format!("{endpoint:?}");
    assert!(
        shown.contains("x-token") && !shown.contains("hidden"),
        "{shown}"
    );
}

#[tokio::test]
async fn one_connection_serves_one_turn_after_another() {
    let llm = Llm::start(&json!({ "turns": [says("hi")], "repeat_last": true })).await;
    let model = anthropic(&llm);
    for _ in 0..5 {
        answer(&model).await;
    }
    let requests = llm.requests().await;
    assert_eq!(requests.len(), 5);
    assert!(
        requests
            .iter()
            .all(|one| one["peer"] == requests[0]["peer"]),
        "{requests:?}"
    );
}

/// These tests rely on a scripted model that refuses invalid requests.
#[tokio::test]
async fn the_scripted_model_refuses_what_the_api_refuses() {
    let llm = Llm::start(&json!({ "turns": [says("taken")], "repeat_last": true })).await;
    let client = testkit::RawClient::new(&format!("{}/v1/messages", llm.url()))
        .with("x-api-key", KEY)
        .with("anthropic-version", "2023-06-01");
    let user = |content: Value| json!({ "role": "user", "content": content });
    let model = |content: Value| json!({ "role": "assistant", "content": content });
    let call = || json!([{ "type": "tool_use", "id": "t1", "name": "x", "input": {} }]);
    let result = |id: &str| json!([{ "type": "tool_result", "tool_use_id": id, "content": "ok" }]);
    let body = |messages: Value| json!({ "model": "m", "max_tokens": 1, "stream": true, "messages": messages });
    let post = async |body: Value| {
        let reply = client.post(body.to_string()).await;
        (
            reply.status.as_u16(),
            String::from_utf8_lossy(&reply.body).into_owned(),
        )
    };
    let good = body(json!([
        user(json!("hi")),
        model(call()),
        user(result("t1"))
    ]));
    assert_eq!(post(good.clone()).await.0, 200);
    let mut tools = good.clone();
    tools["tools"] = json!([{ "name": "a.b", "input_schema": { "type": "object" } }]);
    let mut schema = good.clone();
    schema["tools"] = json!([{ "name": "a", "input_schema": {} }]);
    let mut tokens = good;
    tokens["max_tokens"] = Value::Null;
    let messages = |messages: &[Value]| body(json!(messages));
    let text = |text: &str| user(json!(text));
    let unsigned = model(json!([{ "type": "thinking", "thinking": "x" }]));
    let lacks_result = "without `tool_result` blocks";
    for (bad, why) in [
        (tools, "should match pattern"),
        (schema, "input_schema.type: Field required"),
        (tokens, "max_tokens: Field required"),
        (messages(&[]), "at least one message"),
        (messages(&[model(json!("hi"))]), "roles must alternate"),
        (messages(&[text("a"), text("b")]), "roles must alternate"),
        (messages(&[user(json!([]))]), "non-empty content"),
        (
            messages(&[text("")]),
            "text content blocks must be non-empty",
        ),
        (messages(&[text("a"), model(call())]), lacks_result),
        (
            messages(&[text("a"), model(call()), text("b")]),
            lacks_result,
        ),
        (
            messages(&[text("a"), model(call()), user(result("t2"))]),
            "unexpected `tool_use_id`",
        ),
        (messages(&[user(result("t1"))]), "unexpected `tool_use_id`"),
        (messages(&[text("a"), unsigned]), "signature"),
    ] {
        let (status, told) = post(bad).await;
        assert!(
            status == 400 && told.contains(why),
            "{why}: {status} {told}"
        );
    }
}

mod openai_format {
    use super::*;
    use agent::llm::openai::OpenAi;

    fn openai(llm: &Llm) -> OpenAi {
        let endpoint = endpoint(&format!("{}/v1", llm.url()));
        OpenAi::new(&endpoint, None, Options::new("local-model")).expect("a client")
    }

    #[tokio::test]
    async fn texts_thoughts_calls_and_counts() {
        let expect = json!({
            "last_text": "hello", "tools": ["add", "echo"], "system": "You are a test.",
            "body": { "/stream_options/include_usage": true, "/model": "local-model", "/messages/0/role": "system" },
            "absent": ["/max_tokens"],
        });
        let reply = json!({
            "blocks": [
                { "thinking": "I add", "signature": "c2ln", "deltas": 2 },
                { "text": "Sure — ü", "deltas": 3 },
                { "tool_use": "add", "id": "call_1", "input_raw": "{\"a\": 12345678901234567890123}", "deltas": 9 },
                { "tool_use": "echo", "id": "call_2", "input_raw": "{\"b\":" },
                { "tool_use": "echo", "id": "call_3" },
            ],
            "usage": { "input_tokens": 10, "output_tokens": 5, "cache_read_input_tokens": 90 },
            "pings": true,
        });
        let llm = Llm::start(&turns(&[expecting(json!({ "reply": reply }), expect)])).await;
        let (events, reply) = all(&openai(&llm), request("hello")).await;
        let reply = reply.expect("a reply");
        assert_eq!(texts(&events), "Sure — ü");
        assert!(
            events.contains(&ModelEvent::Thinking("I a".to_owned())),
            "{events:?}"
        );
        assert_eq!(reply.stop, Stop::ToolUse);
        assert_eq!(reply.content.len(), 4);
        let arguments: Vec<_> = reply
            .calls
            .iter()
            .map(|call| (&*call.id, call.arguments.as_ref().map(Raw::get).ok()))
            .collect();
        let expect = [
            ("call_1", Some("{\"a\": 12345678901234567890123}")),
            ("call_2", None),
            ("call_3", Some("{}")),
        ];
        assert_eq!(arguments, expect);
        let usage = Usage {
            input: 10,
            output: 5,
            cache_read: 90,
            cache_write: 0,
        };
        assert_eq!(reply.usage, usage);

        // The calls and their results are sent back in the API's own format.
        let results = reply.calls.iter().map(|call| Block::ToolResult {
            tool_use_id: call.id.clone(),
            content: vec![agent::message::Part::text(format!("result of {}", call.id))],
            is_error: false,
        });
        let mut next = request("hello");
        next.messages.push(Arc::new(Message::user(
            results.chain([Block::text("and?")]).collect(),
        )));
        next.messages
            .insert(1, Arc::new(Message::assistant(reply.content.clone())));
        let expect = json!({
            "last_text": "and?",
            "tool_results": [
                { "id": "call_1", "equals": "result of call_1" }, { "id": "call_2" }, { "id": "call_3" },
            ],
            "body": { "/messages/2/tool_calls/0/function/arguments": "{\"a\": 12345678901234567890123}" },
        });
        llm.script(&turns(&[expecting(says("done"), expect)])).await;
        let (_, reply) = all(&openai(&llm), next).await;
        assert_eq!(reply.expect("a reply").stop, Stop::EndTurn);
    }

    #[tokio::test]
    async fn failures_and_ends() {
        let overloaded = json!({ "status": 503, "kind": "server_error", "message": "Busy" });
        let llm = Llm::start(&turns(&[failing(&overloaded), says("at last")])).await;
        let (events, reply) = all(&openai(&llm), request("go")).await;
        reply.expect("a reply");
        assert_eq!(retries(&events).len(), 1);

        let mut length = says("too lo");
        length["reply"]["stop_reason"] = json!("max_tokens");
        llm.script(&turns(&[length])).await;
        assert_eq!(answer(&openai(&llm)).await.stop, Stop::MaxTokens);

        for (then, why) in [
            (
                "error",
                "the model's provider is overloaded or failing (overloaded_error), in the middle",
            ),
            (
                "cut",
                "the model's answer was cut off: the connection broke",
            ),
            (
                "eof",
                "the model's answer was cut off: the stream ended before the answer was complete",
            ),
        ] {
            llm.script(&turns(&[broken(3, then)])).await;
            let (events, error) = failure(&openai(&llm)).await;
            assert!(error.starts_with(why), "{then}: {error}");
            assert_eq!(texts(&events), "one two th");
        }
        // The stream ends without `[DONE]` and without counts, but with all pieces and the stop reason.
        llm.script(&turns(&[broken(6, "eof")])).await;
        let (_, reply) = all(&openai(&llm), request("go")).await;
        assert_eq!(
            reply.expect("a reply").content,
            [Block::text("one two three four")]
        );
    }

    #[tokio::test]
    async fn a_key_is_a_bearer_token_and_is_not_repeated() {
        let llm = Llm::with_key(KEY, &turns(&[says("hi")])).await;
        let endpoint = endpoint(&format!("{}/v1", llm.url()));
        let options = || Options::new("gpt");
        let right = OpenAi::new(&endpoint, Some(ApiKey::new(KEY).expect("a key")), options());
        answer(&right.expect("a client")).await;
        let wrong = ApiKey::new("sk-wrong-0123456789").expect("a key");
        let wrong = OpenAi::new(&endpoint, Some(wrong), options()).expect("a client");
        let (_, error) = failure(&wrong).await;
        assert!(
            error.contains("401") && !error.contains("sk-wrong"),
            "{error}"
        );
    }
}
