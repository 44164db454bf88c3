//! Principals: callers identified by a key, a token or a browser session, with their roles.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

pub use model::Role;
use model::{ProjectId, ToolMode};

/// A caller and its roles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Principal {
    /// `key:<id>`, `user:<issuer>:<sub>`, `client:<issuer>:<id>`, `bearer:<digest>` or `anonymous`. Sessions are bound
    /// to this id, and audit records contain it.
    pub id: Arc<str>,
    /// The role in all projects and outside of them; `None`: the principal has access to `projects` only.
    pub(crate) role: Option<Role>,
    /// Higher roles in single projects.
    pub(crate) projects: BTreeMap<ProjectId, Role>,
    /// The tools in the lists of its clients. `None`: as configured.
    pub tools: Option<ToolMode>,
}

/// The principal has several projects, and a request must name one.
#[derive(Debug, thiserror::Error)]
#[error("you have several projects: name one of {}", list(.0))]
pub struct Ambiguous(Vec<ProjectId>);

fn list(projects: &[ProjectId]) -> String {
    let names: Vec<String> = projects.iter().map(|id| format!("`{id}`")).collect();
    names.join(", ")
}

impl Principal {
    /// A principal with a role in one project, or everywhere.
    pub fn new(id: impl Into<Arc<str>>, role: Role, project: Option<ProjectId>) -> Self {
        Self {
            id: id.into(),
            role: project.is_none().then_some(role),
            projects: project.into_iter().map(|project| (project, role)).collect(),
            tools: None,
        }
    }

    /// A principal with a role in these projects, or everywhere if `projects` is empty.
    pub fn within(id: impl Into<Arc<str>>, role: Role, projects: &BTreeSet<ProjectId>) -> Self {
        let mut principal = Self {
            id: id.into(),
            role: None,
            projects: BTreeMap::new(),
            tools: None,
        };
        principal.grant(role, projects);
        principal
    }

    /// The projects in which the principal has this role. `None`: it has the role everywhere.
    pub fn projects_with(&self, role: Role) -> Option<Vec<ProjectId>> {
        if self.role >= Some(role) {
            return None;
        }
        let projects = self.projects.iter();
        let with = projects.filter(|(_, own)| **own >= role);
        Some(with.map(|(project, _)| project.clone()).collect())
    }

    /// Returns true if the principal has this role in the project, or globally if `project` is `None`.
    pub fn may(&self, role: Role, project: Option<&ProjectId>) -> bool {
        self.role_in(project) >= Some(role)
    }

    /// Returns true if the project is visible to the principal. With `None`: true if the principal can see what belongs
    /// to no project.
    pub fn reaches(&self, project: Option<&ProjectId>) -> bool {
        self.role_in(project).is_some()
    }

    fn role_in(&self, project: Option<&ProjectId>) -> Option<Role> {
        let own = project.and_then(|project| self.projects.get(project));
        own.copied().max(self.role)
    }

    /// The project that applies to requests that name none. `None`: such requests apply to all projects.
    ///
    /// # Errors
    /// If the principal has access to several projects and nothing else.
    pub fn project(&self) -> Result<Option<&ProjectId>, Ambiguous> {
        let mut projects = self.projects.keys();
        match (self.role, projects.next(), projects.next()) {
            (None, Some(only), None) => Ok(Some(only)),
            (None, Some(_), Some(_)) => Err(Ambiguous(self.projects.keys().cloned().collect())),
            _ => Ok(None),
        }
    }

    /// Adds a role in `projects`, or globally if `projects` is empty.
    pub(super) fn grant(&mut self, role: Role, projects: &BTreeSet<ProjectId>) {
        if projects.is_empty() {
            self.role = self.role.max(Some(role));
        }
        for project in projects {
            let own = self.projects.entry(project.clone()).or_insert(role);
            *own = role.max(*own);
        }
    }

    /// Returns true if the principal has any role.
    pub(super) fn is_anybody(&self) -> bool {
        self.role.is_some() || !self.projects.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_add_up_by_project() {
        let project = |id: &str| ProjectId::parse(id).expect(id);
        let (a, b, c) = (project("a"), project("b"), project("c"));
        let mut who = Principal {
            id: "user:corp:ann".into(),
            role: None,
            projects: BTreeMap::new(),
            tools: None,
        };
        assert!(!who.is_anybody());
        who.grant(Role::Call, &BTreeSet::from([a.clone()]));
        assert_eq!(who.project().ok(), Some(Some(&a)));
        who.grant(Role::Manage, &BTreeSet::from([a.clone(), b.clone()]));
        who.grant(Role::Read, &BTreeSet::from([a.clone()]));
        assert!(who.may(Role::Manage, Some(&a)) && !who.may(Role::Admin, Some(&a)));
        assert!(!who.reaches(Some(&c)) && !who.reaches(None));
        let ambiguous = who.project().expect_err("two").to_string();
        assert_eq!(ambiguous, "you have several projects: name one of `a`, `b`");
        who.grant(Role::Read, &BTreeSet::new());
        assert!(who.may(Role::Manage, Some(&b)) && who.may(Role::Read, Some(&c)));
        assert!(who.may(Role::Read, None) && !who.may(Role::Call, Some(&c)));
        assert_eq!(who.project().ok(), Some(None));
    }
}
