//! Codex: TOML with a table `[mcp_servers.NAME]` for each server. Texts are literal; variables have separate keys.

use std::path::Path;
use std::time::Duration;

use serde_json::{Map, Value};

use super::{Foreign, Place, leftovers, working_directory};
use crate::{
    clients,
    edit::EditError,
    source::{Source, Syntax},
};

const SERVERS_TABLE: &str = "mcp_servers";
/// Keys about how Codex makes calls, which do not describe the server.
const IGNORED_KEYS: &[&str] = &[
    "supports_parallel_tool_calls",
    "required",
    "experimental_environment",
];

/// Returns whether a text without a file name is TOML with servers.
pub(super) fn is_likely(text: &str) -> bool {
    text.lines()
        .any(|line| line.trim_start().starts_with(&format!("[{SERVERS_TABLE}.")))
}

pub(super) fn read(from: &Path, text: &str, place: &Place) -> Result<Vec<Foreign>, EditError> {
    let source = Source::new(from, text.to_owned(), Syntax::Toml);
    let root = clients::toml(&source)?;
    let servers = root[SERVERS_TABLE].as_object();
    let mut found = Vec::new();
    for (name, server) in servers.into_iter().flatten() {
        let Value::Object(server) = server.clone() else {
            continue;
        };
        let mut one = Foreign {
            name: name.clone(),
            ..Foreign::default()
        };
        let mut entry = entry(server);
        working_directory(&mut entry, place, &mut one.notes, &mut one.missing);
        leftovers(&entry, &mut one.notes);
        one.entry = entry.into();
        found.push(one);
    }
    Ok(found)
}

/// The entry in the format of `mcp.json`.
fn entry(server: Map<String, Value>) -> Map<String, Value> {
    let mut out = Map::new();
    let mut env = Map::new();
    let mut headers = Map::new();
    let mut ours = Map::new();
    for (key, value) in server {
        match (key.as_str(), value) {
            ("env", Value::Object(texts)) => env.extend(plain_all(texts)),
            ("env_vars", Value::Array(names)) => {
                for name in names
                    .iter()
                    .filter_map(|name| name.as_str().or(name["name"].as_str()))
                {
                    env.insert(name.to_owned(), variable(name).into());
                }
            }
            ("http_headers", Value::Object(texts)) => headers.extend(plain_all(texts)),
            ("env_http_headers", Value::Object(names)) => {
                for (header, name) in &names {
                    headers.insert(
                        header.clone(),
                        variable(name.as_str().unwrap_or_default()).into(),
                    );
                }
            }
            ("bearer_token_env_var", Value::String(name)) => {
                let value = format!("Bearer {}", variable(&name));
                headers.insert("Authorization".to_owned(), value.into());
            }
            ("enabled", Value::Bool(enabled)) => {
                if !enabled {
                    out.insert("disabled".into(), true.into());
                }
            }
            ("disabled_tools", tools) => {
                out.insert("disabledTools".into(), tools);
            }
            ("enabled_tools", tools) => {
                out.insert("enabledTools".into(), tools);
            }
            ("tool_timeout_sec", time) => {
                ours.insert("callTimeoutMs".into(), milliseconds(&time));
            }
            ("startup_timeout_sec", time) => {
                ours.insert("startTimeoutMs".into(), milliseconds(&time));
            }
            ("startup_timeout_ms", time) => {
                ours.insert("startTimeoutMs".into(), time);
            }
            (key, _) if IGNORED_KEYS.contains(&key) => {}
            (_, mut value) => {
                super::texts_of(&mut value, &mut |text| *text = plain(text));
                out.insert(key, value);
            }
        }
    }
    for (key, map) in [("env", env), ("headers", headers), ("toolwharf", ours)] {
        if !map.is_empty() {
            out.insert(key.into(), map.into());
        }
    }
    out
}

fn milliseconds(seconds: &Value) -> Value {
    let time = seconds
        .as_f64()
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    match time.and_then(|time| u64::try_from(time.as_millis()).ok()) {
        Some(milliseconds) => milliseconds.into(),
        None => seconds.clone(),
    }
}

fn variable(name: &str) -> String {
    format!("${{{name}}}")
}

fn plain(text: &str) -> String {
    text.replace("${", "$${")
}

fn plain_all(texts: Map<String, Value>) -> impl Iterator<Item = (String, Value)> {
    texts.into_iter().map(|(name, mut value)| {
        super::texts_of(&mut value, &mut |text| *text = plain(text));
        (name, value)
    })
}
