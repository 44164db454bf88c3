//! The view of one scope: an immutable snapshot of its servers' catalogs, named according to a naming policy.
//!
//! There are two kinds. A *merged* view of several servers gives every tool, prompt and resource a unique name and
//! names its server in `_meta`. A *single* view, of one server, leaves everything as the server sent it.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicBool, Ordering},
};

use bytes::Bytes;
use catalog::{KeptBack, ListKind};
use mcp::{
    Era, RpcError, Version, client::Identity, error, json::quote, protocol::meta, server::modern,
};
use model::{ServerName, ToolChoice, naming::Labels};
use rpds::{HashTrieMapSync, VectorSync};

use crate::{
    scope::Scope,
    server::{Server, connection::Names},
    uri,
    views::{
        entry::{Entry, Route},
        finders::ToolList,
        fleet::Fleet,
        missing, offers,
        part::Part,
        refusals, sign_ins,
        source::{Rules, Source},
    },
};

pub use crate::views::entry::{PROJECT_KEY, SERVER_KEY};

/// Follows the instructions of servers in search mode.
const FIND_UNLISTED: &str = "Tools that are not listed are found with `search_tools`.";

/// The target of a name.
enum Meant<'v> {
    Offered(&'v Entry),
    KeptBack(&'v Entry, &'v KeptBack),
}

/// Data that all snapshots of a scope share, as long as the same servers are declared.
pub(crate) struct Base {
    pub(crate) identity: Identity,
    /// The names of all servers.
    pub(crate) labels: Labels,
    /// False if lists do not start and await servers of projects: see [`missing::awaits_owned`].
    pub(crate) awaits_owned: bool,
    pub(crate) tool_list: ToolList,
}

impl Base {
    pub(super) fn of(
        scope: &Scope,
        servers: &[Arc<Server>],
        identity: &Identity,
        rules: &Rules,
    ) -> Self {
        let labels: Vec<ServerName> = servers.iter().map(|one| one.label(scope).0).collect();
        Self {
            identity: identity.clone(),
            labels: Labels::new(&labels),
            awaits_owned: missing::awaits_owned(servers, scope),
            tool_list: rules.tool_list(scope),
        }
    }

    /// Returns whether lists start and await the server.
    pub(super) fn awaits(&self, server: &Server) -> bool {
        self.awaits_owned || server.spec.owner.is_none()
    }
}

/// A snapshot of what one scope sees.
///
/// Successive snapshots share everything that has not changed ([`super::merged`]).
pub struct View {
    pub scope: Scope,
    /// Enabled servers, in configuration order.
    pub servers: Arc<[Arc<Server>]>,
    pub(super) base: Arc<Base>,
    /// One for each server, in the same order.
    pub(super) parts: VectorSync<Arc<Part>>,
    pub(super) tools: Routes,
    pub(super) prompts: Routes,
    /// The number of items in each list.
    pub(super) lens: [usize; 4],
    /// True if several servers have tools with an App.
    pub(super) has_apps: bool,
    pub(super) settled: bool,
    /// True if a server of this view is still idle. A request for a list starts such a server.
    pub(super) sleeps: bool,
    pub(super) lazy: Lazy,
    /// For each list, whether clients may have it from an earlier snapshot with the same list.
    inherited: [AtomicBool; 4],
    /// Items without a name, by list. Only in a single view.
    pub(super) nameless: [Arc<[Bytes]>; 4],
    /// Disabled tools of the server of a single view, for everyone or for the project.
    choice: ToolChoice,
}

/// The targets of exposed names.
pub(super) type Routes = HashTrieMapSync<Arc<str>, Route>;

/// Data computed at its first use.
#[derive(Default)]
pub(super) struct Lazy {
    /// The rendered lists, by list and era.
    rendered: [[OnceLock<Bytes>; 2]; 4],
    /// The rendered list of tools with the gateway's own, by era.
    client_tools: [OnceLock<Bytes>; 2],
    /// The tokens that the list for clients saves.
    pub(super) saved_tokens: OnceLock<u64>,
    /// The names of tools in code.
    pub(super) code_tools: OnceLock<Vec<code::Declared>>,
    /// Definitions of the tools that sign in to a server, at the end of the list of tools.
    sign_ins: OnceLock<Vec<Bytes>>,
    /// Members of the `_meta` of lists: the servers whose remembered catalog is used, and those without a catalog.
    list_meta: OnceLock<Option<String>>,
}

impl View {
    /// A view without parts.
    pub(super) fn empty(scope: &Scope, servers: Arc<[Arc<Server>]>, base: Arc<Base>) -> Self {
        Self {
            scope: scope.clone(),
            servers,
            base,
            parts: VectorSync::new_sync(),
            tools: Routes::new_sync(),
            prompts: Routes::new_sync(),
            lens: [0; 4],
            has_apps: false,
            settled: true,
            sleeps: false,
            lazy: Lazy::default(),
            inherited: Default::default(),
            nameless: Default::default(),
            choice: ToolChoice::default(),
        }
    }

    /// A view with the same parts, in which nothing is rendered yet.
    pub(super) fn copy(&self) -> Self {
        Self {
            scope: self.scope.clone(),
            servers: self.servers.clone(),
            base: self.base.clone(),
            parts: self.parts.clone(),
            tools: self.tools.clone(),
            prompts: self.prompts.clone(),
            lens: self.lens,
            has_apps: self.has_apps,
            settled: self.settled,
            sleeps: self.sleeps,
            lazy: Lazy::default(),
            inherited: Default::default(),
            nameless: self.nameless.clone(),
            choice: self.choice.clone(),
        }
    }

    /// Takes a snapshot of what one server currently offers. `servers` has at most one.
    pub(crate) fn single(
        scope: &Scope,
        servers: Vec<Arc<Server>>,
        fleet: &Fleet,
        identity: &Identity,
    ) -> Self {
        let rules = Rules::of(fleet, scope);
        let base = Base::of(scope, &servers, identity, &rules);
        let mut view = Self::empty(scope, servers.into(), Arc::new(base));
        for server in &*view.servers.clone() {
            let source = Source::of(server);
            let is_awaited = view.base.awaits(server);
            view.settled &= source.is_settled || !is_awaited;
            view.sleeps |= source.is_idle && is_awaited;
            view.choice = source.own_choice(scope, &rules);
            let mut part = Part::empty(source);
            for kind in ListKind::ALL {
                view.nameless[kind as usize] = part.source.catalog.of(kind).nameless.clone();
                let entries = part.source.entries(kind, scope, &rules);
                part.set(kind, entries);
                view.lens[kind as usize] += part.entries(kind).len();
            }
            for (kind, routes) in view.routes() {
                for entry in &**part.entries(kind) {
                    routes.insert_mut(entry.exposed.clone(), entry.route());
                }
            }
            view.parts.push_back_mut(Arc::new(part));
        }
        view
    }

    /// The number of parts that an earlier view does not share.
    #[cfg(test)]
    pub(super) fn parts_not_in(&self, before: &Self) -> usize {
        let pairs = self.parts.iter().zip(&before.parts);
        pairs
            .filter(|(one, other)| !Arc::ptr_eq(one, other))
            .count()
    }

    /// The names in the lists whose items have names.
    pub(super) fn routes(&mut self) -> [(ListKind, &mut Routes); 2] {
        let (tools, prompts) = (&mut self.tools, &mut self.prompts);
        [(ListKind::Tools, tools), (ListKind::Prompts, prompts)]
    }

    /// The items of a list, in order.
    pub(super) fn entries(&self, kind: ListKind) -> impl Iterator<Item = &Entry> {
        self.parts
            .iter()
            .flat_map(move |part| &**part.entries(kind))
    }

    /// The tools that are kept back, with the reasons.
    fn kept(&self) -> impl Iterator<Item = (&Entry, &KeptBack)> {
        let kept = self.parts.iter().flat_map(|part| &*part.kept);
        kept.filter_map(|entry| Some((entry, entry.kept_back.as_ref()?)))
    }

    /// The definitions of the tools that sign in to a server.
    pub(super) fn sign_ins(&self) -> &[Bytes] {
        let offered = || {
            let waiting = self.parts.iter().filter(|part| part.source.awaits_sign_in);
            let waiting = waiting.map(|part| &part.source.server);
            sign_ins::offered(waiting, &self.scope, |name| self.tools.contains_key(name))
        };
        self.lazy.sign_ins.get_or_init(offered)
    }

    pub(super) fn list_meta(&self) -> Option<&str> {
        let meta = || {
            let stale = self.parts.iter().filter(|part| part.source.is_stale);
            let missing = self.parts.iter().filter(|part| part.source.is_missing);
            let missing = missing.map(|part| &part.source.server);
            missing::list_meta(
                stale.map(|part| &part.source.server),
                missing.filter(|server| self.base.awaits(server)),
                &self.scope,
            )
        };
        self.lazy.list_meta.get_or_init(meta).as_deref()
    }

    /// Returns whether this is the unmodified view of one server.
    #[must_use]
    pub fn is_single(&self) -> bool {
        self.scope.server.is_some()
    }

    /// Returns whether a tool is disabled in a single view, whether or not the server lists it.
    #[must_use]
    pub fn is_off(&self, native: &str) -> bool {
        !self.choice.offers(native)
    }

    /// Returns whether no server of the view is in its first start.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.settled
    }

    /// Returns whether a server of the view is in its first start and its catalog is unknown.
    pub(crate) fn is_starting(&self) -> bool {
        self.awaited().any(|server| server.is_in_first_start())
    }

    /// Returns whether a client may hold this version of the list.
    pub(crate) fn knows(&self, kind: ListKind) -> bool {
        let rendered = &self.lazy.rendered[kind as usize];
        rendered.iter().any(|list| list.get().is_some())
            || kind == ListKind::Tools
                && self
                    .lazy
                    .client_tools
                    .iter()
                    .any(|list| list.get().is_some())
            || self.inherited[kind as usize].load(Ordering::Relaxed)
    }

    /// Returns whether a client may hold any of the view's lists.
    pub(crate) fn is_known(&self) -> bool {
        ListKind::ALL.into_iter().any(|kind| self.knows(kind))
    }

    /// Records that the list of `before` is also the list of this view, so clients that have it are up to date.
    pub(crate) fn inherit(&self, before: &Self, kind: ListKind) {
        if before.knows(kind) {
            self.inherited[kind as usize].store(true, Ordering::Relaxed);
        }
    }

    /// Returns whether `now` has the same list. A list that clients received as stale counts as different from the
    /// fresh one.
    pub(crate) fn has_same<'v>(&'v self, now: &'v Self, kind: ListKind) -> bool {
        if kind == ListKind::Tools && (self.is_search() || now.is_search()) {
            return self.is_search() == now.is_search()
                && self.render_for_clients(Era::Legacy) == now.render_for_clients(Era::Legacy);
        }
        let told = self.knows(kind);
        let same = self.nameless[kind as usize] == now.nameless[kind as usize]
            && (kind != ListKind::Tools
                || self.sign_ins() == now.sign_ins()
                    && self.base.tool_list.listed == now.base.tool_list.listed
                    && self.runs_code() == now.runs_code()
                    && self.max_result_tokens().is_some() == now.max_result_tokens().is_some());
        if same && self.has_servers_of(now) {
            let mut pairs = self.parts.iter().zip(&now.parts);
            return pairs
                .all(|(one, other)| Arc::ptr_eq(one, other) || one.has_same(other, kind, told));
        }
        let entries = |view: &'v Self| {
            let parts = view.parts.iter();
            parts.flat_map(move |part| {
                let entries = part.entries(kind).iter();
                entries.map(|entry| (entry, part.source.is_stale))
            })
        };
        same && self.len(kind) == now.len(kind)
            && entries(self)
                .zip(entries(now))
                .all(|(before, after)| before.0.is_same(after.0) && !(told && before.1 && !after.1))
    }

    /// Returns whether both views have the same servers in the same order.
    fn has_servers_of(&self, other: &Self) -> bool {
        let mut pairs = self.servers.iter().zip(&*other.servers);
        Arc::ptr_eq(&self.base, &other.base)
            || self.servers.len() == other.servers.len()
                && pairs.all(|(one, other)| one.key() == other.key())
    }

    /// Starts the idle servers, because a list is requested.
    pub(crate) fn wake(&self) {
        if self.sleeps {
            self.awaited().for_each(|server| server.want());
        }
    }

    /// The servers that a list of this view may start and wait for, in configuration order.
    pub fn awaited(&self) -> impl Iterator<Item = &Arc<Server>> {
        self.servers
            .iter()
            .filter(|server| self.base.awaits(server))
    }

    /// The result of a list method for a client of the era, as JSON text.
    #[must_use]
    pub fn list(&self, kind: ListKind, era: Era) -> &Bytes {
        let slot = &self.lazy.rendered[kind as usize][usize::from(era == Era::Modern)];
        slot.get_or_init(|| self.render(kind, era, None, |_| true))
    }

    /// Like [`View::list`], with the tools that clients get.
    pub(crate) fn client_list(&self, kind: ListKind, era: Era) -> &Bytes {
        if kind != ListKind::Tools || !self.has_own_tools() {
            return self.list(kind, era);
        }
        let slot = &self.lazy.client_tools[usize::from(era == Era::Modern)];
        slot.get_or_init(|| self.render_for_clients(era))
    }

    /// Like [`View::list`] for tools, for a session with separate instances. For servers that have such an instance,
    /// the list contains only the tools that the instance lists.
    pub(crate) fn own_tools(&self, era: Era, own: &[(Arc<Server>, Names)]) -> Bytes {
        self.render(ListKind::Tools, era, Some(self.finders()), |entry| {
            let mut own = own.iter();
            let own = own.find(|(server, _)| Arc::ptr_eq(server, &entry.server));
            own.is_none_or(|(_, names)| names.contains(&entry.item.native))
        })
    }

    /// The members of every modern result generated by the gateway, without braces. `ttl_ms`: how long a client may use
    /// the result without asking again (2026-07-28 server/utilities/caching).
    pub(crate) fn modern_members(&self, ttl_ms: u64, more_meta: Option<&str>) -> String {
        format!(
            "\"resultType\":\"complete\",\"ttlMs\":{ttl_ms},\"cacheScope\":\"private\",\"_meta\":{{\"{}\":{}{}{}}}",
            meta::SERVER_INFO,
            self.implementation(Era::Modern),
            if more_meta.is_some() { "," } else { "" },
            more_meta.unwrap_or_default()
        )
    }

    /// The description of the server that answers, as JSON text: the server of a single view, otherwise the gateway.
    pub(crate) fn implementation(&self, era: Era) -> String {
        self.only_info(era)
            .and_then(|info| info.implementation)
            .map_or_else(
                || self.base.identity.to_json(),
                |own| String::from_utf8_lossy(&own).into_owned(),
            )
    }

    /// The description that a single view's server gives of itself to clients of this era.
    fn only_info(&self, era: Era) -> Option<mcp::client::ServerInfo> {
        let server = self.servers.first().filter(|_| self.is_single())?;
        server.info(era)
    }

    /// The `ServerCapabilities` for a client, as JSON text.
    #[must_use]
    pub fn capabilities(&self, era: Era) -> String {
        let only = self.servers.first().filter(|_| self.is_single());
        match (only, self.only_info(era)) {
            (Some(server), Some(info)) => offers::of_one(server, &info, era),
            _ => offers::of_many(&self.servers, era),
        }
    }

    /// The result of `initialize`, as JSON text.
    #[must_use]
    pub fn initialize(&self, version: Version) -> String {
        format!(
            "{{\"protocolVersion\":\"{version}\",\"capabilities\":{},\"serverInfo\":{}{}}}",
            self.capabilities(Era::Legacy),
            self.implementation(Era::Legacy),
            self.instructions(Era::Legacy)
        )
    }

    /// The result of `server/discover`, as JSON text.
    #[must_use]
    pub fn discover(&self) -> String {
        format!(
            "{{{},\"supportedVersions\":{},\"capabilities\":{}{}}}",
            self.modern_members(0, None),
            modern::supported(),
            self.capabilities(Era::Modern),
            self.instructions(Era::Modern)
        )
    }

    fn instructions(&self, era: Era) -> String {
        let text = if let Some(info) = self.only_info(era) {
            info.instructions.unwrap_or_default()
        } else {
            let parts: Vec<String> = self
                .servers
                .iter()
                .filter_map(|server| {
                    let text = server.catalog().info.as_ref()?.instructions.clone()?;
                    let (name, _) = server.label(&self.scope);
                    Some(format!("## {name}\n\n{}", text.trim()))
                })
                .collect();
            parts.join("\n\n")
        };
        if text.is_empty() {
            text
        } else {
            let text = match self.is_search() {
                true => format!("{text}\n\n{FIND_UNLISTED}"),
                false => text,
            };
            format!(",\"instructions\":{}", quote(&text))
        }
    }

    /// The target of a tool name.
    ///
    /// # Errors
    /// -32602. The message names alternatives (G04).
    pub fn tool(&self, name: &str) -> Result<Route, RpcError> {
        self.route(&self.tools, ListKind::Tools, name)
    }

    /// The target of a prompt name.
    ///
    /// # Errors
    /// -32602. The message names alternatives.
    pub fn prompt(&self, name: &str) -> Result<Route, RpcError> {
        self.route(&self.prompts, ListKind::Prompts, name)
    }

    fn route(&self, routes: &Routes, kind: ListKind, name: &str) -> Result<Route, RpcError> {
        if let Some(route) = routes.get(name) {
            return Ok(route.clone());
        }
        match self.meant(kind, name) {
            Some(Meant::Offered(entry)) => return Ok(entry.route()),
            Some(Meant::KeptBack(entry, why)) => {
                return Err(refusals::kept_back(
                    &self.scope,
                    name,
                    &entry.server,
                    &entry.item.native,
                    why,
                ));
            }
            None => {}
        }
        let same: Vec<&Entry> = self
            .entries(kind)
            .filter(|entry| entry.name() == name)
            .collect();
        let hint = match same.is_empty() {
            true => missing::lacking(&self.servers, &self.scope, kind, Some(name)),
            false => String::new(),
        };
        Err(refusals::unknown(kind, name, &same, &hint))
    }

    /// Resolves a name that is not an exposed name. `server__tool` always works, so that a name that once needed the
    /// prefix stays valid. A kept-back tool's native name is recognised only if no offered tool has it.
    fn meant(&self, kind: ListKind, name: &str) -> Option<Meant<'_>> {
        let kept = || self.kept().filter(|_| kind == ListKind::Tools);
        let found = |(entry, why)| Meant::KeptBack(entry, why);
        if let Some(exposed) = kept().find(|(entry, _)| entry.is_exposed_as(name)) {
            return Some(found(exposed));
        }
        if !self.is_single()
            && let Some((owner, rest)) = self.base.labels.owner(name)
            && let Some(part) = self.part_of(owner)
        {
            let mut offered = part.entries(kind).iter();
            if let Some(entry) = offered.find(|entry| entry.name() == rest) {
                return Some(Meant::Offered(entry));
            }
            let mut kept = part.kept.iter().filter(|_| kind == ListKind::Tools);
            if let Some(entry) = kept.find(|entry| entry.name() == rest)
                && let Some(why) = &entry.kept_back
            {
                return Some(found((entry, why)));
            }
        }
        if self.entries(kind).any(|entry| entry.name() == name) {
            return None;
        }
        kept().find(|(entry, _)| entry.name() == name).map(found)
    }

    /// The part of the server with this name in the scope.
    pub(crate) fn part_of(&self, label: &str) -> Option<&Arc<Part>> {
        let mut parts = self.parts.iter();
        parts.find(|part| part.source.server.label(&self.scope).0.as_str() == label)
    }

    /// Why this tool of a server is kept back, if it is. `name` is the exposed name, or the name given by the server or
    /// its project.
    #[must_use]
    pub fn kept_back_of(&self, server: &ServerName, name: &str) -> Option<String> {
        let is_meant = |entry: &Entry| {
            entry.server.name() == server && (entry.is_exposed_as(name) || entry.name() == name)
        };
        let (entry, why) = self.kept().find(|(entry, _)| is_meant(entry))?;
        Some(refusals::kept_back(&self.scope, name, &entry.server, &entry.item.native, why).message)
    }

    /// The server that a user signs in to by calling a tool of this name, which no server has.
    pub(crate) fn signs_in_to(&self, name: &str) -> Option<&Arc<Server>> {
        let server = sign_ins::server_of(&self.servers, &self.scope, name)?;
        (!self.tools.contains_key(name)).then_some(server)
    }

    /// The server that a tool of this name belongs to, if its tools are unknown until a user signs in.
    pub(crate) fn awaits_sign_in(&self, name: &str) -> Option<&Arc<Server>> {
        let label = |server: &Arc<Server>| server.label(&self.scope).0;
        let (owner, _) = self.base.labels.owner(name)?;
        let mut servers = self.servers.iter();
        servers.find(|server| server.awaits_sign_in() && label(server).as_str() == owner)
    }

    /// Returns whether a tool has an App. Known only in views in which several servers have such tools.
    pub(crate) fn has_view(&self, name: &str) -> bool {
        self.has_apps && self.tools.get(name).is_some_and(|route| route.has_app)
    }

    /// Returns whether the gateway has to track which Apps a client opens.
    pub(crate) fn has_views(&self) -> bool {
        self.has_apps
    }

    /// The servers that offer a tool with this native name.
    pub(crate) fn servers_with_tool(&self, native: &str) -> Vec<&Arc<Server>> {
        self.entries(ListKind::Tools)
            .filter(|entry| *entry.item.native == *native)
            .map(|entry| &entry.server)
            .collect()
    }

    /// The target of a native name in the view of this one server, independent of the exposed names. `None` if the
    /// server does not list the tool.
    ///
    /// # Errors
    /// -32602 for a tool that is disabled or kept back.
    pub(crate) fn native_route(
        &self,
        server: &Arc<Server>,
        native: &str,
    ) -> Result<Option<Route>, RpcError> {
        // Most tools are offered under their native names.
        if let Some(route) = self.tools.get(native)
            && *route.native == *native
        {
            return Ok(Some(route.clone()));
        }
        if let Some(route) = self.native_tool(server, native) {
            return Ok(Some(route));
        }
        let mut kept = self.kept();
        if let Some((entry, why)) = kept.find(|(entry, _)| *entry.item.native == *native) {
            return Err(refusals::kept_back(
                &self.scope,
                native,
                &entry.server,
                &entry.item.native,
                why,
            ));
        }
        if self.is_off(native) {
            let (servers, scope) = (&self.servers, &self.scope);
            let hint = missing::lacking(servers, scope, ListKind::Tools, Some(native));
            return Err(refusals::unknown(ListKind::Tools, native, &[], &hint));
        }
        Ok(None)
    }

    /// The target of a server's native tool name.
    pub(crate) fn native_tool(&self, server: &Arc<Server>, native: &str) -> Option<Route> {
        let mut parts = self.parts.iter();
        let part = parts.find(|part| Arc::ptr_eq(&part.source.server, server))?;
        let mut tools = part.entries(ListKind::Tools).iter();
        let entry = tools.find(|entry| *entry.item.native == *native)?;
        self.tools.get(&entry.exposed).cloned()
    }

    /// The server of a resource URI, and the native URI there.
    ///
    /// A merged view also accepts native URIs, if only one server can have the resource.
    ///
    /// # Errors
    /// The error code of the era for a missing resource.
    pub fn resource(&self, exposed: &str, era: Era) -> Result<(Arc<Server>, String), RpcError> {
        let unknown = || {
            let code = if era == Era::Modern {
                error::INVALID_PARAMS
            } else {
                error::RESOURCE_NOT_FOUND
            };
            let shown: String = exposed.chars().take(200).collect();
            let (servers, scope) = (&self.servers, &self.scope);
            let hint = missing::lacking(servers, scope, ListKind::Resources, None);
            RpcError::new(code, format!("Resource not found{hint}"))
                .with_data(format!("{{\"uri\":{}}}", quote(&shown)).into_bytes())
        };
        if self.is_single() {
            return self
                .servers
                .first()
                .map(|server| (server.clone(), exposed.to_owned()))
                .ok_or_else(unknown);
        }
        if let Some((label, native)) = uri::split(exposed)
            && let Some(server) = self
                .servers
                .iter()
                .find(|server| uri::label(server.uri_prefix(&self.scope)) == label)
        {
            return Ok((server.clone(), native.into_owned()));
        }
        let mut owners = self
            .entries(ListKind::Resources)
            .chain(self.entries(ListKind::Templates))
            .filter(|entry| *entry.item.native == *exposed)
            .map(|entry| &entry.server);
        let first = owners.next();
        if let Some(first) = first.filter(|first| owners.all(|other| Arc::ptr_eq(first, other))) {
            return Ok((first.clone(), exposed.to_owned()));
        }
        let has_resources = |server: &&Arc<Server>| {
            server
                .catalog()
                .info
                .as_ref()
                .is_some_and(|info| info.has("resources"))
        };
        let mut servers = self.servers.iter().filter(has_resources);
        match (first, servers.next(), servers.next()) {
            (None, Some(server), None) => Ok((server.clone(), exposed.to_owned())),
            _ => Err(unknown()),
        }
    }

    /// Number of items in a list.
    #[must_use]
    pub fn len(&self, kind: ListKind) -> usize {
        self.lens[kind as usize]
    }

    /// Exposed names of a list, with server, native name and raw item, in order.
    pub fn names(&self, kind: ListKind) -> impl Iterator<Item = (&str, &ServerName, &str, &Bytes)> {
        self.entries(kind).map(|entry| {
            (
                &*entry.exposed,
                entry.server.name(),
                &*entry.item.native,
                &entry.item.raw,
            )
        })
    }
}
