//! JSON with comments, edited as text with structure.

use std::ops::Range;

use jsonc_parser::{
    CollectOptions,
    ast::{Object, ObjectProp},
    common::Ranged as _,
    cst::{CstObject, CstRootNode},
    parse_to_ast, parse_to_serde_value,
};
use serde_json::Value;

use crate::{
    edit::input,
    problem::Problem,
    shape::{self, PARSE_OPTIONS},
    source::Source,
};

/// Members of an object above which the text is edited at the place alone. The structured edit updates all members behind the
/// place for each piece that it inserts, and inserts a line end for each member of an object on one line.
const MAX_STRUCTURED: usize = 1_000;

/// An empty text is an empty object.
pub(super) fn parse(source: &Source) -> Result<Value, Box<Problem>> {
    let mut problems = Vec::new();
    shape::check(source, &mut problems);
    if let Some(problem) = problems.into_iter().next() {
        return Err(problem.into());
    }
    // Without the tree that edits need, which takes ten times as long to make.
    let value = parse_to_serde_value::<Value>(&source.text, &PARSE_OPTIONS);
    let value = value.ok().filter(|value| !value.is_null());
    Ok(value.unwrap_or_else(|| Value::Object(serde_json::Map::new())))
}

pub(super) fn put(text: &str, container: &[&str], name: &str, entry: &Value) -> Option<String> {
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

pub(super) fn remove(text: &str, container: &[&str], name: &str) -> Option<String> {
    if let Some(edited) = remove_from_large(text, container, name) {
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

fn put_in_large(text: &str, container: &[&str], name: &str, entry: &Value) -> Option<String> {
    let spliced = |at: Range<usize>, new: &str| {
        let mut text = text.to_owned();
        text.replace_range(at, new);
        text
    };
    in_large(text, container, |object, missing| {
        // Containers that are not there yet come with the entry.
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
        let last = object.properties.last()?;
        let indent = indent_of(text, last.start());
        let gap = indent.map(|indent| format!("{}{indent}", end_of(text)));
        let new = format!(
            "{}{}: {}",
            gap.as_deref().unwrap_or_default(),
            Value::from(key),
            pretty(&value, indent)
        );
        Some(match comma_after(text, last.end()) {
            Some(comma) => spliced(comma + 1..comma + 1, &format!("{new},")),
            None => spliced(last.end()..last.end(), &format!(",{new}")),
        })
    })
}

fn remove_from_large(text: &str, container: &[&str], name: &str) -> Option<String> {
    in_large(text, container, |object, missing| {
        let props = &object.properties;
        let at = props.iter().position(|it| it.name.as_str() == name);
        let at = at.filter(|_| missing.is_empty())?;
        let prop = &props[at];
        let mut end = prop.end();
        let mut start = prop.start();
        let line = text[..start].rfind('\n').map_or(0, |end| end + 1);
        let mut comma = None;
        match comma_after(text, end) {
            Some(own) => {
                // What is between them is a comment.
                if text[end..own].trim().is_empty() {
                    end = own + 1;
                } else {
                    comma = Some(own);
                }
            }
            None => {
                comma = at
                    .checked_sub(1)
                    .and_then(|it| comma_after(text, props[it].end()))
            }
        }
        let rest = &text[end..];
        let blank = rest.len() - rest.trim_start_matches([' ', '\t', '\r']).len();
        if text[line..start].trim().is_empty() && rest[blank..].starts_with('\n') {
            start = line;
            end += blank + 1;
        }
        let comma = comma.map(|at| at..at + 1);
        let mut cut: Vec<Range<usize>> = [Some(start..end), comma].into_iter().flatten().collect();
        cut.sort_by_key(|range| std::cmp::Reverse(range.start));
        let mut text = text.to_owned();
        for range in cut {
            text.replace_range(range, "");
        }
        Some(text)
    })
}

/// Calls `edit` with the innermost object of the container that is there, and the keys that are missing in it, if the object is a
/// large one.
fn in_large(
    text: &str,
    container: &[&str],
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
    let is_large = object.properties.len() > MAX_STRUCTURED;
    is_large.then(|| edit(object, missing)).flatten()
}

/// The blanks before a member, if it begins a line.
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

/// A value as it is written behind a key: over several lines if the key begins a line.
fn pretty(value: &Value, indent: Option<&str>) -> String {
    let Some(indent) = indent else {
        return value.to_string();
    };
    let text = serde_json::to_string_pretty(value).unwrap_or_else(|_| value.to_string());
    text.replace('\n', &format!("\n{indent}"))
}

/// The comma behind a member, if there is one.
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
