//! What would change in a client's file, as a difference that can be shown.
//!
//! Invariant: texts under keys that hold secrets (`env`, `headers` and the like, or a key that is called so) are not in it.

use serde_json::Value;
use similar::TextDiff;

/// Lines around each change.
const CONTEXT: usize = 2;
/// Shorter texts are no secrets, and would garble everything else.
const MIN_SECRET: usize = 4;
const HOLDERS: &[&str] = &[
    "env",
    "envs",
    "environment",
    "headers",
    "http_headers",
    "requestOptions",
];
const WORDS: &[&str] = &["auth", "credential", "key", "password", "secret", "token"];
const MASK: &str = "•••";

/// The difference of two texts with these values; empty if there is none.
pub(super) fn unified(file: &str, old: &str, new: &str, values: &[Value]) -> String {
    let mut secrets = Vec::new();
    values
        .iter()
        .for_each(|value| collect(value, false, &mut secrets));
    secrets.retain(|secret| secret.chars().count() >= MIN_SECRET);
    // Longer ones first: one may be a part of another.
    secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
    let masked = |text: &str| {
        secrets.iter().fold(text.to_owned(), |text, secret| {
            let quoted = Value::from(secret.as_str()).to_string();
            let inner = quoted.trim_matches('"');
            text.replace(inner, MASK).replace(secret, MASK)
        })
    };
    let (old, new) = (masked(old), masked(new));
    let diff = TextDiff::from_lines(&old, &new);
    diff.unified_diff()
        .context_radius(CONTEXT)
        .header(file, file)
        .missing_newline_hint(false)
        .to_string()
}

fn collect(value: &Value, is_secret: bool, into: &mut Vec<String>) {
    match value {
        Value::String(text) if is_secret => into.push(text.clone()),
        Value::Array(items) => items.iter().for_each(|item| collect(item, is_secret, into)),
        Value::Object(map) => {
            for (key, value) in map {
                let lower = key.to_lowercase();
                let names_one = HOLDERS.contains(&key.as_str())
                    || WORDS.iter().any(|word| lower.contains(word));
                collect(value, is_secret || names_one, into);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn secrets_are_not_shown() {
        let old = "a\n\"API_KEY\": \"sk-\\\"1234\"\n\"x\": \"1\"\nb\n";
        let new = "a\n\"x\": \"1\"\nb\nc: sk-\"1234-long\n";
        let value = json!({"env": {"A": "sk-\"1234", "B": "1"}, "apiKey": "sk-\"1234-long", "command": "b"});
        let diff = unified("f", old, new, &[value]);
        assert_eq!(
            diff,
            "--- f\n+++ f\n@@ -1,4 +1,4 @@\n a\n-\"API_KEY\": \"•••\"\n \"x\": \"1\"\n b\n+c: •••\n"
        );
    }
}
