//! Keeps the view of several servers up to date.
//!
//! A view is a list of parts, one for each server, and the names of all items. When a server changes, its part is replaced,
//! and so are the parts of servers whose names change because of it ([`NameTable`]). The next snapshot shares
//! everything else with the last one, so a change costs time in proportion to the lists of these servers, not to the
//! view. Deliberately absent: which servers belong to a view, and who gets it.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use catalog::ListKind;
use mcp::client::Identity;
use model::{
    NamingPolicy, ServerKey,
    naming::{NameTable, Renamed},
};

use crate::{
    scope::Scope,
    server::Server,
    views::{
        entry::Entry,
        fleet::Fleet,
        part::{Part, named, natives},
        source::{Rules, Source},
        view::{Base, Routes, View},
    },
};

/// The lists whose items get names.
const NAMED: [ListKind; 2] = [ListKind::Tools, ListKind::Prompts];

/// The view of several servers, and what is needed to change it.
pub(crate) struct Merged {
    rules: Rules,
    policy: NamingPolicy,
    /// The servers as they are declared, by place.
    declared: Vec<Arc<Server>>,
    places: HashMap<ServerKey, usize>,
    /// Of the lists in [`NAMED`].
    tables: [NameTable; 2],
    /// Awaited servers that have not settled.
    unsettled: BTreeSet<usize>,
    /// The numbers of awaited servers that are idle, and of servers with Apps.
    idle: usize,
    with_apps: usize,
    view: Arc<View>,
}

/// The server has no connection for the header values of these callers. The view cannot be kept.
#[derive(Debug)]
pub(crate) struct NoRoom;

/// A part, and its lists that are replaced, without exposed names.
struct Draft {
    part: Part,
    lists: [Option<Vec<Entry>>; 4],
}

impl Merged {
    /// The view of these servers with what they currently offer. `declared` are the servers as they are declared.
    pub(crate) fn new(
        scope: &Scope,
        declared: Vec<Arc<Server>>,
        servers: Vec<Arc<Server>>,
        fleet: &Fleet,
        identity: &Identity,
    ) -> Self {
        let rules = Rules::of(fleet, scope);
        let policy = rules.naming(scope);
        let labels = servers.iter().map(|server| server.label(scope).0);
        let table = || NameTable::new(labels.clone(), policy, rules.max_name_len());
        let tables = [table(), table()];
        let base = Base::of(scope, &servers, identity, &rules);
        let places = declared.iter().enumerate();
        let places = places.map(|(at, server)| (server.key().clone(), at));
        let mut merged = Self {
            policy,
            places: places.collect(),
            declared,
            tables,
            unsettled: BTreeSet::new(),
            idle: 0,
            with_apps: 0,
            view: Arc::new(View::empty(scope, servers.into(), Arc::new(base))),
            rules,
        };
        let servers = merged.view.servers.clone();
        let sources: Vec<Source> = servers.iter().map(Source::of).collect();
        let mut view = merged.view.copy();
        for (at, source) in sources.iter().enumerate() {
            let part = Part::empty(source.clone());
            merged.count(&view, at, &part, true);
            view.parts.push_back_mut(Arc::new(part));
        }
        merged.view = Arc::new(view);
        merged.update(sources.into_iter().enumerate().collect());
        merged
    }

    pub(crate) fn view(&self) -> &Arc<View> {
        &self.view
    }

    /// The number of items named so far.
    #[cfg(test)]
    pub(crate) fn visited(&self) -> u64 {
        self.tables.iter().map(NameTable::visited).sum()
    }

    /// Returns whether the view is of these declared servers, under the rules of this fleet.
    pub(crate) fn is_of(&self, declared: &[Arc<Server>], fleet: &Fleet) -> bool {
        let servers = self.declared.iter().zip(declared);
        self.declared.len() == declared.len()
            && servers
                .into_iter()
                .all(|(one, other)| Arc::ptr_eq(one, other))
            && self.rules.is_same(&Rules::of(fleet, &self.view.scope))
    }

    /// Applies the changes of one server.
    pub(crate) fn refresh(&mut self, key: &ServerKey) -> Result<(), NoRoom> {
        let place = self.places.get(key).copied();
        self.refresh_at(place)
    }

    /// Applies the changes of all servers.
    pub(crate) fn refresh_all(&mut self) -> Result<(), NoRoom> {
        self.refresh_at(0..self.declared.len())
    }

    /// Applies the changes of the servers that had not settled.
    pub(crate) fn refresh_unsettled(&mut self) -> Result<(), NoRoom> {
        self.refresh_at(self.unsettled.clone())
    }

    fn refresh_at(&mut self, places: impl IntoIterator<Item = usize>) -> Result<(), NoRoom> {
        let mut changed = Vec::new();
        for at in places {
            let (server, lasts) = self.declared[at].of_caller(&self.view.scope.values);
            if !lasts {
                return Err(NoRoom);
            }
            let source = Source::of(&server);
            let known = self.view.parts.get(at);
            if known.is_none_or(|part| !part.source.is_same(&source)) {
                changed.push((at, source));
            }
        }
        if !changed.is_empty() {
            self.update(changed);
        }
        Ok(())
    }

    /// Replaces the parts of these servers.
    fn update(&mut self, changed: Vec<(usize, Source)>) {
        let scope = &self.view.scope;
        let places: Vec<usize> = changed.iter().map(|(at, _)| *at).collect();
        let mut drafts = BTreeMap::new();
        for (at, source) in changed {
            let lists = ListKind::ALL.map(|kind| Some(source.entries(kind, scope, &self.rules)));
            let part = Part::empty(source);
            drafts.insert(at, Draft { part, lists });
        }
        for (table, kind) in self.tables.iter_mut().zip(NAMED) {
            let list = |at: &usize| {
                let list: &Draft = drafts.get(at)?;
                let list = list.lists[kind as usize].as_ref()?;
                Some((*at, natives(list, self.policy)))
            };
            let lists: Vec<_> = places.iter().filter_map(list).collect();
            let renamed = table.set(lists);
            report(kind, &renamed);
            for at in renamed.servers {
                let Some(known) = self.view.parts.get(at) else {
                    continue;
                };
                let draft = drafts.entry(at).or_insert_with(|| Draft {
                    part: known.copy(),
                    lists: Default::default(),
                });
                let list = &mut draft.lists[kind as usize];
                list.get_or_insert_with(|| known.source.entries(kind, scope, &self.rules));
            }
        }
        let mut parts = Vec::with_capacity(drafts.len());
        for (at, draft) in drafts {
            parts.push((at, self.finished(at, draft)));
        }
        self.take(parts);
    }

    /// Names the items of a draft.
    fn finished(&self, at: usize, draft: Draft) -> Part {
        let Draft { mut part, lists } = draft;
        for (kind, list) in ListKind::ALL.into_iter().zip(lists) {
            let Some(mut entries) = list else {
                continue;
            };
            if let Some(table) = NAMED.iter().position(|named| *named == kind) {
                entries = named(entries, self.tables[table].names(at), self.policy);
            }
            part.set(kind, entries);
        }
        part
    }

    /// Makes a snapshot with these parts.
    fn take(&mut self, parts: Vec<(usize, Part)>) {
        let before = self.view.clone();
        let mut view = before.copy();
        let known = |at: usize| &**before.parts.get(at).expect("each server has a part");
        // All old names first: a name may pass from one server to another.
        for (at, part) in &parts {
            let old = known(*at);
            self.count(&view, *at, old, false);
            for (kind, routes) in view.routes() {
                remove(routes, old, part, kind);
            }
            for kind in ListKind::ALL {
                view.lens[kind as usize] -= old.entries(kind).len();
                view.lens[kind as usize] += part.entries(kind).len();
            }
        }
        for (at, part) in parts {
            self.count(&view, at, &part, true);
            for (kind, routes) in view.routes() {
                add(routes, known(at), &part, kind);
            }
            if !Arc::ptr_eq(&part.source.server, &view.servers[at]) {
                let mut servers = view.servers.to_vec();
                servers[at] = part.source.server.clone();
                view.servers = servers.into();
            }
            view.parts.set_mut(at, Arc::new(part));
        }
        view.settled = self.unsettled.is_empty();
        view.sleeps = self.idle > 0;
        view.has_apps = self.with_apps > 1;
        self.view = Arc::new(view);
    }

    /// Updates the counts over all parts.
    fn count(&mut self, view: &View, at: usize, part: &Part, is_there: bool) {
        let count = |counter: &mut usize, counts: bool| match (counts, is_there) {
            (false, _) => {}
            (true, true) => *counter += 1,
            (true, false) => *counter -= 1,
        };
        let source = &part.source;
        let is_awaited = view.base.awaits(&source.server);
        count(&mut self.idle, is_awaited && source.is_idle);
        count(&mut self.with_apps, part.has_apps);
        if is_there && is_awaited && !source.is_settled {
            self.unsettled.insert(at);
        } else {
            self.unsettled.remove(&at);
        }
    }
}

/// Removes the names that lead to `old` and not to `new`.
fn remove(routes: &mut Routes, old: &Part, new: &Part, kind: ListKind) {
    if Arc::ptr_eq(old.entries(kind), new.entries(kind)) {
        return;
    }
    let kept = new.routes(kind);
    for name in old.routes(kind).into_keys() {
        if !kept.contains_key(name) {
            routes.remove_mut(name);
        }
    }
}

/// Adds the names that lead to `new`, unless they led to the same item of `old`.
fn add(routes: &mut Routes, old: &Part, new: &Part, kind: ListKind) {
    if Arc::ptr_eq(old.entries(kind), new.entries(kind)) {
        return;
    }
    let known = old.routes(kind);
    for (name, entry) in new.routes(kind) {
        let is_known = known.get(name).is_some_and(|old| old.is_same_target(entry));
        if !is_known {
            routes.insert_mut(name.clone(), entry.route());
        }
    }
}

/// Logs what the naming policy does about clashes. A view must not fail because of them.
fn report(kind: ListKind, renamed: &Renamed) {
    if !renamed.clashes.is_empty() {
        tracing::error!(
            "{}: {}; each of these items is offered with its server's name as a prefix",
            kind.key(),
            model::naming::Clashes(renamed.clashes.clone())
        );
    }
    for replaced in &renamed.replaced {
        tracing::warn!(
            "{}: `{}` of server `{}` replaces the one of server `{}` (naming policy last-wins)",
            kind.key(),
            replaced.native,
            replaced.winner,
            replaced.loser
        );
    }
}
