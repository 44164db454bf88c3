//! Edits the server files.
//!
//! The REST API uses this code, and so does the command line if no gateway runs. Everything here blocks on files.
//! Invariant: an edit that would leave an invalid entry is refused, and the files stay unchanged.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    path::{Path, PathBuf},
};

use api::Wrong;
use config::{
    Accepted, EditError, Foreign, ImportReport, Rejected, ServerFile, Sources, Unfit, check_entry,
    check_form, edit, edit_with_backup, foreign, misplaced, switch_off,
};
use model::{NativeName, ServerName};
use serde_json::Value;

use crate::{
    entries::restored,
    loop_detection::{self, LoopDetection},
    startup,
};

/// Why nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("there is no server `{name}` in {}", list(files))]
    NoServer {
        name: ServerName,
        files: Vec<PathBuf>,
    },
    #[error("there already is a server `{name}` in {}", file.display())]
    Exists { name: ServerName, file: PathBuf },
    #[error("no server file is configured; name one with `--config mcp.json`")]
    NoFile,
    #[error("{}: {source}", file.display())]
    Edit { file: PathBuf, source: EditError },
}

fn list(files: &[PathBuf]) -> String {
    let names: Vec<String> = files.iter().map(|f| f.display().to_string()).collect();
    names.join(", ")
}

/// The result of an edit.
#[derive(Debug)]
pub struct Edited {
    pub file: PathBuf,
    /// The server did not exist before.
    pub created: bool,
    pub warnings: Vec<String>,
    /// The variables that the server needs and that are not set.
    pub unset: BTreeSet<String>,
}

/// The result of checking an entry.
#[derive(Debug, Default)]
struct Fit {
    warnings: Vec<String>,
    unset: BTreeSet<String>,
}

impl Fit {
    /// The warnings, with one for each variable that is not set.
    fn into_warnings(self) -> Vec<String> {
        let unset = self.unset.iter().map(|name| unset_note(name));
        self.warnings.into_iter().chain(unset).collect()
    }
}

/// The warning about an unset variable of a server in the configuration file.
fn unset_note(name: &str) -> String {
    format!("the variable `{name}` is not set: run `toolwharf secret set {name}`")
}

/// Adds a server to the first file, or replaces it in its file.
///
/// # Errors
/// [`Error`]; [`Error::Exists`] only without `replace`.
pub fn put(
    sources: &Sources,
    myself: &LoopDetection,
    name: &ServerName,
    entry: &Value,
    replace: bool,
) -> Result<Edited, Error> {
    let home = home(sources, name)?;
    if let Some(file) = home.filter(|_| !replace) {
        return Err(Error::Exists {
            name: name.clone(),
            file: file.to_owned(),
        });
    }
    let file = home
        .or(sources.servers.first().map(PathBuf::as_path))
        .ok_or(Error::NoFile)?;
    let (created, fit) = changed(file, |servers| {
        let before = servers.value(name)?;
        let created = before.is_none();
        let unfit = |wrong| unfit(name, wrong);
        let entry = restored(entry.clone(), before.as_ref()).map_err(unfit)?;
        written(name, &entry)?;
        servers.add(name, &entry, replace)?;
        Ok((created, fit(sources, file, myself, servers, name)?))
    })?;
    Ok(Edited {
        file: file.to_owned(),
        created,
        warnings: fit.warnings,
        unset: fit.unset,
    })
}

/// A server's entry as written in its file, and the path of that file.
///
/// # Errors
/// [`Error`]
pub fn entry(sources: &Sources, name: &ServerName) -> Result<(PathBuf, Value), Error> {
    let file = found(sources, name)?;
    let entry = opened(file, |servers| servers.value(name))?;
    Ok((file.to_owned(), entry.unwrap_or_default()))
}

/// Replaces a server's entry in its file with the result of `change`. Keeps a backup copy next to the file. With
/// `is_trial`, nothing is written. Returns the file, the additional result of `change`, and warnings.
///
/// # Errors
/// [`Error`]
pub fn update<T>(
    sources: &Sources,
    myself: &LoopDetection,
    name: &ServerName,
    is_trial: bool,
    change: impl Fn(Value) -> Result<(Value, T), EditError>,
) -> Result<(PathBuf, T, Vec<String>), Error> {
    let file = found(sources, name)?;
    let change = |servers: &mut ServerFile| {
        let before = servers.value(name)?;
        let before = before.ok_or_else(|| EditError::NoServer(name.clone()))?;
        let (entry, said) = change(before)?;
        written(name, &entry)?;
        servers.update(name, &entry)?;
        let fit = fit(sources, file, myself, servers, name)?;
        Ok((said, fit.into_warnings()))
    };
    let (said, warnings) = match is_trial {
        true => opened(file, change)?,
        false => edit_with_backup(file, change).map_err(|source| Error::Edit {
            file: file.to_owned(),
            source,
        })?,
    };
    Ok((file.to_owned(), said, warnings))
}

/// # Errors
/// [`Error`]
pub fn remove(sources: &Sources, name: &ServerName) -> Result<PathBuf, Error> {
    let file = found(sources, name)?;
    changed(file, |servers| servers.remove(name))?;
    Ok(file.to_owned())
}

/// # Errors
/// [`Error`]
pub fn set_enabled(
    sources: &Sources,
    myself: &LoopDetection,
    name: &ServerName,
    enabled: bool,
) -> Result<PathBuf, Error> {
    let file = found(sources, name)?;
    changed(file, |servers| {
        servers.set_enabled(name, enabled)?;
        fit(sources, file, myself, servers, name).map(drop)
    })?;
    Ok(file.to_owned())
}

/// # Errors
/// [`Error`]
pub fn set_tool_enabled(
    sources: &Sources,
    myself: &LoopDetection,
    name: &ServerName,
    tool: &NativeName,
    enabled: bool,
) -> Result<PathBuf, Error> {
    let file = found(sources, name)?;
    changed(file, |servers| {
        servers.set_tool_enabled(name, tool.as_str(), enabled)?;
        fit(sources, file, myself, servers, name).map(drop)
    })?;
    Ok(file.to_owned())
}

/// Adds the servers in `text`, the contents of `from`, to the first file, unless the configuration has them.
///
/// # Errors
/// [`Error`]. An invalid server is reported, and the others are added.
pub fn import(
    sources: &Sources,
    myself: &LoopDetection,
    from: &Path,
    text: &str,
) -> Result<(PathBuf, ImportReport), Error> {
    let others = foreign(from, text, &startup::env).map_err(|source| Error::Edit {
        file: from.to_owned(),
        source,
    })?;
    import_all(sources, myself, &others)
}

/// Adds these servers to the first file, unless the configuration has them.
///
/// # Errors
/// See [`import`].
pub fn import_all(
    sources: &Sources,
    myself: &LoopDetection,
    others: &[Foreign],
) -> Result<(PathBuf, ImportReport), Error> {
    let file = sources.servers.first().ok_or(Error::NoFile)?;
    let taken = taken(sources);
    let report = changed(file, |servers| {
        servers.import(others, |name, entry| {
            accept(sources, &taken, myself, file, name, entry)
        })
    })?;
    Ok((file.clone(), report))
}

/// The report that [`import_all`] would return.
///
/// # Errors
/// See [`import`].
pub(crate) fn movable(
    sources: &Sources,
    myself: &LoopDetection,
    others: &[Foreign],
) -> Result<ImportReport, Error> {
    let file = sources.servers.first().ok_or(Error::NoFile)?;
    let taken = taken(sources);
    let report = ServerFile::open(file).and_then(|mut servers| {
        servers.import(others, |name, entry| {
            accept(sources, &taken, myself, file, name, entry)
        })
    });
    report.map_err(|source| Error::Edit {
        file: file.clone(),
        source,
    })
}

/// The names of all servers, each with the first file that has it. Unreadable files are skipped.
fn taken(sources: &Sources) -> HashMap<String, &Path> {
    let mut taken = HashMap::new();
    for file in &sources.servers {
        for (name, _) in ServerFile::entries_of(file).unwrap_or_default() {
            taken.entry(name).or_insert(file.as_path());
        }
    }
    taken
}

/// Removes the given servers whose entries are unchanged, and returns their names.
///
/// # Errors
/// [`Error`]
pub(crate) fn remove_unchanged(
    sources: &Sources,
    servers: &[(&str, &Value)],
) -> Result<Vec<String>, Error> {
    let mut left: HashMap<&str, &Value> = servers.iter().copied().collect();
    let mut removed = HashSet::new();
    for file in &sources.servers {
        let there = ServerFile::entries_of(file).map_err(|source| Error::Edit {
            file: file.clone(),
            source,
        })?;
        let mut found = HashSet::new();
        // Only the first file that contains a name declares the server.
        for (name, entry) in &there {
            if left.remove(name.as_str()).is_some_and(|it| it == entry) {
                found.insert(name.as_str());
            }
        }
        if !found.is_empty() {
            changed(file, |servers| servers.remove_all(&found))?;
        }
        removed.extend(found.into_iter().map(str::to_owned));
    }
    let names = servers.iter().map(|(name, _)| (*name).to_owned());
    Ok(names.filter(|name| removed.contains(name)).collect())
}

/// Checks an entry that is new to `file`.
fn accept(
    sources: &Sources,
    taken: &HashMap<String, &Path>,
    myself: &LoopDetection,
    file: &Path,
    name: &ServerName,
    entry: &Value,
) -> Result<Accepted, Rejected> {
    if restored(entry.clone(), None).is_err() {
        let why = "it contains masked values (`•••`) instead of secrets: replace each `•••` by the secret, or by a reference such as `${NAME}`";
        return Err(Rejected::Refused(why.to_owned()));
    }
    if let Some(there) = taken.get(name.as_str()) {
        let why = format!("{} already has a server with this name", there.display());
        return Err(Rejected::Refused(why));
    }
    let sealed = sources.sealed.get();
    let mut unset = Vec::new();
    let (spec, lacks) = match check_entry(file, name, entry, &startup::env, &sealed) {
        Ok((spec, _)) => (spec, Vec::new()),
        Err(unfit) if unfit.is_only_unfilled => {
            let mut off = entry.clone();
            switch_off(&mut off);
            let checked = check_entry(file, name, &off, &startup::env, &sealed);
            let (spec, _) = checked.map_err(refused)?;
            if unfit.is_only_unset {
                unset.extend(unfit.unset);
            }
            (spec, unfit.problems)
        }
        Err(unfit) => return Err(refused(unfit)),
    };
    match myself.recognise(&spec.origin) {
        Some(why) => Err(Rejected::Skipped(why)),
        None if lacks.is_empty() => Ok(Accepted::AsItIs),
        None => Ok(Accepted::SwitchedOff { lacks, unset }),
    }
}

fn refused(unfit: Unfit) -> Rejected {
    Rejected::Refused(unfit.problems.join("; "))
}

fn changed<T>(
    file: &Path,
    change: impl FnMut(&mut ServerFile) -> Result<T, EditError>,
) -> Result<T, Error> {
    edit(file, change).map_err(|source| Error::Edit {
        file: file.to_owned(),
        source,
    })
}

/// Applies `look` to a file in memory.
fn opened<T>(
    file: &Path,
    look: impl FnOnce(&mut ServerFile) -> Result<T, EditError>,
) -> Result<T, Error> {
    let looked = ServerFile::open(file).and_then(|mut servers| look(&mut servers));
    looked.map_err(|source| Error::Edit {
        file: file.to_owned(),
        source,
    })
}

/// Checks the entry in its current form. Unset variables are accepted: the server is blocked until a secret with this
/// name is stored.
fn fit(
    sources: &Sources,
    file: &Path,
    myself: &LoopDetection,
    servers: &ServerFile,
    name: &ServerName,
) -> Result<Fit, EditError> {
    let Some(entry) = servers.value(name)? else {
        return Err(EditError::NoServer(name.clone()));
    };
    let unfit = |wrong: Vec<Wrong>| unfit(name, wrong);
    let sealed = sources.sealed.get();
    let mut unset = BTreeSet::new();
    let mut checked = check_entry(file, name, &entry, &startup::env, &sealed);
    if let Err(found) = &mut checked
        && found.is_only_unset
        && !needs_valid_entries(sources)
    {
        unset = std::mem::take(&mut found.unset);
        checked = check_form(file, name, &entry, &startup::env, &sealed, &unset);
    }
    let (spec, warnings) = checked.map_err(|found| unfit(found.wrong))?;
    match myself.recognise(&spec.origin).filter(|_| spec.enabled) {
        Some(why) => Err(unfit(vec![Wrong::new(
            "",
            format!("{why} ({})", loop_detection::HELP),
        )])),
        None => Ok(Fit { warnings, unset }),
    }
}

/// Returns whether an invalid entry makes the whole configuration invalid.
fn needs_valid_entries(sources: &Sources) -> bool {
    startup::settings(sources).is_ok_and(|settings| settings.require_valid_entries)
}

/// Refuses to write an entry with keys that have no effect.
fn written(name: &ServerName, entry: &Value) -> Result<(), EditError> {
    let wrong = misplaced(entry);
    if wrong.is_empty() {
        return Ok(());
    }
    let problem = |wrong: &Wrong| {
        let key = wrong.pointer.trim_start_matches('/').replace('/', ".");
        format!("`{key}` {}", wrong.detail)
    };
    Err(EditError::Unfit {
        name: name.clone(),
        problems: wrong.iter().map(problem).collect(),
        wrong,
    })
}

fn unfit(name: &ServerName, wrong: Vec<Wrong>) -> EditError {
    EditError::Unfit {
        name: name.clone(),
        problems: wrong.iter().map(|wrong| wrong.detail.clone()).collect(),
        wrong,
    }
}

/// The file that contains the server.
///
/// # Errors
/// If a file is not readable.
pub(crate) fn home<'s>(sources: &'s Sources, name: &ServerName) -> Result<Option<&'s Path>, Error> {
    for file in &sources.servers {
        let there = ServerFile::open(file).and_then(|servers| servers.value(name));
        let there = there.map_err(|source| Error::Edit {
            file: file.clone(),
            source,
        })?;
        if there.is_some() {
            return Ok(Some(file));
        }
    }
    Ok(None)
}

fn found<'s>(sources: &'s Sources, name: &ServerName) -> Result<&'s Path, Error> {
    home(sources, name)?.ok_or_else(|| Error::NoServer {
        name: name.clone(),
        files: sources.servers.clone(),
    })
}
