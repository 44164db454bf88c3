//! Search mode: the list of a view, and what finds and describes the tools that it leaves out.

use std::{borrow::Cow, fmt::Write as _, sync::Arc};

use bytes::Bytes;
use catalog::ListKind;
use discovery::{Hit, Query, Vector};
use mcp::{Era, json::Object};
use model::{NativeName, ToolMode, ToolRef};
use relevance::Past;

use crate::{
    server::Server,
    views::{
        entry::Entry,
        finders::Finder,
        part::{Claim, Part},
        view::View,
    },
};

/// Bytes of the names of servers in the description of [`Finder::Search`].
const MAX_SERVER_BYTES: usize = 600;

/// The information that a search uses in addition to definitions.
#[derive(Default)]
pub struct Hints {
    /// The vectors of the query, to find tools whose meaning is similar, as far as it is known.
    pub vectors: Vec<Vector>,
    /// Earlier searches that led to a call. `None`: they have no effect.
    pub past: Option<Arc<Past>>,
}

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

    /// The exposed names of the tools of servers in a list of search mode.
    pub fn listed(&self) -> impl Iterator<Item = &str> {
        let entries = self.entries(ListKind::Tools);
        let listed = entries.filter(|entry| self.is_listed(entry));
        listed.map(|entry| &*entry.exposed)
    }

    /// Returns whether a list in search mode contains the tool.
    pub(super) fn is_listed(&self, entry: &Entry) -> bool {
        let listed = &self.base.tool_list.listed;
        !listed.is_empty()
            && listed.contains(&ToolRef {
                server: entry.server.name().clone(),
                tool: NativeName::new(entry.item.native.clone()),
            })
    }

    /// Returns whether clients may run code.
    pub(crate) fn runs_code(&self) -> bool {
        self.base.tool_list.code
    }

    /// The number of tokens of a result above which clients get a preview. `None`: no bound.
    #[must_use]
    pub fn max_result_tokens(&self) -> Option<usize> {
        let most = self.base.tool_list.max_result_tokens;
        (most > 0).then_some(most)
    }

    /// Returns whether clients get results in fewer tokens.
    pub(crate) fn compacts_results(&self) -> bool {
        self.base.tool_list.compact_results
    }

    /// Returns whether searches learn from calls.
    pub(crate) fn learns(&self) -> bool {
        self.base.tool_list.search_past_calls
    }

    /// Returns whether a tool of the gateway in the lists of clients has this name.
    pub(super) fn has_own(&self, name: &str) -> bool {
        Finder::named(name).is_some_and(|finder| match finder {
            Finder::Code => self.runs_code(),
            Finder::Read => self.max_result_tokens().is_some(),
            Finder::Search | Finder::Describe | Finder::Call => self.is_search(),
        })
    }

    /// Returns whether the lists of clients have tools of the gateway.
    pub(super) fn has_own_tools(&self) -> bool {
        self.is_search() || self.runs_code() || self.max_result_tokens().is_some()
    }

    /// The tool that a call of this name reaches.
    pub(crate) fn called_tool(&self, name: &str) -> Option<&Entry> {
        let route = self.tool(name).ok()?;
        let mut entries = self.entries(ListKind::Tools);
        entries.find(|entry| {
            Arc::ptr_eq(&entry.server, &route.server) && entry.item.native == route.native
        })
    }

    /// The tools that code may call, under their names in code.
    pub(crate) fn code_tools(&self) -> &[code::Declared] {
        let named = || {
            let parts = self.parts.iter();
            let entries = parts.flat_map(|part| part.for_models());
            let names = entries.map(|entry| code::ToolName {
                server: entry.server.name().to_string(),
                native: entry.name().to_owned(),
                exposed: entry.exposed.to_string(),
            });
            code::identifiers(&names.collect::<Vec<_>>())
        };
        self.lazy.code_tools.get_or_init(named)
    }

    /// The declarations of tools for code.
    pub(crate) fn declarations(&self, entries: &[&Entry]) -> String {
        let schema = |entry: &Entry, key: &str| {
            let tool = Object::of(&entry.item.raw)?;
            Some(String::from_utf8_lossy(tool.raw(key)?).into_owned())
        };
        let tools = entries.iter().filter_map(|entry| {
            let tools = self.code_tools().iter();
            let declared = { tools }.find(|tool| *tool.exposed == *entry.exposed)?;
            let own = entry.description.clone();
            let theirs = || {
                Object::of(&entry.item.raw)?
                    .string("description")
                    .map(Cow::into_owned)
            };
            let description = own.or_else(theirs).unwrap_or_default();
            let input = schema(entry, "inputSchema").unwrap_or_else(|| "{}".to_owned());
            Some((declared, description, input, schema(entry, "outputSchema")))
        });
        let tools: Vec<_> = tools.collect();
        code::declarations::declarations(tools.iter().map(
            |(declared, description, input, output)| code::declarations::Tool {
                declared,
                description,
                input_schema: input,
                output_schema: output.as_deref(),
            },
        ))
    }

    /// The gateway's own tool definitions in lists.
    #[must_use]
    pub fn finders(&self) -> Vec<Bytes> {
        self.finders_of(self.is_search())
    }

    fn finders_of(&self, is_search: bool) -> Vec<Bytes> {
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
        let code = self.runs_code();
        let finders = Finder::OF_SEARCH.into_iter().filter(|_| is_search);
        let reads = self.max_result_tokens().map(|_| Finder::Read);
        let finders = finders.chain(code.then_some(Finder::Code)).chain(reads);
        let definitions = finders.map(|finder| finder.definition(&servers, code).into());
        definitions.collect()
    }

    /// The tools that fit a query best, best first. `server`: only the tools of the server with this name in the view.
    /// Blocks the thread for milliseconds if the tools are not indexed yet.
    #[must_use]
    pub fn find(
        &self,
        query: &str,
        server: Option<&str>,
        limit: usize,
        hints: &Hints,
    ) -> Vec<Found<'_>> {
        let is_meant = |part: &&Part| {
            let label = part.source.server.label(&self.scope).0;
            server.is_none_or(|server| server == label.as_str())
        };
        let parts = self.parts.iter().map(|part| &**part);
        let parts: Vec<&Part> = parts.filter(is_meant).collect();
        let names: Vec<Vec<Option<&str>>> = parts.iter().map(|part| part.found_names()).collect();
        let past = hints.past.as_ref();
        let project = self.scope.project.as_ref();
        let of_part = |part: &&Part| past.and_then(|past| part.past(past, project));
        let past: Vec<_> = parts.iter().map(of_part).collect();
        let searched = parts.iter().zip(&names).zip(&past);
        let searched = searched.map(|((part, names), past)| {
            discovery::Part::new(part.segment(), names)
                .with_vectors(part.vectors())
                .with_past(past.as_deref())
        });
        let searched: Vec<_> = searched.collect();
        let query = Query::new(query).with_vectors(&hints.vectors);
        let hits = discovery::search(&searched, &query, limit).into_iter();
        let found = hits.map(|hit| {
            let entry = &parts[hit.part].entries(ListKind::Tools)[hit.tool];
            Found { entry, hit }
        });
        found.collect()
    }

    /// The list of search mode, whatever the mode is.
    fn render_search(&self) -> Bytes {
        let finders = Some(self.finders_of(true));
        self.render(ListKind::Tools, Era::Legacy, finders, |entry| {
            self.is_listed(entry)
        })
    }

    /// The lengths of the tool lists in this view.
    #[must_use]
    pub fn list_tokens(&self) -> ListTokens {
        ListTokens {
            whole: self.tool_tokens(),
            search: discovery::tokens(&self.render_search()),
        }
    }

    /// The tokens that the list for clients saves, compared with the whole list. Computed once for a snapshot.
    pub(crate) fn saved_tokens(&self) -> u64 {
        let saved = || {
            let given = discovery::tokens(self.client_list(ListKind::Tools, Era::Legacy));
            self.tool_tokens().saturating_sub(given) as u64
        };
        *self.lazy.saved_tokens.get_or_init(saved)
    }

    /// Returns whether the meanings of some tools are known.
    pub(crate) fn has_meanings(&self) -> bool {
        self.parts.iter().any(|part| !part.vectors().is_empty())
    }

    /// Claims all parts whose meanings are neither computed nor being computed.
    pub(crate) fn claim_meanings(&self) -> Vec<Claim> {
        let unclaimed = self.parts.iter().filter(|part| part.is_unclaimed());
        unclaimed.filter_map(Part::claim).collect()
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
        self.render_item(ListKind::Tools, entry, era, true)
    }
}
