//! Servers that record their input, agents that use them, and helpers to read both.

use std::path::Path;

use serde_json::{Value, json};
use testkit::Bin;

use crate::common::chat::of;

/// A scripted server whose input is also written to `file`.
pub(super) fn recorded(name: &str, file: &Path) -> Value {
    recorded_with(name, file, "")
}

/// Like [`recorded`], with command-line options.
pub(super) fn recorded_with(name: &str, file: &Path, options: &str) -> Value {
    let script = format!("tee \"$0\" | exec \"$1\" --name \"$2\" {options}");
    json!({
        "command": "sh",
        "args": ["-c", script, file, Bin::path("testkit-scripted"), name],
    })
}

/// Returns the names of the tools that a recorded server was asked to call.
pub(super) fn calls(file: &Path) -> Vec<String> {
    let calls = frames(file).into_iter();
    let calls = calls.filter(|frame| frame["method"] == "tools/call");
    calls
        .map(|frame| frame["params"]["name"].as_str().unwrap().to_owned())
        .collect()
}

/// Returns the tool and the server of each tool call in these events.
pub(super) fn routed(events: &[Value]) -> Vec<[&str; 2]> {
    let calls = of(events, "tool_call").into_iter();
    calls
        .map(|call| {
            let server = call["server"].as_str().unwrap_or("nobody");
            [call["name"].as_str().unwrap(), server]
        })
        .collect()
}

/// Returns the kind and text of the error that ended a turn.
pub(super) fn error(events: &[Value]) -> (&str, &str) {
    let last = events.last().unwrap();
    assert_eq!(last["type"], "error", "{events:?}");
    let text = |key: &str| last[key].as_str().unwrap();
    (text("kind"), text("message"))
}

pub(super) fn frames(file: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(file).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

pub(super) const NATIVE: &str = "native = [\"display_recipe\"]\n";

pub(super) fn recipe() -> Value {
    json!({ "title": "Soup", "ingredients": ["leeks"], "steps": ["Cook."] })
}

/// Returns the started servers and their process ids.
pub(super) fn started(notes: &Path) -> Vec<(String, u32)> {
    let text = std::fs::read_to_string(notes).unwrap_or_default();
    text.lines()
        .map(|line| {
            let (name, pid) = line.split_once(' ').unwrap();
            (name.to_owned(), pid.parse().unwrap())
        })
        .collect()
}
