//! The clients of models against a scripted one that speaks the real wire formats.

mod shared;

use agent::{
    Raw,
    llm::{
        ApiKey, Endpoint, Model, ModelError, ModelEvent, ModelRequest, Reply, Stop, Usage,
        anthropic::{self, Anthropic},
    },
    message::{Block, Message},
};
use futures_util::StreamExt as _;
use serde_json::{Value, json};
use shared::{KEY, endpoint, function, within};
use std::sync::Arc;
use testkit::llm::{Llm, expecting, says, turns};

fn anthropic(llm: &Llm) -> Anthropic {
    anthropic_at(&endpoint(llm.url()))
}

fn anthropic_at(endpoint: &Endpoint) -> Anthropic {
    let key = ApiKey::new(KEY).expect("a key");
    Anthropic::new(endpoint, key, anthropic::Options::new("claude-test")).expect("a client")
}

fn request(text: &str) -> ModelRequest {
    ModelRequest {
        system: Some("You are a test.".into()),
        messages: vec![Arc::new(Message::user(vec![Block::text(text)]))],
        tools: Arc::new([function("add"), function("echo")]),
    }
}

/// Everything that comes, and how it ends.
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

fn texts(events: &[ModelEvent]) -> String {
    let texts = events.iter().filter_map(|event| match event {
        ModelEvent::Text(text) => Some(text.as_str()),
        _ => None,
    });
    texts.collect()
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
        let calls: Vec<_> = reply
            .calls
            .iter()
            .map(|call| (&*call.id, &*call.name, call.arguments.clone()))
            .collect();
        let expect = [
            ("toolu_a", "add", Ok(Raw::parse(odd).expect("JSON"))),
            ("toolu_b", "echo", Ok(Raw::empty_object())),
        ];
        assert_eq!(calls, expect);
        let thought: String = events
            .iter()
            .filter_map(|event| match event {
                ModelEvent::Thinking(text) => Some(text.as_str()),
                _ => None,
            })
            .collect();
        assert_eq!(thought, "first I think, then I ask");

        // And it is replayed so that the provider knows its own blocks again.
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
        llm.script(&turns(&[expecting(
            says("ok"),
            json!({ "body": expected }),
        )]))
        .await;
        let (_, reply) = all(&anthropic(&llm), again).await;
        reply.expect("the replay is taken");
    }
}
