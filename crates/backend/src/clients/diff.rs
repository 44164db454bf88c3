//! The change to a client's file, as a diff for display.
//!
//! Invariant: texts under keys that contain secrets (`env`, `headers` and the like, or keys whose name indicates it)
//! are masked.

use std::time::Duration;

use serde_json::Value;
use similar::TextDiff;

use crate::entries::evident;

/// Context lines around each change.
const CONTEXT_LINES: usize = 2;
/// Minimum characters of a secret. Shorter ones would garble the rest of the text.
const MIN_SECRET_CHARS: usize = 4;
/// Limits of the search for secrets, to keep it fast.
const MAX_DIFF_BYTES: usize = 256 << 10;
const MAX_SECRETS: usize = 2_000;
/// Time limit of the search for a shorter diff.
const DIFF_TIMEOUT: Duration = Duration::from_secs(1);
const SECRET_OBJECTS: &[&str] = &[
    "env",
    "envs",
    "environment",
    "headers",
    "http_headers",
    "requestOptions",
];
const SECRET_WORDS: &[&str] = &["auth", "credential", "key", "password", "secret", "token"];
const MASK: &str = "•••";

/// The diff of two texts, with the secrets in `values` masked; empty if the texts are equal.
pub(super) fn unified(file: &str, old: &str, new: &str, values: &[&Value]) -> String {
    let diff = TextDiff::configure()
        .timeout(DIFF_TIMEOUT)
        .diff_lines(old, new)
        .unified_diff()
        .context_radius(CONTEXT_LINES)
        .header(file, file)
        .missing_newline_hint(false)
        .to_string();
    let mut secrets = Vec::new();
    for value in values {
        collect(value, false, &mut secrets);
        // Secrets in arguments and URLs are masked as well.
        for text in evident(value) {
            note(&text, &mut secrets);
        }
    }
    secrets.retain(|secret| secret.chars().count() >= MIN_SECRET_CHARS);
    if diff.len() > MAX_DIFF_BYTES || secrets.len() > MAX_SECRETS {
        return format!("--- {file}\n+++ {file}\n@@ the change is too long to be shown @@\n");
    }
    // Longer secrets come first, because a secret may be a part of another one.
    secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
    secrets
        .iter()
        .fold(diff, |diff, secret| diff.replace(secret, MASK))
}

/// Returns `old` without the parts that `new` also has: its members, and their members, which are a file's entries. An
/// entry that differs is kept whole, because its other parts may tell what is a secret.
pub(super) fn without_equal(old: &Value, new: &Value) -> Value {
    remaining(old, new, 2)
}

fn remaining(old: &Value, new: &Value, levels: usize) -> Value {
    match (old, new) {
        (Value::Object(old), Value::Object(new)) if levels > 0 => {
            let differ = old
                .iter()
                .filter(|(key, value)| new.get(*key) != Some(value));
            let rest = differ.map(|(key, value)| {
                let new = new.get(key).unwrap_or(&Value::Null);
                (key.clone(), remaining(value, new, levels - 1))
            });
            Value::Object(rest.collect())
        }
        _ => old.clone(),
    }
}

/// Adds a secret as it is and as JSON and TOML write it. Each line of a multi-line secret is added, since YAML and TOML
/// may contain the lines separately.
fn note(text: &str, into: &mut Vec<String>) {
    let quoted = Value::from(text).to_string();
    into.push(quoted.trim_matches('"').to_owned());
    into.extend(text.lines().map(|line| line.trim().to_owned()));
}

fn collect(value: &Value, is_secret: bool, into: &mut Vec<String>) {
    match value {
        Value::String(text) if is_secret => note(text, into),
        Value::Array(items) => items.iter().for_each(|item| collect(item, is_secret, into)),
        Value::Object(map) => {
            for (key, value) in map {
                let lower = key.to_lowercase();
                let names_one = SECRET_OBJECTS.contains(&key.as_str())
                    || SECRET_WORDS.iter().any(|word| lower.contains(word));
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
    fn only_entries_that_differ_remain() {
        let old = json!({ "theme": "dark", "servers": {
            "same": { "command": "x" }, "gone": { "command": "y" },
            "other": { "command": "z", "env": { "A": "1", "B": "2" } },
        } });
        let new = json!({ "theme": "dark", "servers": {
            "same": { "command": "x" }, "added": {},
            "other": { "command": "z", "env": { "A": "1", "B": "3" } },
        } });
        let expect = json!({ "servers": {
            "gone": { "command": "y" },
            "other": { "command": "z", "env": { "A": "1", "B": "2" } },
        } });
        assert_eq!(without_equal(&old, &new), expect);
        assert_eq!(without_equal(&old, &old), json!({}));
        assert_eq!(without_equal(&json!("text"), &old), json!("text"));
    }

    #[test]
    fn secrets_in_arguments_are_not_shown() {
        let entry = json!({ "args": ["--api-key=hidden-1", "--token", "hidden-2"], "url": "https://h/?key=hidden-3" });
        let text = format!("{entry:#}");
        let shown = unified("f", "", &text, &[&entry]);
        assert!(
            shown.contains("--api-key=•••") && !shown.contains("hidden"),
            "{shown}"
        );
    }

    #[test]
    fn secrets_are_not_shown() {
        let old = "a\n\"API_KEY\": \"sk-\\\"1234\"\n\"x\": \"1\"\nb\n";
        let new = "a\n\"x\": \"1\"\nb\nc: sk-\"1234-long\n";
        let value = json!({"env": {"A": "sk-\"1234", "B": "1"}, "apiKey": "sk-\"1234-long", "command": "b"});
        let diff = unified("f", old, new, &[&value]);
        assert_eq!(
            diff,
            "--- f\n+++ f\n@@ -1,4 +1,4 @@\n a\n-\"API_KEY\": \"•••\"\n \"x\": \"1\"\n b\n+c: •••\n"
        );
    }

    #[test]
    fn secrets_of_several_lines_are_not_shown_either() {
        let new = "key: |\n  BEGIN one\n  two-two\n";
        let value = json!({"key": "BEGIN one\ntwo-two\n"});
        let diff = unified("f", "", new, &[&value]);
        assert!(diff.contains("+key: |\n+  •••\n+  •••\n"), "{diff}");
        let long = "x".repeat(MAX_DIFF_BYTES);
        assert!(unified("f", "", &long, &[]).contains("too long"));
        assert_eq!(unified("f", new, new, &[]), "");
    }
}
