//! Servers of another file, added to one of ours.

use std::collections::{HashMap, HashSet};

use model::ServerName;
use serde_json::Value;

use super::edit::{EditError, ServerFile};
use super::import::{Foreign, switch_off};
use super::shape;

/// What an import did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImportReport {
    pub added: Vec<ServerName>,
    /// There already, with the same text.
    pub unchanged: Vec<ServerName>,
    /// There already, but different: left as they are.
    pub clashes: Vec<ServerName>,
    /// Servers that cannot be had here, and why.
    pub refused: Vec<(String, String)>,
    /// Servers that have no place here, and why.
    pub skipped: Vec<(String, String)>,
    /// Those of the added servers that are switched off, and what they lack.
    pub off: Vec<(String, String)>,
    /// What of the added servers is not here as it was there.
    pub notes: Vec<(String, String)>,
}

/// How a server is imported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Accepted {
    AsItIs,
    /// It lacks something.
    SwitchedOff(Vec<String>),
}

/// Why a server is not imported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rejected {
    /// Something is wrong with it.
    Refused(String),
    /// It is right as it is, and not for here.
    Skipped(String),
}

impl ServerFile {
    /// Adds the servers of another file that this one has not, if `accept` takes them.
    ///
    /// # Errors
    /// When this file holds a name twice. Clashes are no error, but reported.
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
            // An entry that is switched off may lack something.
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
