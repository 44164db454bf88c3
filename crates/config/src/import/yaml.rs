//! YAML: Continue keeps a list of named servers, Goose a mapping of extensions, some of which are servers.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::Foreign;
use crate::{clients, edit::EditError};

/// Keys of Goose that do not describe the server.
const IGNORED_KEYS: &[&str] = &["bundled", "timeout", "enabled"];

pub(super) fn read(from: &Path, text: &str) -> Result<Vec<Foreign>, EditError> {
    let root = clients::yaml(from, text)?;
    let list = root["mcpServers"].as_array();
    let mut found: Vec<Foreign> = list.into_iter().flatten().filter_map(of_continue).collect();
    let extensions = root["extensions"].as_object();
    let extensions = extensions.into_iter().flatten();
    found.extend(extensions.map(|(name, entry)| of_goose(name, entry)));
    Ok(found)
}

fn of_continue(item: &Value) -> Option<Foreign> {
    let mut entry = item.as_object()?.clone();
    let name = entry.shift_remove("name")?.as_str()?.to_owned();
    if let Some(headers) = item.pointer("/requestOptions/headers") {
        entry.insert("headers".to_owned(), headers.clone());
        entry.shift_remove("requestOptions");
    }
    Some(Foreign {
        name,
        entry: entry.into(),
        ..Foreign::default()
    })
}

fn of_goose(name: &str, entry: &Value) -> Foreign {
    let kind = entry["type"].as_str().unwrap_or_default();
    // Goose keeps the values of these variables in the keyring.
    let mut keys = Map::new();
    let mut out = Map::new();
    for (key, value) in entry.as_object().into_iter().flatten() {
        let key = match key.as_str() {
            "cmd" => "command",
            "uri" => "url",
            "envs" => "env",
            "type" => continue,
            "env_keys" => {
                let names = value.as_array().into_iter().flatten();
                for name in names.filter_map(Value::as_str) {
                    keys.insert(name.to_owned(), format!("${{{name}}}").into());
                }
                continue;
            }
            // For Goose, an empty list means all tools.
            "available_tools" if value.as_array().is_some_and(Vec::is_empty) => continue,
            key if IGNORED_KEYS.contains(&key) => continue,
            key => key,
        };
        out.insert(key.to_owned(), value.clone());
    }
    if !keys.is_empty() {
        let env = out.entry("env").or_insert_with(|| json!({}));
        if let Some(env) = env.as_object_mut() {
            for (name, reference) in keys {
                env.entry(name).or_insert(reference);
            }
        }
    }
    if entry["enabled"] == false {
        out.insert("disabled".to_owned(), true.into());
    }
    Foreign {
        name: name.to_owned(),
        entry: out.into(),
        skip: (!matches!(kind, "stdio" | "sse" | "streamable_http"))
            .then(|| "the extension is part of Goose itself".to_owned()),
        ..Foreign::default()
    }
}
