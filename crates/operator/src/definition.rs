//! The definition of the resource `MCPServer`.
//!
//! Its schema is derived from the schema of a registration, with the names used in `mcp.json`. Invariant: it is
//! structural, as `apiextensions.k8s.io/v1` requires. Fields that may have several types are not validated by the
//! schema: the parser of entries reports their errors in a condition.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

pub(crate) const GROUP: &str = "toolwharf.dev";
pub(crate) const VERSION: &str = "v1alpha1";
pub(crate) const KIND: &str = "MCPServer";
pub(crate) const PLURAL: &str = "mcpservers";
/// Fields of a spec that an entry does not have.
pub(crate) const SECRET_ENV: &str = "secretEnv";
pub(crate) const RECLAIM: &str = "reclaimPolicy";
pub(crate) const RETAIN: &str = "Retain";

/// Fields of a registration that a spec does not have: those in the metadata, and aliases.
const LEFT_OUT: [&str; 6] = ["name", "env", "port", "restart", "sandbox", "toolwharf"];
/// Fields of a registration, each with its name in entries.
const WORDS: [(&str, &str); 3] = [
    ("environment", "env"),
    ("resource_limits", "sandbox"),
    ("restart_policy", "restart"),
];
/// Fields that have several types in a registration, each with the only type that a spec allows.
const NARROWED: [(&str, &str); 1] = [("command", "string")];

pub(crate) fn api_version() -> String {
    format!("{GROUP}/{VERSION}")
}

/// The definition, for `kubectl apply`.
pub fn definition() -> Value {
    let column = |name: &str, kind: &str, path: &str, priority: u32| json!({"name": name, "type": kind, "jsonPath": path, "priority": priority});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{PLURAL}.{GROUP}")},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {"kind": KIND, "listKind": format!("{KIND}List"), "plural": PLURAL, "singular": "mcpserver", "shortNames": ["mcp"]},
            "versions": [{
                "name": VERSION,
                "served": true,
                "storage": true,
                "subresources": {"status": {}},
                "additionalPrinterColumns": [
                    column("Ready", "string", ".status.conditions[?(@.type==\"Ready\")].status", 0),
                    column("State", "string", ".status.state", 0),
                    column("Tools", "integer", ".status.tools", 0),
                    column("Age", "date", ".metadata.creationTimestamp", 0),
                    column("Message", "string", ".status.conditions[?(@.type==\"Ready\")].message", 1),
                ],
                "schema": {"openAPIV3Schema": {
                    "description": "A server that Toolwharf hosts.",
                    "type": "object",
                    "required": ["spec"],
                    "properties": {
                        "apiVersion": {"type": "string"},
                        "kind": {"type": "string"},
                        "metadata": {"type": "object"},
                        "spec": spec(),
                        "status": status(),
                    },
                }},
            }],
        },
    })
}

fn spec() -> Value {
    let all: Map<String, Value> = rest::body_schemas().into_iter().collect();
    let mut properties = Map::new();
    let registration = all["Registration"]["properties"].as_object();
    for (word, schema) in registration.into_iter().flatten() {
        if LEFT_OUT.contains(&word.as_str()) {
            continue;
        }
        let word = word_of_entries(word);
        let narrowed = NARROWED.iter().find(|(known, _)| *known == word);
        let schema = structural(schema, &all, narrowed.map(|(_, kind)| *kind));
        properties.insert(word, schema);
    }
    properties.insert(
        SECRET_ENV.to_owned(),
        json!({
            "description": "Environment variables whose values come from Secrets in the same namespace.",
            "type": "object",
            "maxProperties": 256,
            "additionalProperties": {
                "type": "object",
                "required": ["secretKeyRef"],
                "properties": {"secretKeyRef": {
                    "type": "object",
                    "required": ["name", "key"],
                    "properties": {
                        "name": {"description": "The Secret.", "type": "string", "minLength": 1},
                        "key": {"description": "The key in the Secret's data.", "type": "string", "minLength": 1},
                    },
                }},
            },
        }),
    );
    properties.insert(
        RECLAIM.to_owned(),
        json!({
            "description": "Deletes or retains the server's volumes when the resource is deleted.",
            "type": "string",
            "enum": ["Delete", RETAIN],
            "default": "Delete",
        }),
    );
    json!({
        "description": "The server, described like an entry of `mcp.json`.",
        "type": "object",
        "properties": properties,
        "anyOf": [{"required": ["image"]}, {"required": ["command"]}],
    })
}

fn status() -> Value {
    let text = |about: &str| json!({"description": about, "type": "string"});
    json!({
        "description": "The state of the server. Written by Toolwharf.",
        "type": "object",
        "properties": {
            "observedGeneration": {"description": "The generation of the spec that this status describes.", "type": "integer", "format": "int64"},
            "id": text("The server's id in Toolwharf."),
            "state": text("The server's state, as `toolwharf ls` shows it."),
            "tools": {"description": "The number of tools that the server offers.", "type": "integer", "format": "int32"},
            "lastEvent": text("The last event of the server that was reported to Kubernetes."),
            "conditions": {
                "type": "array",
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["type"],
                "items": {
                    "type": "object",
                    "required": ["type", "status", "lastTransitionTime", "reason", "message"],
                    "properties": {
                        "type": text("`Accepted`: the spec is in force. `Ready`: the server answers calls."),
                        "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
                        "observedGeneration": {"type": "integer", "format": "int64"},
                        "lastTransitionTime": {"type": "string", "format": "date-time"},
                        "reason": {"type": "string"},
                        "message": {"type": "string"},
                    },
                },
            },
        },
    })
}

/// Converts a schema of the REST API to a structural one. `narrowed`: the only type to keep, if the schema has several.
fn structural(schema: &Value, all: &Map<String, Value>, narrowed: Option<&str>) -> Value {
    let mut forms = Vec::new();
    let mut description = None;
    alternatives(schema, all, &mut forms, &mut description);
    forms.retain(|form| narrowed.is_none_or(|kind| types(form).contains(kind)));
    let kinds: BTreeSet<&str> = forms.iter().flat_map(|form| types(form)).collect();
    let mut made = Map::new();
    let scalar = ["integer", "number", "string"];
    match forms.as_slice() {
        [form] if kinds.len() == 1 => made = one(form, all),
        _ if kinds.iter().all(|kind| scalar.contains(kind)) => {
            made.insert("x-kubernetes-int-or-string".to_owned(), true.into());
        }
        _ => {
            made.insert(
                "x-kubernetes-preserve-unknown-fields".to_owned(),
                true.into(),
            );
        }
    }
    if let Some(description) = description {
        made.insert("description".to_owned(), description);
    }
    made.into()
}

/// Collects the alternative forms of a value, and the first description among them.
fn alternatives<'s>(
    schema: &'s Value,
    all: &'s Map<String, Value>,
    forms: &mut Vec<&'s Value>,
    description: &mut Option<Value>,
) {
    if let Some(told) = schema.get("description")
        && description.is_none()
    {
        *description = Some(told.clone());
    }
    let target = schema["$ref"].as_str();
    let name = target.and_then(|target| target.rsplit('/').next());
    if let Some(schema) = name.and_then(|name| all.get(name)) {
        return alternatives(schema, all, forms, description);
    }
    match schema["anyOf"].as_array().or(schema["allOf"].as_array()) {
        Some(parts) => parts
            .iter()
            .for_each(|part| alternatives(part, all, forms, description)),
        None => forms.push(schema),
    }
}

/// The types of a form, without `null`: a spec omits the field instead.
fn types(form: &Value) -> BTreeSet<&str> {
    let words: BTreeSet<&str> = match &form["type"] {
        Value::Array(words) => words.iter().filter_map(Value::as_str).collect(),
        Value::String(word) => BTreeSet::from([word.as_str()]),
        _ => {
            let values = form["enum"].as_array().into_iter().flatten();
            let of = |value: &Value| match value {
                Value::String(_) => "string",
                Value::Bool(_) => "boolean",
                _ => "null",
            };
            values.map(of).collect()
        }
    };
    words.into_iter().filter(|word| *word != "null").collect()
}

/// A form with a single type.
fn one(form: &Value, all: &Map<String, Value>) -> Map<String, Value> {
    let mut made = Map::new();
    for (key, value) in form.as_object().into_iter().flatten() {
        let value = match key.as_str() {
            "type" | "description" | "title" => continue,
            "properties" => {
                let properties = value.as_object().into_iter().flatten();
                let properties = properties.filter(|(word, _)| !word.contains('_'));
                let properties =
                    properties.map(|(word, schema)| (word.clone(), structural(schema, all, None)));
                Value::Object(properties.collect())
            }
            "items" => structural(value, all, None),
            // Omitted, because Kubernetes has its own rules for unknown fields.
            "additionalProperties" if value.is_boolean() => continue,
            "additionalProperties" => structural(value, all, None),
            "enum" => {
                let words = value.as_array().into_iter().flatten();
                words.filter(|word| !word.is_null()).cloned().collect()
            }
            _ => value.clone(),
        };
        made.insert(key.clone(), value);
    }
    let kind = types(form).into_iter().next().unwrap_or("object");
    made.insert("type".to_owned(), kind.into());
    made
}

/// Returns the name that entries use for a field of a registration.
fn word_of_entries(word: &str) -> String {
    if let Some((_, word)) = WORDS.iter().find(|(known, _)| *known == word) {
        return (*word).to_owned();
    }
    let mut parts = word.split('_');
    let mut camel = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (first, rest) = part.split_at(1);
        camel.push_str(&first.to_ascii_uppercase());
        camel.push_str(rest);
    }
    camel
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Collects the violations of the structural schema rules.
    fn faults(schema: &Value, at: &str, faults: &mut Vec<String>) {
        let members = schema.as_object().expect(at);
        let has = |key: &str| members.contains_key(key);
        let is_open =
            has("x-kubernetes-int-or-string") || has("x-kubernetes-preserve-unknown-fields");
        if has("type") == is_open {
            faults.push(format!("{at}: one type, or a mark that it has none"));
        }
        if schema["type"].is_array() {
            faults.push(format!("{at}: several types"));
        }
        for forbidden in ["$ref", "const", "oneOf", "allOf", "title"] {
            if has(forbidden) {
                faults.push(format!("{at}: {forbidden}"));
            }
        }
        for (word, schema) in schema["properties"].as_object().into_iter().flatten() {
            self::faults(schema, &format!("{at}.{word}"), faults);
        }
        for inner in ["items", "additionalProperties"] {
            if has(inner) {
                self::faults(&schema[inner], &format!("{at}.{inner}"), faults);
            }
        }
    }

    #[test]
    fn d08_the_schema_is_structural_and_has_each_word_of_an_entry() {
        let definition = definition();
        let schema = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        let mut wrong = Vec::new();
        faults(schema, "", &mut wrong);
        assert_eq!(wrong, [""; 0]);
        let spec = &schema["properties"]["spec"]["properties"];
        for word in backend::hosting::KEYS.iter() {
            let ours = word_of_entries(word);
            assert!(spec[&ours].is_object(), "`{ours}` is not in the schema");
        }
        assert_eq!(spec["command"]["type"], "string");
        assert_eq!(
            spec["sandbox"]["properties"]["memory"]["x-kubernetes-int-or-string"],
            true
        );
        assert_eq!(
            spec["start"],
            json!({"type": "string", "enum": ["boot", "demand"], "description": spec["start"]["description"]})
        );
    }
}
