//! The gateway's own tools: those of search mode, of code mode and for long results, and the other tools in a list.
//!
//! The list has the three tools of [`Finder`], the tools chosen by the setting `listed_tools`, and those that sign in to
//! servers. Every other tool stays callable by its name.

use std::collections::BTreeSet;

use mcp::json::quote;
use model::{ToolMode, ToolRef};

/// The `_meta` key of a request for a list with the tools that the list should contain: a [`ToolMode`].
pub(crate) const TOOLS_KEY: &str = "dev.toolwharf/tools";

/// The contents of the tool lists in a view.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct ToolList {
    pub(crate) mode: ToolMode,
    pub(crate) listed: BTreeSet<ToolRef>,
    pub(crate) search_above: usize,
    /// True: the lists have `run_code`.
    pub(crate) code: bool,
    /// Clients get previews of results with more tokens, and lists have `read_result`. 0: no bound.
    pub(crate) max_result_tokens: usize,
    /// True: JSON in the texts of results is written in fewer tokens.
    pub(crate) compact_results: bool,
    /// True: searches learn from calls.
    pub(crate) search_past_calls: bool,
}

/// A tool of the gateway through which models reach the tools of servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Finder {
    Search,
    Describe,
    Call,
    /// Runs code that calls tools.
    Code,
    /// Reads parts of long results.
    Read,
}

impl Finder {
    const ALL: [Self; 5] = [
        Self::Search,
        Self::Describe,
        Self::Call,
        Self::Code,
        Self::Read,
    ];
    /// Those of search mode.
    pub(crate) const OF_SEARCH: [Self; 3] = [Self::Search, Self::Describe, Self::Call];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Search => "search_tools",
            Self::Describe => "describe_tools",
            Self::Call => "call_tool",
            Self::Code => "run_code",
            Self::Read => results::READ_RESULT,
        }
    }

    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.name() == name)
    }

    /// The definition, as JSON text. `servers`: the names of servers that have tools.
    pub(crate) fn definition(self, servers: &str, code: bool) -> String {
        let name = self.name();
        match self {
            Self::Search => {
                let description = quote(&format!(
                    "Finds tools by what they do, or by name. Most tools are not listed, so search before you conclude that \
                     something is impossible. Returns each tool's name, parameters (`?`: optional) and purpose. \
                     Servers: {servers}"
                ));
                format!(
                    r#"{{"name":"{name}","title":"Search tools","description":{description},"inputSchema":{{"type":"object","properties":{{"query":{{"type":"string","description":"The task in a few words, or a tool name"}},"server":{{"type":"string","description":"Only tools of this server"}},"limit":{{"type":"integer","minimum":1,"maximum":{MAX_FOUND},"description":"Default: {USUAL_FOUND}"}}}},"required":["query"]}},"annotations":{{"readOnlyHint":true,"openWorldHint":false}}}}"#
                )
            }
            Self::Describe => {
                let format = match code {
                    true => {
                        r#","format":{"type":"string","enum":["json","typescript"],"description":"typescript: declarations for run_code"}"#
                    }
                    false => "",
                };
                format!(
                    r#"{{"name":"{name}","title":"Describe tools","description":"Returns the complete definitions of tools, with the JSON schemas of their parameters.","inputSchema":{{"type":"object","properties":{{"names":{{"type":"array","items":{{"type":"string"}},"minItems":1,"maxItems":{MAX_DESCRIBED}}}{format}}},"required":["names"]}},"annotations":{{"readOnlyHint":true,"openWorldHint":false}}}}"#
                )
            }
            Self::Call => format!(
                r#"{{"name":"{name}","title":"Call a tool","description":"Calls a tool that search_tools found, and returns its result.","inputSchema":{{"type":"object","properties":{{"name":{{"type":"string"}},"arguments":{{"type":"object","description":"The tool's arguments"}}}},"required":["name"]}}}}"#
            ),
            Self::Read => results::definition().to_string(),
            Self::Code => {
                let description = quote(&format!(
                    "Runs code that calls tools, for tasks with several calls. {} `await call(\"name\", {{…}})` calls a tool by its \
                     listed name.",
                    code::declarations::GUIDE
                ));
                format!(
                    r#"{{"name":"{name}","title":"Run code","description":{description},"inputSchema":{{"type":"object","properties":{{"code":{{"type":"string"}}}},"required":["code"]}}}}"#
                )
            }
        }
    }
}

/// Results of a search, unless the caller asks for another number.
pub(crate) const USUAL_FOUND: usize = 10;
pub(crate) const MAX_FOUND: usize = 50;
/// Tools described at a time.
pub(crate) const MAX_DESCRIBED: usize = 20;
