//! Finds the servers in a JSON file, in the shapes that clients use.
//!
//! | shape | written by |
//! | --- | --- |
//! | `{"mcpServers": {…}}` | Claude Desktop, Claude Code, Cursor, Cline, Windsurf, Gemini CLI |
//! | `{"servers": {…}}` | VS Code's `mcp.json` |
//! | `{"mcp": {"servers": {…}}}` | VS Code's `settings.json` |
//! | `{"context_servers": {…}}` | Zed |
//! | `{"mcp_servers": …}` | LangChain and others |
//! | `{"name": {"command": …}}` | examples in documentation: a bare map |
//!
//! A container may also be a list of entries with a `name`. Comments and trailing commas are allowed. A file may contain
//! several shapes, and all of them count.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::ops::Range;

use jsonc_parser::ast::{Array, Object, ObjectProp, Value};
use jsonc_parser::common::Ranged;
use jsonc_parser::{CollectOptions, ParseOptions, parse_to_ast};
use serde_json::Value as Json;

use super::problem::{Problem, nearest};
use super::source::Source;

/// The key paths of containers (objects that hold the servers of a file), outermost key first.
pub(crate) const CONTAINERS: &[&[&str]] = &[
    &["mcpServers"],
    &["servers"],
    &["context_servers"],
    &["mcp_servers"],
    &["mcp.servers"],
    &["mcp", "servers"],
];

/// Lists that switch servers off, outside of the entries: those of Gemini CLI, Claude Code and Witsy.
const EXCLUDED: &[&[&str]] = &[
    &["mcp", "excluded"],
    &["excludeMCPServers"],
    &["disabledMcpServers"],
    &["disabledMcpjsonServers"],
];
/// Lists of Gemini CLI that switch off all servers that are not in the list.
const ALLOWED: &[&[&str]] = &[&["mcp", "allowed"], &["allowMCPServers"]];

/// Maximum number of reported problems. Users would not read more.
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

/// A server in a file.
pub(crate) struct Found<'o, 'a> {
    /// The key of its entry, or in a list its `name`. For a list item without a `name`, its position.
    pub key: Cow<'o, str>,
    /// The place of the key.
    pub at: Range<usize>,
    pub value: &'o Value<'a>,
    /// False for an item of a list without a `name`.
    pub is_named: bool,
    /// True if a list in the file, outside of the entry, switches the server off.
    pub is_off: bool,
}

/// Calls `visit` with each server, in file order. `problems` gets the problems of the file as a whole.
pub(crate) fn servers(
    source: &Source,
    problems: &mut Vec<Problem>,
    mut visit: impl FnMut(&Found<'_, '_>),
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

    let choice = Choice::of(&root);
    let mut visit = |mut found: Found<'_, '_>| {
        found.is_off = choice.excludes(&found.key);
        visit(&found);
    };
    let mut is_found = false;
    for path in CONTAINERS {
        let Some(prop) = lookup(&root, path) else {
            continue;
        };
        is_found = true;
        match &prop.value {
            Value::Object(object) => {
                duplicates(source, object, problems);
                members(object).for_each(&mut visit);
            }
            Value::Array(array) => items(array).for_each(&mut visit),
            other => {
                let what = format!("`{}` is {}, not an object", path.join("."), kind(other));
                problems.push(Problem::at(source, span(other), what).help(EXAMPLE));
            }
        }
    }
    if is_found || root.properties.is_empty() {
        return;
    }
    if is_bare_map(&root) {
        return members(&root).for_each(&mut visit);
    }
    let problem = Problem::of_file(&source.path, "the file contains no servers");
    let mut keys = root.properties.iter().map(|prop| prop.name.as_str());
    let slip = keys.find(|key| nearest(key, &["mcpServers"]).is_some());
    problems.push(match slip {
        Some(key) => problem.help(format!(
            "write `mcpServers` instead of `{}`",
            printable(key)
        )),
        None => problem.help(EXAMPLE),
    });
}

/// The value of a file, and its servers.
pub(crate) type Content = (Json, Vec<Listed>);

/// A server of a file, as JSON.
pub(crate) struct Listed {
    pub key: String,
    pub entry: Json,
    /// True if a list in the file, outside of the entry, switches the server off.
    pub is_off: bool,
}

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
    let choice = Choice::of(&root);
    let listed = |found: Found<'_, '_>| Listed {
        is_off: choice.excludes(&found.key),
        key: found.key.into_owned(),
        entry: found.value.clone().into(),
    };
    let item = |found: Found<'_, '_>| {
        let mut listed = listed(found);
        if let Json::Object(members) = &mut listed.entry {
            members.shift_remove("name");
        }
        listed
    };
    let mut servers = Vec::new();
    let mut is_found = false;
    for prop in CONTAINERS.iter().filter_map(|path| lookup(&root, path)) {
        match &prop.value {
            Value::Object(object) => servers.extend(members(object).map(listed)),
            Value::Array(array) => servers.extend(items(array).map(item)),
            _ => continue,
        }
        is_found = true;
    }
    if !is_found && is_bare_map(&root) {
        servers.extend(members(&root).map(listed));
    }
    Ok((Value::Object(root).into(), servers))
}

fn no_object(source: &Source, root: &Value<'_>) -> Problem {
    let what = "the file is not a JSON object";
    Problem::at(source, span(root), what).help(EXAMPLE)
}

/// The servers of an object. Of several with the same key, only the first.
fn members<'o, 'a>(object: &'o Object<'a>) -> impl Iterator<Item = Found<'o, 'a>> {
    let mut seen = HashSet::new();
    let props = object.properties.iter();
    let props = props.filter(move |prop| seen.insert(prop.name.as_str()));
    props.map(|prop| Found {
        key: prop.name.as_str().into(),
        at: span(&prop.name),
        value: &prop.value,
        is_named: true,
        is_off: false,
    })
}

/// The servers of a list.
fn items<'o, 'a>(array: &'o Array<'a>) -> impl Iterator<Item = Found<'o, 'a>> {
    let items = array.elements.iter().enumerate();
    items.map(|(index, value)| {
        let name = value.as_object().and_then(|item| item.get("name"));
        let text = name.and_then(|prop| Some((prop, prop.value.as_string_lit()?)));
        Found {
            key: match &text {
                Some((_, text)) => Cow::Borrowed(&*text.value),
                None => format!("server-{}", index + 1).into(),
            },
            at: text.map_or_else(|| span(value), |(prop, _)| span(&prop.value)),
            value,
            is_named: text.is_some(),
            is_off: false,
        }
    })
}

/// The lists by which a file chooses among its servers.
struct Choice<'o> {
    excluded: HashSet<&'o str>,
    allowed: HashSet<&'o str>,
}

impl<'o> Choice<'o> {
    fn of(root: &'o Object<'_>) -> Self {
        let words = |paths: &[&[&str]]| {
            let lists = paths.iter().filter_map(|path| at_path(root, path));
            let lists = lists.filter_map(|prop| prop.value.as_array());
            let items = lists.flat_map(|list| &list.elements);
            let texts = items.filter_map(|item| item.as_string_lit());
            texts.map(|text| text.value.as_ref()).collect()
        };
        Self {
            excluded: words(EXCLUDED),
            allowed: words(ALLOWED),
        }
    }

    fn excludes(&self, key: &str) -> bool {
        let is_allowed = self.allowed.is_empty() || self.allowed.contains(key);
        self.excluded.contains(key) || !is_allowed
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

pub(crate) fn span(node: &impl Ranged) -> Range<usize> {
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

/// The container at this path.
fn lookup<'o, 'a>(root: &'o Object<'a>, path: &[&str]) -> Option<&'o ObjectProp<'a>> {
    let prop = at_path(root, path)?;
    // `servers` may be the name of a server in a bare map.
    (!prop.value.as_object().is_some_and(is_entry)).then_some(prop)
}

fn at_path<'o, 'a>(root: &'o Object<'a>, path: &[&str]) -> Option<&'o ObjectProp<'a>> {
    let (last, outer) = path.split_last()?;
    let mut keys = outer.iter();
    keys.try_fold(root, |object, key| object.get_object(key))?
        .get(last)
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
