//! Keeps the views of all scopes up to date.
//!
//! Invariant: a change of one server touches only the views that contain the server, and only its part of them.
//! Deliberately absent: how callers read the views without waiting for a change.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use mcp::client::Identity;
use model::ServerName;
use rpds::HashTrieMapSync;

use crate::{
    scope::Scope,
    server::{Server, callers::ServerId},
    views::{
        fleet::Fleet,
        merged::{Merged, NoRoom},
        view::View,
    },
};

/// Views kept for callers with header values. When there are more, these views are built again at their next use.
const MAX_CALLER_VIEWS: usize = 256;

/// The current views, by scope.
pub(crate) type Views = HashTrieMapSync<Scope, Arc<View>>;

/// The views of all scopes that were used, and what is needed to change them.
pub(crate) struct Keeper {
    identity: Identity,
    /// Without views of callers whose header values found no room.
    views: Views,
    /// For each view of several servers.
    merged: HashMap<Scope, Merged>,
    /// The scopes with a view, by the server to which they are limited.
    scopes: HashMap<Option<ServerName>, HashSet<Scope>>,
}

/// A new view.
struct Built {
    view: Arc<View>,
    merged: Option<Merged>,
    /// False if a server is missing because its callers' header values found no room. The next request of these callers
    /// may find room.
    lasts: bool,
}

impl Keeper {
    pub(crate) fn new(identity: Identity) -> Self {
        Self {
            identity,
            views: Views::new_sync(),
            merged: HashMap::new(),
            scopes: HashMap::new(),
        }
    }

    pub(crate) fn views(&self) -> &Views {
        &self.views
    }

    /// Applies the changes of a server.
    pub(crate) fn refresh(&mut self, fleet: &Fleet, server: &Server) {
        let limits = [None, Some(server.name().clone())];
        let scopes = limits.iter().filter_map(|limit| self.scopes.get(limit));
        let concerned = scopes
            .flatten()
            .filter(|scope| fleet.includes(scope, server));
        for scope in concerned.cloned().collect::<Vec<_>>() {
            self.renew(fleet, &scope, |merged| merged.refresh(server.key()));
        }
    }

    /// Applies a change of the fleet that concerns these scopes.
    pub(crate) fn redeclare(&mut self, fleet: &Fleet, concerns: impl Fn(&Scope) -> bool) {
        let concerned = self.views.keys().filter(|scope| concerns(scope));
        for scope in concerned.cloned().collect::<Vec<_>>() {
            // Views over all projects are built again on demand. They are large, rarely used, and change whenever one
            // of many projects is loaded.
            if scope.project.is_none() && !fleet.projects.is_empty() {
                self.remove(&scope);
                continue;
            }
            let is_of = |merged: &Merged| {
                let seen = fleet.seen(&scope);
                seen.is_some_and(|seen| merged.is_of(&seen, fleet))
            };
            if !self.merged.get(&scope).is_some_and(is_of) {
                self.merged.remove(&scope);
            }
            self.renew(fleet, &scope, Merged::refresh_all);
        }
    }

    /// The view of a scope, which is built if it does not exist. `None` if the scope does not exist.
    pub(crate) fn view(&mut self, fleet: &Fleet, scope: &Scope) -> Option<Arc<View>> {
        match self.views.get(scope) {
            Some(view) => Some(view.clone()),
            None => self.build_and_keep(fleet, scope),
        }
    }

    /// Like [`Keeper::view`], with the current state of the servers that had not settled.
    pub(crate) fn view_now(&mut self, fleet: &Fleet, scope: &Scope) -> Option<Arc<View>> {
        if self.merged.contains_key(scope) {
            self.renew(fleet, scope, Merged::refresh_unsettled);
            return self.view(fleet, scope);
        }
        self.build_and_keep(fleet, scope)
    }

    /// Forgets the views that contain a server of callers with header values.
    pub(crate) fn forget_views_of(&mut self, id: &ServerId) {
        let has = |view: &View| view.servers.iter().any(|server| server.id() == id);
        let with = self.views.iter();
        let with = with.filter(|(scope, view)| !scope.values.is_empty() && has(view));
        let with: Vec<Scope> = with.map(|(scope, _)| scope.clone()).collect();
        with.iter().for_each(|scope| self.remove(scope));
    }

    /// Changes the view of several servers in place, or builds a view from the beginning.
    fn renew(
        &mut self,
        fleet: &Fleet,
        scope: &Scope,
        change: impl FnOnce(&mut Merged) -> Result<(), NoRoom>,
    ) {
        let Some(merged) = self.merged.get_mut(scope) else {
            match build(fleet, scope, &self.identity) {
                Some(built) if built.lasts => self.keep(scope, built),
                _ => self.remove(scope),
            }
            return;
        };
        match change(merged) {
            Ok(()) => {
                let view = merged.view();
                let known = self.views.get(scope);
                if known.is_none_or(|known| !Arc::ptr_eq(known, view)) {
                    self.views.insert_mut(scope.clone(), view.clone());
                }
            }
            Err(NoRoom) => self.remove(scope),
        }
    }

    fn build_and_keep(&mut self, fleet: &Fleet, scope: &Scope) -> Option<Arc<View>> {
        let built = build(fleet, scope, &self.identity)?;
        let view = built.view.clone();
        if built.lasts {
            if !scope.values.is_empty() {
                self.make_room();
            }
            self.keep(scope, built);
        }
        Some(view)
    }

    fn make_room(&mut self) {
        let of_callers = self.views.keys().filter(|scope| !scope.values.is_empty());
        let of_callers: Vec<Scope> = of_callers.cloned().collect();
        if of_callers.len() >= MAX_CALLER_VIEWS {
            of_callers.iter().for_each(|scope| self.remove(scope));
        }
    }

    fn keep(&mut self, scope: &Scope, built: Built) {
        self.views.insert_mut(scope.clone(), built.view);
        let limited = self.scopes.entry(scope.server.clone()).or_default();
        limited.insert(scope.clone());
        if let Some(merged) = built.merged {
            self.merged.insert(scope.clone(), merged);
        }
    }

    fn remove(&mut self, scope: &Scope) {
        self.views.remove_mut(scope);
        self.merged.remove(scope);
        if let Some(limited) = self.scopes.get_mut(&scope.server) {
            limited.remove(scope);
            if limited.is_empty() {
                self.scopes.remove(&scope.server);
            }
        }
    }
}

/// Builds the view of a scope. `None` if the scope does not exist.
fn build(fleet: &Fleet, scope: &Scope, identity: &Identity) -> Option<Built> {
    let mut lasts = true;
    let declared = fleet.seen(scope)?;
    let servers = declared.iter().map(|server| {
        let (own, own_lasts) = server.of_caller(&scope.values);
        lasts &= own_lasts;
        own
    });
    let servers = servers.collect();
    if scope.server.is_some() {
        let view = View::single(scope, servers, fleet, identity);
        return Some(Built {
            view: Arc::new(view),
            merged: None,
            lasts,
        });
    }
    let merged = Merged::new(scope, declared, servers, fleet, identity);
    Some(Built {
        view: merged.view().clone(),
        merged: Some(merged),
        lasts,
    })
}

#[cfg(test)]
pub(crate) mod tests;
