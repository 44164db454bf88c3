//! Schemas that cannot be derived from the types.

use model::{NamingPolicy, ToolMode};
use serde_json::{Value, json};
use utoipa::openapi::{RefOr, schema::Schema};

/// The possible states of a run.
pub const RUN_STATUSES: [&str; 5] = ["running", "done", "failed", "cancelled", "interrupted"];

/// Parses a schema written as JSON.
fn written(schema: Value) -> RefOr<Schema> {
    serde_json::from_value(schema).expect("the JSON in this file is a schema")
}

/// Any JSON value.
#[must_use]
pub fn any() -> RefOr<Schema> {
    let types = ["object", "array", "string", "number", "boolean", "null"];
    written(json!({ "type": types }))
}

pub(crate) fn project_id() -> RefOr<Schema> {
    written(project_id_value())
}

/// The schema of a project id.
#[must_use]
pub fn project_id_value() -> Value {
    json!({"type": "string", "pattern": "^[A-Za-z0-9_-]{1,64}$"})
}

/// The schema of a display name.
#[must_use]
pub fn name() -> RefOr<Schema> {
    written(json!({"type": "string", "minLength": 1, "maxLength": 200}))
}

pub(crate) fn optional_name() -> RefOr<Schema> {
    written(json!({"type": ["string", "null"], "minLength": 1, "maxLength": 200}))
}

pub(crate) fn naming() -> RefOr<Schema> {
    let mut words: Vec<Value> = NamingPolicy::WORDS.iter().map(|word| json!(word)).collect();
    words.push(Value::Null);
    written(json!({"type": ["string", "null"], "enum": words}))
}

/// The schema of an optional mode of tool lists.
#[must_use]
pub fn tool_mode() -> RefOr<Schema> {
    let mut words: Vec<Value> = ToolMode::WORDS.iter().map(|word| json!(word)).collect();
    words.push(Value::Null);
    written(json!({"type": ["string", "null"], "enum": words}))
}

pub(crate) fn call_status() -> RefOr<Schema> {
    written(call_status_value())
}

/// The schema of a call's status.
#[must_use]
pub fn call_status_value() -> Value {
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

pub(crate) fn run_status() -> RefOr<Schema> {
    written(json!({"type": "string", "enum": RUN_STATUSES}))
}

pub(crate) fn client_state() -> RefOr<Schema> {
    let words = [
        "connected",
        "not_connected",
        "removed",
        "by_hand",
        "unusable",
    ];
    written(json!({"type": "string", "enum": words}))
}

pub(crate) fn restored() -> RefOr<Schema> {
    written(json!({"type": "string", "enum": ["whole", "entry", "nothing"]}))
}

pub(crate) fn start() -> RefOr<Schema> {
    written(json!({"type": ["string", "null"], "enum": ["sequential", "parallel", null]}))
}

pub(crate) fn role() -> RefOr<Schema> {
    written(json!({"type": "string", "enum": ["read", "call", "manage", "admin"]}))
}

/// The schema of a project key's role.
#[must_use]
pub fn project_role() -> RefOr<Schema> {
    written(json!({"type": "string", "enum": ["read", "call", "manage"]}))
}

/// The schema of an object that is returned as the caller sent it.
pub(crate) fn optional_object() -> RefOr<Schema> {
    written(json!({"type": ["object", "null"], "additionalProperties": true}))
}
