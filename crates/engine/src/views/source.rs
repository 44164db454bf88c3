//! The inputs of a server's part of a view: the server's state at one time, and the settings of the scope.
//!
//! Invariant: the items of a [`Source`] depend only on the source, the scope and the [`Rules`]. A view can therefore name
//! a server's items again without reading the server again.

use std::sync::Arc;

use catalog::{Catalog, Fate, Item, ListKind, pinned, remember::Pins};
use mcp::Era;
use model::{
    NamingPolicy, NativeName, Pinning, ProjectView, Settings, ToolChoice, ToolRef, ToolSetting,
};

use crate::{
    scope::Scope,
    server::Server,
    uri,
    views::{
        entry::Entry,
        finders::ToolList,
        fleet::{Fleet, Project},
    },
};

/// The settings that apply in a scope.
#[derive(Clone)]
pub(crate) struct Rules {
    settings: Arc<Settings>,
    project: Option<Arc<Project>>,
}

impl Rules {
    pub(crate) fn of(fleet: &Fleet, scope: &Scope) -> Self {
        let project = scope.project.as_ref().and_then(|id| fleet.projects.get(id));
        Self {
            settings: fleet.settings.clone(),
            project: project.cloned(),
        }
    }

    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let is_same_project = match (&self.project, &other.project) {
            (None, None) => true,
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            _ => false,
        };
        is_same_project && Arc::ptr_eq(&self.settings, &other.settings)
    }

    pub(crate) fn project_view(&self, scope: &Scope) -> Option<&ProjectView> {
        match &self.project {
            Some(project) => Some(&project.view),
            None => self.settings.projects.get(scope.project.as_ref()?),
        }
    }

    pub(crate) fn naming(&self, scope: &Scope) -> NamingPolicy {
        let project = self.project_view(scope);
        let naming = project.and_then(|project| project.naming);
        naming.unwrap_or(self.settings.naming)
    }

    /// The contents of the tool lists in the scope.
    pub(crate) fn tool_list(&self, scope: &Scope) -> ToolList {
        if scope.is_bare || scope.server.is_some() {
            return ToolList::default();
        }
        let project = self.project_view(scope);
        let configured = project.and_then(|project| project.tools);
        let listed = project.map(|project| &project.listed_tools);
        let listed = self
            .settings
            .listed_tools
            .iter()
            .chain(listed.into_iter().flatten());
        ToolList {
            mode: scope.tools.or(configured).unwrap_or(self.settings.tools),
            listed: listed.cloned().collect(),
            search_above: self.settings.search_above,
            code: project
                .and_then(|project| project.code)
                .unwrap_or(self.settings.code),
            max_result_tokens: project
                .and_then(|project| project.max_result_tokens)
                .unwrap_or(self.settings.max_result_tokens),
            compact_results: project
                .and_then(|project| project.compact_results)
                .unwrap_or(self.settings.compact_results),
            search_past_calls: self.settings.search_past_calls,
        }
    }

    pub(crate) fn max_name_len(&self) -> usize {
        self.settings.max_name_len
    }

    pub(crate) fn quarantines(&self) -> bool {
        self.settings.pinning == Pinning::Quarantine
    }

    fn tool_setting(&self, tool: &ToolRef) -> Option<&ToolSetting> {
        self.project.as_ref()?.tools.get(tool)
    }

    pub(crate) fn tool_settings(&self) -> impl Iterator<Item = (&ToolRef, &ToolSetting)> {
        self.project.iter().flat_map(|project| &project.tools)
    }
}

/// The state of a server that a view depends on, at one time.
#[derive(Clone)]
pub(crate) struct Source {
    pub(crate) server: Arc<Server>,
    pub(crate) catalog: Arc<Catalog>,
    choice: Arc<ToolChoice>,
    pins: Arc<Pins>,
    pub(crate) is_settled: bool,
    /// True if the server is not started yet. A request for a list starts such a server.
    pub(crate) is_idle: bool,
    /// True if the items come from a remembered catalog because the server is not connected.
    pub(crate) is_stale: bool,
    pub(crate) is_missing: bool,
    pub(crate) awaits_sign_in: bool,
}

impl Source {
    pub(crate) fn of(server: &Arc<Server>) -> Self {
        // Read this before the catalog. If the server settled in between, its tools might be missing from a view marked
        // as settled, and callers do not check a settled view again.
        let is_settled = server.is_settled();
        let is_idle = server.is_idle();
        let is_stale = server.is_stale();
        let is_missing = server.is_missing();
        let awaits_sign_in = server.awaits_sign_in();
        let catalog = server.catalog();
        // Read the pins after the catalog. Definitions are compared before they are listed.
        let pins = server.pins();
        Self {
            server: server.clone(),
            catalog,
            choice: server.tool_choice(),
            pins,
            is_settled,
            is_idle,
            is_stale,
            is_missing,
            awaits_sign_in,
        }
    }

    /// Returns whether a view is the same with either.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let marks = |one: &Self| {
            [
                one.is_settled,
                one.is_idle,
                one.is_stale,
                one.is_missing,
                one.awaits_sign_in,
            ]
        };
        Arc::ptr_eq(&self.server, &other.server)
            && Arc::ptr_eq(&self.catalog, &other.catalog)
            && Arc::ptr_eq(&self.choice, &other.choice)
            && Arc::ptr_eq(&self.pins, &other.pins)
            && marks(self) == marks(other)
    }

    /// The items of a list that a view shows or keeps back, in the server's order. Tools and prompts have their native
    /// names or aliases.
    pub(crate) fn entries(&self, kind: ListKind, scope: &Scope, rules: &Rules) -> Vec<Entry> {
        let single = scope.server.is_some();
        let shown = |item: &&Item| single || item.fit(Era::Legacy).is_some();
        let items = self.catalog.list(kind).iter().filter(shown);
        if kind == ListKind::Tools && !scope.is_bare {
            return items
                .filter_map(|item| self.tool(item, scope, rules))
                .collect();
        }
        let entry = |item: &Item| {
            let exposed = match kind {
                ListKind::Resources | ListKind::Templates if !single => {
                    uri::exposed(self.server.uri_prefix(scope), &item.native).into()
                }
                _ => item.native.clone(),
            };
            Entry {
                server: self.server.clone(),
                item: item.clone(),
                exposed,
                alias: None,
                description: None,
                former: None,
                kept_back: None,
            }
        };
        items.map(entry).collect()
    }

    /// The entry of a tool. `None` if the tool is disabled.
    fn tool(&self, item: &Item, scope: &Scope, rules: &Rules) -> Option<Entry> {
        let tool = ToolRef {
            server: self.server.name().clone(),
            tool: NativeName::new(item.native.clone()),
        };
        let setting = rules.tool_setting(&tool);
        let enabled = setting
            .and_then(|setting| setting.enabled)
            .unwrap_or_else(|| self.choice.offers(&item.native));
        let project = rules.project_view(scope);
        if !enabled || project.is_some_and(|project| project.disabled_tools.contains(&tool)) {
            return None;
        }
        let kept_back = match rules.quarantines() {
            true => pinned::keeps_back(&self.pins, &item.native),
            false => None,
        };
        let alias = setting.and_then(|setting| setting.alias.clone());
        let exposed = alias.as_ref().map(|alias| alias.as_str().into());
        Some(Entry {
            server: self.server.clone(),
            item: item.clone(),
            exposed: exposed.unwrap_or_else(|| item.native.clone()),
            alias,
            description: setting.and_then(|setting| setting.description.clone()),
            former: None,
            kept_back,
        })
    }

    /// The choice of tools in the view of this server alone, with the settings of the project.
    pub(crate) fn own_choice(&self, scope: &Scope, rules: &Rules) -> ToolChoice {
        let mut choice = ToolChoice::default();
        if !scope.is_bare {
            choice.clone_from(&self.choice);
            let is_own = |tool: &ToolRef| tool.server == *self.server.name();
            for (tool, setting) in rules.tool_settings().filter(|(tool, _)| is_own(tool)) {
                if let Some(enabled) = setting.enabled {
                    choice.set(&tool.tool, enabled);
                }
            }
            let project = rules.project_view(scope);
            let disabled = project
                .into_iter()
                .flat_map(|project| &project.disabled_tools);
            let disabled = disabled.filter(|tool| is_own(tool));
            choice
                .disabled
                .extend(disabled.map(|tool| tool.tool.clone()));
            if rules.quarantines() {
                let kept = self.pins.keys();
                let kept =
                    kept.filter(|tool| pinned::keeps_back(&self.pins, tool.as_str()).is_some());
                choice.disabled.extend(kept.cloned());
            }
        }
        // No setting enables a tool that may not be offered.
        let flaws = self.catalog.of(ListKind::Tools).flaws.iter();
        let refused = flaws.filter(|flaw| flaw.fate == Fate::Refused);
        let refused = refused.filter_map(|flaw| flaw.native.clone());
        choice.disabled.extend(refused.map(NativeName::new));
        choice
    }
}
