//! A client's file: one server put in or taken out, everything else as it was.
//!
//! Invariants: the text keeps its comments, order, line ends and byte order mark. Each edit is read again, and is an error if
//! anything but the one entry means something else afterwards. A file that the client could not read is not edited.

use std::fmt;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::{Client, json, toml, yaml};
use crate::{
    edit::EditError,
    problem::Problem,
    source::{Source, Syntax},
};

/// How a file is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// With comments.
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
    has_mark: bool,
}

const MARK: char = '\u{feff}';

impl ClientFile {
    /// A missing file is an empty one.
    ///
    /// # Errors
    /// [`EditError::Unreadable`] if it is not written as the client writes it.
    pub fn parse(client: &'static Client, path: &Path, text: &str) -> Result<Self, EditError> {
        let plain = text.strip_prefix(MARK);
        let this = Self {
            client,
            path: path.to_owned(),
            text: plain.unwrap_or(text).to_owned(),
            has_mark: plain.is_some(),
        };
        this.servers_of(&this.value(&this.text)?)?;
        Ok(this)
    }

    /// All servers, in the order of the file.
    #[must_use]
    pub fn servers(&self) -> Vec<(String, Value)> {
        let value = self.value(&self.text);
        value
            .and_then(|value| self.servers_of(&value))
            .unwrap_or_default()
    }

    /// All that the file holds.
    #[must_use]
    pub fn root(&self) -> Value {
        self.value(&self.text).unwrap_or_default()
    }

    #[must_use]
    pub fn get(&self, name: &str) -> Option<Value> {
        let mut servers = self.servers().into_iter();
        servers
            .find(|(other, _)| other == name)
            .map(|(_, entry)| entry)
    }

    /// Adds a server behind the others, or replaces it where it is.
    ///
    /// # Errors
    /// [`EditError::Unreadable`] if the text cannot be edited without a change of its meaning.
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
        self.take_in(new, name, Some(entry))
    }

    /// Removes a server; one that is not there is no error.
    ///
    /// # Errors
    /// As [`ClientFile::put`].
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
        self.take_in(new, name, None)
    }

    /// Takes the new text if nothing but this server is another one in it.
    fn take_in(
        &mut self,
        new: Option<String>,
        name: &str,
        wanted: Option<&Value>,
    ) -> Result<(), EditError> {
        let what = format!("`{name}` cannot be edited there without a change of anything else");
        let unfit = Problem::of_file(&self.path, what)
            .help("edit the file by hand, or write the servers as the client's manual shows them");
        let unfit = || EditError::Unreadable(unfit.clone().into());
        let new = new.ok_or_else(unfit)?;
        let (mut before, mut after) = (
            self.value(&self.text)?,
            self.value(&new).map_err(|_| unfit())?,
        );
        self.cut(&mut before, name);
        if self.cut(&mut after, name).as_ref() != wanted || before != after {
            return Err(unfit());
        }
        self.text = new;
        Ok(())
    }

    /// Takes a server out of the value, and the container if that is empty then.
    fn cut(&self, root: &mut Value, name: &str) -> Option<Value> {
        cut(root, self.client.container, name)
    }

    fn servers_of(&self, root: &Value) -> Result<Vec<(String, Value)>, EditError> {
        let mut value = root;
        for (depth, key) in self.client.container.iter().enumerate() {
            match value.get(key) {
                None => return Ok(Vec::new()),
                Some(Value::Null) if self.client.format == Format::Yaml => return Ok(Vec::new()),
                Some(inner) if self.is_container(inner) => value = inner,
                Some(inner) => {
                    let path = self.client.container[..=depth].join(".");
                    let what = format!("`{path}` is {}, which holds no servers", kind(inner));
                    let problem = Problem::of_file(&self.path, what);
                    let problem = problem
                        .help("remove it, or write the servers as the client's manual shows them");
                    return Err(EditError::Unreadable(problem.into()));
                }
            }
        }
        Ok(match value {
            Value::Array(items) => items
                .iter()
                .map(|item| (named(item).to_owned(), item.clone()))
                .collect(),
            Value::Object(map) => map
                .iter()
                .map(|(name, entry)| (name.clone(), entry.clone()))
                .collect(),
            _ => Vec::new(),
        })
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
                let what = format!("the file holds {}, and not keys with values", kind(&other));
                let problem = Problem::of_file(&self.path, what);
                let problem = problem.help("put it right by hand, or move it out of the way");
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
            write!(f, "{MARK}")?;
        }
        f.write_str(&self.text)
    }
}

fn cut(value: &mut Value, container: &[&str], name: &str) -> Option<Value> {
    let Some((key, inner)) = container.split_first() else {
        return match value {
            Value::Object(map) => map.shift_remove(name),
            Value::Array(items) => {
                let at = items.iter().position(|item| named(item) == name);
                at.map(|at| items.remove(at))
            }
            _ => None,
        };
    };
    let map: &mut Map<String, Value> = value.as_object_mut()?;
    let held = map.get_mut(*key)?;
    let found = cut(held, inner, name);
    let is_empty = match held {
        Value::Null => true,
        Value::Object(map) => map.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => false,
    };
    if is_empty {
        map.shift_remove(*key);
    }
    found
}

/// The name of an item of a list.
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
