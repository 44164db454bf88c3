//! A legacy client's capabilities as a bit set, which fits into a session id.
//!
//! A capability has a bit only if the gateway uses it or the specification gives it a meaning for servers. Never change
//! the meaning of a bit, because ids outlive the program that made them.

use bytes::Bytes;
use serde_json::{Map, Value, json};

/// Paths in `ClientCapabilities`. The index is the bit. The value at a path is `true` for `listChanged`, otherwise
/// `{}`.
const CAPABILITIES: [&[&str]; 16] = [
    &["roots"],
    &["roots", "listChanged"],
    &["sampling"],
    &["sampling", "context"],
    &["sampling", "tools"],
    &["elicitation"],
    &["elicitation", "form"],
    &["elicitation", "url"],
    &["tasks"],
    &["tasks", "list"],
    &["tasks", "cancel"],
    &["tasks", "requests", "sampling", "createMessage"],
    &["tasks", "requests", "elicitation", "create"],
    &["extensions", "io.modelcontextprotocol/ui"],
    &["extensions", "io.modelcontextprotocol/tasks"],
    &["experimental"],
];

/// Converts `ClientCapabilities` (JSON text) to bits. Capabilities without a bit are lost.
#[must_use]
pub fn to_bits(capabilities: &[u8]) -> u32 {
    let capabilities = crate::json::without_lone_surrogates(capabilities);
    let declared: Value = serde_json::from_slice(&capabilities).unwrap_or_default();
    let has = |path: &[&str]| {
        let found = path
            .iter()
            .try_fold(&declared, |object, name| object.get(name));
        found.is_some_and(|value| !matches!(value, Value::Null | Value::Bool(false)))
    };
    (0u32..)
        .zip(CAPABILITIES)
        .filter(|(_, path)| has(path))
        .fold(0, |bits, (at, _)| bits | 1 << at)
}

/// Converts bits to `ClientCapabilities` (JSON text). Unknown bits are ignored.
#[must_use]
pub fn of_bits(bits: u32) -> Bytes {
    let mut capabilities = Value::Object(Map::new());
    let set = (0u32..).zip(CAPABILITIES);
    for (_, path) in set.filter(|(at, _)| bits & (1 << at) != 0) {
        let mut object = &mut capabilities;
        for name in path {
            object = &mut object[*name];
        }
        *object = match path.last() {
            Some(&"listChanged") => Value::Bool(true),
            // Views are always HTML.
            Some(&"io.modelcontextprotocol/ui") => {
                json!({"mimeTypes": ["text/html;profile=mcp-app"]})
            }
            _ => Value::Object(Map::new()),
        };
    }
    capabilities.to_string().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_a_bit_is_as_it_was_declared() {
        let ui = json!({"mimeTypes": ["text/html;profile=mcp-app"]});
        let all = json!({
            "roots": {"listChanged": true}, "sampling": {"context": {}, "tools": {}},
            "elicitation": {"form": {}, "url": {}},
            "tasks": {"list": {}, "cancel": {},
                "requests": {"sampling": {"createMessage": {}}, "elicitation": {"create": {}}}},
            "extensions": {"io.modelcontextprotocol/ui": ui, "io.modelcontextprotocol/tasks": {}},
            "experimental": {},
        });
        for declared in [
            json!({}),
            json!({"roots": {}}),
            json!({"elicitation": {"url": {}}, "sampling": {}}),
            all,
        ] {
            let read = of_bits(to_bits(declared.to_string().as_bytes()));
            let read: Value = serde_json::from_slice(&read).expect("JSON");
            assert_eq!(read, declared);
        }
        for (odd, bits) in [
            ("[]", 0),
            ("", 0),
            (r#"{"roots":{"listChanged":false}}"#, 1),
            (r#"{"elicitation":null,"unknown":{}}"#, 0),
        ] {
            assert_eq!(to_bits(odd.as_bytes()), bits, "{odd}");
        }
        assert_eq!(of_bits(1 << 31), "{}");
    }
}
