//! Edits a server file in place. Comments, order and unknown keys are kept.

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};

use api::Wrong;
use jsonc_parser::cst::{CstArray, CstNode, CstObject, CstObjectProp, CstRootNode};
use model::{InvalidName, ServerName};
use rustix::fs::Mode;
use serde_json::{Map, Value};

use super::json::{self, input};
use super::keys::{ENTRY_KEYS, SWITCHES};
use super::load::{Unreadable, read, read_from};
use super::names::{long_name, server_name};
use super::place::{Lock, Place, Trust};
use super::problem::{ConfigError, Problem};
use super::shape::{self, CONTAINERS, ENTRY_MARKS, Listed, PARSE_OPTIONS};
use super::source::{Source, Syntax};

/// Why a file could not be edited. The file is unchanged.
#[derive(Debug, thiserror::Error)]
pub enum EditError {
    #[error("there is no server `{0}` in the file")]
    NoServer(ServerName),
    #[error("there already is a server `{0}` in the file")]
    Exists(ServerName),
    #[error("server `{0}` is defined twice in the file; remove one by hand")]
    Ambiguous(ServerName),
    #[error("the entry of server `{0}` in the file is not an object")]
    NotAnObject(ServerName),
    #[error("{0}")]
    Name(#[from] InvalidName),
    #[error("another process is editing {}; try again later", .0.display())]
    Locked(PathBuf),
    #[error("{0}")]
    Unreadable(ConfigError),
    #[error("cannot write {}", path.display())]
    Write {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("another program changed {} during each of three attempts to edit it; try again", .0.display())]
    Contended(PathBuf),
    /// The edited entry would not be valid.
    #[error("server `{name}` would be invalid after this edit: {}", problems.join("; "))]
    Unfit {
        name: ServerName,
        problems: Vec<String>,
        /// The same problems, each with a JSON pointer into the entry.
        wrong: Vec<Wrong>,
    },
    #[error(
        "the entry of server `{0}` has changed since it was read: read it again and repeat the change"
    )]
    Changed(ServerName),
}

/// A server file in memory, as a syntax tree.
#[derive(Debug)]
pub struct ServerFile {
    path: PathBuf,
    root: CstRootNode,
}

/// Reads a file (a missing one counts as empty), changes it, and writes it back if the text differs. Blocks on
/// file I/O, and for up to ten seconds while another Toolwharf process edits the file.
///
/// # Errors
/// The error of `change`, or why the file cannot be read or written. The file is then unchanged.
pub fn edit<T>(
    path: &Path,
    change: impl FnMut(&mut ServerFile) -> Result<T, EditError>,
) -> Result<T, EditError> {
    edited(path, None, change)
}

/// Like [`edit`], but first copies the file to a file with the suffix `.bak` that only its owner can read.
///
/// # Errors
/// Like [`edit`], and if the copy cannot be made.
pub fn edit_with_backup<T>(
    path: &Path,
    change: impl FnMut(&mut ServerFile) -> Result<T, EditError>,
) -> Result<T, EditError> {
    edited(path, Some(".bak"), change)
}

fn edited<T>(
    path: &Path,
    backup: Option<&str>,
    mut change: impl FnMut(&mut ServerFile) -> Result<T, EditError>,
) -> Result<T, EditError> {
    let failed = |source| EditError::Write {
        path: path.to_owned(),
        source,
    };
    let help = "remove the link, or edit the file that it points to";
    let folders = Some(Mode::RWXU | Mode::RWXG | Mode::RWXO);
    let place = Place::open(path, Trust::Folders, folders);
    let place = place.map_err(|error| failed(error.into_io(help)))?;
    let _lock = Lock::take(&place).map_err(|error| match error.kind() {
        io::ErrorKind::TimedOut => EditError::Locked(path.to_owned()),
        _ => failed(error),
    })?;
    let current = || text_at(&place, path);
    // Clients write the file without taking Toolwharf's lock. If one has written since the file was read, the edit is
    // repeated on the new text.
    for _ in 0..3 {
        let before = current()?;
        let mut file = ServerFile::parse(path, before.as_deref().unwrap_or_default())?;
        let outcome = change(&mut file)?;
        let text = file.to_string();
        if before.as_deref() == Some(text.as_str()) {
            return Ok(outcome);
        }
        if current()? == before {
            if let (Some(suffix), Some(before)) = (backup, &before) {
                let copy = place.beside(suffix).map_err(failed)?;
                copy.replace(before).map_err(failed)?;
            }
            place.replace(&text).map_err(failed)?;
            return Ok(outcome);
        }
    }
    Err(EditError::Contended(path.to_owned()))
}

/// The text of the file at this place. `None` if it is missing.
pub(super) fn text_at(place: &Place, path: &Path) -> Result<Option<String>, EditError> {
    let text = match place.reader() {
        Ok(file) => read_from(file),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(Unreadable::Missing),
        Err(error) => Err(Unreadable::Io(error)),
    };
    given(text, path)
}

fn given(text: Result<String, Unreadable>, path: &Path) -> Result<Option<String>, EditError> {
    match text {
        Ok(text) => Ok(Some(text)),
        Err(Unreadable::Missing) => Ok(None),
        Err(error) => Err(EditError::Unreadable(error.problem(path).into())),
    }
}

impl ServerFile {
    /// Opens a file. A missing file counts as empty.
    ///
    /// # Errors
    /// If it cannot be read or is not JSON with comments.
    pub fn open(path: &Path) -> Result<Self, EditError> {
        Self::parse(path, &given(read(path), path)?.unwrap_or_default())
    }

    /// # Errors
    /// If the text is not JSON with comments, or not an object. Empty text counts as an empty object.
    pub fn parse(path: &Path, text: &str) -> Result<Self, EditError> {
        let text = if text.trim().is_empty() { "{}\n" } else { text };
        let source = Source::new(path, text.to_owned(), Syntax::Json);
        let mut problems = Vec::new();
        shape::check(&source, &mut problems);
        if !problems.is_empty() {
            return Err(EditError::Unreadable(problems.into()));
        }
        let root = CstRootNode::parse(&source.text, &PARSE_OPTIONS).map_err(|_| {
            // Cannot fail: the same parser has just accepted the text.
            let problem = Problem::of_file(path, "the file cannot be edited");
            EditError::Unreadable(problem.into())
        })?;
        let path = path.to_owned();
        Ok(Self { path, root })
    }

    /// The names of all servers, in file order.
    #[cfg(test)]
    pub fn names(&self) -> Vec<String> {
        self.containers()
            .iter()
            .flat_map(CstObject::properties)
            .filter_map(|prop| prop.decoded_name())
            .collect()
    }

    /// A server's entry as written, with variables not filled in.
    ///
    /// # Errors
    /// If the file contains the name twice.
    pub fn value(&self, name: &ServerName) -> Result<Option<Value>, EditError> {
        Ok(self.find(name)?.and_then(|prop| prop.to_serde_value()))
    }

    /// Adds a server at the end of the first container. A file without a container gets `mcpServers`.
    ///
    /// # Errors
    /// If the name exists and `replace` is not set.
    pub fn add(
        &mut self,
        name: &ServerName,
        entry: &Value,
        replace: bool,
    ) -> Result<(), EditError> {
        match self.find(name)? {
            Some(_) if !replace => return Err(EditError::Exists(name.clone())),
            Some(prop) => prop.set_value(input(entry)),
            None => {
                let container = match self.containers().into_iter().next() {
                    Some(container) => container,
                    None => self
                        .root
                        .object_value_or_set()
                        .object_value_or_set("mcpServers"),
                };
                container.append(name.as_str(), input(entry));
            }
        }
        Ok(())
    }

    /// Replaces a server's entry member by member. Unchanged members keep their text and comments.
    ///
    /// # Errors
    /// If the server does not exist.
    pub fn update(&mut self, name: &ServerName, entry: &Value) -> Result<(), EditError> {
        let prop = self
            .find(name)?
            .ok_or_else(|| EditError::NoServer(name.clone()))?;
        match (prop.object_value(), entry) {
            (Some(object), Value::Object(members)) => merge(&object, members),
            _ => prop.set_value(input(entry)),
        }
        Ok(())
    }

    /// # Errors
    /// If the server does not exist.
    pub fn remove(&mut self, name: &ServerName) -> Result<(), EditError> {
        let prop = self
            .find(name)?
            .ok_or_else(|| EditError::NoServer(name.clone()))?;
        prop.remove();
        Ok(())
    }

    /// Sets every switch that the entry has (`disabled`, `enabled` and the like), including those of other clients. If
    /// it has none, adds `disabled`.
    ///
    /// # Errors
    /// If the server does not exist.
    pub fn set_enabled(&mut self, name: &ServerName, enabled: bool) -> Result<(), EditError> {
        let entry = self.entry(name)?;
        let mut present = false;
        for (key, is_on) in SWITCHES {
            let is_switch = |prop: &CstObjectProp| {
                let value = prop.value();
                ENTRY_KEYS.contains(key) || value.is_some_and(|it| it.as_boolean_lit().is_some())
            };
            if let Some(prop) = entry.get(key).filter(is_switch) {
                prop.set_value((enabled == *is_on).into());
                present = true;
            }
        }
        for key in ["state", "status"] {
            let is_off = |prop: &CstObjectProp| {
                let value = prop.to_serde_value();
                value.is_some_and(|value| value == "disabled")
            };
            if let Some(prop) = entry.get(key).filter(is_off)
                && enabled
            {
                prop.set_value("enabled".into());
            }
        }
        if !present && !enabled {
            entry.append("disabled", true.into());
        }
        Ok(())
    }

    /// Edits the list that the entry has, `disabledTools` or `excludeTools`, otherwise the list under `toolwharf`. If the
    /// entry has `enabledTools`, an enabled tool is added there. `tool` is the native name.
    ///
    /// # Errors
    /// If the server does not exist.
    pub fn set_tool_enabled(
        &mut self,
        name: &ServerName,
        tool: &str,
        enabled: bool,
    ) -> Result<(), EditError> {
        let entry = self.entry(name)?;
        let ours = entry.object_value("toolwharf");
        let in_ours = |key: &str| ours.as_ref().and_then(|ours| ours.array_value(key));
        let lists: Vec<_> = [
            entry.array_value("disabledTools"),
            entry.array_value("excludeTools"),
            in_ours("disabledTools"),
        ]
        .into_iter()
        .flatten()
        .collect();
        let allowed = [entry.array_value("enabledTools"), in_ours("enabledTools")];
        let allowed: Vec<_> = allowed.into_iter().flatten().collect();
        let text = |node: &CstNode| node.as_string_lit()?.decoded_value().ok();
        let is_tool = |node: &CstNode| text(node).as_deref() == Some(tool);
        let has = |lists: &[CstArray]| lists.iter().any(|it| it.elements().iter().any(is_tool));
        let listed = has(&lists);
        if enabled {
            if let Some(list) = allowed.first().filter(|_| !has(&allowed)) {
                list.append(tool.into());
            }
            lists
                .into_iter()
                .for_each(|list| remove_elements(list, is_tool));
        } else if !listed {
            let list = lists.into_iter().next().unwrap_or_else(|| {
                entry
                    .object_value_or_set("toolwharf")
                    .array_value_or_set("disabledTools")
            });
            list.append(tool.into());
        }
        Ok(())
    }

    /// All servers of a file with the names that their keys give, in file order. The file may be missing.
    ///
    /// # Errors
    /// Like [`ServerFile::open`].
    pub fn entries_of(path: &Path) -> Result<Vec<(String, Value)>, EditError> {
        let text = given(read(path), path)?.unwrap_or_default();
        let source = Source::new(path, text, Syntax::Json);
        let content = shape::content(&source);
        let (_, servers) = content.map_err(|problem| EditError::Unreadable((*problem).into()))?;
        let named = |listed: Listed| (server_name(&listed.key).0.to_string(), listed.entry);
        Ok(servers.into_iter().map(named).collect())
    }

    /// All servers with their keys, in file order.
    pub(super) fn entries(&self) -> Vec<(String, Value)> {
        self.containers()
            .iter()
            .flat_map(CstObject::properties)
            .filter_map(|prop| Some((prop.decoded_name()?, prop.to_serde_value()?)))
            .collect()
    }

    /// Adds new servers after the existing ones.
    pub(super) fn add_all(&mut self, entries: &[(ServerName, Value)]) -> Result<(), EditError> {
        let Some(((name, entry), rest)) = entries.split_first() else {
            return Ok(());
        };
        self.add(name, entry, false)?;
        if rest.len() < json::MAX_STRUCTURED {
            return rest
                .iter()
                .try_for_each(|(name, entry)| self.add(name, entry, false));
        }
        let rest: Vec<_> = rest
            .iter()
            .map(|(name, entry)| (name.as_str(), entry))
            .collect();
        let edited = self.container_paths().into_iter().next();
        let edited = edited.and_then(|path| json::append_all(&self.to_string(), path, &rest));
        self.take_in(edited)
    }

    /// Removes all servers with these names.
    ///
    /// # Errors
    /// If the text cannot be edited.
    pub fn remove_all(&mut self, names: &HashSet<&str>) -> Result<(), EditError> {
        for path in self.container_paths() {
            let text = self.to_string();
            if let Some(edited) = json::remove_all(&text, path, names) {
                self.take_in(Some(edited))?;
            }
        }
        Ok(())
    }

    fn take_in(&mut self, text: Option<String>) -> Result<(), EditError> {
        let parsed = text.and_then(|text| CstRootNode::parse(&text, &PARSE_OPTIONS).ok());
        self.root = parsed.ok_or_else(|| {
            let what = "the file would not be valid after this change, so it was not changed";
            let problem = Problem::of_file(&self.path, what);
            EditError::Unreadable(problem.help("make the change by hand").into())
        })?;
        Ok(())
    }

    /// The key paths of [`ServerFile::containers`], in the same order.
    fn container_paths(&self) -> Vec<&'static [&'static str]> {
        let root = self.root.object_value();
        let found = |path: &&[&str]| {
            let mut keys = path.iter();
            let object = keys.try_fold(root.clone()?, |object, key| object.object_value(key))?;
            (!is_entry(&object)).then_some(())
        };
        let paths = CONTAINERS.iter().copied();
        let paths: Vec<_> = paths.filter(|path| found(path).is_some()).collect();
        match paths.is_empty() {
            true => vec![&[]],
            false => paths,
        }
    }

    fn containers(&self) -> Vec<CstObject> {
        let Some(root) = self.root.object_value() else {
            return Vec::new();
        };
        let found: Vec<CstObject> = CONTAINERS
            .iter()
            .filter_map(|path| {
                path.iter()
                    .try_fold(root.clone(), |object, key| object.object_value(key))
            })
            .filter(|container| !is_entry(container))
            .collect();
        let is_bare =
            |prop: CstObjectProp| prop.object_value().is_some_and(|entry| is_entry(&entry));
        if found.is_empty() && root.properties().into_iter().any(is_bare) {
            return vec![root];
        }
        found
    }

    /// The entry with this key, or else the first whose key gives this name.
    fn find(&self, name: &ServerName) -> Result<Option<CstObjectProp>, EditError> {
        let props = || {
            let containers = self.containers().into_iter();
            let props = containers.flat_map(|container| container.properties());
            props.filter_map(|prop| Some((prop.decoded_name()?, prop)))
        };
        let mut found = props().filter(|(key, _)| key == name.as_str());
        match (found.next(), found.next()) {
            (Some(_), Some(_)) => Err(EditError::Ambiguous(name.clone())),
            (Some((_, prop)), None) => Ok(Some(prop)),
            (None, _) => {
                let gives = |to_name: &dyn Fn(&str) -> ServerName| {
                    let mut derived = props();
                    derived.find_map(|(key, prop)| (to_name(&key) == *name).then_some(prop))
                };
                Ok(gives(&|key| server_name(key).0).or_else(|| gives(&long_name)))
            }
        }
    }

    fn entry(&self, name: &ServerName) -> Result<CstObject, EditError> {
        let prop = self
            .find(name)?
            .ok_or_else(|| EditError::NoServer(name.clone()))?;
        prop.object_value()
            .ok_or_else(|| EditError::NotAnObject(name.clone()))
    }
}

impl std::fmt::Display for ServerFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.root.fmt(f)
    }
}

fn is_entry(object: &CstObject) -> bool {
    ENTRY_MARKS
        .iter()
        .filter_map(|mark| object.get(mark))
        .any(|prop| {
            prop.value()
                .is_some_and(|value| value.as_string_lit().is_some())
        })
}

fn merge(object: &CstObject, members: &Map<String, Value>) {
    for prop in object.properties() {
        let Some(value) = prop.decoded_name().and_then(|name| members.get(&name)) else {
            prop.remove();
            continue;
        };
        match (prop.object_value(), value) {
            _ if prop.to_serde_value().as_ref() == Some(value) => {}
            (Some(inner), Value::Object(members)) => merge(&inner, members),
            _ => prop.set_value(input(value)),
        }
    }
    for (key, value) in members {
        if object.get(key).is_none() {
            object.append(key, input(value));
        }
    }
}

fn remove_elements(list: CstArray, is_gone: impl Fn(&CstNode) -> bool) {
    let elements = list.elements();
    let (gone, kept): (Vec<_>, Vec<_>) = elements.into_iter().partition(is_gone);
    let values: Option<Vec<Value>> = kept.iter().map(CstNode::to_serde_value).collect();
    match values {
        // A list on a single line is written again as a whole, because removing elements would leave gaps.
        Some(values) if !gone.is_empty() && !list.to_string().contains(['\n', '/']) => {
            list.replace_with(input(&Value::Array(values)));
        }
        _ => gone.into_iter().for_each(CstNode::remove),
    }
}
