//! Parts of schemas that types do not say by themselves.

use std::collections::BTreeMap;

use model::NamingPolicy;
use serde_json::{Map, Value, json};
use utoipa::openapi::{RefOr, schema::Schema};

/// How a run can be.
pub(super) const RUN_STATUSES: [&str; 5] =
    ["running", "done", "failed", "cancelled", "interrupted"];

/// The schemas of bodies that no type describes: entries of servers, registrations and manifests. Their readers report
/// everything that is wrong at once, which derived ones do not.
pub(super) fn bodies() -> BTreeMap<String, Value> {
    serde_json::from_str(include_str!("bodies.json")).expect("bodies.json is an object")
}

/// An example of each body and answer, by the name of its schema or, for texts, of its own.
pub(super) fn examples() -> Map<String, Value> {
    let examples: Map<String, Value> =
        serde_json::from_str(include_str!("examples.json")).expect("examples.json is an object");
    let examples = examples.into_iter();
    examples
        .map(|(name, value)| (name, json!({ "value": value })))
        .collect()
}

/// A schema as it is written.
fn written(schema: Value) -> RefOr<Schema> {
    serde_json::from_value(schema).expect("a schema of this file is one")
}

/// Anything.
pub(super) fn any() -> RefOr<Schema> {
    let types = ["object", "array", "string", "number", "boolean", "null"];
    written(json!({ "type": types }))
}

pub(super) fn project_id() -> RefOr<Schema> {
    written(project_id_value())
}

pub(super) fn project_id_value() -> Value {
    json!({"type": "string", "pattern": "^[A-Za-z0-9_-]{1,64}$"})
}

pub(super) fn name() -> RefOr<Schema> {
    written(json!({"type": "string", "minLength": 1, "maxLength": 200}))
}

pub(super) fn optional_name() -> RefOr<Schema> {
    written(json!({"type": ["string", "null"], "minLength": 1, "maxLength": 200}))
}

pub(super) fn naming() -> RefOr<Schema> {
    let mut words: Vec<Value> = NamingPolicy::WORDS.iter().map(|word| json!(word)).collect();
    words.push(Value::Null);
    written(json!({"type": ["string", "null"], "enum": words}))
}

pub(super) fn call_status() -> RefOr<Schema> {
    written(call_status_value())
}

pub(super) fn call_status_value() -> Value {
    let words = [
        "open",
        "ok",
        "tool_error",
        "error",
        "timeout",
        "cancelled",
        "unknown",
    ];
    json!({"type": "string", "enum": words})
}

pub(super) fn run_status() -> RefOr<Schema> {
    written(json!({"type": "string", "enum": RUN_STATUSES}))
}

pub(super) fn start() -> RefOr<Schema> {
    written(json!({"type": ["string", "null"], "enum": ["sequential", "parallel", null]}))
}

pub(super) fn role() -> RefOr<Schema> {
    written(json!({"type": "string", "enum": ["read", "call", "manage", "admin"]}))
}

pub(super) fn project_role() -> RefOr<Schema> {
    written(json!({"type": "string", "enum": ["read", "call", "manage"]}))
}

/// An object that somebody gave us, as it was given.
pub(super) fn entry_answer() -> RefOr<Schema> {
    written(json!({"type": ["object", "null"], "additionalProperties": true}))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_bodies_have_every_key_that_is_read() {
        let bodies = Value::Object(bodies().into_iter().collect());
        let check = |places: &[&str], keys: &[&str]| {
            for key in keys {
                let has =
                    |place: &&str| bodies.pointer(place).is_some_and(|it| it[key].is_object());
                assert!(
                    places.iter().any(has),
                    "`{key}` is not in {places:?} of bodies.json"
                );
            }
        };
        let entry = [
            "/EntryKeys/properties",
            "/LaunchedServer/allOf/2/properties",
            "/RemoteServer/allOf/1/properties",
        ];
        check(&entry, config::ENTRY_KEYS);
        check(&["/SandboxKeys/properties"], config::SANDBOX_KEYS);
        check(&["/ToolwharfKeys/properties"], config::TOOLWHARF_KEYS);
        check(&["/Registration/properties"], crate::hosting::KEYS);
    }
}
