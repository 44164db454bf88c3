//! The view of one scope: an immutable snapshot of its servers' catalogs, named according to a naming policy.
//!
//! There are two kinds. A *merged* view of several servers gives every tool, prompt and resource a unique name and
//! names its server in `_meta`. A *single* view, of one server, leaves everything as the server sent it.

use std::{
    borrow::Cow,
    collections::{HashMap, HashSet},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use bytes::{BufMut, Bytes, BytesMut};
use mcp::{
    Era, RpcError, Version,
    client::Identity,
    error, headers,
    json::{self, Object, Splice, quote},
    protocol::meta,
    server::modern,
};
use model::{NativeName, Pinning, ServerName, ToolChoice, ToolRef, naming};

use crate::{
    catalog::{Fate, Item, ListKind, has_view},
    records::pinned::KeptBack,
    scope::Scope,
    server::{Server, connection::Names},
    uri,
    views::{
        entry::{Entry, Route},
        fleet::Fleet,
        missing::{self, awaited},
        names::named,
        offers, refusals, sign_ins,
    },
};

pub use crate::views::entry::{PROJECT_KEY, SERVER_KEY};

/// The target of a name.
enum Meant<'v> {
    Offered(&'v Entry),
    KeptBack(&'v Entry, &'v KeptBack),
}

/// A snapshot of what one scope sees.
pub struct View {
    pub scope: Scope,
    /// Enabled servers, in configuration order.
    pub servers: Vec<Arc<Server>>,
    identity: Identity,
    entries: [Vec<Entry>; 4],
    tools: HashMap<Arc<str>, Route>,
    prompts: HashMap<Arc<str>, Route>,
    /// Tools that are kept back.
    kept: Vec<Entry>,
    /// Definitions of the tools that sign in to a server, at the end of the list of tools.
    sign_ins: Vec<Bytes>,
    /// Names of the tools that have an App, if several servers have such tools.
    with_views: HashSet<Arc<str>>,
    /// The rendered lists, by list and era.
    rendered: [[OnceLock<Bytes>; 2]; 4],
    /// For each list, whether clients may have it from an earlier snapshot with the same list.
    inherited: [AtomicBool; 4],
    settled: bool,
    /// Members of the `_meta` of lists: the servers whose remembered catalog is used, and those without a catalog.
    list_meta: Option<String>,
    /// Items without a name, by list. Only in a single view.
    nameless: [Arc<[Bytes]>; 4],
    /// True if a server of this view is still idle. A request for a list starts such a server.
    sleeps: bool,
    /// Disabled tools of the server of a single view, for everyone or for the project.
    choice: ToolChoice,
}

impl View {
    /// Takes a snapshot of what `servers` currently offer.
    pub(crate) fn build(
        scope: &Scope,
        servers: Vec<Arc<Server>>,
        fleet: &Fleet,
        identity: &Identity,
    ) -> Self {
        let project = scope.project.as_ref().and_then(|id| fleet.project_view(id));
        // Read this before the catalogs. If a server settled in between, its tools might be missing from a view marked
        // as settled, and callers do not check a settled view again.
        let settled = awaited(&servers, scope).all(|server| server.is_settled());
        let sleeps = awaited(&servers, scope).any(|server| server.is_idle());
        let policy = project
            .and_then(|project| project.naming)
            .unwrap_or(fleet.settings.naming);
        let single = scope.server.is_some();
        let quarantine = fleet.settings.pinning == Pinning::Quarantine;
        let disabled = project.map(|project| &project.disabled_tools);
        let mut choice = ToolChoice::default();
        if let Some(server) = servers.first().filter(|_| single && !scope.is_bare) {
            choice.clone_from(&server.tool_choice.load());
            let set = fleet.tool_settings(scope);
            for (tool, setting) in set.filter(|(tool, _)| tool.server == *server.name()) {
                if let Some(enabled) = setting.enabled {
                    choice.set(&tool.tool, enabled);
                }
            }
            let disabled = disabled.into_iter().flatten();
            choice.disabled.extend(
                disabled
                    .filter(|tool| tool.server == *server.name())
                    .map(|tool| tool.tool.clone()),
            );
            if quarantine {
                let pins = server.pins();
                let kept = pins.keys();
                choice.disabled.extend(
                    kept.filter(|tool| server.keeps_back(tool.as_str()).is_some())
                        .cloned(),
                );
            }
        }
        if let Some(server) = servers.first().filter(|_| single) {
            // No setting enables a tool that may not be offered.
            let catalog = server.catalog();
            let flaws = catalog.of(ListKind::Tools).flaws.iter();
            let refused = flaws.filter(|flaw| flaw.fate == Fate::Refused);
            let refused = refused.filter_map(|flaw| flaw.native.clone());
            choice.disabled.extend(refused.map(NativeName::new));
        }
        let mut entries: [Vec<Entry>; 4] = Default::default();
        let mut kept = Vec::new();
        let mut nameless: [Arc<[Bytes]>; 4] = Default::default();
        for kind in ListKind::ALL {
            let mut all: Vec<Entry> = Vec::new();
            for server in &servers {
                let natives = server.tool_choice.load();
                let is_stale = server.is_stale();
                let catalog = server.catalog();
                if single {
                    nameless[kind as usize] = catalog.of(kind).nameless.clone();
                }
                let shown = |item: &&Item| single || item.fit(Era::Legacy).is_some();
                for item in catalog.list(kind).iter().filter(shown) {
                    let mut setting = None;
                    let mut kept_back = None;
                    if kind == ListKind::Tools && !scope.is_bare {
                        let tool = ToolRef {
                            server: server.name().clone(),
                            tool: NativeName::new(item.native.clone()),
                        };
                        setting = fleet.tool_setting(scope, &tool);
                        let enabled = setting
                            .and_then(|setting| setting.enabled)
                            .unwrap_or_else(|| natives.offers(&item.native));
                        if !enabled || disabled.is_some_and(|off| off.contains(&tool)) {
                            continue;
                        }
                        kept_back = server.keeps_back(&item.native).filter(|_| quarantine);
                    }
                    let exposed = match kind {
                        ListKind::Resources | ListKind::Templates if !single => {
                            uri::exposed(server.uri_prefix(scope), &item.native).into()
                        }
                        _ => item.native.clone(),
                    };
                    let alias = setting.and_then(|setting| setting.alias.clone());
                    all.push(Entry {
                        server: server.clone(),
                        item: item.clone(),
                        exposed: alias
                            .as_ref()
                            .map_or(exposed, |alias| alias.as_str().into()),
                        alias,
                        description: setting.and_then(|setting| setting.description.clone()),
                        former: None,
                        is_stale,
                        kept_back,
                    });
                }
            }
            if !single && matches!(kind, ListKind::Tools | ListKind::Prompts) {
                let max_len = fleet.settings.max_name_len;
                all = named(&servers, all, policy, max_len, kind, scope);
            }
            kept.extend(all.extract_if(.., |entry| entry.kept_back.is_some()));
            entries[kind as usize] = all;
        }
        let routes = |kind: ListKind| {
            let entries = entries[kind as usize].iter();
            let former = entries.clone().filter_map(|entry| {
                let former = entry.former.clone()?;
                Some((former, entry.route()))
            });
            let exposed = entries.map(|entry| (entry.exposed.clone(), entry.route()));
            former.chain(exposed).collect()
        };
        let tools = routes(ListKind::Tools);
        let with_views = with_views(&entries[ListKind::Tools as usize], single);
        Self {
            scope: scope.clone(),
            with_views,
            settled,
            sleeps,
            list_meta: missing::list_meta(&servers, scope),
            nameless,
            sign_ins: sign_ins::offered(&servers, scope, &tools),
            tools,
            prompts: routes(ListKind::Prompts),
            rendered: Default::default(),
            inherited: Default::default(),
            kept,
            identity: identity.clone(),
            entries,
            servers,
            choice,
        }
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
        let rendered = &self.rendered[kind as usize];
        rendered.iter().any(|list| list.get().is_some())
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
    pub(crate) fn has_same(&self, now: &Self, kind: ListKind) -> bool {
        let (before, after) = (&self.entries[kind as usize], &now.entries[kind as usize]);
        let told = self.knows(kind);
        let same = self.nameless[kind as usize] == now.nameless[kind as usize]
            && (kind != ListKind::Tools || self.sign_ins == now.sign_ins);
        same && before.len() == after.len()
            && before.iter().zip(after).all(|(before, after)| {
                before.is_same(after) && !(told && before.is_stale && !after.is_stale)
            })
    }

    /// Starts the idle servers, because a list is requested.
    pub(crate) fn wake(&self) {
        if self.sleeps {
            self.awaited().for_each(|server| server.want());
        }
    }

    /// The servers that a list of this view may start and wait for, in configuration order.
    pub fn awaited(&self) -> impl Iterator<Item = &Arc<Server>> {
        awaited(&self.servers, &self.scope)
    }

    /// The result of a list method for a client of the era, as JSON text.
    #[must_use]
    pub fn list(&self, kind: ListKind, era: Era) -> &Bytes {
        let slot = &self.rendered[kind as usize][usize::from(era == Era::Modern)];
        slot.get_or_init(|| self.render(kind, era, |_| true))
    }

    /// Like [`View::list`] for tools, for a session with separate instances. For servers that have such an instance,
    /// the list contains only the tools that the instance lists.
    pub(crate) fn own_tools(&self, era: Era, own: &[(Arc<Server>, Names)]) -> Bytes {
        self.render(ListKind::Tools, era, |entry| {
            let mut own = own.iter();
            let own = own.find(|(server, _)| Arc::ptr_eq(server, &entry.server));
            own.is_none_or(|(_, names)| names.contains(&entry.item.native))
        })
    }

    fn render(&self, kind: ListKind, era: Era, shows: impl Fn(&Entry) -> bool) -> Bytes {
        let mut out = BytesMut::new();
        out.put_u8(b'{');
        let meta = self.list_meta.as_deref();
        if era == Era::Modern {
            out.put_slice(self.modern_members(meta).as_bytes());
            out.put_u8(b',');
        } else if let Some(meta) = meta {
            out.put_slice(format!("\"_meta\":{{{meta}}},").as_bytes());
        }
        out.put_slice(format!("\"{}\":[", kind.key()).as_bytes());
        let shown = self.entries[kind as usize].iter();
        let shown = shown.filter(|entry| shows(entry));
        let shown = shown.map(|entry| self.render_item(kind, entry, era));
        let nameless = self.nameless[kind as usize].iter().cloned();
        let sign_ins = self.sign_ins.iter().filter(|_| kind == ListKind::Tools);
        let texts = shown.chain(nameless).chain(sign_ins.cloned());
        for (at, text) in texts.enumerate() {
            if at > 0 {
                out.put_u8(b',');
            }
            out.put_slice(&text);
        }
        out.put_slice(b"]}");
        out.freeze()
    }

    fn render_item(&self, kind: ListKind, entry: &Entry, era: Era) -> Bytes {
        let fit = match self.is_single() {
            true => &entry.item.raw,
            false => entry.item.fit(era).unwrap_or(&entry.item.raw),
        };
        // Clients drop a tool with an invalid header annotation, which means nothing to most servers.
        let usable = (kind == ListKind::Tools && era == Era::Modern)
            .then(|| headers::without_invalid_annotations(fit))
            .flatten();
        let raw = usable.as_ref().unwrap_or(fit);
        let Some(object) = Object::of(raw) else {
            return raw.clone();
        };
        let mut splice = Splice::new();
        let mut added: Vec<String> = Vec::new();
        if let Some(id) = object
            .find(kind.id_key())
            .filter(|_| entry.exposed != entry.item.native)
        {
            splice.replace(id, quote(&entry.exposed).into_bytes());
        }
        if let Some(description) = &entry.description {
            let text = quote(description);
            match object.find("description") {
                Some(theirs) => {
                    splice.replace(theirs, text.into_bytes());
                }
                None => added.push(format!("\"description\":{text}")),
            }
        }
        if kind == ListKind::Tools && era == Era::Legacy {
            added.extend(offers::marked_as_task(&entry.server, &object).map(str::to_owned));
        }
        if !self.is_single() {
            if kind == ListKind::Tools {
                uri::expose_tool(
                    raw,
                    &object,
                    entry.server.uri_prefix(&self.scope),
                    &mut splice,
                );
            }
            self.mark(entry, raw, &object, &mut splice, &mut added);
        }
        if !added.is_empty() {
            splice.insert(raw, &object.span(), added.join(",").as_bytes());
        }
        let rendered = splice.apply(raw);
        if self.is_single() {
            return rendered;
        }
        // Some clients cannot read a lone surrogate. One definition must not make the whole list unreadable.
        match json::without_lone_surrogates(&rendered) {
            Cow::Borrowed(_) => rendered,
            Cow::Owned(whole) => whole.into(),
        }
    }

    /// Names the item's server in `_meta`. An existing value is replaced: a server, such as another gateway, may have
    /// set it.
    fn mark<'t>(
        &self,
        entry: &Entry,
        raw: &'t Bytes,
        object: &Object<'t>,
        splice: &mut Splice<'t>,
        added: &mut Vec<String>,
    ) {
        let mut members = vec![(SERVER_KEY, quote(entry.server.name().as_str()))];
        if let (None, Some(owner)) = (&self.scope.project, &entry.server.spec.owner) {
            members.push((PROJECT_KEY, quote(owner.as_str())));
        }
        let text = |members: &[(&str, String)]| -> String {
            let text: Vec<_> = members
                .iter()
                .map(|(key, value)| format!("{}:{value}", quote(key)))
                .collect();
            text.join(",")
        };
        match object.object("_meta") {
            Some(own) => {
                members.retain(|(key, value)| match own.find(key) {
                    Some(theirs) => {
                        splice.replace(theirs, value.clone().into_bytes());
                        false
                    }
                    None => true,
                });
                if !members.is_empty() {
                    splice.insert(raw, &own.span(), text(&members).as_bytes());
                }
            }
            None => {
                let own = format!("{{{}}}", text(&members));
                match object.find("_meta") {
                    Some(odd) => {
                        splice.replace(odd, own.into_bytes());
                    }
                    None => added.push(format!("\"_meta\":{own}")),
                }
            }
        }
    }

    /// The members of every modern result generated by the gateway, without braces.
    pub(crate) fn modern_members(&self, more_meta: Option<&str>) -> String {
        format!(
            "\"resultType\":\"complete\",\"ttlMs\":0,\"cacheScope\":\"private\",\"_meta\":{{\"{}\":{}{}{}}}",
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
                || self.identity.to_json(),
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
            self.modern_members(None),
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

    fn route(
        &self,
        routes: &HashMap<Arc<str>, Route>,
        kind: ListKind,
        name: &str,
    ) -> Result<Route, RpcError> {
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
        let offered = self.entries[kind as usize].iter();
        let same: Vec<&Entry> = offered.filter(|entry| entry.name() == name).collect();
        let hint = match same.is_empty() {
            true => missing::lacking(&self.servers, &self.scope, kind, Some(name)),
            false => String::new(),
        };
        Err(refusals::unknown(kind, name, &same, &hint))
    }

    /// Resolves a name that is not an exposed name. `server__tool` always works, so that a name that once needed the
    /// prefix stays valid. A kept-back tool's native name is recognised only if no offered tool has it.
    fn meant(&self, kind: ListKind, name: &str) -> Option<Meant<'_>> {
        let offered = &self.entries[kind as usize];
        let kept = || {
            let kept = self.kept.iter().filter(|_| kind == ListKind::Tools);
            kept.filter_map(|entry| Some((entry, entry.kept_back.as_ref()?)))
        };
        let found = |(entry, why)| Meant::KeptBack(entry, why);
        if let Some(exposed) = kept().find(|(entry, _)| entry.is_exposed_as(name)) {
            return Some(found(exposed));
        }
        if !self.is_single() {
            let named: Vec<_> = self
                .servers
                .iter()
                .map(|server| server.label(&self.scope).0)
                .collect();
            let labels = naming::Labels::new(&named);
            if let Some((owner, rest)) = labels.owner(name) {
                let is_meant = |entry: &Entry| {
                    entry.name() == rest && entry.server.label(&self.scope).0.as_str() == owner
                };
                if let Some(entry) = offered.iter().find(|entry| is_meant(entry)) {
                    return Some(Meant::Offered(entry));
                }
                if let Some(meant) = kept().find(|(entry, _)| is_meant(entry)) {
                    return Some(found(meant));
                }
            }
        }
        if offered.iter().any(|entry| entry.name() == name) {
            return None;
        }
        kept().find(|(entry, _)| entry.name() == name).map(found)
    }

    /// Why this tool of a server is kept back, if it is. `name` is the exposed name, or the name given by the server or
    /// its project.
    #[must_use]
    pub fn kept_back_of(&self, server: &ServerName, name: &str) -> Option<String> {
        let is_meant = |entry: &&Entry| {
            entry.server.name() == server && (entry.is_exposed_as(name) || entry.name() == name)
        };
        let entry = self.kept.iter().find(is_meant)?;
        let why = entry.kept_back.as_ref()?;
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
        let named: Vec<_> = self.servers.iter().map(label).collect();
        let (owner, _) = naming::Labels::new(&named).owner(name)?;
        let mut servers = self.servers.iter();
        servers.find(|server| server.awaits_sign_in() && label(server).as_str() == owner)
    }

    /// Returns whether a tool has an App. Known only in views in which several servers have such tools.
    pub(crate) fn has_view(&self, name: &str) -> bool {
        self.with_views.contains(name)
    }

    /// Returns whether the gateway has to track which Apps a client opens.
    pub(crate) fn has_views(&self) -> bool {
        !self.with_views.is_empty()
    }

    /// The servers that offer a tool with this native name.
    pub(crate) fn servers_with_tool(&self, native: &str) -> Vec<&Arc<Server>> {
        self.entries[ListKind::Tools as usize]
            .iter()
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
        let mut kept = self.kept.iter();
        if let Some(entry) = kept.find(|entry| *entry.item.native == *native)
            && let Some(why) = &entry.kept_back
        {
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
        let entry = self.entries[ListKind::Tools as usize]
            .iter()
            .find(|entry| *entry.item.native == *native && Arc::ptr_eq(&entry.server, server))?;
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
        let mut owners = self.entries[ListKind::Resources as usize]
            .iter()
            .chain(&self.entries[ListKind::Templates as usize])
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
        self.entries[kind as usize].len()
    }

    /// Exposed names of a list, with server, native name and raw item, in order.
    pub fn names(&self, kind: ListKind) -> impl Iterator<Item = (&str, &ServerName, &str, &Bytes)> {
        self.entries[kind as usize].iter().map(|entry| {
            (
                &*entry.exposed,
                entry.server.name(),
                &*entry.item.native,
                &entry.item.raw,
            )
        })
    }
}

fn with_views(tools: &[Entry], single: bool) -> HashSet<Arc<str>> {
    let shows: Vec<&Entry> = tools
        .iter()
        .filter(|entry| !single && has_view(&entry.item.raw))
        .collect();
    let several = shows
        .iter()
        .any(|entry| !Arc::ptr_eq(&entry.server, &shows[0].server));
    let names = shows
        .iter()
        .flat_map(|entry| [Some(entry.exposed.clone()), entry.former.clone()]);
    if several {
        names.flatten().collect()
    } else {
        HashSet::new()
    }
}
