//! All configured servers, and which scopes see them.
//!
//! Invariants: a value is immutable and is replaced as a whole. A project's own servers are visible only to this
//! project and to callers that name no project. Deliberately absent: the source of the specs, and the state of the
//! servers.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, hash_map::Entry},
    sync::Arc,
};

use model::{
    Declared, NativeName, Pinning, ProjectId, ProjectView, ServerKey, Settings, ToolRef,
    ToolSetting,
};

use crate::{
    catalog::ListKind,
    records::pinned::KeptBack,
    scope::Scope,
    server::{Server, progress::Progress},
};

/// The settings of a project.
#[derive(Clone, Default)]
pub struct Project {
    /// The shared servers that the project sees, and its naming policy.
    pub view: ProjectView,
    pub tools: HashMap<ToolRef, ToolSetting>,
}

/// All servers in a fixed order: those of the configuration file (in file order), registered ones, those declared by
/// projects.
#[derive(Clone, Default)]
pub struct Fleet {
    pub settings: Arc<Settings>,
    /// By owner.
    servers: BTreeMap<Option<ProjectId>, Vec<Arc<Server>>>,
    pub projects: BTreeMap<ProjectId, Arc<Project>>,
    pub(crate) progress: Progress,
    passed_on: Arc<BTreeSet<String>>,
    index: Arc<Index>,
}

/// Finds servers without a search.
#[derive(Default)]
struct Index {
    /// If there are two with a key, the one that hides the other.
    by_key: HashMap<ServerKey, Arc<Server>>,
    /// Registered servers.
    by_id: HashMap<String, Arc<Server>>,
}

impl Index {
    fn of<'s>(servers: impl Iterator<Item = &'s Arc<Server>>) -> Self {
        let mut index = Self::default();
        for server in servers {
            if let Some(id) = server.spec.registered_as() {
                let ids = &mut index.by_id;
                ids.entry(id.to_owned()).or_insert_with(|| server.clone());
            }
            match index.by_key.entry(server.key().clone()) {
                Entry::Vacant(none) => {
                    none.insert(server.clone());
                }
                Entry::Occupied(mut known) if is_hidden_by(known.get(), server) => {
                    known.insert(server.clone());
                }
                Entry::Occupied(_) => {}
            }
        }
        index
    }
}

/// Returns whether a server with the same key hides the other one.
fn is_hidden_by(server: &Server, other: &Server) -> bool {
    server.spec.declared == Declared::Registered && other.spec.declared != Declared::Registered
}

impl Fleet {
    /// A fleet without servers.
    pub(crate) fn new(settings: Settings) -> Self {
        Self {
            settings: Arc::new(settings),
            ..Self::default()
        }
    }

    /// All servers, those without an owner first.
    pub fn all(&self) -> impl Iterator<Item = &Arc<Server>> {
        self.servers.values().flatten()
    }

    /// Servers of the configuration file, in file order.
    pub fn of_file(&self) -> impl Iterator<Item = &Arc<Server>> {
        declared(self.of(None), Declared::File)
    }

    /// Registered servers, of all projects and of none.
    pub fn registered(&self) -> impl Iterator<Item = &Arc<Server>> {
        let is_registered = |server: &&Arc<Server>| server.spec.declared == Declared::Registered;
        self.all().filter(is_registered)
    }

    /// Servers of a project. `None`: servers without a project.
    pub(crate) fn of(&self, owner: Option<&ProjectId>) -> &[Arc<Server>] {
        let servers = self.servers.get(&owner.cloned());
        servers.map_or(&[], Vec::as_slice)
    }

    /// Replaces the servers that match `is_old` with `fresh`, and returns them.
    pub(crate) fn replace(
        &mut self,
        is_old: impl Fn(&Server) -> bool,
        fresh: Vec<Arc<Server>>,
    ) -> Vec<Arc<Server>> {
        let mut gone = Vec::new();
        for servers in self.servers.values_mut() {
            let (old, kept) = servers.drain(..).partition(|server| is_old(server));
            *servers = kept;
            gone.extend::<Vec<_>>(old);
        }
        for server in fresh {
            let owner = server.key().owner.clone();
            self.servers.entry(owner).or_default().push(server);
        }
        self.servers.retain(|_, servers| !servers.is_empty());
        for servers in self.servers.values_mut() {
            servers.sort_by_key(|server| server.spec.declared);
        }
        let passed_on = self.all().flat_map(|server| server.spec.passed_on());
        self.passed_on = Arc::new(passed_on.map(str::to_owned).collect());
        self.index = Arc::new(Index::of(self.all()));
        gone
    }

    /// Names of the callers' headers that any server gets, in lower case.
    #[must_use]
    pub fn passed_on(&self) -> &Arc<BTreeSet<String>> {
        &self.passed_on
    }

    /// Names of the callers' headers that servers of the scope get.
    pub(crate) fn passed_on_in(&self, scope: &Scope) -> BTreeSet<String> {
        if self.passed_on.is_empty() {
            return BTreeSet::new();
        }
        let seen = self.seen(scope).unwrap_or_default();
        let names = seen.iter().flat_map(|server| server.spec.passed_on());
        names.map(str::to_owned).collect()
    }

    /// The server with this key. If there are two, the one that hides the other.
    #[must_use]
    pub fn get(&self, key: &ServerKey) -> Option<&Arc<Server>> {
        self.index.by_key.get(key)
    }

    /// The server that was registered with this id.
    #[must_use]
    pub fn by_id(&self, id: &str) -> Option<&Arc<Server>> {
        self.index.by_id.get(id)
    }

    /// Returns whether the project exists.
    #[must_use]
    pub fn has_project(&self, id: &ProjectId) -> bool {
        self.projects.contains_key(id) || self.declares(id)
    }

    /// Returns whether the configuration file declares the project.
    #[must_use]
    pub fn declares(&self, id: &ProjectId) -> bool {
        self.settings.projects.contains_key(id)
            || self
                .of_file()
                .any(|server| server.spec.projects.contains(id))
    }

    /// The settings of a project: those stored for it, otherwise those of the configuration file.
    pub(crate) fn project_view(&self, id: &ProjectId) -> Option<&ProjectView> {
        match self.projects.get(id) {
            Some(project) => Some(&project.view),
            None => self.settings.projects.get(id),
        }
    }

    /// Returns whether a caller of this scope sees the server, whether or not it is enabled.
    pub(crate) fn sees(&self, scope: &Scope, server: &Server) -> bool {
        self.includes(scope, server) && server.serves(&scope.values)
    }

    /// Like [`Fleet::sees`], for callers with any header values.
    pub(crate) fn includes(&self, scope: &Scope, server: &Server) -> bool {
        if scope
            .server
            .as_ref()
            .is_some_and(|only| only != server.name())
        {
            return false;
        }
        match (&scope.project, &server.spec.owner) {
            // A bare server name is unambiguous only for servers without a project.
            (None, Some(_)) => scope.server.is_none(),
            (None, None) => true,
            (Some(project), Some(owner)) => project == owner,
            (Some(project), None) => self.lends(project, server),
        }
    }

    /// Returns whether a project sees this shared server.
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

    /// The enabled servers of a scope as they are declared, in order. `None` if the project or server does not exist.
    pub(crate) fn seen(&self, scope: &Scope) -> Option<Vec<Arc<Server>>> {
        if let Some(project) = &scope.project
            && !self.has_project(project)
        {
            return None;
        }
        let is_seen = |server: &&Arc<Server>| {
            server.spec.enabled && self.includes(scope, server) && !self.is_hidden(scope, server)
        };
        let seen: Vec<Arc<Server>> = match &scope.project {
            None => self.all().filter(is_seen).cloned().collect(),
            project => {
                let own = self.of(project.as_ref()).iter();
                let all = self.of(None).iter().chain(own);
                all.filter(is_seen).cloned().collect()
            }
        };
        if scope.server.is_some() && seen.is_empty() {
            return None;
        }
        Some(seen)
    }

    /// The server's tools that are kept back, with the reasons.
    #[must_use]
    pub fn kept_back(&self, server: &Server) -> Vec<(NativeName, KeptBack)> {
        if self.settings.pinning != Pinning::Quarantine {
            return Vec::new();
        }
        let catalog = server.catalog();
        let tools = catalog.list(ListKind::Tools).iter();
        let kept = tools.filter_map(|item| {
            let why = server.keeps_back(&item.native)?;
            Some((NativeName::new(item.native.clone()), why))
        });
        kept.collect()
    }

    /// The number of a server's tools that wait for approval, without those that are switched off.
    #[must_use]
    pub fn awaiting_approval(&self, server: &Server) -> usize {
        let choice = server.tool_choice();
        let kept = self.kept_back(server);
        let waiting = kept.iter().filter(|(tool, _)| choice.offers(tool.as_str()));
        waiting.count()
    }

    /// Returns whether a server with the same name hides this one. A server of the file hides a registered one; a
    /// server that a project declared hides both.
    fn is_hidden(&self, scope: &Scope, server: &Server) -> bool {
        let is_named = |owner: Option<&ProjectId>| {
            let (owner, name) = (owner.cloned(), server.name().clone());
            let other = self.get(&ServerKey { owner, name });
            other.is_some_and(|other| other.spec.declared != Declared::Registered)
        };
        let owner = server.key().owner.as_ref();
        let registered = server.spec.declared == Declared::Registered;
        let by_own = owner.is_none() && scope.project.is_some() && is_named(scope.project.as_ref());
        by_own || (registered && is_named(owner))
    }
}

fn declared(servers: &[Arc<Server>], by: Declared) -> impl Iterator<Item = &Arc<Server>> {
    servers
        .iter()
        .filter(move |server| server.spec.declared == by)
}
