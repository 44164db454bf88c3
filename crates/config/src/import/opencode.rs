//! OpenCode: `command` is an array, variables are written `{env:NAME}`, and older files have servers directly under
//! `mcp`.

use serde_json::{Map, Value};

use super::{Foreign, each_text};

/// The servers of a file that has them directly under `mcp`.
pub(super) fn directly_under_mcp(root: &Value) -> Vec<Foreign> {
    let servers = root["mcp"].as_object();
    let entries = servers.into_iter().flatten();
    entries
        .filter(|(_, entry)| entry.as_object().is_some_and(is_entry))
        .map(|(name, entry)| Foreign {
            name: name.clone(),
            entry: entry.clone(),
            ..Foreign::default()
        })
        .collect()
}

fn is_entry(entry: &Map<String, Value>) -> bool {
    // Copilot has the type `local` too, with a text as the command.
    let is_remote = entry.get("type").is_some_and(|kind| kind == "remote");
    is_remote || entry.get("command").is_some_and(Value::is_array)
}

/// Converts an OpenCode entry to the format of `mcp.json`.
pub(super) fn settle(
    entry: &mut Map<String, Value>,
    notes: &mut Vec<String>,
    missing: &mut Vec<String>,
) {
    if !is_entry(entry) {
        return;
    }
    entry.remove("type");
    if let Some(Value::Array(words)) = entry.get("command").cloned() {
        let mut words = words.into_iter();
        entry.insert("command".into(), words.next().unwrap_or_default());
        let rest: Vec<Value> = words.collect();
        if !rest.is_empty() {
            entry.insert("args".into(), rest.into());
        }
    }
    if let Some(variables) = entry.remove("environment") {
        entry.insert("env".into(), variables);
    }
    if entry.remove("timeout").is_some() {
        notes.push("`timeout` is not imported: OpenCode uses it for listing tools only".to_owned());
    }
    let mut files = Vec::new();
    each_text(entry, &mut |text| *text = filled(text, &mut files));
    for file in files {
        missing.push(format!(
            "the content of the file {file}: write a variable in its place"
        ));
    }
}

/// Converts `{env:NAME}` to `${NAME}`.
fn filled(text: &str, files: &mut Vec<String>) -> String {
    let mut out = String::with_capacity(text.len());
    let text = text.replace("${", "$${");
    let mut rest = text.as_str();
    while let Some(at) = rest.find('{') {
        let (before, form) = rest.split_at(at);
        out.push_str(before);
        let inside = form[1..].split_once('}');
        match inside {
            Some((inside, tail)) if inside.starts_with("env:") => {
                out.push_str(&format!("${{{}}}", &inside["env:".len()..]));
                rest = tail;
            }
            Some((inside, tail)) if inside.starts_with("file:") => {
                files.push(inside["file:".len()..].to_owned());
                out.push_str(&form[..inside.len() + 2]);
                rest = tail;
            }
            _ => {
                out.push('{');
                rest = &form[1..];
            }
        }
    }
    out.push_str(rest);
    out
}
