//! The server's tools, prompts, resources and templates, as JSON.

use serde_json::{Value, json};

/// A red PNG of one pixel.
pub(crate) const IMAGE: &str =
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGM4oKAAAAKkAQHjTKctAAAAAElFTkSuQmCC";
/// A WAV file without samples.
pub(crate) const AUDIO: &str = "UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAIA+AAACABAAZGF0YQAAAAA=";
/// The resource that can be subscribed to.
pub(crate) const WATCHED: &str = "test://watched-resource";

fn tool(name: &str, description: &str, properties: Value, required: &[&str]) -> Value {
    json!({
        "name": name,
        "description": description,
        "inputSchema": { "type": "object", "properties": properties, "required": required },
    })
}

fn plain(name: &str, description: &str) -> Value {
    json!({
        "name": name,
        "description": description,
        "inputSchema": { "type": "object", "properties": {} },
    })
}

/// All tools, in a fixed order.
pub(crate) fn tools(extra: bool) -> Vec<Value> {
    let mut tools = vec![
        plain("test_simple_text", "Returns one text block"),
        plain("test_image_content", "Returns one image block"),
        plain("test_audio_content", "Returns one audio block"),
        plain("test_embedded_resource", "Returns an embedded resource"),
        plain(
            "test_multiple_content_types",
            "Returns text, image and resource",
        ),
        plain(
            "test_tool_with_logging",
            "Logs three messages while it runs",
        ),
        plain("test_tool_with_progress", "Reports progress three times"),
        plain("test_error_handling", "Always fails"),
        plain(
            "test_reconnection",
            "Closes its response stream before it answers",
        ),
        tool(
            "test_sampling",
            "Asks the client's model",
            json!({ "prompt": { "type": "string", "description": "What to ask" } }),
            &["prompt"],
        ),
        tool(
            "test_elicitation",
            "Asks the client's user",
            json!({ "message": { "type": "string", "description": "What to show" } }),
            &["message"],
        ),
        plain(
            "test_elicitation_sep1034_defaults",
            "Asks with default values",
        ),
        plain(
            "test_elicitation_sep1330_enums",
            "Asks with every kind of choice",
        ),
        plain("test_missing_capability", "Needs a client that can sample"),
        plain("test_streaming_elicitation", "Needs input from the user"),
        plain("test_logging_tool", "Logs if the client asked for logs"),
        plain("test_trigger_tool_change", "Changes the list of tools"),
        plain("test_trigger_prompt_change", "Changes the list of prompts"),
        plain("test_input_required_result_elicitation", "Needs a name"),
        plain("test_input_required_result_sampling", "Needs a model"),
        plain("test_input_required_result_list_roots", "Needs the roots"),
        plain(
            "test_input_required_result_request_state",
            "Needs a confirmation",
        ),
        plain(
            "test_input_required_result_multiple_inputs",
            "Needs all three",
        ),
        plain("test_input_required_result_multi_round", "Needs two rounds"),
        plain(
            "test_input_required_result_tampered_state",
            "Checks its state",
        ),
        plain(
            "test_input_required_result_capabilities",
            "Asks what it may ask",
        ),
        json!({
            "name": "test_header_param",
            "description": "Takes an argument that is mirrored in a header",
            "inputSchema": {
                "type": "object",
                "properties": {
                    "region": { "type": "string", "x-mcp-header": "Region" },
                    "text": { "type": "string" },
                },
                "required": ["region"],
            },
        }),
        json!({
            "name": "json_schema_2020_12_tool",
            "description": "Has a schema with the words of JSON Schema 2020-12",
            "inputSchema": schema_2020_12(),
        }),
        tool(
            "slow",
            "Sleeps, with progress if asked for it, and notices cancellation",
            json!({ "ms": { "type": "integer", "description": "How long, in milliseconds" } }),
            &["ms"],
        ),
        plain("cancelled_count", "How many calls of slow were cancelled"),
        tool(
            "touch_resource",
            "Changes a resource and tells its subscribers",
            json!({ "uri": { "type": "string", "description": "Which; the watched one if absent" } }),
            &[],
        ),
        tool(
            "ask_sampling",
            "Returns what the client's model said, as JSON",
            json!({ "prompt": { "type": "string" } }),
            &[],
        ),
        tool(
            "ask_elicitation",
            "Returns what the client's user said, as JSON",
            json!({ "message": { "type": "string" } }),
            &[],
        ),
        plain("ask_roots", "Returns the client's roots, as JSON"),
        tool(
            "log_at",
            "Logs one message",
            json!({
                "level": { "type": "string", "enum": LEVELS },
                "message": { "type": "string" },
            }),
            &["level"],
        ),
        plain("toggle_tool", "Adds or removes the tool toggled_tool"),
    ];
    tools.extend(crate::tasks::definitions());
    if extra {
        tools.push(plain("toggled_tool", "Is there only now and then"));
    }
    tools
}

/// The severities of log messages, least severe first.
pub(crate) const LEVELS: [&str; 8] = [
    "debug",
    "info",
    "notice",
    "warning",
    "error",
    "critical",
    "alert",
    "emergency",
];

fn schema_2020_12() -> Value {
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "$defs": {
            "address": {
                "$anchor": "addressDef",
                "type": "object",
                "properties": { "street": { "type": "string" }, "city": { "type": "string" } },
            },
        },
        "properties": {
            "name": { "type": "string" },
            "address": { "$ref": "#/$defs/address" },
            "contactMethod": { "type": "string", "enum": ["phone", "email"] },
            "phone": { "type": "string" },
            "email": { "type": "string" },
        },
        "allOf": [{ "anyOf": [{ "required": ["phone"] }, { "required": ["email"] }] }],
        "if": {
            "properties": { "contactMethod": { "const": "phone" } },
            "required": ["contactMethod"],
        },
        "then": { "required": ["phone"] },
        "else": { "required": ["email"] },
        "additionalProperties": false,
    })
}

/// All prompts, in a fixed order.
pub(crate) fn prompts(extra: bool) -> Vec<Value> {
    let mut prompts = vec![
        json!({ "name": "test_simple_prompt", "description": "Takes no arguments" }),
        json!({
            "name": "test_prompt_with_arguments",
            "description": "Takes two arguments",
            "arguments": [
                { "name": "arg1", "description": "The first", "required": true },
                { "name": "arg2", "description": "The second", "required": true },
            ],
        }),
        json!({
            "name": "test_prompt_with_embedded_resource",
            "description": "Embeds a resource",
            "arguments": [
                { "name": "resourceUri", "description": "Which resource", "required": true },
            ],
        }),
        json!({ "name": "test_prompt_with_image", "description": "Shows an image" }),
        json!({ "name": "test_input_required_result_prompt", "description": "Needs input" }),
    ];
    if extra {
        prompts.push(json!({ "name": "toggled_prompt", "description": "Is there now and then" }));
    }
    prompts
}

/// Returns the messages of a prompt that needs no input from the client, or `None` if the name is unknown.
pub(crate) fn prompt(name: &str, argument: impl Fn(&str) -> String) -> Option<Value> {
    let message = |content: Value| json!({ "role": "user", "content": content });
    let text = |text: String| message(json!({ "type": "text", "text": text }));
    let messages = match name {
        "test_simple_prompt" | "toggled_prompt" => {
            json!([text("This is a simple prompt for testing.".into())])
        }
        "test_prompt_with_arguments" => json!([text(format!(
            "Prompt with arguments: arg1='{}', arg2='{}'",
            argument("arg1"),
            argument("arg2"),
        ))]),
        "test_prompt_with_embedded_resource" => json!([
            message(json!({
                "type": "resource",
                "resource": {
                    "uri": argument("resourceUri"),
                    "mimeType": "text/plain",
                    "text": "Embedded resource content for testing.",
                },
            })),
            text("Please process the embedded resource above.".into()),
        ]),
        "test_prompt_with_image" => json!([
            message(json!({ "type": "image", "data": IMAGE, "mimeType": "image/png" })),
            text("Please analyze the image above.".into()),
        ]),
        _ => return None,
    };
    Some(json!({ "description": format!("The prompt {name}"), "messages": messages }))
}

/// All direct resources.
pub(crate) fn resources() -> Value {
    json!({
        "resources": [
            {
                "uri": "test://static-text",
                "name": "static-text",
                "description": "A text that never changes",
                "mimeType": "text/plain",
            },
            {
                "uri": "test://static-binary",
                "name": "static-binary",
                "description": "A picture that never changes",
                "mimeType": "image/png",
            },
            {
                "uri": WATCHED,
                "name": "watched-resource",
                "description": "A text that changes when it is touched",
                "mimeType": "text/plain",
            },
        ],
    })
}

/// All resource templates.
pub(crate) fn templates() -> Value {
    json!({
        "resourceTemplates": [{
            "uriTemplate": "test://template/{id}/data",
            "name": "template",
            "description": "Data of one id",
            "mimeType": "application/json",
        }],
    })
}

/// Returns the contents of a resource, or `None` if the URI is unknown.
pub(crate) fn resource(uri: &str, touched: u64) -> Option<Value> {
    let contents = match uri {
        "test://static-text" => json!({
            "uri": uri,
            "mimeType": "text/plain",
            "text": "This is the content of the static text resource.",
        }),
        "test://static-binary" => json!({ "uri": uri, "mimeType": "image/png", "blob": IMAGE }),
        WATCHED => json!({
            "uri": uri,
            "mimeType": "text/plain",
            "text": format!("touched {touched} times"),
        }),
        _ => {
            let id = uri
                .strip_prefix("test://template/")?
                .strip_suffix("/data")
                .filter(|id| !id.is_empty() && !id.contains('/'))?;
            let data = json!({
                "id": id,
                "templateTest": true,
                "data": format!("Data for ID: {id}"),
            });
            json!({ "uri": uri, "mimeType": "application/json", "text": data.to_string() })
        }
    };
    Some(json!({ "contents": [contents] }))
}
