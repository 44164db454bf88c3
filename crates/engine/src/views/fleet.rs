//! All configured servers, and which scopes see them.
//!
//! Invariants: a value is immutable and is replaced as a whole. It shares what has not changed with the value before, so
//! a change of one project costs the same with any number of others. A project's own servers are visible only to this
//! project and to callers that name no project. Deliberately absent: the source of the specs, and the state of the
//! servers.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use catalog::{KeptBack, ListKind};
use model::{
    Declared, NativeName, Pinning, ProjectId, ProjectView, ServerKey, Settings, ToolRef,
    ToolSetting,
};
use rpds::{HashTrieMapSync, RedBlackTreeMapSync};

use crate::{
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
    servers: RedBlackTreeMapSync<Option<ProjectId>, Owned>,
    pub projects: RedBlackTreeMapSync<ProjectId, Arc<Project>>,
    pub(crate) progress: Progress,
    passed_on: Arc<BTreeSet<String>>,
    /// If there are two with a key, the one that hides the other.
    by_key: HashTrieMapSync<ServerKey, Arc<Server>>,
    /// Registered servers.
    by_id: HashTrieMapSync<String, Arc<Server>>,
}

/// The servers of one owner.
type Owned = Arc<[Arc<Server>]>;

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
        self.servers.values().flat_map(|owned| &**owned)
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
        servers.map_or(&[], |owned| owned)
    }

    /// The servers of one project, or of all owners.
    fn lists(
        &self,
        only: Option<&ProjectId>,
    ) -> impl Iterator<Item = (&Option<ProjectId>, &Owned)> {
        let one = only.and_then(|id| self.servers.get_key_value(&Some(id.clone())));
        let all = only.is_none().then(|| self.servers.iter());
        one.into_iter().chain(all.into_iter().flatten())
    }

    /// The servers of one project, or all servers.
    pub(crate) fn within(&self, only: Option<&ProjectId>) -> impl Iterator<Item = &Arc<Server>> {
        self.lists(only).flat_map(|(_, owned)| &**owned)
    }

    /// Replaces the servers that match `is_old` with `fresh`. `only`: all of them belong to this project.
    pub(crate) fn replace(
        &mut self,
        only: Option<&ProjectId>,
        is_old: impl Fn(&Server) -> bool,
        fresh: Vec<Arc<Server>>,
    ) {
        let mut lists: BTreeMap<Option<ProjectId>, Vec<Arc<Server>>> = BTreeMap::new();
        for (owner, owned) in self.lists(only) {
            let kept = owned.iter().filter(|server| !is_old(server)).cloned();
            let kept: Vec<_> = kept.collect();
            if kept.len() < owned.len() {
                lists.insert(owner.clone(), kept);
            }
        }
        for server in fresh {
            let owner = server.key().owner.clone();
            let list = lists.entry(owner);
            let list = list.or_insert_with_key(|owner| self.of(owner.as_ref()).to_vec());
            list.push(server);
        }
        let has_headers = |servers: &[Arc<Server>]| {
            let mut servers = servers.iter();
            servers.any(|server| !server.spec.passed_on().is_empty())
        };
        let mut passes_on = false;
        // All old servers first: a registration may get another owner.
        for (owner, list) in &mut lists {
            list.sort_by_key(|server| server.spec.declared);
            if let Some(owned) = self.servers.get(owner).cloned() {
                passes_on |= has_headers(&owned);
                self.forget(&owned);
            }
        }
        for (owner, list) in lists {
            passes_on |= has_headers(&list);
            self.find(&list);
            match list.is_empty() {
                true => _ = self.servers.remove_mut(&owner),
                false => self.servers.insert_mut(owner, list.into()),
            }
        }
        if passes_on {
            let passed_on = self.all().flat_map(|server| server.spec.passed_on());
            self.passed_on = Arc::new(passed_on.map(str::to_owned).collect());
        }
    }

    /// Removes servers from the indexes.
    fn forget(&mut self, servers: &[Arc<Server>]) {
        for server in servers {
            self.by_key.remove_mut(server.key());
            if let Some(id) = server.spec.registered_as() {
                self.by_id.remove_mut(id);
            }
        }
    }

    /// Adds servers to the indexes.
    fn find(&mut self, servers: &[Arc<Server>]) {
        for server in servers {
            if let Some(id) = server.spec.registered_as()
                && !self.by_id.contains_key(id)
            {
                self.by_id.insert_mut(id.to_owned(), server.clone());
            }
            let known = self.by_key.get(server.key());
            if known.is_none_or(|known| is_hidden_by(known, server)) {
                self.by_key.insert_mut(server.key().clone(), server.clone());
            }
        }
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
        self.by_key.get(key)
    }

    /// The server that was registered with this id.
    #[must_use]
    pub fn by_id(&self, id: &str) -> Option<&Arc<Server>> {
        self.by_id.get(id)
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

    /// Returns whether a server with the same name hides this one. A project's server hides a shared one (in that
    /// project). Of the others, a registered server is hidden.
    fn is_hidden(&self, scope: &Scope, server: &Server) -> bool {
        let named = |owner: Option<&ProjectId>| {
            let (owner, name) = (owner.cloned(), server.name().clone());
            self.get(&ServerKey { owner, name })
        };
        let owner = server.key().owner.as_ref();
        let project = scope.project.as_ref().filter(|_| owner.is_none());
        let is_registered = |server: &Server| server.spec.declared == Declared::Registered;
        project.is_some_and(|project| named(Some(project)).is_some())
            || is_registered(server) && named(owner).is_some_and(|other| !is_registered(other))
    }
}

fn declared(servers: &[Arc<Server>], by: Declared) -> impl Iterator<Item = &Arc<Server>> {
    servers
        .iter()
        .filter(move |server| server.spec.declared == by)
}
