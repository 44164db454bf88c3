//! Adds the servers of another file to a server file.

use std::collections::{HashMap, HashSet};

use model::ServerName;
use serde_json::{Map, Value};

use super::edit::{EditError, ServerFile};
use super::import::{Foreign, switch_off};
use super::names::server_name;
use super::shape;

/// The result of an import.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImportReport {
    pub added: Vec<ServerName>,
    /// Servers that exist with the same entry.
    pub unchanged: Vec<ServerName>,
    /// Servers that exist with a different entry. They are not changed.
    pub clashes: Vec<ServerName>,
    /// Servers with an invalid name or entry, with the reason.
    pub refused: Vec<(String, String)>,
    /// Servers with a valid entry that must not be imported into this file, with the reason.
    pub skipped: Vec<(String, String)>,
    /// Added servers that are switched off, with what is missing, such as the value of a variable.
    pub off: Vec<Off>,
    /// Differences between the added entries and the original ones.
    pub notes: Vec<(String, String)>,
}

/// An added server that is switched off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Off {
    pub name: String,
    /// What is missing.
    pub why: String,
    /// The variables that are not set. Empty if anything else is missing, too.
    pub unset: Vec<String>,
}

/// How a server is imported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Accepted {
    AsItIs,
    /// Disabled, with a description of each missing part. `unset`: the variables that are not set, if nothing else is
    /// missing.
    SwitchedOff {
        lacks: Vec<String>,
        unset: Vec<String>,
    },
}

/// Why a server is not imported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rejected {
    /// Its entry is invalid.
    Refused(String),
    /// Its entry is valid, but must not be imported into this file.
    Skipped(String),
}

/// Returns whether two entries differ at most in the name for display.
fn is_same(one: &Value, other: &Value) -> bool {
    let (Some(one), Some(other)) = (one.as_object(), other.as_object()) else {
        return one == other;
    };
    let rest = |all: &Map<String, Value>| all.len() - usize::from(all.contains_key("name"));
    let mut members = one.iter().filter(|(key, _)| *key != "name");
    rest(one) == rest(other) && members.all(|(key, value)| other.get(key) == Some(value))
}

impl ServerFile {
    /// Adds the servers of another file that this one does not have, if `accept` accepts them. Clashes are reported and
    /// are not errors.
    ///
    /// # Errors
    /// If this file contains a name twice.
    pub fn import(
        &mut self,
        others: &[Foreign],
        accept: impl Fn(&ServerName, &Value) -> Result<Accepted, Rejected>,
    ) -> Result<ImportReport, EditError> {
        let mut report = ImportReport::default();
        let mut known: HashMap<String, Value> = HashMap::new();
        let mut twice: HashSet<String> = HashSet::new();
        let mut derived = Vec::new();
        for (key, entry) in self.entries() {
            let (name, _) = server_name(&key);
            if key != name.as_str() {
                derived.push((name.to_string(), entry));
            } else if known.insert(key.clone(), entry).is_some() {
                twice.insert(key);
            }
        }
        for (name, entry) in derived {
            known.entry(name).or_insert(entry);
        }
        let mut new: Vec<(ServerName, Value)> = Vec::new();
        for other in others {
            let shown = shape::printable(&other.name);
            if let Some(why) = &other.skip {
                report.skipped.push((shown, why.clone()));
                continue;
            }
            let (name, invalid) = server_name(&other.name);
            if let Some(error) = invalid {
                report.refused.push((shown, error.to_string()));
                continue;
            }
            let is_derived = other.name != name.as_str();
            let mut on = other.entry.clone();
            if let (Value::Object(members), true) = (&mut on, is_derived) {
                members.insert("name".to_owned(), other.name.as_str().into());
            }
            let mut off = on.clone();
            switch_off(&mut off);
            if twice.contains(name.as_str()) {
                return Err(EditError::Ambiguous(name));
            }
            if let Some(there) = known.get(name.as_str()) {
                if is_same(there, &on) || is_same(there, &off) {
                    report.unchanged.push(name);
                } else if is_derived {
                    let why = format!(
                        "its name would be `{name}`, which another server has: rename one of the two"
                    );
                    report.refused.push((shown, why));
                } else {
                    report.clashes.push(name);
                }
                continue;
            }
            // An entry that is switched off may be incomplete.
            let mut missing = other.missing.clone();
            let mut unset = Vec::new();
            match accept(&name, if missing.is_empty() { &on } else { &off }) {
                Ok(Accepted::AsItIs) => {}
                Ok(Accepted::SwitchedOff {
                    lacks,
                    unset: names,
                }) => {
                    missing.extend(lacks);
                    unset = names;
                }
                Err(Rejected::Refused(why)) => {
                    report.refused.push((shown, why));
                    continue;
                }
                Err(Rejected::Skipped(why)) => {
                    report.skipped.push((shown, why));
                    continue;
                }
            }
            let entry = if missing.is_empty() { on } else { off };
            let shown = name.to_string();
            known.insert(name.to_string(), entry.clone());
            new.push((name.clone(), entry));
            if !missing.is_empty() {
                report.off.push(Off {
                    name: shown.clone(),
                    why: missing.join("; "),
                    unset,
                });
            }
            let notes = other.notes.iter().map(|note| (shown.clone(), note.clone()));
            report.notes.extend(notes);
            report.added.push(name);
        }
        self.add_all(&new)?;
        Ok(report)
    }
}
