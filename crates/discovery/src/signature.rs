//! A tool in one line, for a language model.

use serde_json::{Map, Value};

use crate::schema::{MAX_SCHEMA_BYTES, type_name};

/// Most parameters that a signature lists. Required ones come first; `…` stands for the others.
const MAX_PARAMETERS: usize = 24;

/// Most characters of a parameter's name.
const MAX_NAME_CHARS: usize = 64;

/// Most characters of the list of parameters.
const MAX_LIST_CHARS: usize = 480;

/// Most characters of the description.
const MAX_DESCRIPTION_CHARS: usize = 200;

/// The tool in one line: `name(param: type, optional?: type) — first line of the description`.
///
/// `tool` is the definition as JSON text. Anything in it that is missing or has an odd shape is left out; the result then
/// is `exposed()`. A signature has at most 1,000 characters and no control characters.
pub fn signature(exposed: &str, tool: &[u8]) -> String {
    let tool: Value = if tool.len() <= MAX_SCHEMA_BYTES {
        serde_json::from_slice(tool).unwrap_or_default()
    } else {
        Value::Null
    };
    let mut line = cut(exposed, 2 * MAX_NAME_CHARS);
    line.push('(');
    if let Some(schema) = tool.get("inputSchema").and_then(Value::as_object) {
        parameters(schema, &mut line);
    }
    line.push(')');
    let description = ["description", "title"]
        .into_iter()
        .filter_map(|key| tool.get(key)?.as_str())
        .find_map(first_line);
    if let Some(description) = description {
        line.push_str(" — ");
        line.push_str(&description);
    }
    line
}

fn parameters(schema: &Map<String, Value>, line: &mut String) {
    let Some(properties) = schema.get("properties").and_then(Value::as_object) else {
        return;
    };
    let required: Vec<&str> = schema
        .get("required")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .take(properties.len())
        .collect();
    let is_required = |name: &str| required.contains(&name);
    let first = properties.iter().filter(|(name, _)| is_required(name));
    let then = properties.iter().filter(|(name, _)| !is_required(name));
    let mut chars = 0;
    for (number, (name, property)) in first.chain(then).enumerate() {
        if number > 0 {
            line.push_str(", ");
        }
        if number == MAX_PARAMETERS || chars > MAX_LIST_CHARS {
            line.push('…');
            return;
        }
        let mark = if is_required(name) { "" } else { "?" };
        let parameter = format!(
            "{}{mark}: {}",
            cut(&quoted(name), MAX_NAME_CHARS),
            type_name(property)
        );
        chars += parameter.chars().count() + 2;
        line.push_str(&parameter);
    }
}

/// The name as it is if it is an identifier, and in quotes otherwise.
fn quoted(name: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-$.".contains(&byte);
    if !name.is_empty() && name.bytes().all(plain) {
        name.to_owned()
    } else {
        Value::from(name).to_string()
    }
}

/// The first line that is not empty.
fn first_line(text: &str) -> Option<String> {
    let line = text.lines().map(str::trim).find(|line| !line.is_empty())?;
    Some(cut(line, MAX_DESCRIPTION_CHARS))
}

/// The beginning of `text`, with spaces for control characters and for those that change the direction of text.
fn cut(text: &str, chars: usize) -> String {
    let visible = |letter: char| match letter {
        _ if letter.is_control() => ' ',
        '\u{200b}'..='\u{200f}'
        | '\u{2028}'..='\u{202e}'
        | '\u{2066}'..='\u{2069}'
        | '\u{feff}' => ' ',
        _ => letter,
    };
    let mut cut: String = text.chars().take(chars).map(visible).collect();
    if text.chars().nth(chars).is_some() {
        cut.push('…');
    }
    cut
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::signature;

    #[test]
    fn a_tool_is_one_line() {
        for (tool, expect) in [
            (
                json!({
                    "name": "create_issue",
                    "description": "\n  Opens an issue.\nReturns its number.",
                    "inputSchema": {
                        "type": "object",
                        "properties": {
                            "labels": {"type": "array", "items": {"type": "string"}},
                            "title": {"type": "string"},
                            "state": {"enum": ["open", "closed"]},
                            "odd name": {}
                        },
                        "required": ["title", "gone", 7]
                    }
                }),
                r#"x(title: string, labels?: string[], state?: "open" | "closed", "odd name"?: any) — Opens an issue."#,
            ),
            (json!({"title": "Time", "inputSchema": {}}), "x() — Time"),
            (json!({"description": 7, "inputSchema": []}), "x()"),
            (json!({"description": "a\u{202e}b\tc"}), "x() — a b c"),
            (json!([]), "x()"),
        ] {
            assert_eq!(signature("x", tool.to_string().as_bytes()), expect);
        }
        assert_eq!(signature("x", b"{"), "x()");
    }

    #[test]
    fn a_signature_is_bounded() {
        let names: Vec<String> = (0..500)
            .map(|number| format!("{number}{}", "n".repeat(200)))
            .collect();
        let properties: serde_json::Map<_, _> = names
            .iter()
            .map(|name| (name.clone(), json!({"enum": names[..3]})))
            .collect();
        let tool = json!({
            "description": "天".repeat(100_000),
            "inputSchema": {"properties": properties, "required": names}
        });
        let line = signature(&"x".repeat(10_000), tool.to_string().as_bytes());
        assert!(line.chars().count() <= 1000, "{}", line.chars().count());
        assert!(line.contains(", …)"));
    }
}
