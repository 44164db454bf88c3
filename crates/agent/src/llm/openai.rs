//! OpenAI's chat completions API, streaming (`POST {base}/chat/completions`), also used by local model servers.
//!
//! Invariants: an answer is complete once it has a `finish_reason`. Fields that some servers omit (call ids and
//! indexes, `[DONE]`, token counts) are optional. Content that the API does not support is left out of the request:
//! thinking, blocks of other providers, images in tool results (replaced by a sentence).

use std::{collections::VecDeque, sync::Arc};

use bytes::Bytes;
use futures_util::{StreamExt as _, stream::BoxStream};
use http::header;
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

use super::{
    ApiKey, Call, Client, Endpoint, Model, ModelError, ModelEvent, ModelRequest, Options, Reply,
    Stop, Usage, anthropic,
    http::{Decoder, Event, Fault},
};
use crate::{
    message::{Block, Image, ImageSource, Message, Part, Role},
    raw::{Fields, Raw},
    tool::{Format, ToolFunction},
};

/// The default base URL.
pub const BASE_URL: &str = "https://api.openai.com/v1";

/// A model behind a chat completions endpoint.
pub struct OpenAi {
    client: Client,
    options: Arc<Options>,
}

impl OpenAi {
    /// The base URL of `endpoint` must not include `/chat/completions`, which is appended to it.
    ///
    /// # Errors
    /// [`ModelError::Settings`] if the base URL or a header is invalid.
    pub fn new(
        endpoint: &Endpoint,
        key: Option<ApiKey>,
        options: Options,
    ) -> Result<Self, ModelError> {
        let ours = [
            "model",
            "max_tokens",
            "stream",
            "stream_options",
            "tools",
            "messages",
        ];
        super::check_extra(&options.extra, &ours)?;
        let auth = key.map(|key| (key, header::AUTHORIZATION, "Bearer "));
        Ok(Self {
            client: Client::new(endpoint, "/chat/completions", auth)?,
            options: Arc::new(options),
        })
    }
}

impl Model for OpenAi {
    fn name(&self) -> &str {
        &self.options.model
    }

    fn stream(&self, request: ModelRequest) -> BoxStream<'static, Result<ModelEvent, ModelError>> {
        self.client
            .ask::<Answer>(body(&self.options, &request))
            .boxed()
    }
}

fn body(options: &Options, request: &ModelRequest) -> Result<Bytes, ModelError> {
    let unwritable =
        |error| ModelError::Settings(format!("cannot write the model request: {error}"));
    let mut messages = Vec::new();
    if let Some(system) = &request.system {
        messages.push(json!({ "role": "system", "content": &**system }));
    }
    for message in &request.messages {
        translate(message, &mut messages);
    }
    // Schemas are sent unchanged.
    let declare = |tool: &ToolFunction| tool.declaration(Format::OpenAi);
    let tools: Vec<Fields> = request.tools.iter().map(declare).collect();
    let mut body = Fields::default();
    body.set("model", Raw::of(&options.model));
    body.set("stream", Raw::of(&true));
    body.set("stream_options", Raw::of(&json!({ "include_usage": true })));
    if let Some(most) = options.max_tokens {
        body.set("max_tokens", Raw::of(&most));
    }
    body.set("messages", Raw::of(&messages));
    if !tools.is_empty() {
        body.set("tools", Raw::of(&tools));
    }
    for (name, value) in &options.extra {
        body.set(name, Raw::of(value));
    }
    serde_json::to_vec(&body)
        .map(Bytes::from)
        .map_err(unwritable)
}

/// Converts a message to the API's format, in which tool results are separate messages.
fn translate(message: &Message, out: &mut Vec<Value>) {
    match message.role {
        Role::Assistant => out.push(assistant(&message.content)),
        Role::User => user(&message.content, out),
    }
}

fn assistant(content: &[Block]) -> Value {
    let (mut text, mut calls) = (String::new(), Vec::new());
    for block in content {
        match block {
            Block::Text { text: more, .. } => text.push_str(more),
            Block::ToolUse {
                id, name, input, ..
            } => calls.push(json!({
                "id": id,
                "type": "function",
                "function": { "name": name, "arguments": input.get() },
            })),
            Block::Thinking { .. }
            | Block::ToolResult { .. }
            | Block::Image(_)
            | Block::Other(_) => {}
        }
    }
    let mut message = json!({ "role": "assistant", "content": text });
    if !calls.is_empty() {
        if text.is_empty() {
            message["content"] = Value::Null;
        }
        message["tool_calls"] = Value::Array(calls);
    }
    message
}

fn user(content: &[Block], out: &mut Vec<Value>) {
    let mut parts = Vec::new();
    for block in content {
        match block {
            Block::Text { text, .. } => parts.push(json!({ "type": "text", "text": text })),
            Block::Image(image) => {
                parts.push(json!({ "type": "image_url", "image_url": { "url": data_url(image) } }));
            }
            Block::ToolResult {
                tool_use_id,
                content,
                ..
            } => {
                let texts: Vec<_> = content.iter().map(tool_text).collect();
                out.push(json!({
                    "role": "tool",
                    "tool_call_id": tool_use_id,
                    "content": texts.join("\n"),
                }));
            }
            Block::Thinking { .. } | Block::ToolUse { .. } | Block::Other(_) => {}
        }
    }
    let only_text = parts.iter().all(|part| part["type"] == "text");
    match (only_text, parts.as_slice()) {
        (_, []) => {}
        // Use plain text where possible, because small servers support nothing else.
        (true, parts) => {
            let texts: Vec<_> = parts
                .iter()
                .filter_map(|part| part["text"].as_str())
                .collect();
            out.push(json!({ "role": "user", "content": texts.join("\n") }));
        }
        (false, _) => out.push(json!({ "role": "user", "content": parts })),
    }
}

fn tool_text(part: &Part) -> String {
    match part {
        Part::Text { text } => text.clone(),
        Part::Image(Image {
            source: ImageSource::Base64 { media_type, .. },
        }) => {
            format!("[an image, {media_type}, which this model's API does not accept from a tool]")
        }
    }
}

fn data_url(image: &Image) -> String {
    let ImageSource::Base64 { media_type, data } = &image.source;
    format!("data:{media_type};base64,{data}")
}

/// A partially received answer.
#[derive(Default)]
struct Answer {
    text: String,
    calls: Vec<OpenCall>,
    finish: Option<String>,
    usage: Usage,
    begun: bool,
    done: bool,
}

#[derive(Default)]
struct OpenCall {
    index: Option<u64>,
    id: String,
    name: String,
    arguments: String,
}

#[derive(Deserialize)]
struct Chunk {
    #[serde(default, deserialize_with = "or_default")]
    choices: Vec<Choice>,
    #[serde(default)]
    usage: Option<Tokens>,
    #[serde(default)]
    error: Option<Value>,
}

#[derive(Deserialize)]
struct Choice {
    #[serde(default, deserialize_with = "or_default")]
    delta: Delta,
    #[serde(default)]
    finish_reason: Option<String>,
}

#[derive(Default, Deserialize)]
struct Delta {
    #[serde(default)]
    content: Option<String>,
    /// Thinking, under the name that DeepSeek, vLLM and others use. OpenRouter and Ollama use `reasoning`.
    #[serde(default)]
    reasoning_content: Option<String>,
    #[serde(default)]
    reasoning: Option<String>,
    #[serde(default)]
    refusal: Option<String>,
    #[serde(default, deserialize_with = "or_default")]
    tool_calls: Vec<CallDelta>,
}

#[derive(Deserialize)]
struct CallDelta {
    #[serde(default)]
    index: Option<u64>,
    #[serde(default)]
    id: Option<String>,
    #[serde(default, deserialize_with = "or_default")]
    function: FunctionDelta,
}

#[derive(Default, Deserialize)]
struct FunctionDelta {
    #[serde(default)]
    name: Option<String>,
    /// The arguments: usually JSON as text, but some servers send the object itself.
    #[serde(default)]
    arguments: Option<Value>,
}

#[derive(Default, Deserialize)]
struct Tokens {
    #[serde(default, deserialize_with = "or_default")]
    prompt_tokens: u64,
    #[serde(default, deserialize_with = "or_default")]
    completion_tokens: u64,
    #[serde(default, deserialize_with = "or_default")]
    prompt_tokens_details: Details,
}

#[derive(Default, Deserialize)]
struct Details {
    #[serde(default, deserialize_with = "or_default")]
    cached_tokens: u64,
}

/// Treats `null` like a missing field.
fn or_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

impl Decoder for Answer {
    fn event(&mut self, event: Event, out: &mut VecDeque<ModelEvent>) -> Result<(), Fault> {
        if self.done {
            return Ok(());
        }
        if event.data.trim() == "[DONE]" {
            return self.end(out);
        }
        let chunk: Chunk = serde_json::from_str(&event.data)
            .map_err(|error| Fault::Lasting(ModelError::Protocol(format!("a chunk: {error}"))))?;
        if let Some(error) = chunk.error {
            return Err(failure(&error));
        }
        if let Some(tokens) = chunk.usage {
            let cached = tokens.prompt_tokens_details.cached_tokens;
            let usage = Usage {
                input: tokens.prompt_tokens.saturating_sub(cached),
                output: tokens.completion_tokens,
                cache_read: cached,
                cache_write: 0,
            };
            if usage != self.usage {
                self.usage = usage;
                out.push_back(ModelEvent::Usage(usage));
            }
        }
        // Read only the first choice, because only one was requested.
        let Some(choice) = chunk.choices.into_iter().next() else {
            return Ok(());
        };
        let Delta {
            content,
            reasoning_content,
            reasoning,
            refusal,
            tool_calls,
        } = choice.delta;
        let some = |text: Option<String>| text.filter(|text| !text.is_empty());
        if let Some(text) = some(reasoning_content).or(some(reasoning)) {
            self.begun = true;
            out.push_back(ModelEvent::Thinking(text));
        }
        for text in [some(content), some(refusal)].into_iter().flatten() {
            self.begun = true;
            self.text.push_str(&text);
            out.push_back(ModelEvent::Text(text));
        }
        for delta in tool_calls {
            self.begun = true;
            self.call(delta);
        }
        // Some servers send the finish reason only in the last chunk.
        self.finish = some(choice.finish_reason).or(self.finish.take());
        Ok(())
    }

    fn end(&mut self, out: &mut VecDeque<ModelEvent>) -> Result<(), Fault> {
        if self.done {
            return Ok(());
        }
        let Some(finish) = self.finish.take() else {
            return Err(Fault::cut());
        };
        self.done = true;
        out.push_back(ModelEvent::Done(self.reply(&finish)));
        Ok(())
    }

    fn begun(&self) -> bool {
        self.begun
    }
}

impl Answer {
    fn call(&mut self, delta: CallDelta) {
        let new_id = |open: &OpenCall| {
            let id = delta.id.as_deref().unwrap_or_default();
            !id.is_empty() && !open.id.is_empty() && id != open.id
        };
        let at = match delta.index {
            Some(index) => self.calls.iter().position(|call| call.index == Some(index)),
            // A piece without an index belongs to the last call, unless it starts a new one.
            None => self
                .calls
                .last()
                .filter(|open| !new_id(open) && delta.function.name.is_none())
                .map(|_| self.calls.len() - 1),
        };
        let at = at.unwrap_or_else(|| {
            self.calls.push(OpenCall {
                index: delta.index,
                ..OpenCall::default()
            });
            self.calls.len() - 1
        });
        let open = &mut self.calls[at];
        if let Some(id) = delta.id.filter(|id| !id.is_empty()) {
            open.id = id;
        }
        if let Some(name) = delta.function.name {
            open.name.push_str(&name);
        }
        match delta.function.arguments {
            Some(Value::String(text)) => open.arguments.push_str(&text),
            Some(Value::Null) | None => {}
            Some(value) => open.arguments.push_str(&value.to_string()),
        }
    }

    fn reply(&mut self, finish: &str) -> Reply {
        let mut content = Vec::new();
        let text = std::mem::take(&mut self.text);
        if !text.is_empty() {
            content.push(Block::text(text));
        }
        let mut calls = Vec::new();
        for open in std::mem::take(&mut self.calls) {
            let (input, bad) = anthropic::arguments(&open.arguments);
            let is_taken = calls.iter().any(|call: &Call| call.id == open.id);
            let id = match open.id.is_empty() || is_taken {
                // Some servers send no ids, or the same id for all calls.
                true => format!("call_{:016x}", rand::random::<u64>()),
                false => open.id,
            };
            content.push(Block::ToolUse {
                id: id.clone(),
                name: open.name.clone(),
                input: input.clone(),
                more: Fields::default(),
            });
            calls.push(Call {
                id,
                name: open.name,
                arguments: bad.map_or(Ok(input), Err),
            });
        }
        let stop = match finish {
            // Some servers send `stop` for tool calls, and some have their own terms.
            "stop" | "tool_calls" | "function_call" | "tool_use" | "end_turn" | "eos_token" => {
                match calls.is_empty() {
                    true => Stop::EndTurn,
                    false => Stop::ToolUse,
                }
            }
            "length" => Stop::MaxTokens,
            "content_filter" => Stop::Refusal,
            other => Stop::Other(other.to_owned()),
        };
        Reply {
            content,
            calls,
            stop,
            usage: self.usage,
        }
    }
}

/// Reads an error in the stream: `{"message", "type", "code"}`, or a text.
fn failure(error: &Value) -> Fault {
    let word = |name: &str| error[name].as_str().filter(|word| !word.is_empty());
    let kind = word("type").or(word("code")).unwrap_or("error").to_owned();
    let message = word("message")
        .or(error.as_str())
        .unwrap_or("the provider gave no reason");
    let message = message.to_owned();
    let code = error["code"].as_u64().unwrap_or_default();
    let passing = matches!(code, 429 | 500..=599)
        || ["overloaded", "server_error", "rate_limit", "unavailable"]
            .iter()
            .any(|word| kind.contains(word));
    Fault::in_answer(passing, kind, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Deviations from OpenAI's format that were seen in real servers.
    fn check(chunks: &[Value], expect: &Value) {
        let (mut answer, mut out) = (Answer::default(), VecDeque::new());
        for chunk in chunks {
            let event = Event {
                name: String::new(),
                data: chunk.to_string(),
            };
            answer.event(event, &mut out).expect("a chunk");
        }
        answer.end(&mut out).expect("an end");
        let Some(ModelEvent::Done(reply)) = out.pop_back() else {
            panic!("no reply: {out:?}");
        };
        let calls: Vec<_> = reply
            .calls
            .iter()
            .map(|call| json!([call.name, call.arguments.as_ref().map(Raw::get).ok()]))
            .collect();
        assert_eq!(json!([reply.stop.as_str(), calls]), *expect, "{chunks:?}");
        let ids: std::collections::HashSet<_> = reply.calls.iter().map(|call| &call.id).collect();
        assert_eq!(ids.len(), reply.calls.len(), "ids differ: {reply:?}");
        assert!(reply.calls.iter().all(|call| !call.id.is_empty()));
    }

    fn delta(calls: Value, finish: Value) -> Value {
        json!({ "choices": [{ "delta": { "content": null, "tool_calls": calls }, "finish_reason": finish }] })
    }

    #[test]
    fn calls_without_ids_indexes_or_pieces() {
        let whole = |name: &str| json!({ "function": { "name": name, "arguments": { "a": 1 } } });
        check(
            &[delta(json!([whole("x"), whole("y")]), json!("stop"))],
            &json!(["tool_use", [["x", "{\"a\":1}"], ["y", "{\"a\":1}"]]]),
        );
        let piece = |id: &str, name: Value, text: &str| json!([{ "id": id, "function": { "name": name, "arguments": text } }]);
        check(
            &[
                delta(piece("a", json!("x"), ""), json!("")),
                delta(piece("", Value::Null, "{\"n\":"), Value::Null),
                delta(piece("a", Value::Null, "1}"), Value::Null),
                delta(piece("a", json!("x"), "{}"), json!("tool_use")),
            ],
            &json!(["tool_use", [["x", "{\"n\":1}"], ["x", "{}"]]]),
        );
        check(
            &[
                delta(Value::Null, json!("eos_token")),
                json!({ "choices": null, "usage": null }),
            ],
            &json!(["end_turn", []]),
        );
        check(
            &[delta(json!([]), json!("content_filter"))],
            &json!(["refusal", []]),
        );
    }
}
