//! Which servers there are, and who sees them: those of the configuration file, and those of projects.
//!
//! Invariants: a value never changes, only the next one takes its place; what a project owns is seen by this
//! project and by callers that name none, and by nobody else. Deliberately absent: where the descriptions
//! come from, and what the servers are doing.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use model::{ProjectId, ProjectView, ServerKey, Settings, ToolRef, ToolSetting};

use crate::{server::Server, view::Scope};

/// What a project has of its own.
#[derive(Clone, Default)]
pub struct Project {
    /// What it sees of the configuration file's servers, and how names are made.
    pub view: ProjectView,
    pub tools: HashMap<ToolRef, ToolSetting>,
    pub(crate) servers: Vec<Arc<Server>>,
}

impl Project {
    #[must_use]
    pub fn new(view: ProjectView, tools: HashMap<ToolRef, ToolSetting>) -> Self {
        Self {
            view,
            tools,
            servers: Vec::new(),
        }
    }

    #[must_use]
    pub fn servers(&self) -> &[Arc<Server>] {
        &self.servers
    }
}

/// All servers.
#[derive(Clone, Default)]
pub struct Fleet {
    pub settings: Arc<Settings>,
    /// Of the configuration file, in its order.
    pub shared: Vec<Arc<Server>>,
    /// Those that were registered to be hosted, a project's own among them.
    pub hosted: Vec<Arc<Server>>,
    pub projects: BTreeMap<ProjectId, Arc<Project>>,
}

impl Fleet {
    /// All servers, those of the configuration file first.
    pub fn all(&self) -> impl Iterator<Item = &Arc<Server>> {
        let owned = self.projects.values().flat_map(|project| &project.servers);
        self.shared.iter().chain(&self.hosted).chain(owned)
    }

    #[must_use]
    pub fn get(&self, key: &ServerKey) -> Option<&Arc<Server>> {
        let list = match &key.owner {
            Some(project) => self.projects.get(project).map(|project| project.servers()),
            None => Some(self.shared.as_slice()),
        };
        let listed = list.unwrap_or_default();
        let hosted = self.hosted.iter().filter(|server| *server.key() == *key);
        let mut named = listed
            .iter()
            .filter(|server| *server.name() == key.name)
            .chain(hosted);
        named.next()
    }

    /// The server that is hosted under this id.
    #[must_use]
    pub fn hosted(&self, id: &str) -> Option<&Arc<Server>> {
        let is = |server: &&Arc<Server>| {
            let hosting = server.spec.hosting();
            hosting.is_some_and(|hosting| hosting.id == id)
        };
        self.hosted.iter().find(is)
    }

    /// Whether anything says that there is such a project.
    #[must_use]
    pub fn has_project(&self, id: &ProjectId) -> bool {
        self.projects.contains_key(id) || self.declares(id)
    }

    /// Whether the configuration file says that there is such a project.
    #[must_use]
    pub fn declares(&self, id: &ProjectId) -> bool {
        self.settings.projects.contains_key(id)
            || self
                .shared
                .iter()
                .any(|server| server.spec.projects.contains(id))
    }

    /// What is set for a project: its own word, else the configuration file's.
    pub(crate) fn project_view(&self, id: &ProjectId) -> Option<&ProjectView> {
        match self.projects.get(id) {
            Some(project) => Some(&project.view),
            None => self.settings.projects.get(id),
        }
    }

    pub(crate) fn tool_setting(&self, scope: &Scope, tool: &ToolRef) -> Option<&ToolSetting> {
        self.projects.get(scope.project.as_ref()?)?.tools.get(tool)
    }

    pub(crate) fn tool_settings(
        &self,
        scope: &Scope,
    ) -> impl Iterator<Item = (&ToolRef, &ToolSetting)> {
        let project = scope.project.as_ref().and_then(|id| self.projects.get(id));
        project.into_iter().flat_map(|project| &project.tools)
    }

    /// Whether a caller of this scope sees the server, enabled or not.
    pub(crate) fn sees(&self, scope: &Scope, server: &Server) -> bool {
        if scope
            .server
            .as_ref()
            .is_some_and(|only| only != server.name())
        {
            return false;
        }
        match (&scope.project, &server.spec.owner) {
            // One server by its name alone: names of projects' own are not unique.
            (None, Some(_)) => scope.server.is_none(),
            (None, None) => true,
            (Some(project), Some(owner)) => project == owner,
            (Some(project), None) => self.lends(project, server),
        }
    }

    /// Whether a project sees this server of the configuration file.
    fn lends(&self, project: &ProjectId, server: &Server) -> bool {
        let named = server.spec.projects.contains(project);
        let listed = self
            .project_view(project)
            .and_then(|view| view.servers.as_ref());
        match listed {
            Some(listed) if listed.is_empty() => named,
            Some(listed) => {
                listed.contains(server.name()) && server.spec.is_in_project(Some(project))
            }
            None => server.spec.is_in_project(Some(project)),
        }
    }

    /// The enabled servers of a scope, in order; `None` if there is no such project or server.
    pub(crate) fn seen(&self, scope: &Scope) -> Option<Vec<Arc<Server>>> {
        if let Some(project) = &scope.project
            && !self.has_project(project)
        {
            return None;
        }
        let own = scope.project.as_ref().and_then(|id| self.projects.get(id));
        let own = own.map_or(&[][..], |project| &project.servers);
        // A project's own server takes the place of one of the configuration file, and that the place of a hosted
        // one of its name and owner.
        let shadowed = |server: &Server| {
            let named = |other: &Arc<Server>| other.name() == server.name();
            let hosted = server.spec.hosting().is_some();
            match &server.spec.owner {
                None => own.iter().any(named) || (hosted && self.shared.iter().any(named)),
                Some(owner) if hosted => {
                    let project = self.projects.get(owner);
                    project.is_some_and(|project| project.servers.iter().any(named))
                }
                Some(_) => false,
            }
        };
        let all_projects = self
            .projects
            .values()
            .filter(|_| scope.project.is_none())
            .flat_map(|project| &project.servers);
        let seen: Vec<Arc<Server>> = self
            .shared
            .iter()
            .chain(&self.hosted)
            .chain(own)
            .chain(all_projects)
            .filter(|server| server.spec.enabled && self.sees(scope, server) && !shadowed(server))
            .cloned()
            .collect();
        if scope.server.is_some() && seen.is_empty() {
            return None;
        }
        Some(seen)
    }
}
