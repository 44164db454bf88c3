//! Finds the servers in a JSON file, in the shapes that clients use.
//!
//! | shape | written by |
//! | --- | --- |
//! | `{"mcpServers": {…}}` | Claude Desktop, Claude Code, Cursor, Cline, Windsurf, Gemini CLI |
//! | `{"servers": {…}}` | VS Code's `mcp.json` |
//! | `{"mcp": {"servers": {…}}}` | VS Code's `settings.json` |
//! | `{"context_servers": {…}}` | Zed |
//! | `{"name": {"command": …}}` | examples in documentation: a bare map |
//!
//! Comments and trailing commas are allowed. A file may contain several shapes, and all of them count.

use std::collections::HashMap;

use jsonc_parser::ast::{Object, ObjectProp, Value};
use jsonc_parser::common::Ranged;
use jsonc_parser::{CollectOptions, ParseOptions, parse_to_ast};
use serde_json::Value as Json;

use super::problem::Problem;
use super::source::Source;

/// The key paths of containers, outermost key first.
pub(crate) const CONTAINERS: &[&[&str]] = &[
    &["mcpServers"],
    &["servers"],
    &["context_servers"],
    &["mcp", "servers"],
];

/// Maximum number of reported problems. Each problem scans the text again, which would take very long in a large file
/// full of problems, and users would not read that many.
pub(crate) const MAX_PROBLEMS: usize = 100;

/// The keys by which an entry of a bare map is recognised.
pub(crate) const ENTRY_MARKS: &[&str] = &["command", "url", "serverUrl", "httpUrl"];

pub(crate) const PARSE_OPTIONS: ParseOptions = ParseOptions {
    allow_comments: true,
    allow_loose_object_property_names: false,
    allow_trailing_commas: true,
    allow_missing_commas: false,
    allow_single_quoted_strings: false,
    allow_hexadecimal_numbers: false,
    allow_unary_plus_numbers: false,
};

/// Calls `visit` with the property of each server, in file order.
pub(crate) fn servers(
    source: &Source,
    problems: &mut Vec<Problem>,
    mut visit: impl FnMut(&ObjectProp<'_>, &mut Vec<Problem>),
) {
    let parsed = parse_to_ast(&source.text, &CollectOptions::default(), &PARSE_OPTIONS);
    let root = match parsed {
        Ok(parsed) => parsed.value,
        Err(error) => return problems.push(syntax(source, &error)),
    };
    let Some(root) = root else {
        let problem = Problem::of_file(&source.path, "the file is empty");
        return problems.push(problem.help(EXAMPLE));
    };
    let Value::Object(root) = root else {
        let problem = Problem::at(source, span(&root), "the file is not a JSON object");
        return problems.push(problem.help(EXAMPLE));
    };
    duplicates(source, &root, problems);

    let mut found = false;
    for path in CONTAINERS {
        let Some((prop, object)) = lookup(&root, path) else {
            continue;
        };
        found = true;
        let Some(object) = object else {
            let what = format!(
                "`{}` is {}, not an object",
                path.join("."),
                kind(&prop.value)
            );
            problems.push(Problem::at(source, span(&prop.value), what).help(EXAMPLE));
            continue;
        };
        duplicates(source, object, problems);
        visit_all(object, problems, &mut visit);
    }
    if found || root.properties.is_empty() {
        return;
    }
    if is_bare_map(&root) {
        return visit_all(&root, problems, &mut visit);
    }
    let problem = Problem::of_file(&source.path, "the file contains no servers");
    problems.push(problem.help(EXAMPLE));
}

/// The value of a file, and its servers by name.
pub(crate) type Content = (Json, Vec<(String, Json)>);

/// Parses a file. The servers are in file order. Empty text counts as an empty object.
///
/// # Errors
/// The text does not parse, or is not an object.
pub(crate) fn content(source: &Source) -> Result<Content, Box<Problem>> {
    let parsed = parse_to_ast(&source.text, &CollectOptions::default(), &PARSE_OPTIONS);
    let root = match parsed.map_err(|error| syntax(source, &error))?.value {
        None => return Ok((Json::Object(serde_json::Map::new()), Vec::new())),
        Some(Value::Object(root)) => root,
        Some(other) => return Err(no_object(source, &other).into()),
    };
    let mut containers: Vec<&Object<'_>> = Vec::new();
    for path in CONTAINERS {
        let mut keys = path.iter();
        let found = keys.try_fold(&root, |object, key| object.get_object(key));
        containers.extend(found.filter(|it| !is_entry(it)));
    }
    let is_bare = |prop: &ObjectProp<'_>| prop.value.as_object().is_some_and(is_entry);
    if containers.is_empty() && root.properties.iter().any(is_bare) {
        containers.push(&root);
    }
    let servers = containers.into_iter().flat_map(|it| &it.properties);
    let servers = servers.map(|it| (it.name.as_str().to_owned(), it.value.clone().into()));
    let servers = servers.collect();
    Ok((Value::Object(root).into(), servers))
}

fn no_object(source: &Source, root: &Value<'_>) -> Problem {
    let what = "the file is not a JSON object";
    Problem::at(source, span(root), what).help(EXAMPLE)
}

fn visit_all(
    object: &Object<'_>,
    problems: &mut Vec<Problem>,
    visit: &mut impl FnMut(&ObjectProp<'_>, &mut Vec<Problem>),
) {
    for server in &object.properties {
        if problems.len() >= MAX_PROBLEMS {
            return;
        }
        visit(server, problems);
    }
}

/// Reports why the file cannot be edited: it does not parse, or is not an object.
pub(crate) fn check(source: &Source, problems: &mut Vec<Problem>) {
    match parse_to_ast(&source.text, &CollectOptions::default(), &PARSE_OPTIONS) {
        Err(error) => problems.push(syntax(source, &error)),
        Ok(parsed) => {
            if let Some(root) = parsed.value.filter(|root| root.as_object().is_none()) {
                problems.push(no_object(source, &root));
            }
        }
    }
}

const EXAMPLE: &str =
    r#"write {"mcpServers": {"time": {"command": "uvx", "args": ["mcp-server-time"]}}}"#;

/// Reports each key that occurs twice in an object, with both places.
pub(crate) fn duplicates(source: &Source, object: &Object<'_>, problems: &mut Vec<Problem>) {
    let mut seen: HashMap<&str, &ObjectProp<'_>> = HashMap::new();
    for prop in &object.properties {
        let name = prop.name.as_str();
        let Some(first) = seen.get(name) else {
            seen.insert(name, prop);
            continue;
        };
        if problems.len() >= MAX_PROBLEMS {
            return;
        }
        let what = format!("`{}` is defined twice", printable(name));
        problems.push(
            Problem::at(source, span(&prop.name), what)
                .see(source, first.name.start(), "first defined here")
                .help("rename or remove one of the two"),
        );
    }
}

pub(crate) fn span(node: &impl Ranged) -> std::ops::Range<usize> {
    node.start()..node.end()
}

pub(crate) fn kind(value: &Value<'_>) -> &'static str {
    match value {
        Value::StringLit(_) => "a string",
        Value::NumberLit(_) => "a number",
        Value::BooleanLit(_) => "a boolean",
        Value::Object(_) => "an object",
        Value::Array(_) => "an array",
        Value::NullKeyword(_) => "null",
    }
}

/// A key for a message, without control characters and truncated to 64 characters, to protect the terminal.
pub(crate) fn printable(text: &str) -> String {
    let mut out: String = text
        .chars()
        .take(64)
        .map(|c| if c.is_control() { '\u{fffd}' } else { c })
        .collect();
    if text.chars().nth(64).is_some() {
        out.push('…');
    }
    out
}

type Found<'o, 'a> = (&'o ObjectProp<'a>, Option<&'o Object<'a>>);

fn lookup<'o, 'a>(root: &'o Object<'a>, path: &[&str]) -> Option<Found<'o, 'a>> {
    let (last, outer) = path.split_last()?;
    let mut object = root;
    for key in outer {
        object = object.get_object(key)?;
    }
    let prop = object.get(last)?;
    // `servers` may be the name of a server in a bare map.
    if prop.value.as_object().is_some_and(is_entry) {
        return None;
    }
    Some((prop, prop.value.as_object()))
}

fn is_entry(object: &Object<'_>) -> bool {
    ENTRY_MARKS
        .iter()
        .filter_map(|mark| object.get(mark))
        .any(|prop| matches!(prop.value, Value::StringLit(_)))
}

fn is_bare_map(root: &Object<'_>) -> bool {
    root.properties
        .iter()
        .filter(|prop| !prop.name.as_str().starts_with('$'))
        .any(|prop| prop.value.as_object().is_some_and(is_entry))
}

fn syntax(source: &Source, error: &jsonc_parser::errors::ParseError) -> Problem {
    use jsonc_parser::errors::ParseErrorKind as Kind;
    let help = match error.kind() {
        Kind::ExpectedComma => "put a `,` between the two values",
        Kind::ExpectedColonAfterObjectKey => "put a `:` after the key",
        Kind::ExpectedStringObjectProperty | Kind::UnexpectedWord => {
            "write keys and strings in double quotes"
        }
        Kind::SingleQuotedStringsNotAllowed => "use double quotes",
        Kind::UnterminatedObject => "add the missing `}`",
        Kind::UnterminatedArray => "add the missing `]`",
        Kind::UnterminatedCommentBlock => "add the missing `*/`",
        Kind::MultipleRootJsonValues => "put all servers into one JSON object",
        Kind::String(_) => "check the quotes and backslashes of this text",
        _ => "comments and trailing commas are allowed; the rest must be plain JSON",
    };
    let kind = error.kind().to_string();
    // The parser may quote the text, which may be a secret.
    let kind = kind.split([':', '\'', '"', '`']).next().unwrap_or_default();
    let what = format!("invalid JSON: {}", kind.trim().to_lowercase());
    let range = error.range();
    Problem::broken(source, range.start..range.end, what).help(help)
}
