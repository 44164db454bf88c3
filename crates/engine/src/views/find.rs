//! Search mode: the list of a view, and what finds and describes the tools that it leaves out.

use std::{fmt::Write as _, sync::Arc};

use bytes::Bytes;
use discovery::{Hit, Query};
use mcp::Era;
use model::ToolMode;

use crate::{
    catalog::ListKind,
    server::Server,
    views::{entry::Entry, finders::Finder, part::Part, view::View},
};

/// Bytes of the names of servers in the description of [`Finder::Search`].
const MAX_SERVER_BYTES: usize = 600;

/// A tool that a search found.
pub struct Found<'v> {
    pub(crate) entry: &'v Entry,
    /// Why the tool was found, and how well it fits.
    pub hit: Hit,
}

impl Found<'_> {
    /// The name that clients see.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.entry.exposed
    }

    #[must_use]
    pub fn server(&self) -> &Arc<Server> {
        &self.entry.server
    }

    /// The server's name of the tool.
    #[must_use]
    pub fn native(&self) -> &str {
        &self.entry.item.native
    }
}

/// The approximate lengths of lists of tools, in tokens.
pub struct ListTokens {
    pub whole: usize,
    /// In search mode.
    pub search: usize,
}

impl View {
    /// Returns whether clients that ask for nothing else get the list of search mode.
    #[must_use]
    pub fn is_search(&self) -> bool {
        let list = &self.base.tool_list;
        match list.mode {
            ToolMode::All => false,
            ToolMode::Search => true,
            ToolMode::Auto => self.tool_tokens() > list.search_above,
        }
    }

    /// The approximate length of the whole list of tools, in tokens.
    fn tool_tokens(&self) -> usize {
        self.parts.iter().map(|part| part.tokens()).sum()
    }

    /// Returns whether a list in search mode contains the tool.
    pub(super) fn is_listed(&self, entry: &Entry) -> bool {
        let listed = &self.base.tool_list.listed;
        !listed.is_empty()
            && listed.iter().any(|tool| {
                tool.server == *entry.server.name() && *tool.tool.as_str() == *entry.item.native
            })
    }

    /// The definitions of the gateway's own tools in a list of search mode.
    pub(super) fn finders(&self) -> Vec<Bytes> {
        let with_tools = self.parts.iter();
        let with_tools = with_tools.filter(|part| !part.entries(ListKind::Tools).is_empty());
        let mut servers = String::new();
        let mut left = 0;
        for part in with_tools {
            let (label, _) = part.source.server.label(&self.scope);
            if left > 0 || servers.len() + label.as_str().len() > MAX_SERVER_BYTES {
                left += 1;
                continue;
            }
            if !servers.is_empty() {
                servers.push_str(", ");
            }
            servers.push_str(label.as_str());
        }
        if left > 0 {
            let _ = write!(servers, " and {left} more");
        } else if servers.is_empty() {
            servers.push_str("none with tools at present");
        }
        let definitions = Finder::ALL.into_iter();
        definitions
            .map(|finder| finder.definition(&servers).into())
            .collect()
    }

    /// The tools that fit a query best, best first. `server`: only the tools of the server with this name in the view.
    #[must_use]
    pub fn find(&self, query: &str, server: Option<&str>, limit: usize) -> Vec<Found<'_>> {
        let is_meant = |part: &&Part| {
            let label = part.source.server.label(&self.scope).0;
            server.is_none_or(|server| server == label.as_str())
        };
        let parts = self.parts.iter().map(|part| &**part);
        let parts: Vec<&Part> = parts.filter(is_meant).collect();
        let names: Vec<Vec<Option<&str>>> = parts.iter().map(|part| part.exposed_tools()).collect();
        let searched = parts.iter().zip(&names);
        let searched = searched.map(|(part, names)| discovery::Part::new(part.index(), names));
        let searched: Vec<_> = searched.collect();
        let hits = discovery::search(&searched, &Query::new(query), limit).into_iter();
        let found = hits.map(|hit| {
            let entry = &parts[hit.part].entries(ListKind::Tools)[hit.tool];
            Found { entry, hit }
        });
        found.collect()
    }

    /// The lengths of the view's lists of tools.
    #[must_use]
    pub fn list_tokens(&self) -> ListTokens {
        ListTokens {
            whole: self.tool_tokens(),
            search: discovery::tokens(&self.render_search(Era::Legacy)),
        }
    }

    /// Returns whether a server has a tool of this exposed name.
    pub(crate) fn has_tool(&self, name: &str) -> bool {
        self.tools.contains_key(name)
    }

    /// The tool with this exposed name.
    pub(crate) fn shown_tool(&self, name: &str) -> Option<&Entry> {
        let mut entries = self.entries(ListKind::Tools);
        entries.find(|entry| entry.is_exposed_as(name))
    }

    /// A tool in one line, for a model.
    #[must_use]
    pub fn signature(&self, found: &Found<'_>) -> String {
        let definition = self.described(found.entry, Era::Legacy);
        discovery::signature(found.name(), &definition)
    }

    /// A tool's definition as in a complete list.
    pub(crate) fn described(&self, entry: &Entry, era: Era) -> Bytes {
        self.render_item(ListKind::Tools, entry, era)
    }
}
