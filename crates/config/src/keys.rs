//! The keys of entries and registrations, as `schemas.json` lists them.
//!
//! That file describes each key once, with its type, bounds and meaning. The API document and the Kubernetes resource
//! contain these schemas. The values are read by hand-written code, because a derived parser does not report all errors
//! at once.

use std::ops::RangeInclusive;
use std::sync::LazyLock;

use model::{EraPolicy, Packages, Provider, RestartPolicy, Sharing};
use serde_json::{Map, Value};

static SCHEMAS: LazyLock<Value> = LazyLock::new(|| {
    let mut schemas = serde_json::from_str(include_str!("schemas.json")).expect("it is JSON");
    complete(&mut schemas);
    schemas
});
/// The keys under `toolwharf` that registrations also have.
const REGISTERED_OPTIONS: [&str; 3] = ["callTimeoutMs", "startTimeoutMs", "maxConcurrency"];
/// The keys of an entry, in the format that all clients share.
pub(crate) static ENTRY_KEYS: LazyLock<Vec<&str>> = LazyLock::new(|| {
    let of_all = keys_at("/EntryKeys/properties");
    let of_launched = keys_at("/LaunchedServer/allOf/2/properties");
    let of_remote = keys_at("/RemoteServer/allOf/1/properties");
    let all = of_all.chain(of_launched).chain(of_remote);
    all.filter(|key| *key != "description").collect()
});
/// The keys for launched servers only, at the top level or under `toolwharf`.
pub(crate) static SANDBOX_KEYS: LazyLock<Vec<&str>> =
    LazyLock::new(|| keys_at("/SandboxKeys/properties").collect());
/// The keys under `toolwharf`, in addition to [`SANDBOX_KEYS`].
pub(crate) static TOOLWHARF_KEYS: LazyLock<Vec<&str>> =
    LazyLock::new(|| keys_at("/ToolwharfKeys/properties").collect());

/// The switches of all clients, with the value that enables a server.
pub(crate) const SWITCHES: &[(&str, bool)] = &[
    ("enabled", true),
    ("disabled", false),
    ("isActive", true),
    ("is_active", true),
    ("active", true),
    ("isEnabled", true),
    ("is_enabled", true),
    ("isDisabled", false),
    ("is_disabled", false),
];

/// Keys of other clients, and the key that means the same here.
pub(crate) const RENAMED: &[(&str, &str)] = &[
    ("environment", "env"),
    ("environmentVariables", "env"),
    ("environment_variables", "env"),
    ("envVars", "env"),
    ("env_vars", "env"),
    ("envs", "env"),
    ("workingDirectory", "cwd"),
    ("working_directory", "cwd"),
    ("workingDir", "cwd"),
    ("working_dir", "cwd"),
    ("workdir", "cwd"),
    ("httpHeaders", "headers"),
    ("http_headers", "headers"),
    ("requestInit", "headers"),
    ("requestOptions", "headers"),
    ("env_http_headers", "headers"),
    ("bearer_token_env_var", "headers"),
    ("enabled_tools", "enabledTools"),
    ("includeTools", "enabledTools"),
    ("include_tools", "enabledTools"),
    ("availableTools", "enabledTools"),
    ("available_tools", "enabledTools"),
    ("allowedTools", "enabledTools"),
    ("allowed_tools", "enabledTools"),
    ("tools", "enabledTools"),
    ("disabled_tools", "disabledTools"),
    ("exclude_tools", "disabledTools"),
    ("excludedTools", "disabledTools"),
    ("tool_timeout_sec", "timeout"),
    ("startup_timeout_sec", "toolwharf.startTimeoutMs"),
    ("startup_timeout_ms", "toolwharf.startTimeoutMs"),
];

/// Adds what is listed elsewhere: the words of policies, and the options of registrations, in snake case.
fn complete(schemas: &mut Value) {
    for (pointer, words) in [
        ("/Provider", Provider::WORDS),
        ("/Restart", RestartPolicy::WORDS),
        ("/SandboxKeys/properties/packages", Packages::WORDS),
        ("/ToolwharfKeys/properties/era", EraPolicy::WORDS),
        ("/ToolwharfKeys/properties/sharing", Sharing::WORDS),
    ] {
        let schema = properties(schemas, pointer);
        let null = (!schema.contains_key("type")).then_some(Value::Null);
        let words = words.iter().map(|word| Value::from(*word));
        schema.insert("enum".to_owned(), words.chain(null).collect());
    }
    for key in REGISTERED_OPTIONS {
        let mut schema = properties(schemas, "/ToolwharfKeys/properties")[key].clone();
        if let Some(kind) = schema.get_mut("type") {
            *kind = [kind.take(), "null".into()].into_iter().collect();
        }
        properties(schemas, "/Registration/properties").insert(snake(key), schema);
    }
}

fn properties<'s>(schemas: &'s mut Value, pointer: &str) -> &'s mut Map<String, Value> {
    let object = schemas.pointer_mut(pointer).and_then(Value::as_object_mut);
    object.unwrap_or_else(|| panic!("schemas.json has no {pointer}"))
}

/// The bounds of the number at this JSON pointer into `schemas.json`.
///
/// # Panics
/// If it has none.
pub(crate) fn bounds(pointer: &str) -> RangeInclusive<u64> {
    let bound = |name: &str| {
        let schema = SCHEMAS.pointer(pointer);
        let bound = schema.and_then(|schema| schema[name].as_u64());
        bound.unwrap_or_else(|| panic!("{pointer} has no {name} in schemas.json"))
    };
    bound("minimum")..=bound("maximum")
}

/// The schemas of entries, registrations and product manifests, by name.
pub fn schemas() -> impl Iterator<Item = (&'static String, &'static Value)> {
    SCHEMAS.as_object().into_iter().flatten()
}

/// The keys of the `properties` at this JSON pointer into `schemas.json`.
///
/// # Panics
/// If there are none.
pub fn keys_at(pointer: &str) -> impl Iterator<Item = &'static str> {
    let properties = SCHEMAS.pointer(pointer).and_then(Value::as_object);
    let properties = properties.unwrap_or_else(|| panic!("schemas.json has no {pointer}"));
    properties.keys().map(String::as_str)
}

/// Converts a key to snake case.
pub fn snake(key: &str) -> String {
    let mut snake = String::with_capacity(key.len());
    for c in key.chars() {
        if c.is_ascii_uppercase() {
            snake.push('_');
        }
        snake.push(c.to_ascii_lowercase());
    }
    snake
}
