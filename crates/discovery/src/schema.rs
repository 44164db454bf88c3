//! Reads the parameters of a tool from its JSON Schema: their names, their types, and the text about them.
//!
//! Invariants: a schema that is not JSON, or has an odd shape, has fewer parameters or none. It is never an error.

use serde_json::{Map, Value};

/// Schemas with more bytes are not read.
pub(crate) const MAX_SCHEMA_BYTES: usize = 1 << 20;

/// Levels of nested objects of which the parameters are read.
const MAX_DEPTH: usize = 4;

/// Most bytes of names, and of text, that are read from one schema.
const MAX_TEXT_BYTES: usize = 8 << 10;

/// The words of a schema.
#[derive(Default)]
pub(crate) struct Words {
    /// Names of parameters, separated by spaces.
    pub(crate) names: String,
    /// Descriptions and allowed values.
    pub(crate) text: String,
}

/// Reads the words of a schema.
pub(crate) fn words(schema: &[u8]) -> Words {
    let mut words = Words::default();
    if schema.len() <= MAX_SCHEMA_BYTES
        && let Ok(schema) = serde_json::from_slice(schema)
    {
        object(&schema, 0, &mut words);
    }
    words
}

fn add(to: &mut String, text: &str) {
    if to.len() + text.len() < MAX_TEXT_BYTES {
        to.push_str(text);
        to.push('\n');
    }
}

fn object(schema: &Value, depth: usize, words: &mut Words) {
    let Some(properties) = schema.get("properties").and_then(Value::as_object) else {
        return;
    };
    for (name, property) in properties {
        add(&mut words.names, name);
        for key in ["title", "description"] {
            if let Some(text) = property.get(key).and_then(Value::as_str) {
                add(&mut words.text, text);
            }
        }
        let values = property.get("enum").and_then(Value::as_array);
        for value in values.into_iter().flatten().filter_map(Value::as_str) {
            add(&mut words.text, value);
        }
        if depth < MAX_DEPTH {
            object(property, depth + 1, words);
            if let Some(items) = property.get("items") {
                object(items, depth + 1, words);
            }
        }
    }
}

/// Most characters of a type in a signature. A longer one is cut.
const MAX_TYPE_CHARS: usize = 60;

/// The type of a property, as TypeScript would write it: `string`, `number[]`, `"a" | "b"`.
pub(crate) fn type_name(property: &Value) -> String {
    let mut name = typed(property, 0);
    if let Some((end, _)) = name.char_indices().nth(MAX_TYPE_CHARS) {
        name.truncate(end);
        name.push('…');
    }
    name
}

fn typed(property: &Value, depth: usize) -> String {
    let Some(property) = property.as_object() else {
        return "any".to_owned();
    };
    if depth > MAX_DEPTH {
        return "any".to_owned();
    }
    if let Some(value) = property.get("const") {
        return literal(value);
    }
    if let Some(values) = property.get("enum").and_then(Value::as_array) {
        return union(values.iter().map(literal));
    }
    for key in ["anyOf", "oneOf"] {
        if let Some(options) = property.get(key).and_then(Value::as_array) {
            return union(options.iter().map(|option| typed(option, depth + 1)));
        }
    }
    match property.get("type") {
        Some(Value::String(name)) => one_type(name, property, depth),
        Some(Value::Array(names)) => union(
            names
                .iter()
                .filter_map(Value::as_str)
                .map(|name| one_type(name, property, depth)),
        ),
        _ => match property.get("$ref").and_then(Value::as_str) {
            Some(path) => path.rsplit('/').next().unwrap_or("any").to_owned(),
            None if property.contains_key("properties") => "object".to_owned(),
            None => "any".to_owned(),
        },
    }
}

fn one_type(name: &str, property: &Map<String, Value>, depth: usize) -> String {
    if name != "array" {
        return name.to_owned();
    }
    let of = match property.get("items") {
        Some(items) => typed(items, depth + 1),
        None => "any".to_owned(),
    };
    if of.contains('|') {
        format!("({of})[]")
    } else {
        format!("{of}[]")
    }
}

fn literal(value: &Value) -> String {
    match value {
        Value::Array(_) | Value::Object(_) => "object".to_owned(),
        _ => value.to_string(),
    }
}

/// Joins different types, as many as fit.
fn union(options: impl Iterator<Item = String>) -> String {
    let mut joined: Vec<String> = Vec::new();
    let mut chars = 0;
    for option in options {
        if chars > MAX_TYPE_CHARS {
            break;
        }
        if !joined.contains(&option) {
            chars += option.chars().count() + 3;
            joined.push(option);
        }
    }
    if joined.is_empty() {
        "any".to_owned()
    } else {
        joined.join(" | ")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_and_texts_are_read_at_every_level() {
        let schema = json!({
            "type": "object",
            "properties": {
                "path": {"type": "string", "description": "Path of the file"},
                "edits": {"type": "array", "items": {"properties": {"oldText": {"type": "string"}}}},
                "mode": {"enum": ["append", "rewrite", 3]},
                "odd": true
            }
        });
        let words = words(schema.to_string().as_bytes());
        assert_eq!(words.names, "path\nedits\noldText\nmode\nodd\n");
        assert_eq!(words.text, "Path of the file\nappend\nrewrite\n");
    }

    #[test]
    fn odd_schemas_have_no_words() {
        let deep = [b"[".repeat(100_000), b"]".repeat(100_000)].concat();
        for schema in [
            &b""[..],
            b"{",
            b"7",
            b"[]",
            b"{\"properties\":[]}",
            b"\xff\xff",
            &deep,
        ] {
            let words = words(schema);
            assert!(words.names.is_empty() && words.text.is_empty());
        }
    }

    #[test]
    fn types_are_short() {
        for (schema, expect) in [
            (json!({"type": "string"}), "string"),
            (json!({"type": ["string", "null"]}), "string | null"),
            (
                json!({"type": "array", "items": {"type": "integer"}}),
                "integer[]",
            ),
            (json!({"type": "array"}), "any[]"),
            (json!({"enum": ["a", "b", null]}), r#""a" | "b" | null"#),
            (
                json!({"type": "array", "items": {"enum": ["a", "b"]}}),
                r#"("a" | "b")[]"#,
            ),
            (
                json!({"anyOf": [{"type": "string"}, {"type": "null"}]}),
                "string | null",
            ),
            (json!({"$ref": "#/$defs/Point"}), "Point"),
            (json!({"properties": {}}), "object"),
            (json!({}), "any"),
            (json!(true), "any"),
            (json!({"enum": []}), "any"),
        ] {
            assert_eq!(type_name(&schema), expect, "{schema}");
        }
        let many: Vec<String> = (0..1000).map(|number| format!("value {number}")).collect();
        assert!(type_name(&json!({"enum": many})).chars().count() <= MAX_TYPE_CHARS + 1);
    }
}
