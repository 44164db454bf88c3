//! TypeScript types from JSON schemas (2020-12, and what older drafts and OpenAPI have instead).

use std::collections::BTreeMap;

use serde_json::{Map, Value};

pub(super) const MAX_PROPERTIES: usize = 60;
const MAX_DEPTH: usize = 8;
const MAX_VARIANTS: usize = 30;
const MAX_NAME_CHARACTERS: usize = 100;
const MAX_LITERAL_CHARACTERS: usize = 100;
const ANY: &str = "any";

/// Writes types of one schema.
pub(super) struct Types<'a> {
    root: &'a Value,
    /// Bytes that may still be written.
    left: usize,
    /// References that are being followed.
    open: Vec<&'a str>,
}

impl<'a> Types<'a> {
    pub(super) fn new(root: &'a Value, most: usize) -> Self {
        Self {
            root,
            left: most,
            open: Vec::new(),
        }
    }

    pub(super) fn of(&mut self, schema: &'a Value) -> String {
        self.schema(schema, 0)
    }

    /// The type of a schema, or `any` if it does not fit into what is left.
    fn schema(&mut self, schema: &'a Value, depth: usize) -> String {
        if self.left == 0 || depth > MAX_DEPTH {
            return ANY.to_owned();
        }
        let before = self.left;
        let text = match schema {
            Value::Bool(false) => "never".to_owned(),
            Value::Object(schema) => self.object(schema, depth),
            _ => ANY.to_owned(),
        };
        // The parts of the text have already been subtracted from `self.left`.
        match before.checked_sub(text.len()) {
            Some(left) => {
                self.left = self.left.min(left);
                text
            }
            None => {
                self.left = 0;
                ANY.to_owned()
            }
        }
    }

    fn object(&mut self, schema: &'a Map<String, Value>, depth: usize) -> String {
        if let Some(target) = schema.get("$ref") {
            return self.reference(target, depth);
        }
        if let Some(value) = schema.get("const") {
            return literal(value);
        }
        if let Some(Value::Array(values)) = schema.get("enum") {
            let mut variants: Vec<_> = values.iter().take(MAX_VARIANTS).map(literal).collect();
            if values.len() > MAX_VARIANTS {
                variants.push(ANY.to_owned());
            }
            return union(variants);
        }
        let mut parts = Vec::new();
        let own = self.own(schema, depth);
        if let Some(own) = own {
            parts.push(own);
        }
        for key in ["anyOf", "oneOf"] {
            if let Some(Value::Array(list)) = schema.get(key) {
                parts.push(union(self.list(list, depth)));
            }
        }
        if let Some(Value::Array(list)) = schema.get("allOf") {
            parts.extend(self.list(list, depth));
        }
        parts.retain(|part| part != ANY);
        parts.dedup();
        let mut text = match parts.len() {
            0 => ANY.to_owned(),
            1 => parts.remove(0),
            _ => {
                let parts: Vec<_> = parts.iter().map(|part| grouped(part)).collect();
                parts.join(" & ")
            }
        };
        if schema.get("nullable") == Some(&Value::Bool(true)) && text != ANY {
            text = union(vec![text, "null".to_owned()]);
        }
        text
    }

    fn list(&mut self, list: &'a [Value], depth: usize) -> Vec<String> {
        let mut all: Vec<_> = list
            .iter()
            .take(MAX_VARIANTS)
            .map(|one| self.schema(one, depth + 1))
            .collect();
        if list.len() > MAX_VARIANTS || all.is_empty() {
            all.push(ANY.to_owned());
        }
        all
    }

    /// The type that `type` and the keywords for it describe.
    fn own(&mut self, schema: &'a Map<String, Value>, depth: usize) -> Option<String> {
        match schema.get("type") {
            Some(Value::String(name)) => Some(self.named(name, schema, depth)),
            Some(Value::Array(names)) => {
                let names = names.iter().take(MAX_VARIANTS).filter_map(Value::as_str);
                Some(union(
                    names.map(|name| self.named(name, schema, depth)).collect(),
                ))
            }
            _ if schema.contains_key("properties") => Some(self.named("object", schema, depth)),
            _ if schema.contains_key("items") => Some(self.named("array", schema, depth)),
            _ => None,
        }
    }

    fn named(&mut self, name: &str, schema: &'a Map<String, Value>, depth: usize) -> String {
        match name {
            "string" => "string".to_owned(),
            "number" | "integer" => "number".to_owned(),
            "boolean" => "boolean".to_owned(),
            "null" => "null".to_owned(),
            "array" => self.array(schema, depth),
            "object" => self.properties(schema, depth),
            _ => ANY.to_owned(),
        }
    }

    fn array(&mut self, schema: &'a Map<String, Value>, depth: usize) -> String {
        let places = schema.get("prefixItems").or_else(|| schema.get("items"));
        if let Some(Value::Array(places)) = places {
            return format!("[{}]", self.list(places, depth).join(", "));
        }
        match schema.get("items") {
            Some(items) => format!("{}[]", grouped(&self.schema(items, depth + 1))),
            None => "any[]".to_owned(),
        }
    }

    fn properties(&mut self, schema: &'a Map<String, Value>, depth: usize) -> String {
        let further = schema.get("additionalProperties");
        let properties = schema.get("properties").and_then(Value::as_object);
        let Some(properties) = properties.filter(|properties| !properties.is_empty()) else {
            return match further {
                Some(Value::Bool(false)) => "{}".to_owned(),
                Some(further) => format!("Record<string, {}>", self.schema(further, depth + 1)),
                None => "Record<string, any>".to_owned(),
            };
        };
        let required = required_of(schema);
        let mut parts = Vec::new();
        for (name, property) in properties.iter().take(MAX_PROPERTIES) {
            let mark = if required.contains(&name.as_str()) {
                ""
            } else {
                "?"
            };
            let text = self.schema(property, depth + 1);
            parts.push(format!("{}{mark}: {text}", property_name(name)));
        }
        let has_more = properties.len() > MAX_PROPERTIES;
        if has_more || further.is_some_and(|further| *further != Value::Bool(false)) {
            parts.push("[key: string]: any".to_owned());
        }
        format!("{{ {} }}", parts.join("; "))
    }

    fn reference(&mut self, target: &'a Value, depth: usize) -> String {
        let Some(target) = target.as_str() else {
            return ANY.to_owned();
        };
        let found = match target.strip_prefix('#') {
            Some("") => Some(self.root),
            Some(pointer) => self.root.pointer(pointer),
            None => None,
        };
        let Some(found) = found.filter(|_| !self.open.contains(&target)) else {
            return ANY.to_owned();
        };
        self.open.push(target);
        let text = self.schema(found, depth + 1);
        self.open.pop();
        text
    }
}

/// The names in `required`.
pub(super) fn required(schema: &Value) -> Vec<&str> {
    schema.as_object().map(required_of).unwrap_or_default()
}

fn required_of(schema: &Map<String, Value>) -> Vec<&str> {
    let names = schema.get("required").and_then(Value::as_array);
    names
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect()
}

/// A property's name, quoted unless it is an identifier.
pub(super) fn property_name(name: &str) -> String {
    let fits = |char: char| char.is_ascii_alphanumeric() || char == '_' || char == '$';
    if !name.is_empty() && name.chars().all(fits) && !name.starts_with(|c: char| c.is_ascii_digit())
    {
        return shortened(name, MAX_NAME_CHARACTERS);
    }
    quoted(&shortened(name, MAX_NAME_CHARACTERS))
}

fn shortened(text: &str, most: usize) -> String {
    text.chars().take(most).collect()
}

/// The text as a string literal. Characters that are not printed are escaped.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for char in text.chars() {
        match char {
            '"' | '\\' => quoted.extend(['\\', char]),
            _ if char.is_control() || char.is_whitespace() && char != ' ' => {
                quoted.extend(char.escape_unicode());
            }
            _ => quoted.push(char),
        }
    }
    quoted.push('"');
    quoted
}

fn literal(value: &Value) -> String {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::String(text) if text.chars().nth(MAX_LITERAL_CHARACTERS).is_none() => quoted(text),
        Value::String(_) => "string".to_owned(),
        Value::Array(_) => "any[]".to_owned(),
        Value::Object(_) => ANY.to_owned(),
    }
}

fn union(variants: Vec<String>) -> String {
    let mut seen = BTreeMap::new();
    let mut parts = Vec::new();
    for variant in variants {
        if variant == ANY {
            return variant;
        }
        if seen.insert(variant.clone(), ()).is_none() {
            parts.push(variant);
        }
    }
    match parts.len() {
        0 => "never".to_owned(),
        1 => parts.remove(0),
        _ => {
            let grouped = parts.iter().map(|part| match part.contains(" & ") {
                true => grouped(part),
                false => part.clone(),
            });
            grouped.collect::<Vec<_>>().join(" | ")
        }
    }
}

/// The type in brackets, if an operator could take it apart. A bracket too many does no harm.
fn grouped(text: &str) -> String {
    if text.contains(" | ") || text.contains(" & ") {
        format!("({text})")
    } else {
        text.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn schemas_become_types() {
        for (schema, expected) in [
            (json!({"type": "string"}), "string"),
            (json!({"type": "integer"}), "number"),
            (json!({"type": ["string", "null"]}), "string | null"),
            (json!({"type": "string", "nullable": true}), "string | null"),
            (
                json!({"enum": ["a", 1, null, true]}),
                r#""a" | 1 | null | true"#,
            ),
            (json!({"const": "\"*/\n"}), r#""\"*/\u{a}""#),
            (
                json!({"type": "array", "items": {"type": "number"}}),
                "number[]",
            ),
            (
                json!({"type": "array", "items": {"enum": ["a", "b"]}}),
                r#"("a" | "b")[]"#,
            ),
            (json!({"type": "array"}), "any[]"),
            (
                json!({"type": "array", "prefixItems": [{"type": "string"}, true]}),
                "[string, any]",
            ),
            (json!({"type": "object"}), "Record<string, any>"),
            (
                json!({"type": "object", "additionalProperties": false}),
                "{}",
            ),
            (
                json!({"type": "object", "additionalProperties": {"type": "number"}}),
                "Record<string, number>",
            ),
            (
                json!({"properties": {"a b": {"type": "string"}}, "required": ["a b"]}),
                r#"{ "a b": string }"#,
            ),
            (
                json!({"properties": {"a": {}}, "additionalProperties": true}),
                "{ a?: any; [key: string]: any }",
            ),
            (
                json!({"anyOf": [{"type": "string"}, {"type": "number"}]}),
                "string | number",
            ),
            (json!({"anyOf": [{"type": "string"}, {}]}), "any"),
            (
                json!({"allOf": [{"properties": {"a": {"type": "string"}}}, {"$ref": "#/$defs/b"}],
                    "$defs": {"b": {"properties": {"b": {"type": "number"}}}}}),
                "{ a?: string } & { b?: number }",
            ),
            (
                json!({"properties": {"next": {"$ref": "#"}, "value": {"type": "number"}}}),
                "{ next?: { next?: any; value?: number }; value?: number }",
            ),
            (json!({"$ref": "https://example.com/x"}), "any"),
            (json!({"$ref": "#/nowhere"}), "any"),
            (json!(false), "never"),
            (json!([]), "any"),
            (json!({"type": "what"}), "any"),
        ] {
            let found = Types::new(&schema, 1000).of(&schema);
            assert_eq!(found, expected, "{schema}");
        }
    }
}
