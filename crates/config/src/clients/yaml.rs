//! Line-based edits of YAML. The caller parses the result again, so a construct that is not understood here does no
//! harm.
//!
//! Supported: a block under a key in the first column whose children all begin in the same column, as a mapping or a
//! sequence. Deliberately absent: deeper containers, and flow style.

use std::ops::Range;
use std::path::Path;

use serde_json::Value;

use crate::problem::Problem;

/// Parses a file. Empty text counts as an empty mapping.
pub(super) fn parse(path: &Path, text: &str) -> Result<Value, Box<Problem>> {
    if text.lines().all(is_empty) {
        return Ok(Value::Object(serde_json::Map::new()));
    }
    serde_saphyr::from_str(text).map_err(|error| {
        // The parser's message may quote the text.
        let place = error.location().map(|at| (at.line(), at.column()));
        let what = match place {
            Some((line, column)) => format!("invalid YAML at line {line}, column {column}"),
            None => "invalid YAML".to_owned(),
        };
        Problem::of_file(path, what)
            .help("fix the syntax by hand: check the indentation and the quotes")
            .into()
    })
}

pub(super) fn put(text: &str, container: &[&str], name: &str, entry: &Value) -> Option<String> {
    let [key] = container else { return None };
    let end = if text.contains("\r\n") { "\r\n" } else { "\n" };
    let mut lines: Vec<String> = text.split_inclusive('\n').map(str::to_owned).collect();
    let refs: Vec<&str> = lines.iter().map(String::as_str).collect();
    let block = Block::find(&refs, key);
    let is_list = entry.get("name").is_some() && *key == "mcpServers";
    let (at, indent) = match &block {
        Some(block) => match block.children.last() {
            Some(last) => (last.end, block.indent),
            None => {
                lines[block.key] = format!("{key}:{end}");
                (block.key + 1, 2)
            }
        },
        None => {
            lines.push(format!("{key}:{end}"));
            (lines.len(), 2)
        }
    };
    // The line above may be the last one, without a line end.
    if let Some(above) = at.checked_sub(if block.is_none() { 2 } else { 1 })
        && let Some(above) = lines.get_mut(above)
        && !above.ends_with('\n')
    {
        above.push_str(end);
    }
    let new = rendered(name, entry, is_list, &" ".repeat(indent), end)?;
    lines.insert(at, new);
    Some(lines.concat())
}

pub(super) fn remove(text: &str, container: &[&str], name: &str) -> Option<String> {
    let [key] = container else { return None };
    let root: Value = serde_saphyr::from_str(text).ok()?;
    let at = match &root[*key] {
        Value::Array(items) => items.iter().position(|item| item["name"] == name)?,
        Value::Object(map) => map.keys().position(|other| other == name)?,
        _ => return None,
    };
    let mut lines: Vec<&str> = text.split_inclusive('\n').collect();
    let block = Block::find(&lines, key)?;
    let child = block.children.get(at)?.clone();
    lines.drain(child);
    Some(lines.concat())
}

/// The lines of an entry. JSON is valid YAML, so texts and lists are written as JSON.
fn rendered(name: &str, entry: &Value, is_list: bool, indent: &str, end: &str) -> Option<String> {
    let mut out = String::new();
    if !is_list {
        out.push_str(&format!("{indent}{}:{end}", key_of(name)));
    }
    for (at, (key, value)) in entry.as_object()?.iter().enumerate() {
        let lead = if is_list && at == 0 { "- " } else { "  " };
        out.push_str(&format!("{indent}{lead}{}: {value}{end}", key_of(key)));
    }
    Some(out)
}

/// A key, in quotes unless it is a plain word.
fn key_of(name: &str) -> String {
    let is_plain = name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "-_".contains(c));
    // Words that YAML 1.1 does not read as strings.
    let words = ["y", "n", "yes", "no", "on", "off", "true", "false", "null"];
    if is_plain && !words.contains(&name.to_lowercase().as_str()) {
        name.to_owned()
    } else {
        Value::from(name).to_string()
    }
}

/// The lines under a key in the first column.
struct Block {
    /// The line of the key.
    key: usize,
    /// The indentation of each child.
    indent: usize,
    /// The lines of each child, without trailing empty lines and comments.
    children: Vec<Range<usize>>,
}

impl Block {
    fn find(lines: &[&str], key: &str) -> Option<Self> {
        let (at, rest) = lines.iter().enumerate().find_map(|(at, line)| {
            let rest = line.strip_prefix(key)?.strip_prefix(':')?;
            Some((at, rest.trim()))
        })?;
        let mut block = Self {
            key: at,
            indent: 0,
            children: Vec::new(),
        };
        if matches!(rest, "{}" | "[]" | "null" | "~") {
            return Some(block);
        }
        if !is_empty(rest) {
            return None;
        }
        let mut first = None;
        for (at, line) in lines.iter().enumerate().skip(at + 1) {
            if is_empty(line) {
                continue;
            }
            let indent = line.len() - line.trim_start_matches(' ').len();
            // The items of a sequence may be in the same column as its key.
            if indent == 0 && !line.starts_with("- ") {
                break;
            }
            let own = *first.get_or_insert(indent);
            if indent == own {
                block.children.push(at..at + 1);
            } else {
                block.children.last_mut()?.end = at + 1;
            }
        }
        block.indent = first.unwrap_or_default();
        Some(block)
    }
}

fn is_empty(line: &str) -> bool {
    let line = line.trim();
    line.is_empty() || line.starts_with('#')
}
