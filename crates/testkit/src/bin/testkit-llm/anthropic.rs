//! Events of the Messages API.

use serde_json::{Value, json};

use crate::{
    Inner,
    play::split,
    script::{Block, Reply},
};

fn event(name: &str, data: &Value) -> String {
    format!("event: {name}\ndata: {data}\n\n")
}

/// An error in the middle of a stream.
pub(crate) fn error(kind: &str, message: &str) -> String {
    let error = json!({ "type": kind, "message": message });
    event("error", &json!({ "type": "error", "error": error }))
}

/// All events of a response.
pub(crate) fn events(inner: &mut Inner, reply: &Reply) -> Vec<String> {
    let number = inner.id();
    let usage = &reply.usage;
    let mut events = vec![event(
        "message_start",
        &json!({ "type": "message_start", "message": {
            "id": format!("msg_{number}"), "type": "message", "role": "assistant", "model": "testkit",
            "content": [], "stop_reason": null, "stop_sequence": null,
            "usage": {
                "input_tokens": usage.input_tokens,
                "cache_creation_input_tokens": usage.cache_creation_input_tokens,
                "cache_read_input_tokens": usage.cache_read_input_tokens,
                "output_tokens": 1,
            },
        }}),
    )];
    for (index, block) in reply.blocks.iter().enumerate() {
        let (start, deltas) = block_parts(inner, block);
        events.push(event(
            "content_block_start",
            &json!({ "type": "content_block_start", "index": index, "content_block": start }),
        ));
        for delta in deltas {
            if reply.noise {
                events.push(event(
                    "content_block_delta",
                    &json!({ "type": "content_block_delta", "index": index, "delta": { "type": "hologram_delta", "text": 7 } }),
                ));
            }
            events.push(event(
                "content_block_delta",
                &json!({ "type": "content_block_delta", "index": index, "delta": delta }),
            ));
        }
        if !block.unfinished {
            events.push(event(
                "content_block_stop",
                &json!({ "type": "content_block_stop", "index": index }),
            ));
        }
    }
    let asks = reply.blocks.iter().any(|block| block.tool_use.is_some());
    let usual = if asks { "tool_use" } else { "end_turn" };
    let stop = reply.stop_reason.as_deref().unwrap_or(usual);
    events.push(event(
        "message_delta",
        &json!({
            "type": "message_delta",
            "delta": { "stop_reason": stop, "stop_sequence": null },
            "usage": { "output_tokens": usage.output_tokens },
        }),
    ));
    events.push(event("message_stop", &json!({ "type": "message_stop" })));
    let between = [
        reply
            .pings
            .then(|| event("ping", &json!({ "type": "ping" }))),
        reply.noise.then(|| {
            event(
                "weather_report",
                &json!({ "type": "weather_report", "index": 0 }),
            )
        }),
    ];
    let between: String = between.into_iter().flatten().collect();
    if !between.is_empty() {
        for event in &mut events {
            event.insert_str(0, &between);
        }
    }
    events
}

/// The start of a content block, and its deltas.
fn block_parts(inner: &mut Inner, block: &Block) -> (Value, Vec<Value>) {
    let mut deltas = Vec::new();
    if let Some(raw) = &block.raw {
        return (raw.clone(), block.raw_deltas.clone());
    }
    if let Some(data) = &block.redacted_thinking {
        return (json!({ "type": "redacted_thinking", "data": data }), deltas);
    }
    if let Some(thinking) = &block.thinking {
        inner
            .signatures
            .insert(block.signature.clone(), thinking.clone());
        for piece in split(thinking, block.deltas) {
            deltas.push(json!({ "type": "thinking_delta", "thinking": piece }));
        }
        for piece in split(&block.signature, 2) {
            deltas.push(json!({ "type": "signature_delta", "signature": piece }));
        }
        return (
            json!({ "type": "thinking", "thinking": "", "signature": "" }),
            deltas,
        );
    }
    if let Some(name) = &block.tool_use {
        let id = block
            .id
            .clone()
            .unwrap_or_else(|| format!("toolu_{}", inner.id()));
        deltas.push(json!({ "type": "input_json_delta", "partial_json": "" }));
        for piece in split(&block.arguments(), block.deltas) {
            deltas.push(json!({ "type": "input_json_delta", "partial_json": piece }));
        }
        return (
            json!({ "type": "tool_use", "id": id, "name": name, "input": {} }),
            deltas,
        );
    }
    let text = block.text.as_deref().unwrap_or_default();
    for piece in split(text, block.deltas) {
        deltas.push(json!({ "type": "text_delta", "text": piece }));
    }
    for citation in &block.citations {
        deltas.push(json!({ "type": "citations_delta", "citation": citation }));
    }
    (json!({ "type": "text", "text": "" }), deltas)
}

impl Block {
    /// The arguments of a tool call, as text.
    pub(crate) fn arguments(&self) -> String {
        match (&self.input_raw, &self.input) {
            (Some(raw), _) => raw.clone(),
            (None, Some(input)) => input.to_string(),
            // A call without arguments has a single, empty delta.
            (None, None) => String::new(),
        }
    }
}
