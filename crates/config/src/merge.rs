//! Adds the servers of another file to a server file.

use std::collections::{HashMap, HashSet};

use model::ServerName;
use serde_json::Value;

use super::edit::{EditError, ServerFile};
use super::import::{Foreign, switch_off};
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
    pub off: Vec<(String, String)>,
    /// Differences between the added entries and the original ones.
    pub notes: Vec<(String, String)>,
}

/// How a server is imported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Accepted {
    AsItIs,
    /// Disabled, with a description of each missing part.
    SwitchedOff(Vec<String>),
}

/// Why a server is not imported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rejected {
    /// Its entry is invalid.
    Refused(String),
    /// Its entry is valid, but must not be imported into this file.
    Skipped(String),
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
        for (name, entry) in self.entries() {
            if known.insert(name.clone(), entry).is_some() {
                twice.insert(name);
            }
        }
        let mut new: Vec<(ServerName, Value)> = Vec::new();
        for other in others {
            let shown = shape::printable(&other.name);
            if let Some(why) = &other.skip {
                report.skipped.push((shown, why.clone()));
                continue;
            }
            let name = match ServerName::parse(&other.name) {
                Ok(name) => name,
                Err(error) => {
                    report.refused.push((shown, error.to_string()));
                    continue;
                }
            };
            let mut off = other.entry.clone();
            switch_off(&mut off);
            if twice.contains(name.as_str()) {
                return Err(EditError::Ambiguous(name));
            }
            if let Some(there) = known.get(name.as_str()) {
                if *there == other.entry || *there == off {
                    report.unchanged.push(name);
                } else {
                    report.clashes.push(name);
                }
                continue;
            }
            // An entry that is switched off may be incomplete.
            let mut missing = other.missing.clone();
            match accept(
                &name,
                if missing.is_empty() {
                    &other.entry
                } else {
                    &off
                },
            ) {
                Ok(Accepted::AsItIs) => {}
                Ok(Accepted::SwitchedOff(more)) => missing.extend(more),
                Err(Rejected::Refused(why)) => {
                    report.refused.push((shown, why));
                    continue;
                }
                Err(Rejected::Skipped(why)) => {
                    report.skipped.push((shown, why));
                    continue;
                }
            }
            let entry = if missing.is_empty() {
                &other.entry
            } else {
                &off
            };
            known.insert(name.to_string(), entry.clone());
            new.push((name.clone(), entry.clone()));
            if !missing.is_empty() {
                report.off.push((shown.clone(), missing.join("; ")));
            }
            let notes = other.notes.iter().map(|note| (shown.clone(), note.clone()));
            report.notes.extend(notes);
            report.added.push(name);
        }
        self.add_all(&new)?;
        Ok(report)
    }
}
