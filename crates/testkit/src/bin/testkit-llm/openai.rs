//! Chunks of the chat completions API.

use serde_json::{Value, json};

use crate::{Inner, play::split, script::Reply};

fn chunk(delta: &Value, finish: Option<&str>) -> String {
    let choice = json!({ "index": 0, "delta": delta, "finish_reason": finish });
    data(
        &json!({ "id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "testkit", "choices": [choice] }),
    )
}

fn data(value: &Value) -> String {
    format!("data: {value}\n\n")
}

/// An error in the middle of a stream.
pub(crate) fn error(kind: &str, message: &str) -> String {
    data(&json!({ "error": { "type": kind, "message": message, "code": null } }))
}

/// All chunks of a response. Blocks that this format cannot express are left out.
pub(crate) fn events(inner: &mut Inner, reply: &Reply) -> Vec<String> {
    let mut events = vec![chunk(&json!({ "role": "assistant", "content": "" }), None)];
    let mut calls = 0;
    for block in &reply.blocks {
        if let Some(thinking) = &block.thinking {
            for piece in split(thinking, block.deltas) {
                events.push(chunk(&json!({ "reasoning_content": piece }), None));
            }
        }
        if let Some(text) = &block.text {
            for piece in split(text, block.deltas) {
                events.push(chunk(&json!({ "content": piece }), None));
            }
        }
        if let Some(name) = &block.tool_use {
            let id = block
                .id
                .clone()
                .unwrap_or_else(|| format!("call_{}", inner.id()));
            let function = json!({ "name": name, "arguments": "" });
            let call =
                json!({ "index": calls, "id": id, "type": "function", "function": function });
            events.push(chunk(&json!({ "tool_calls": [call] }), None));
            for piece in split(&block.arguments(), block.deltas) {
                let call = json!({ "index": calls, "function": { "arguments": piece } });
                events.push(chunk(&json!({ "tool_calls": [call] }), None));
            }
            calls += 1;
        }
    }
    let usual = if calls > 0 { "tool_calls" } else { "stop" };
    let finish = match reply.stop_reason.as_deref() {
        None | Some("tool_use" | "end_turn") => usual,
        Some("max_tokens") => "length",
        Some("refusal") => "content_filter",
        Some(other) => other,
    };
    events.push(chunk(&json!({}), Some(finish)));
    let usage = &reply.usage;
    let prompt =
        usage.input_tokens + usage.cache_read_input_tokens + usage.cache_creation_input_tokens;
    let usage = json!({
        "prompt_tokens": prompt,
        "completion_tokens": usage.output_tokens,
        "total_tokens": prompt + usage.output_tokens,
        "prompt_tokens_details": { "cached_tokens": usage.cache_read_input_tokens },
    });
    events.push(data(&json!({ "id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": [], "usage": usage })));
    events.push("data: [DONE]\n\n".to_owned());
    if reply.pings || reply.noise {
        for event in &mut events {
            event.insert_str(0, ": keep-alive\n\n");
        }
    }
    events
}
