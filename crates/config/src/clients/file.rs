//! A client's file. Adds and removes servers, and leaves everything else unchanged.
//!
//! Invariants: the text keeps its comments, order, line ends and byte order mark. The result of each edit is parsed
//! again. If anything except the edited entry has changed its meaning, the edit fails. A file that the client could not
//! read is not edited.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{Client, toml, yaml};
use crate::{
    edit::EditError,
    json,
    problem::Problem,
    source::{Source, Syntax},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// JSON with comments.
    Json,
    Toml,
    Yaml,
}

/// A client's file in memory.
#[derive(Clone, Debug)]
pub struct ClientFile {
    client: &'static Client,
    path: PathBuf,
    /// Without the byte order mark.
    text: String,
    /// The parsed text.
    value: Value,
    has_mark: bool,
}

const BYTE_ORDER_MARK: char = '\u{feff}';

impl ClientFile {
    /// Parses a file. Empty text counts as an empty file.
    ///
    /// # Errors
    /// [`EditError::Unreadable`] if it is not in the client's format.
    pub fn parse(client: &'static Client, path: &Path, text: &str) -> Result<Self, EditError> {
        let plain = text.strip_prefix(BYTE_ORDER_MARK);
        let mut this = Self {
            client,
            path: path.to_owned(),
            text: plain.unwrap_or(text).to_owned(),
            value: Value::Null,
            has_mark: plain.is_some(),
        };
        this.value = this.value(&this.text)?;
        this.container()?;
        Ok(this)
    }

    /// All servers, in file order.
    #[must_use]
    pub fn servers(&self) -> Vec<(String, Value)> {
        match self.container() {
            Ok(Some(Value::Array(items))) => items
                .iter()
                .map(|item| (named(item).to_owned(), item.clone()))
                .collect(),
            Ok(Some(Value::Object(map))) => map
                .iter()
                .map(|(name, entry)| (name.clone(), entry.clone()))
                .collect(),
            _ => Vec::new(),
        }
    }

    /// The whole content of the file.
    #[must_use]
    pub fn root(&self) -> &Value {
        &self.value
    }

    #[must_use]
    pub fn get(&self, name: &str) -> Option<Value> {
        let entry = match self.container() {
            Ok(Some(Value::Array(items))) => items.iter().find(|item| named(item) == name),
            Ok(Some(Value::Object(map))) => map.get(name),
            _ => None,
        };
        entry.cloned()
    }

    /// Adds a server after the others, or replaces it in place.
    ///
    /// # Errors
    /// [`EditError::Unreadable`] if the text cannot be edited without changing something else.
    pub fn put(&mut self, name: &str, entry: &Value) -> Result<(), EditError> {
        let container = self.client.container;
        let new = match self.client.format {
            Format::Json => json::put(&self.text, container, name, entry),
            Format::Toml => toml::put(&self.text, container, name, entry),
            Format::Yaml => {
                let text = match self.get(name) {
                    Some(_) => yaml::remove(&self.text, container, name),
                    None => Some(self.text.clone()),
                };
                text.and_then(|text| yaml::put(&text, container, name, entry))
            }
        };
        self.take_in(new, &[(name, Some(entry))])
    }

    /// Removes a server. A missing server is not an error.
    ///
    /// # Errors
    /// Like [`ClientFile::put`].
    pub fn remove(&mut self, name: &str) -> Result<(), EditError> {
        if self.get(name).is_none() {
            return Ok(());
        }
        let container = self.client.container;
        let new = match self.client.format {
            Format::Json => json::remove(&self.text, container, name),
            Format::Toml => toml::remove(&self.text, container, name),
            Format::Yaml => yaml::remove(&self.text, container, name),
        };
        self.take_in(new, &[(name, None)])
    }

    /// Adds new servers like [`ClientFile::put`]. Adds many in one edit if the format allows that.
    ///
    /// # Errors
    /// Like [`ClientFile::put`].
    pub fn put_all(&mut self, entries: &[(String, Value)]) -> Result<(), EditError> {
        let Some(((name, entry), rest)) = entries.split_first() else {
            return Ok(());
        };
        if self.client.format != Format::Json || rest.len() < json::MAX_STRUCTURED {
            return entries
                .iter()
                .try_for_each(|(name, entry)| self.put(name, entry));
        }
        // This ensures that the container has a server, after which the others are added.
        self.put(name, entry)?;
        let rest: Vec<_> = rest
            .iter()
            .map(|(name, entry)| (name.as_str(), entry))
            .collect();
        let new = json::append_all(&self.text, self.client.container, &rest);
        let edits: Vec<_> = rest
            .into_iter()
            .map(|(name, entry)| (name, Some(entry)))
            .collect();
        self.take_in(new, &edits)
    }

    /// Removes servers like [`ClientFile::remove`]. Removes many in one edit if the format allows that.
    ///
    /// # Errors
    /// Like [`ClientFile::put`].
    pub fn remove_all(&mut self, names: &HashSet<&str>) -> Result<(), EditError> {
        let servers = self.servers().into_iter();
        let there: Vec<String> = servers
            .map(|(name, _)| name)
            .filter(|name| names.contains(name.as_str()))
            .collect();
        if self.client.format != Format::Json || there.len() < json::MAX_STRUCTURED {
            return there.iter().try_for_each(|name| self.remove(name));
        }
        let new = json::remove_all(&self.text, self.client.container, names);
        let edits: Vec<_> = there.iter().map(|name| (name.as_str(), None)).collect();
        self.take_in(new, &edits)
    }

    /// Accepts the new text if only these servers have changed, and each of them has its new entry or is gone.
    fn take_in(
        &mut self,
        new: Option<String>,
        edits: &[(&str, Option<&Value>)],
    ) -> Result<(), EditError> {
        let name = edits.first().map(|(name, _)| *name).unwrap_or_default();
        let what = format!("server `{name}` cannot be edited without other changes in the file");
        let unfit = Problem::of_file(&self.path, what)
            .help("edit the file by hand, or write the servers as the client's manual shows them");
        let unfit = || EditError::Unreadable(unfit.clone().into());
        let new = new.ok_or_else(unfit)?;
        let after = self.value(&new).map_err(|_| unfit())?;
        let names: HashSet<&str> = edits.iter().map(|(name, _)| *name).collect();
        let (old, changed) = (Some(&self.value), Some(&after));
        let mut found = HashMap::new();
        if !is_same_but(old, changed, self.client.container, &names, &mut found)
            || edits
                .iter()
                .any(|(name, wanted)| found.get(name) != wanted.as_ref())
        {
            return Err(unfit());
        }
        self.text = new;
        self.value = after;
        Ok(())
    }

    /// The JSON, TOML or YAML object that holds the servers, if the file has one.
    fn container(&self) -> Result<Option<&Value>, EditError> {
        let mut value = &self.value;
        for (depth, key) in self.client.container.iter().enumerate() {
            match value.get(key) {
                None => return Ok(None),
                Some(Value::Null) if self.client.format == Format::Yaml => return Ok(None),
                Some(inner) if self.is_container(inner) => value = inner,
                Some(inner) => {
                    let path = self.client.container[..=depth].join(".");
                    let what = format!("`{path}` is {}, which cannot contain servers", kind(inner));
                    let problem = Problem::of_file(&self.path, what);
                    let problem = problem
                        .help("remove it, or write the servers as the client's manual shows them");
                    return Err(EditError::Unreadable(problem.into()));
                }
            }
        }
        Ok(Some(value))
    }

    fn is_container(&self, value: &Value) -> bool {
        value.is_object() || (value.is_array() && self.client.format == Format::Yaml)
    }

    fn value(&self, text: &str) -> Result<Value, EditError> {
        let value = match self.client.format {
            Format::Json => json::parse(&self.source(text, Syntax::Json)),
            Format::Toml => toml::parse(&self.source(text, Syntax::Toml)),
            Format::Yaml => yaml::parse(&self.path, text),
        };
        match value {
            Ok(value) if value.is_object() => Ok(value),
            Ok(other) => {
                let what = format!(
                    "the file contains {} instead of keys with values",
                    kind(&other)
                );
                let problem = Problem::of_file(&self.path, what);
                let problem = problem.help("fix the file by hand, or move it out of the way");
                Err(EditError::Unreadable(problem.into()))
            }
            Err(problem) => Err(EditError::Unreadable((*problem).into())),
        }
    }

    fn source(&self, text: &str, syntax: Syntax) -> Source {
        Source::new(&self.path, text.to_owned(), syntax)
    }
}

impl fmt::Display for ClientFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.has_mark {
            write!(f, "{BYTE_ORDER_MARK}")?;
        }
        f.write_str(&self.text)
    }
}

/// Returns whether two values differ only in the servers with these names, and in objects that are empty without these
/// servers. Adds the servers of the new value to `found`.
fn is_same_but<'v>(
    old: Option<&'v Value>,
    new: Option<&'v Value>,
    container: &[&str],
    names: &HashSet<&str>,
    found: &mut HashMap<&'v str, &'v Value>,
) -> bool {
    let (key, inner) = match container.split_first() {
        Some((key, inner)) => (*key, inner),
        None => {
            let (old, _) = without(old, names);
            let (new, those) = without(new, names);
            found.extend(those);
            return old == new;
        }
    };
    let empty = serde_json::Map::new();
    let map = |value: Option<&'v Value>| match value {
        None | Some(Value::Null) => Some(None),
        Some(Value::Object(map)) => Some(Some(map)),
        Some(_) => None,
    };
    let (Some(old_map), Some(new_map)) = (map(old), map(new)) else {
        return old == new;
    };
    let get = |map: Option<&'v serde_json::Map<String, Value>>| map.and_then(|map| map.get(key));
    let is_same = is_same_but(get(old_map), get(new_map), inner, names, found);
    let (old, new) = (old_map.unwrap_or(&empty), new_map.unwrap_or(&empty));
    let others =
        |map: &serde_json::Map<String, Value>| map.len() - usize::from(map.contains_key(key));
    is_same
        && others(old) == others(new)
        && old
            .iter()
            .all(|(name, value)| name == key || new.get(name) == Some(value))
}

/// The other servers of a container, and the servers with these names.
type Split<'v> = (Rest<'v>, Vec<(&'v str, &'v Value)>);

#[derive(PartialEq)]
enum Rest<'v> {
    Map(HashMap<&'v str, &'v Value>),
    List(Vec<&'v Value>),
    Other(&'v Value),
    None,
}

fn without<'v>(value: Option<&'v Value>, names: &HashSet<&str>) -> Split<'v> {
    match value {
        Some(Value::Object(map)) => {
            let all = map.iter().map(|(name, entry)| (name.as_str(), entry));
            let (those, rest): (Vec<_>, Vec<_>) = all.partition(|(name, _)| names.contains(name));
            let rest: HashMap<_, _> = rest.into_iter().collect();
            match rest.is_empty() {
                true => (Rest::None, those),
                false => (Rest::Map(rest), those),
            }
        }
        Some(Value::Array(items)) => {
            let (mut those, mut rest) = (Vec::new(), Vec::new());
            let mut seen = HashSet::new();
            for item in items {
                // If several items have the same name, the first one counts.
                if names.contains(named(item)) && seen.insert(named(item)) {
                    those.push((named(item), item));
                } else {
                    rest.push(item);
                }
            }
            match rest.is_empty() {
                true => (Rest::None, those),
                false => (Rest::List(rest), those),
            }
        }
        None | Some(Value::Null) => (Rest::None, Vec::new()),
        Some(other) => (Rest::Other(other), Vec::new()),
    }
}

fn named(item: &Value) -> &str {
    item["name"].as_str().unwrap_or_default()
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
