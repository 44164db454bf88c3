//! Schemas and examples that cannot be derived from types.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use utoipa::ToSchema;

/// The schemas of bodies without a type: entries, registrations and manifests.
pub fn bodies() -> Schemas {
    let schemas = config::schemas();
    let schemas = schemas.map(|(name, schema)| (name.clone(), schema.clone()));
    schemas.collect()
}

/// An example of each request and response body, by schema name. Text bodies have separate names.
pub(super) fn examples() -> Map<String, Value> {
    let examples: Map<String, Value> =
        serde_json::from_str(include_str!("examples.json")).expect("examples.json is an object");
    let examples = examples.into_iter();
    examples
        .map(|(name, value)| (name, json!({ "value": value })))
        .collect()
}

/// Referenced schemas by name.
pub(super) type Schemas = BTreeMap<String, Value>;

/// Adds the schema of `T` and of its parts. Returns a reference to it.
pub(super) fn reference<T: ToSchema>(schemas: &mut Schemas) -> Value {
    let mut all = vec![(T::name().into_owned(), T::schema())];
    T::schemas(&mut all);
    for (name, schema) in all {
        let schema = serde_json::to_value(schema).unwrap_or_default();
        schemas.entry(name).or_insert(schema);
    }
    to_schema(&T::name())
}

pub(crate) fn to_schema(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}
