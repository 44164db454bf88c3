//! Finds fields that have no effect in their kind of entry.
//!
//! An entry has either a `url` or a `command` (or `image`). In a file, which other programs may read too, fields of the
//! other kind cause a warning. In an entry that is written through Toolwharf ([`misplaced`]), they are an error,
//! because its author expects an effect.

use api::Wrong;
use jsonc_parser::ast::Object;
use model::{Origin, Program};
use serde_json::Value;

use super::super::keys::SANDBOX_KEYS;
use super::super::problem::Problem;
use super::super::shape::span;
use super::{Entry, transport, values::given};

const URL_KEYS: [&str; 3] = ["url", "serverUrl", "httpUrl"];
/// Keys for launched servers only, in addition to the ones that describe the sandbox.
const LAUNCHED_KEYS: [&str; 4] = ["command", "args", "env", "cwd"];
/// Keys for remote servers only.
const REMOTE_KEYS: [&str; 4] = ["url", "serverUrl", "httpUrl", "headers"];
const BESIDE_URL: &str = "has no effect in an entry with a `url`, because Toolwharf does not launch that server: remove this key, or the `url`";
const BESIDE_COMMAND: &str = "has no effect in an entry with a `command` or an `image`, because Toolwharf launches that server: remove this key, or the `command` or `image`";
const BESIDE_IMAGE: &str = "has no effect in an entry with an `image`: remove this key";

/// The fields without an effect, with their places.
#[must_use]
pub fn misplaced(entry: &Value) -> Vec<Wrong> {
    let is_empty = |value: &Value| match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(members) => members.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    };
    let has = |at: &Value, key: &str| at.get(key).is_some_and(|value| !is_empty(value));
    let ours = &entry["toolwharf"];
    let word = entry.get("type").or_else(|| entry.get("transport"));
    let word = word.and_then(Value::as_str).unwrap_or_default();
    let is_stdio = transport(word) == Some("stdio");
    let is_remote = !is_stdio && URL_KEYS.iter().any(|key| has(entry, key));
    let is_image = has(entry, "image") || has(ours, "image");
    let mut wrong = Vec::new();
    let mut check = |at: &Value, place: &str, keys: &[&str], why: &str| {
        for key in keys.iter().filter(|key| has(at, key)) {
            wrong.push(Wrong::new(format!("{place}/{key}"), why));
        }
    };
    if is_remote {
        check(entry, "", &LAUNCHED_KEYS, BESIDE_URL);
        check(entry, "", &SANDBOX_KEYS, BESIDE_URL);
        check(ours, "/toolwharf", &SANDBOX_KEYS, BESIDE_URL);
    } else {
        check(entry, "", &REMOTE_KEYS, BESIDE_COMMAND);
        if is_image {
            check(entry, "", &["cwd"], BESIDE_IMAGE);
        }
    }
    wrong
}

impl Entry<'_> {
    /// Warns of the fields that have no effect in an entry of this origin.
    pub(super) fn warn_of_misplaced(&mut self, entry: &Object<'_>, origin: &Origin) {
        let (keys, beside): (&[&str], _) = match origin {
            Origin::Remote(_) => (&LAUNCHED_KEYS, "a `url`"),
            Origin::Launch(launch) => match launch.program {
                Program::Command { .. } => (&REMOTE_KEYS, "a `command`"),
                Program::Image { .. } => (&["cwd"], "an `image`"),
            },
        };
        let found = keys.iter().filter_map(|key| given(entry, key));
        for prop in found {
            let what = format!(
                "`{}` of server `{}` has no effect in an entry with {beside}",
                prop.name.as_str(),
                self.server
            );
            let warning = Problem::at(self.source, span(&prop.name), what);
            self.warnings.push(warning.help("remove it"));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_of_the_other_kind() {
        for (entry, expect) in [
            (json!({ "url": "https://h" }), vec![]),
            // An unknown type is a different error.
            (json!({ "type": "pigeon", "command": "c" }), vec![]),
            (
                json!({ "url": "https://h", "args": [], "env": {}, "command": null }),
                vec![],
            ),
            (
                json!({ "command": "c", "args": ["a"], "env": { "A": "1" }, "cwd": "/" }),
                vec![],
            ),
            (
                json!({ "image": "i", "command": "c", "toolwharf": { "ports": [1] } }),
                vec![],
            ),
            (
                json!({ "type": "http", "url": "https://h", "command": "c", "args": ["a"], "env": { "A": "1" }, "cwd": "/" }),
                vec!["/command", "/args", "/env", "/cwd"],
            ),
            (
                json!({ "url": "https://h", "restart": "no", "toolwharf": { "network": "open", "sandbox": false } }),
                vec!["/restart", "/toolwharf/sandbox", "/toolwharf/network"],
            ),
            (
                json!({ "type": "stdio", "command": "c", "url": "https://h", "headers": { "A": "1" } }),
                vec!["/url", "/headers"],
            ),
            (json!({ "image": "i", "cwd": "/" }), vec!["/cwd"]),
        ] {
            let found = misplaced(&entry);
            let places: Vec<&str> = found.iter().map(|wrong| wrong.pointer.as_str()).collect();
            assert_eq!(places, expect, "{entry}");
        }
    }
}
