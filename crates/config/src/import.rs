//! Reads files of other clients, and keeps the meaning that each client gives them.
//!
//! Returns entries in the format of `mcp.json`, with notes on what was not imported. Nothing is dropped without
//! a note. The facts about clients are from their documentation. Unknown shapes are read as in [`super::shape`].

mod codex;
mod forms;
mod opencode;
mod yaml;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::{
    clients::{Machine, Os, is_of_user},
    edit::EditError,
    interpolate::{is_variable, variable_for, workspace_of},
    keys::ENTRY_KEYS,
    shape,
    source::{Source, Syntax},
};

pub use forms::foreign_switches;

/// Files of Gemini CLI, of Qwen Code, which is made from it, and of Copilot CLI: `$VAR` is a variable.
const DOLLAR_FILES: [&str; 3] = [
    ".gemini/settings.json",
    ".qwen/settings.json",
    ".copilot/mcp-config.json",
];

/// Keys that only describe an entry.
const DESCRIPTION_KEYS: &[&str] = &[
    "name",
    "description",
    "displayName",
    "title",
    "icon",
    "gallery",
    "version",
    "registry",
    "source",
    "settings",
];
/// Keys that let the client call tools without asking the user.
const APPROVAL_KEYS: &[&str] = &[
    "trust",
    "alwaysAllow",
    "autoApprove",
    "autoRun",
    "alwaysLoad",
];

/// A server in another client's file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Foreign {
    pub name: String,
    /// In the format of `mcp.json`.
    pub entry: Value,
    /// Parts of the entry that Toolwharf treats differently or ignores.
    pub notes: Vec<String>,
    /// Why the imported server must be disabled.
    pub missing: Vec<String>,
    /// Why it is not imported.
    pub skip: Option<String>,
}

/// The aspects of a file's location that affect the meaning of its content.
struct Place {
    /// The folder for relative paths and `${workspaceFolder}`. `None`: the file is a user's file, or the folder is
    /// unknown.
    workspace: Option<PathBuf>,
    /// `$VAR` is a variable.
    has_dollars: bool,
}

impl Place {
    fn of(from: &Path, env: &dyn Fn(&str) -> Option<String>) -> Self {
        let of_user = is_of_user(from, Machine { os: Os::HERE, env });
        Self {
            workspace: (from.is_absolute() && !of_user).then(|| workspace_of(from)),
            has_dollars: DOLLAR_FILES.iter().any(|file| from.ends_with(file)),
        }
    }
}

/// Reads the file `from` with the content `text`. `env` looks up environment variables, which determine where clients
/// keep the files of a user.
///
/// # Errors
/// If it is neither JSON with comments nor, judging by its name or content, TOML or YAML.
pub fn foreign(
    from: &Path,
    text: &str,
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<Vec<Foreign>, EditError> {
    let place = Place::of(from, env);
    if from
        .extension()
        .is_some_and(|ending| ending == "yaml" || ending == "yml")
    {
        let mut found = yaml::read(from, text)?;
        for one in &mut found {
            settle(one, &place);
        }
        return Ok(found);
    }
    if from.extension().is_some_and(|ending| ending == "toml") || codex::is_likely(text) {
        return codex::read(from, text, &place);
    }
    let source = Source::new(from, text.to_owned(), Syntax::Json);
    let content = shape::content(&source);
    let (root, servers) = content.map_err(|problem| EditError::Unreadable((*problem).into()))?;
    let mut found: Vec<Foreign> = servers
        .into_iter()
        .map(|listed| {
            let mut one = Foreign {
                name: listed.key,
                entry: listed.entry,
                ..Foreign::default()
            };
            if listed.is_off {
                switch_off(&mut one.entry);
                one.notes
                    .push("the file excludes this server, so it is disabled".to_owned());
            }
            one
        })
        .collect();
    found.extend(opencode::directly_under_mcp(&root));
    for one in &mut found {
        settle(one, &place);
    }
    of_projects(&root, &mut found);
    Ok(found)
}

/// Converts an entry so that Toolwharf gives it the same meaning.
fn settle(foreign: &mut Foreign, place: &Place) {
    let Foreign {
        entry,
        notes,
        missing,
        skip,
        ..
    } = foreign;
    if skip.is_some() {
        return;
    }
    let Some(entry) = entry.as_object_mut() else {
        return;
    };
    if is_extension(entry) {
        *skip = Some(
            "the server comes from an editor extension: use `toolwharf add` with the command that the extension runs"
                .into(),
        );
        return;
    }
    opencode::settle(entry, notes, missing);
    forms::rename(entry);
    forms::placeholders(entry, notes);
    inputs(entry, notes);
    let is_off = foreign_switches(entry);
    if is_off && entry.get("enabled") != Some(&Value::Bool(false)) {
        entry.shift_remove("enabled");
        entry.insert("disabled".into(), true.into());
    }
    if place.has_dollars {
        each_text(entry, &mut |text| *text = with_braces(text));
    } else {
        note_plain_variables(entry, notes);
    }
    workspace(entry, place, missing);
    working_directory(entry, place, notes, missing);
    if let Some(file) = entry.get("envFile").and_then(Value::as_str) {
        missing.push(format!(
            "the variables in `envFile` {file}, which is not read: list them in `env`"
        ));
    }
    leftovers(entry, notes);
}

/// Zed also lists servers of extensions, with nothing but their settings.
fn is_extension(entry: &Map<String, Value>) -> bool {
    let runs = ["command", "url", "serverUrl", "httpUrl"];
    let says_so = entry
        .get("source")
        .is_some_and(|source| source == "extension");
    (says_so || entry.contains_key("settings")) && !runs.iter().any(|key| entry.contains_key(*key))
}

/// Adds a note for each key that is not imported.
fn leftovers(entry: &Map<String, Value>, notes: &mut Vec<String>) {
    for (key, value) in entry {
        let key = key.as_str();
        if ENTRY_KEYS.contains(&key) || DESCRIPTION_KEYS.contains(&key) || key == "envFile" {
            continue;
        }
        let is_empty = value.is_null()
            || value == false
            || value.as_array().is_some_and(Vec::is_empty)
            || value.as_object().is_some_and(Map::is_empty);
        if is_empty {
            continue;
        }
        let why = if APPROVAL_KEYS.contains(&key) {
            "clients ask the user before calls, Toolwharf does not"
        } else if matches!(key, "oauth" | "auth" | "authProviderType") {
            "sign-ins are not imported"
        } else {
            "Toolwharf does not use it"
        };
        notes.push(format!(
            "`{}` is not imported: {why}",
            shape::printable(key)
        ));
    }
}

/// Replaces VS Code's `${input:ID}`, which asks the user, with a variable.
fn inputs(entry: &mut Map<String, Value>, notes: &mut Vec<String>) {
    let mut found = BTreeSet::new();
    each_text(entry, &mut |text| {
        let mut out = String::new();
        let mut rest = text.as_str();
        while let Some((before, after)) = rest.split_once("${input:") {
            let Some((id, tail)) = after.split_once('}') else {
                break;
            };
            out.push_str(before);
            let name = variable_for(id);
            out.push_str(&format!("${{{name}}}"));
            found.insert((shape::printable(id), name));
            rest = tail;
        }
        out.push_str(rest);
        *text = out;
    });
    for (id, name) in found {
        notes.push(format!(
            "`${{input:{id}}}`, for which VS Code asks, is now `${{{name}}}`"
        ));
    }
}

/// Replaces `${workspaceFolder}` if its folder is known.
fn workspace(entry: &mut Map<String, Value>, place: &Place, missing: &mut Vec<String>) {
    const FORMS: [&str; 2] = ["${workspaceFolder}", "${workspaceFolderBasename}"];
    let mut found = false;
    each_text(entry, &mut |text| {
        for form in FORMS {
            if !text.contains(form) {
                continue;
            }
            match &place.workspace {
                Some(folder) => {
                    let name = folder.file_name().unwrap_or_default().to_string_lossy();
                    let value = match form {
                        "${workspaceFolder}" => folder.to_string_lossy(),
                        _ => name,
                    };
                    *text = text.replace(form, &value.replace("${", "$${"));
                }
                None => found = true,
            }
        }
    });
    if found {
        let what = "the folder for `${workspaceFolder}`: write its absolute path instead";
        missing.push(what.to_owned());
    }
}

/// Resolves a relative `cwd`, or a command that is relative to the folder in which the client starts it.
fn working_directory(
    entry: &mut Map<String, Value>,
    place: &Place,
    notes: &mut Vec<String>,
    missing: &mut Vec<String>,
) {
    let is_relative = |text: &str| !text.starts_with(['/', '~']) && !text.starts_with("${");
    let cwd = entry.get("cwd").and_then(Value::as_str).map(str::to_owned);
    match (cwd, &place.workspace) {
        (Some(cwd), Some(folder)) if is_relative(&cwd) => {
            let whole = clean(&folder.join(&cwd));
            notes.push(format!("`cwd` {cwd} is resolved to {whole}"));
            entry.insert("cwd".into(), whole.into());
        }
        (Some(cwd), None) if is_relative(&cwd) => missing.push(format!(
            "the folder that `cwd` {cwd} is relative to: write an absolute path"
        )),
        (Some(_), _) => {}
        (None, folder) => {
            let command = entry.get("command").and_then(Value::as_str);
            let Some(command) = command.filter(|it| it.contains('/') && is_relative(it)) else {
                return;
            };
            match folder {
                Some(folder) => {
                    let folder = clean(folder);
                    notes.push(format!("`command` {command} is relative to {folder}"));
                    entry.insert("cwd".into(), folder.into());
                }
                None => missing.push(format!(
                    "the folder that `command` {command} is relative to: write an absolute path"
                )),
            }
        }
    }
}

/// Removes `.` and `..` from a path without looking at the disk.
fn clean(path: &Path) -> String {
    use std::path::Component;
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => {
                out.pop();
            }
            part => out.push(part),
        }
    }
    out.display().to_string()
}

/// Converts Gemini CLI's `$VAR` to `${VAR}`.
fn with_braces(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        let (before, form) = rest.split_at(at);
        out.push_str(before);
        let name: String = form[1..]
            .chars()
            .take_while(|c| c.is_ascii_alphanumeric() || *c == '_')
            .collect();
        if is_variable(&name) {
            out.push_str(&format!("${{{name}}}"));
            rest = &form[1 + name.len()..];
        } else {
            out.push('$');
            rest = &form[1..];
        }
    }
    out.push_str(rest);
    out
}

/// In other clients `$VAR` is plain text, but may be meant as a variable.
fn note_plain_variables(entry: &Map<String, Value>, notes: &mut Vec<String>) {
    for key in ["env", "headers"] {
        let texts = entry.get(key).and_then(Value::as_object);
        for (name, value) in texts.into_iter().flatten() {
            let meant = value.as_str().and_then(|text| text.strip_prefix('$'));
            if let Some(meant) = meant.filter(|meant| is_variable(meant)) {
                notes.push(format!(
                    "`{key}.{}` is the plain text `${meant}`; write `${{{meant}}}` for the variable",
                    shape::printable(name)
                ));
            }
        }
    }
}

/// Calls `change` with each text of an entry that may contain variables.
fn each_text(entry: &mut Map<String, Value>, change: &mut impl FnMut(&mut String)) {
    for key in [
        "command",
        "args",
        "env",
        "cwd",
        "url",
        "serverUrl",
        "httpUrl",
        "headers",
    ] {
        if let Some(value) = entry.get_mut(key) {
            texts_of(value, change);
        }
    }
}

fn texts_of(value: &mut Value, change: &mut impl FnMut(&mut String)) {
    match value {
        Value::String(text) => change(text),
        Value::Array(items) => items.iter_mut().for_each(|item| texts_of(item, change)),
        Value::Object(map) => map.values_mut().for_each(|item| texts_of(item, change)),
        _ => {}
    }
}

/// Servers that Claude Code keeps for individual projects. They run in the folder of the project.
fn of_projects(root: &Value, found: &mut Vec<Foreign>) {
    let projects = root["projects"].as_object();
    for (path, project) in projects.into_iter().flatten() {
        let off: Vec<&str> = ["disabledMcpServers", "disabledMcpjsonServers"]
            .iter()
            .filter_map(|key| project[*key].as_array())
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        let servers = project["mcpServers"].as_object();
        for (name, entry) in servers.into_iter().flatten() {
            let mut one = Foreign {
                name: name.clone(),
                entry: entry.clone(),
                ..Foreign::default()
            };
            let place = Place {
                workspace: Some(path.into()),
                has_dollars: false,
            };
            settle(&mut one, &place);
            if let Some(entry) = one.entry.as_object_mut()
                && entry.contains_key("command")
                && !entry.contains_key("cwd")
            {
                entry.insert("cwd".into(), path.as_str().into());
            }
            if off.contains(&name.as_str()) {
                switch_off(&mut one.entry);
            }
            let folder = Path::new(path).file_name().unwrap_or_default();
            one.notes.push(format!(
                "the server belongs to one Claude Code project: {path}"
            ));
            if found
                .iter()
                .any(|other| other.name == one.name && other.entry != one.entry)
            {
                one.name = format!("{name}-{}", folder.to_string_lossy());
                one.notes
                    .push(format!("its name in Claude Code is `{name}`"));
            }
            if !found
                .iter()
                .any(|other| other.name == one.name && other.entry == one.entry)
            {
                found.push(one);
            }
        }
    }
}

pub fn switch_off(entry: &mut Value) {
    if let Some(entry) = entry.as_object_mut() {
        entry.remove("enabled");
        entry.insert("disabled".into(), true.into());
    }
}
