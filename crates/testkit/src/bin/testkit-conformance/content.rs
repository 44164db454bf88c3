//! The content of the server, as JSON.

use std::sync::LazyLock;

use serde_json::{Value, json};

/// A red PNG of one pixel.
const IMAGE: &str =
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGM4oKAAAAKkAQHjTKctAAAAAElFTkSuQmCC";
/// The resource that can be subscribed to.
pub(crate) const WATCHED: &str = "test://watched-resource";

static LISTS: LazyLock<Value> = LazyLock::new(|| {
    let lists = include_str!("lists.json").replace("@IMAGE@", IMAGE);
    serde_json::from_str(&lists).expect("the file contains JSON")
});

/// All `tools`, `prompts`, `resources` or `resourceTemplates`, in a fixed order, as the result of a list request.
/// Without `extra`, the item that a tool can add and remove is left out.
pub(crate) fn list(kind: &str, extra: bool) -> Value {
    let is_toggled = |item: &Value| {
        item["name"]
            .as_str()
            .is_some_and(|name| name.starts_with("toggled_"))
    };
    let mut items = LISTS[kind].as_array().cloned().unwrap_or_default();
    items.retain(|item| extra || !is_toggled(item));
    json!({ kind: items })
}

/// Returns the content of a tool's result that is always the same.
pub(crate) fn result(tool: &str) -> Option<Value> {
    LISTS["results"].get(tool).cloned()
}

/// Returns the schema of a tool's question to the user. With `required`, all properties are required, otherwise none.
pub(crate) fn question(tool: &str, required: bool) -> Value {
    let properties = &LISTS["questions"][tool];
    let names = properties.as_object().filter(|_| required);
    let names: Vec<&String> = names.into_iter().flat_map(|all| all.keys()).collect();
    json!({ "type": "object", "properties": properties, "required": names })
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
