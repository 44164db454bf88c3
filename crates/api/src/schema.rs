//! Schemas that types do not say by themselves.

use serde_json::{Value, json};
use utoipa::openapi::{RefOr, schema::Schema};

/// A schema as it is written.
fn written(schema: Value) -> RefOr<Schema> {
    serde_json::from_value(schema).expect("a schema of this file is one")
}

/// Any JSON value.
#[must_use]
pub fn any() -> RefOr<Schema> {
    let types = ["object", "array", "string", "number", "boolean", "null"];
    written(json!({ "type": types }))
}

/// An object that a caller gave, as it was given.
pub(crate) fn optional_object() -> RefOr<Schema> {
    written(json!({"type": ["object", "null"], "additionalProperties": true}))
}
