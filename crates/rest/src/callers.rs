//! The names of callers in records.
//!
//! Records have the ids of callers (`key:ID`). Responses also have their names, so that users need not look up ids.

use std::collections::{BTreeSet, HashMap};

use api::{Call, Change, Run};
use model::ProjectId;
use store::{CallRow, KeyName, RunRow, ToolChangeRow};

use super::{Problem, Rest, approvals, calls, runs};
use auth::Principal;

/// The prefix of a caller that is a key.
const KEY_PREFIX: &str = "key:";

/// The names of some callers.
pub(super) struct Names {
    keys: HashMap<String, KeyName>,
    /// True for a viewer that sees all projects.
    shows_projects: bool,
}

impl Names {
    /// The name of a caller. A caller that is not a key has its id as the name.
    fn of(&self, caller: &str) -> String {
        let Some(id) = caller.strip_prefix(KEY_PREFIX) else {
            return caller.to_owned();
        };
        match self.keys.get(id) {
            Some(key) if self.shows_projects => key.full(),
            Some(key) => key.name.clone(),
            // It was deleted with its project.
            None => format!("deleted key {id}"),
        }
    }
}

impl Rest {
    async fn names<'a>(
        &self,
        who: &Principal,
        callers: impl Iterator<Item = &'a str>,
    ) -> Result<Names, Problem> {
        let ids: BTreeSet<&str> = callers
            .filter_map(|caller| caller.strip_prefix(KEY_PREFIX))
            .collect();
        let ids: Vec<&str> = ids.into_iter().collect();
        Ok(Names {
            keys: self.projects.store().key_names(&ids).await?,
            shows_projects: who.reaches(None),
        })
    }

    /// Returns calls with the names of their callers.
    pub(super) async fn named_calls(
        &self,
        who: &Principal,
        rows: Vec<CallRow>,
    ) -> Result<Vec<Call>, Problem> {
        let names = self.names(who, rows.iter().map(|row| row.caller.as_str()));
        let names = names.await?;
        let named = rows.into_iter().map(|row| {
            let name = names.of(&row.caller);
            calls::to_api(row, name)
        });
        Ok(named.collect())
    }

    /// Returns runs with the names of their callers.
    pub(super) async fn named_runs(
        &self,
        who: &Principal,
        rows: Vec<RunRow>,
    ) -> Result<Vec<Run>, Problem> {
        let callers = rows.iter().filter_map(|row| row.caller.as_deref());
        let names = self.names(who, callers).await?;
        let named = rows.into_iter().map(|row| {
            let name = row.caller.as_deref().map(|caller| names.of(caller));
            runs::to_api(row, name)
        });
        Ok(named.collect())
    }

    /// Returns changes of definitions with the names of those who approved them.
    pub(super) async fn named_changes(
        &self,
        who: &Principal,
        rows: Vec<ToolChangeRow>,
    ) -> Result<Vec<Change>, Problem> {
        let callers = rows.iter().filter_map(|row| row.caller.as_deref());
        let names = self.names(who, callers).await?;
        let named = rows.into_iter().map(|row| {
            let name = row.caller.as_deref().map(|caller| names.of(caller));
            approvals::to_api(row, name)
        });
        Ok(named.collect())
    }

    /// Returns the id of a caller that is given by its id or by the name of its key.
    pub(super) async fn caller_id(
        &self,
        project: Option<&ProjectId>,
        given: Option<String>,
    ) -> Result<Option<String>, Problem> {
        let given = match given {
            Some(given) if !given.starts_with(KEY_PREFIX) => given,
            given => return Ok(given),
        };
        let named = self.projects.store().key_named(project, &given).await?;
        Ok(Some(match named {
            Some(id) => format!("{KEY_PREFIX}{id}"),
            None => given,
        }))
    }
}
