//! Keys, switches and variables of other clients, written as Toolwharf reads them.

use serde_json::{Map, Value, json};

use crate::{
    interpolate::is_variable,
    keys::{ENTRY_KEYS, RENAMED, SWITCHES},
    shape,
};

/// Renames keys of other clients. A key that is already there has precedence.
pub(super) fn rename(entry: &mut Map<String, Value>) {
    for (theirs, ours) in RENAMED {
        let Some(value) = entry.get(*theirs) else {
            continue;
        };
        let Some(value) = translated(theirs, ours, value) else {
            continue;
        };
        entry.shift_remove(*theirs);
        match (entry.get_mut(*ours), value) {
            (Some(Value::Object(there)), Value::Object(more)) => {
                for (name, value) in more {
                    there.entry(name).or_insert(value);
                }
            }
            (Some(_), _) | (None, Value::Null) => {}
            (None, value) => {
                entry.insert((*ours).to_owned(), value);
            }
        }
    }
}

/// The value of the renamed key. `None`: it cannot be translated. Null: it says nothing.
fn translated(theirs: &str, ours: &str, value: &Value) -> Option<Value> {
    match (ours, value) {
        (_, Value::Null) => Some(Value::Null),
        ("env", Value::Object(_)) => Some(value.clone()),
        // Names of variables that the client passes on.
        ("env", Value::Array(names)) => {
            let name = |name: &Value| Some((name.as_str()?.to_owned(), variable(name)?.into()));
            let names: Option<Map<_, _>> = names.iter().map(name).collect();
            names.map(Value::Object)
        }
        ("cwd", Value::String(_)) => Some(value.clone()),
        ("headers", Value::Object(members)) => match theirs {
            "requestInit" | "requestOptions" => members.get("headers").cloned(),
            "env_http_headers" => {
                let header = |(header, name): (&String, &Value)| {
                    Some((header.clone(), variable(name)?.into()))
                };
                let headers: Option<Map<_, _>> = members.iter().map(header).collect();
                headers.map(Value::Object)
            }
            _ => Some(value.clone()),
        },
        ("headers", name) if theirs == "bearer_token_env_var" => {
            let token = variable(name)?;
            Some(json!({"Authorization": format!("Bearer {token}")}))
        }
        ("enabledTools" | "disabledTools", Value::Array(tools)) => {
            let names: Option<Vec<&str>> = tools.iter().map(Value::as_str).collect();
            let names = names?;
            if ours == "enabledTools" && names.contains(&"*") {
                return Some(Value::Null);
            }
            // Gemini CLI may restrict arguments: `tool(…)`.
            let name = |name: &str| name.split('(').next().map(str::to_owned);
            Some(names.into_iter().filter_map(name).collect())
        }
        _ => None,
    }
}

/// The reference to the variable with this name.
fn variable(name: &Value) -> Option<String> {
    let name = name.as_str().filter(|name| is_variable(name))?;
    Some(format!("${{{name}}}"))
}

/// Removes the switches of other clients. Returns whether a switch of any client turns the server off.
pub fn foreign_switches(entry: &mut Map<String, Value>) -> bool {
    let mut is_off = false;
    for (key, is_on) in SWITCHES {
        if let Some(Value::Bool(value)) = entry.get(*key) {
            is_off |= value != is_on;
            if !ENTRY_KEYS.contains(key) {
                entry.shift_remove(*key);
            }
        }
    }
    for key in ["state", "status"] {
        if entry.get(key).is_some_and(|state| state == "disabled") {
            entry.shift_remove(key);
            is_off = true;
        }
    }
    is_off
}

/// Writes placeholders for variables as `${NAME}`: `${{ secrets.NAME }}` in all texts, and `{env:NAME}`, `{{NAME}}` and
/// `%NAME%` in variables and headers. Elsewhere, the latter may be ordinary text.
pub(super) fn placeholders(entry: &mut Map<String, Value>, notes: &mut Vec<String>) {
    super::each_text(entry, &mut |text| {
        *text = replaced(text, &[("${{", "}}")]);
    });
    for key in ["env", "headers"] {
        let texts = entry.get_mut(key).and_then(Value::as_object_mut);
        for (name, value) in texts.into_iter().flatten() {
            let Value::String(text) = value else {
                continue;
            };
            let new = replaced(text, &[("{env:", "}"), ("{{", "}}"), ("%", "%")]);
            if new != *text {
                let name = shape::printable(name);
                notes.push(format!("`{key}.{name}` is now written with `${{…}}`"));
                *text = new;
            }
        }
    }
}

/// The text with each variable between these marks written as `${NAME}`.
fn replaced(text: &str, marks: &[(&str, &str)]) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    'text: while let Some(first) = rest.chars().next() {
        // `${env:NAME}` is already a form that Toolwharf reads.
        let is_own = rest.starts_with("${") && !rest.starts_with("${{");
        for (start, end) in marks.iter().filter(|_| !is_own) {
            let inside = rest.strip_prefix(start);
            let Some((name, tail)) = inside.and_then(|inside| inside.split_once(end)) else {
                continue;
            };
            let name = name.trim();
            let name = name.rsplit('.').next().unwrap_or(name);
            if is_variable(name) {
                out.push_str(&format!("${{{name}}}"));
                rest = tail;
                continue 'text;
            }
        }
        let taken = if is_own { 2 } else { first.len_utf8() };
        out.push_str(&rest[..taken]);
        rest = &rest[taken..];
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_of_other_clients() {
        let mut entry = json!({
            "command": "c",
            "args": ["%A%", "{{A}}", "${{ secrets.KEY }}", "{env:A}"],
            "env": {
                "A": "${{ secrets.KEY }}", "B": "{{KEY}}", "C": "%KEY%", "D": "{env:KEY}",
                "E": "${env:KEY}", "F": "50% of 100%", "G": "{{ a b }}", "H": "${{ KEY",
            },
            "headers": {"Authorization": "Bearer {{ KEY }}", "X": "${KEY}%KEY%é"},
        });
        let mut notes = Vec::new();
        let members = entry.as_object_mut().expect("an object");
        placeholders(members, &mut notes);
        assert_eq!(
            entry,
            json!({
                "command": "c",
                "args": ["%A%", "{{A}}", "${KEY}", "{env:A}"],
                "env": {
                    "A": "${KEY}", "B": "${KEY}", "C": "${KEY}", "D": "${KEY}",
                    "E": "${env:KEY}", "F": "50% of 100%", "G": "{{ a b }}", "H": "${{ KEY",
                },
                "headers": {"Authorization": "Bearer ${KEY}", "X": "${KEY}${KEY}é"},
            })
        );
        assert_eq!(notes.len(), 5, "{notes:?}");
    }

    #[test]
    fn keys_of_other_clients() {
        for (theirs, ours) in [
            (
                json!({"environment": {"A": "1"}}),
                json!({"env": {"A": "1"}}),
            ),
            (
                json!({"env": {"A": "1"}, "envs": {"A": "2", "B": "2"}}),
                json!({"env": {"A": "1", "B": "2"}}),
            ),
            (json!({"env_vars": ["A"]}), json!({"env": {"A": "${A}"}})),
            (json!({"working_directory": "/w"}), json!({"cwd": "/w"})),
            (
                json!({"http_headers": {"A": "1"}, "requestInit": {"headers": {"B": "2"}}}),
                json!({"headers": {"A": "1", "B": "2"}}),
            ),
            (
                json!({"bearer_token_env_var": "A", "env_http_headers": {"X": "B"}}),
                json!({"headers": {"Authorization": "Bearer ${A}", "X": "${B}"}}),
            ),
            (
                json!({"includeTools": ["a", "b(1)"]}),
                json!({"enabledTools": ["a", "b"]}),
            ),
            (json!({"tools": ["*"]}), json!({})),
            (json!({"tools": []}), json!({"enabledTools": []})),
            (json!({"tools": {"a": 1}}), json!({"tools": {"a": 1}})),
        ] {
            let mut entry = theirs.clone();
            rename(entry.as_object_mut().expect("an object"));
            assert_eq!(entry, ours, "{theirs}");
        }
    }
}
