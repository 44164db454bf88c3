//! The change to a client's file, as a difference that can be shown.
//!
//! Invariant: texts under keys that hold secrets (`env`, `headers` and the like, or a key that is called so) are not in it.

use std::time::Duration;

use serde_json::Value;
use similar::TextDiff;

use crate::entries::evident;

/// Lines around each change.
const CONTEXT: usize = 2;
/// Shorter texts are no secrets, and would garble everything else.
const MIN_SECRET: usize = 4;
/// The most that is looked through for secrets, so that it takes no time to speak of.
const MAX_BYTES: usize = 256 << 10;
const MAX_SECRETS: usize = 2_000;
/// How long a better difference is looked for.
const PATIENCE: Duration = Duration::from_secs(1);
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
pub(super) fn unified(file: &str, old: &str, new: &str, values: &[&Value]) -> String {
    let diff = TextDiff::configure()
        .timeout(PATIENCE)
        .diff_lines(old, new)
        .unified_diff()
        .context_radius(CONTEXT)
        .header(file, file)
        .missing_newline_hint(false)
        .to_string();
    let mut secrets = Vec::new();
    for value in values {
        collect(value, false, &mut secrets);
        // Also those in arguments and URLs.
        for text in evident(value) {
            note(&text, &mut secrets);
        }
    }
    secrets.retain(|secret| secret.chars().count() >= MIN_SECRET);
    if diff.len() > MAX_BYTES || secrets.len() > MAX_SECRETS {
        return format!("--- {file}\n+++ {file}\n@@ the change is too long to be shown @@\n");
    }
    // Longer ones first: one may be a part of another.
    secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
    secrets
        .iter()
        .fold(diff, |diff, secret| diff.replace(secret, MASK))
}

/// Notes secrets, as they are and as JSON and TOML write them; of those with several lines each line, for so YAML and TOML may have them.
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
        let long = "x".repeat(MAX_BYTES);
        assert!(unified("f", "", &long, &[]).contains("too long"));
        assert_eq!(unified("f", new, new, &[]), "");
    }
}
