//! Text edits of JSON with comments.

use std::{collections::HashSet, ops::Range};

use jsonc_parser::{
    CollectOptions,
    ast::{Object, ObjectProp},
    common::Ranged as _,
    cst::{CstInputValue, CstObject, CstRootNode},
    parse_to_ast, parse_to_serde_value,
};
use serde_json::Value;

use crate::{
    problem::Problem,
    shape::{self, PARSE_OPTIONS},
    source::Source,
};

/// Maximum members of an object, and maximum edits at a time, for edits of the syntax tree. Above it, text is edited
/// instead: each insertion into the tree updates all later members, and splits an object on a single line into several.
pub(crate) const MAX_STRUCTURED: usize = 100;

/// Parses a file. Empty text counts as an empty object.
pub(crate) fn parse(source: &Source) -> Result<Value, Box<Problem>> {
    // This parser does not build the syntax tree for edits, which takes ten times as long.
    if let Ok(value @ Value::Object(_)) = parse_to_serde_value(&source.text, &PARSE_OPTIONS) {
        return Ok(value);
    }
    let mut problems = Vec::new();
    shape::check(source, &mut problems);
    match problems.into_iter().next() {
        Some(problem) => Err(problem.into()),
        None => Ok(Value::Object(serde_json::Map::new())),
    }
}

pub(crate) fn put(text: &str, container: &[&str], name: &str, entry: &Value) -> Option<String> {
    if let Some(edited) = put_in_large(text, container, name, entry) {
        return Some(edited);
    }
    let is_empty = text.trim().is_empty();
    let root = CstRootNode::parse(if is_empty { "{}\n" } else { text }, &PARSE_OPTIONS).ok()?;
    let mut object = root.object_value_or_set();
    for key in container {
        object = object.object_value_or_set(key);
    }
    match object.get(name) {
        Some(prop) => prop.set_value(input(entry)),
        None => {
            object.append(name, input(entry));
        }
    }
    Some(root.to_string())
}

pub(crate) fn remove(text: &str, container: &[&str], name: &str) -> Option<String> {
    if let Some(edited) = remove_from(text, container, MAX_STRUCTURED, |it| it == name) {
        return Some(edited);
    }
    let root = CstRootNode::parse(text, &PARSE_OPTIONS).ok()?;
    let object = container
        .iter()
        .try_fold(root.object_value()?, |object: CstObject, key| {
            object.object_value(key)
        })?;
    object.get(name)?.remove();
    Some(root.to_string())
}

/// Removes all members with these names from the container in one edit.
pub(crate) fn remove_all(text: &str, container: &[&str], names: &HashSet<&str>) -> Option<String> {
    remove_from(text, container, 0, |name| names.contains(name))
}

/// Adds members after the others of a container that is not empty, in one edit.
pub(crate) fn append_all(
    text: &str,
    container: &[&str],
    entries: &[(&str, &Value)],
) -> Option<String> {
    in_large(text, container, 0, |object, missing| {
        let entries = entries.iter().copied();
        missing
            .is_empty()
            .then(|| appended(text, object, entries))?
    })
}

fn put_in_large(text: &str, container: &[&str], name: &str, entry: &Value) -> Option<String> {
    let spliced = |at: Range<usize>, new: &str| {
        let mut text = text.to_owned();
        text.replace_range(at, new);
        text
    };
    in_large(text, container, MAX_STRUCTURED, |object, missing| {
        // Missing containers are added together with the entry.
        let (key, value) = match missing {
            [] => (name, entry.clone()),
            [first, inner @ ..] => {
                let keys = inner.iter().rev();
                let held = keys.fold(
                    serde_json::json!({ name: entry }),
                    |held, key| serde_json::json!({ *key: held }),
                );
                (*first, held)
            }
        };
        if let Some(prop) = object.properties.iter().find(|it| it.name.as_str() == key) {
            let indent = indent_of(text, prop.start());
            let at = prop.value.start()..prop.value.end();
            return Some(spliced(at, &pretty(&value, indent)));
        }
        appended(text, object, [(key, &value)])
    })
}

/// The text with these members added after the last one of the object.
fn appended<'e>(
    text: &str,
    object: &Object<'_>,
    entries: impl IntoIterator<Item = (&'e str, &'e Value)>,
) -> Option<String> {
    let last = object.properties.last()?;
    let indent = indent_of(text, last.start());
    let gap = indent.map(|indent| format!("{}{indent}", end_of(text)));
    let gap = gap.as_deref().unwrap_or_default();
    let new = entries
        .into_iter()
        .map(|(key, value)| format!("{gap}{}: {}", Value::from(key), pretty(value, indent)));
    let new = new.collect::<Vec<_>>().join(",");
    let (at, new) = match comma_after(text, last.end()) {
        Some(comma) => (comma + 1, format!("{new},")),
        None => (last.end(), format!(",{new}")),
    };
    Some([&text[..at], &new, &text[at..]].concat())
}

/// Removes members from an object that has more than `min` members. `None` if the object has at most `min` members, or
/// if it has none of those to remove.
fn remove_from(
    text: &str,
    container: &[&str],
    min: usize,
    is_gone: impl Fn(&str) -> bool,
) -> Option<String> {
    in_large(text, container, min, |object, missing| {
        let props = &object.properties;
        let gone: Vec<bool> = props.iter().map(|it| is_gone(it.name.as_str())).collect();
        if !missing.is_empty() || !gone.contains(&true) {
            return None;
        }
        let mut cut: Vec<Range<usize>> = Vec::new();
        // The comma after the last member kept so far. If the object's last member is removed and has no comma after it,
        // this one would be left before the `}`, so it is removed instead.
        let mut dangling = None;
        for (prop, is_gone) in props.iter().zip(gone) {
            let own = comma_after(text, prop.end());
            if !is_gone {
                dangling = own;
                continue;
            }
            let (mut start, mut end) = (prop.start(), prop.end());
            let comma = match own {
                // The comma directly follows the member. Otherwise there is a comment between the two.
                Some(comma) if text[end..comma].trim().is_empty() => {
                    end = comma + 1;
                    None
                }
                Some(comma) => Some(comma),
                None => dangling,
            };
            let line = text[..start].rfind('\n').map_or(0, |end| end + 1);
            let rest = &text[end..];
            let blank = rest.len() - rest.trim_start_matches([' ', '\t', '\r']).len();
            if text[line..start].trim().is_empty() && rest[blank..].starts_with('\n') {
                start = line;
                end += blank + 1;
            }
            cut.extend(
                [Some(start..end), comma.map(|at| at..at + 1)]
                    .into_iter()
                    .flatten(),
            );
        }
        cut.sort_by_key(|range| range.start);
        let mut kept = String::with_capacity(text.len());
        let mut from = 0;
        for range in cut {
            kept.push_str(text.get(from..range.start)?);
            from = range.end;
        }
        kept.push_str(&text[from..]);
        Some(kept)
    })
}

/// Calls `edit` with the innermost existing object of the container path and the keys that are missing in it, if the
/// object has more than `min` members.
fn in_large(
    text: &str,
    container: &[&str],
    min: usize,
    edit: impl FnOnce(&Object<'_>, &[&str]) -> Option<String>,
) -> Option<String> {
    let parsed = parse_to_ast(text, &CollectOptions::default(), &PARSE_OPTIONS).ok()?;
    let root = parsed.value?;
    let mut object = root.as_object()?;
    let mut missing = container;
    while let [key, inner @ ..] = missing {
        let held: Option<&ObjectProp<'_>> =
            object.properties.iter().find(|it| it.name.as_str() == *key);
        let Some(held) = held else { break };
        object = held.value.as_object()?;
        missing = inner;
    }
    let is_large = object.properties.len() > min;
    is_large.then(|| edit(object, missing)).flatten()
}

/// The white space before a member, if it begins a line.
fn indent_of(text: &str, at: usize) -> Option<&str> {
    let line = text[..at].rfind('\n')? + 1;
    Some(&text[line..at]).filter(|blank| blank.trim().is_empty())
}

fn end_of(text: &str) -> &'static str {
    match text.find('\n') {
        Some(at) if text[..at].ends_with('\r') => "\r\n",
        _ => "\n",
    }
}

/// The text of a value after a key: on several lines if the key begins a line.
fn pretty(value: &Value, indent: Option<&str>) -> String {
    let Some(indent) = indent else {
        return value.to_string();
    };
    let text = serde_json::to_string_pretty(value).unwrap_or_else(|_| value.to_string());
    text.replace('\n', &format!("\n{indent}"))
}

/// The position of the comma after a member, if there is one.
fn comma_after(text: &str, mut at: usize) -> Option<usize> {
    loop {
        let rest = &text[at..];
        at += rest.len() - rest.trim_start().len();
        let rest = &text[at..];
        if rest.starts_with(',') {
            return Some(at);
        } else if rest.starts_with("//") {
            at += rest.find('\n')?;
        } else if rest.starts_with("/*") {
            at += rest.find("*/")? + 2;
        } else {
            return None;
        }
    }
}

pub(crate) fn input(value: &Value) -> CstInputValue {
    match value {
        Value::Null => CstInputValue::Null,
        Value::Bool(value) => CstInputValue::Bool(*value),
        Value::Number(value) => CstInputValue::Number(value.to_string()),
        Value::String(value) => CstInputValue::String(value.clone()),
        Value::Array(values) => CstInputValue::Array(values.iter().map(input).collect()),
        Value::Object(map) => {
            let pairs = map.iter().map(|(key, value)| (key.clone(), input(value)));
            CstInputValue::Object(pairs.collect())
        }
    }
}
