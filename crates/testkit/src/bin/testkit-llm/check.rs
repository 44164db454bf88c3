//! Validates requests as the real APIs do, with their error messages as far as they are known.

use std::collections::{HashMap, HashSet};

use anyhow::{Context as _, bail, ensure};
use axum::http::{HeaderMap, StatusCode};
use serde_json::Value;

use crate::Api;

/// A refused request.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub status: StatusCode,
    pub(crate) kind: String,
    pub(crate) message: String,
}

impl Refusal {
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self {
            status: StatusCode::BAD_REQUEST,
            kind: "invalid_request_error".to_owned(),
            message: message.into(),
        }
    }
}

/// The parts of a request that a script can check, independent of its format.
#[derive(Debug, Default)]
pub(crate) struct View {
    pub(crate) system: String,
    /// All text of the last message.
    pub(crate) last_text: String,
    pub(crate) results: Vec<ToolResult>,
    pub(crate) tools: Vec<String>,
}

#[derive(Debug)]
pub(crate) struct ToolResult {
    pub(crate) id: String,
    pub(crate) text: String,
    pub(crate) is_error: Option<bool>,
}

/// Checks the API key.
pub(crate) fn key(api: Api, headers: &HeaderMap, right: Option<&str>) -> Result<(), Refusal> {
    let (name, prefix) = match api {
        Api::Anthropic => ("x-api-key", ""),
        Api::OpenAi => ("authorization", "Bearer "),
    };
    let given = headers
        .get(name)
        .and_then(|value| value.to_str().ok()?.strip_prefix(prefix));
    let is_right = match (right, given) {
        (Some(right), given) => given == Some(right),
        // Local OpenAI-compatible servers accept requests without a key.
        (None, given) => given.is_some() || api == Api::OpenAi,
    };
    match is_right {
        true => Ok(()),
        false => Err(Refusal {
            status: StatusCode::UNAUTHORIZED,
            kind: "authentication_error".to_owned(),
            // Repeats the key, as some providers do. The product must not pass the key on.
            message: format!("invalid {name} {}", given.unwrap_or_default()),
        }),
    }
}

fn is_name(name: &str, most: usize) -> bool {
    (1..=most).contains(&name.len())
        && name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
}

/// The content blocks of a message. A plain string counts as one text block.
fn blocks(content: &Value) -> Vec<Value> {
    match content {
        Value::String(text) => vec![serde_json::json!({ "type": "text", "text": text })],
        Value::Array(blocks) => blocks.clone(),
        _ => Vec::new(),
    }
}

fn text_of(content: &Value) -> String {
    let blocks = blocks(content);
    let texts: Vec<_> = blocks
        .iter()
        .filter_map(|block| block["text"].as_str())
        .collect();
    texts.join("\n")
}

fn of_type<'a>(blocks: &'a [Value], kind: &'a str) -> impl Iterator<Item = &'a Value> {
    blocks.iter().filter(move |block| block["type"] == kind)
}

fn word<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap_or_default()
}

/// Checks a request for the Messages API.
pub(crate) fn anthropic(
    headers: &HeaderMap,
    body: &Value,
    signatures: &HashMap<String, String>,
) -> anyhow::Result<View> {
    ensure!(
        headers.contains_key("anthropic-version"),
        "anthropic-version: header is required"
    );
    ensure!(body["model"].is_string(), "model: Field required");
    ensure!(
        body["max_tokens"].as_u64().is_some_and(|most| most > 0),
        "max_tokens: Field required"
    );
    ensure!(body["stream"] == true, "testkit-llm only streams");
    let mut view = View {
        system: text_of(&body["system"]),
        ..View::default()
    };
    let mut names = HashSet::new();
    for (at, tool) in body["tools"].as_array().into_iter().flatten().enumerate() {
        let name = word(tool, "name");
        ensure!(
            is_name(name, 128),
            "tools.{at}.custom.name: String should match pattern '^[a-zA-Z0-9_-]{{1,128}}$'"
        );
        ensure!(names.insert(name), "tools: Tool names must be unique.");
        let schema = &tool["input_schema"];
        ensure!(
            schema["type"] == "object",
            "tools.{at}.custom.input_schema.type: Field required"
        );
        let combined = ["oneOf", "allOf", "anyOf"]
            .iter()
            .any(|key| schema.get(key).is_some());
        ensure!(
            !combined,
            "tools.{at}.custom.input_schema: input_schema does not support oneOf, allOf, or anyOf at the top level"
        );
        view.tools.push(name.to_owned());
    }
    let marks = body.to_string().matches(r#""cache_control":"#).count();
    ensure!(
        marks <= 4,
        "A maximum of 4 blocks with cache_control may be provided. Found {marks}."
    );
    let messages = body["messages"].as_array().cloned().unwrap_or_default();
    ensure!(
        !messages.is_empty(),
        "messages: at least one message is required"
    );
    let mut ids = HashSet::new();
    let mut open: Vec<String> = Vec::new();
    for (at, message) in messages.iter().enumerate() {
        let role = word(message, "role");
        let expected = if at % 2 == 0 { "user" } else { "assistant" };
        ensure!(
            role == expected,
            "messages.{at}: roles must alternate between \"user\" and \"assistant\", and the first is \"user\""
        );
        let blocks = blocks(&message["content"]);
        ensure!(
            !blocks.is_empty(),
            "messages.{at}: all messages must have non-empty content"
        );
        for (place, block) in blocks.iter().enumerate() {
            check_block(block, role, signatures)
                .with_context(|| format!("messages.{at}.content.{place}"))?;
        }
        let results: Vec<String> = of_type(&blocks, "tool_result")
            .map(|block| word(block, "tool_use_id").to_owned())
            .collect();
        let stray = results.iter().find(|id| !open.contains(id));
        ensure!(
            stray.is_none(),
            "messages.{at}: unexpected `tool_use_id` found in `tool_result` blocks: {stray:?}"
        );
        let missing: Vec<_> = open.iter().filter(|id| !results.contains(id)).collect();
        ensure!(
            missing.is_empty(),
            "messages.{at}: `tool_use` ids were found without `tool_result` blocks immediately after: {missing:?}"
        );
        ensure!(
            results.len() == open.len(),
            "messages.{at}: each tool_use must have a single result"
        );
        let first = blocks.iter().take(results.len());
        ensure!(
            first.clone().all(|block| block["type"] == "tool_result"),
            "messages.{at}: `tool_result` blocks must come first"
        );
        open = of_type(&blocks, "tool_use")
            .map(|block| word(block, "id").to_owned())
            .collect();
        for id in &open {
            ensure!(
                ids.insert(id.clone()),
                "messages.{at}: `tool_use` ids must be unique: {id}"
            );
        }
    }
    ensure!(
        open.is_empty(),
        "`tool_use` ids were found without `tool_result` blocks immediately after: {open:?}"
    );
    if let Some(last) = messages.last() {
        let blocks = blocks(&last["content"]);
        view.last_text = text_of(&last["content"]);
        view.results = of_type(&blocks, "tool_result")
            .map(|block| ToolResult {
                id: word(block, "tool_use_id").to_owned(),
                text: text_of(&block["content"]),
                is_error: Some(block["is_error"] == true),
            })
            .collect();
    }
    Ok(view)
}

fn check_block(
    block: &Value,
    role: &str,
    signatures: &HashMap<String, String>,
) -> anyhow::Result<()> {
    let is_empty_text = |block: &Value| word(block, "text").is_empty();
    match (word(block, "type"), role) {
        ("text", _) => ensure!(
            !is_empty_text(block),
            "text content blocks must be non-empty"
        ),
        ("image", "user") => ensure!(block["source"].is_object(), "source: Field required"),
        ("tool_result", "user") => {
            let nested = blocks(&block["content"]);
            let empty = of_type(&nested, "text").any(is_empty_text);
            ensure!(!empty, "text content blocks must be non-empty");
        }
        ("tool_use", "assistant") => {
            ensure!(
                is_name(word(block, "id"), 256),
                "id: String should match pattern '^[a-zA-Z0-9_-]+$'"
            );
            ensure!(
                is_name(word(block, "name"), 200),
                "name: String should match pattern"
            );
            ensure!(
                block["input"].is_object(),
                "input: Input should be a valid dictionary"
            );
        }
        ("thinking", "assistant") => {
            let signature = word(block, "signature");
            ensure!(!signature.is_empty(), "signature: Field required");
            let signed = signatures.get(signature);
            ensure!(
                signed.is_none_or(|thought| thought == word(block, "thinking")),
                "Invalid `signature` in `thinking` block"
            );
            ensure!(
                block.get("cache_control").is_none(),
                "cache_control: Extra inputs are not permitted"
            );
        }
        ("redacted_thinking", "assistant") => {
            ensure!(block["data"].is_string(), "data: Field required");
        }
        ("", _) => bail!("type: Field required"),
        ("tool_use" | "thinking" | "redacted_thinking" | "tool_result" | "image", _) => {
            bail!("a block of this type cannot be in a message of the {role}")
        }
        _ => {}
    }
    Ok(())
}

/// Checks a request for chat completions.
pub(crate) fn openai(body: &Value) -> anyhow::Result<View> {
    ensure!(
        body["model"].is_string(),
        "you must provide a model parameter"
    );
    ensure!(body["stream"] == true, "testkit-llm only streams");
    let mut view = View::default();
    for (at, tool) in body["tools"].as_array().into_iter().flatten().enumerate() {
        let name = word(&tool["function"], "name");
        ensure!(
            tool["type"] == "function" && is_name(name, 64),
            "Invalid 'tools[{at}].function.name': string does not match pattern"
        );
        ensure!(
            tool["function"]["parameters"]["type"] == "object",
            "Invalid schema for function '{name}': schema must be a JSON Schema of 'type: \"object\"'"
        );
        view.tools.push(name.to_owned());
    }
    let messages = body["messages"].as_array().cloned().unwrap_or_default();
    ensure!(!messages.is_empty(), "messages is too short");
    let mut open: Vec<String> = Vec::new();
    for (at, message) in messages.iter().enumerate() {
        let role = word(message, "role");
        if role == "tool" {
            let id = word(message, "tool_call_id").to_owned();
            let known = open.iter().position(|open| *open == id);
            let Some(known) = known else {
                bail!(
                    "messages with role 'tool' must be a response to a preceding message with 'tool_calls': {id}"
                );
            };
            open.remove(known);
            view.results.push(ToolResult {
                id,
                text: text_of(&message["content"]),
                is_error: None,
            });
            continue;
        }
        ensure!(
            open.is_empty(),
            "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id': {open:?}"
        );
        match role {
            "system" => view.system = text_of(&message["content"]),
            "user" => {}
            "assistant" => {
                view.results.clear();
                for call in message["tool_calls"].as_array().into_iter().flatten() {
                    ensure!(
                        call["function"]["arguments"].is_string(),
                        "messages[{at}].tool_calls: arguments must be a string"
                    );
                    open.push(word(call, "id").to_owned());
                }
                let is_empty = message["content"].is_null() && open.is_empty();
                ensure!(!is_empty, "messages[{at}].content is null");
            }
            other => bail!("messages[{at}]: the role {other:?} is unknown"),
        }
        view.last_text = text_of(&message["content"]);
    }
    ensure!(open.is_empty(), "'tool_calls' without answers: {open:?}");
    Ok(view)
}
