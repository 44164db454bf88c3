//! Schemas and examples that cannot be derived from types.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use utoipa::ToSchema;

/// The schemas of server entries, registrations and manifests. These bodies have hand-written parsers instead of types,
/// because derived parsers do not report all errors at once.
pub fn bodies() -> BTreeMap<String, Value> {
    serde_json::from_str(include_str!("bodies.json")).expect("bodies.json is an object")
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
        check(&["/Registration/properties"], backend::hosting::KEYS);
    }
}
