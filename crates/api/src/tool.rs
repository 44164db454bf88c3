use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Tools {
    pub tools: Vec<Tool>,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Tool {
    /// The exposed name, or the native name if clients do not see the tool.
    pub name: String,
    /// Whether clients see the tool.
    #[serde(default)]
    pub offered: bool,
    /// The project that owns the server. `null` for a server of the configuration file.
    #[serde(default)]
    pub project: Option<String>,
    pub server: String,
    /// The server's native name of the tool.
    pub native: String,
    /// The description that clients see.
    pub description: String,
    pub enabled: bool,
    /// The project's settings for the tool.
    #[serde(default)]
    pub setting: Option<Setting>,
    /// The new definition, if the tool's definition changed and the change is not approved yet.
    #[serde(default)]
    pub quarantine: Option<Quarantine>,
    /// Why the tool is kept back from clients: its definition changed or cannot be stored. `null` if it is not kept
    /// back.
    #[serde(default)]
    pub kept_back: Option<String>,
}

impl Tool {
    /// The name that clients see, if they see the tool.
    #[must_use]
    pub fn exposed(&self) -> Option<&str> {
        self.offered.then_some(self.name.as_str())
    }
}

/// A project's settings for a tool. A missing value leaves the server's definition as it is.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Setting {
    pub enabled: Option<bool>,
    /// The exposed name.
    #[schema(pattern = "^[A-Za-z0-9_-]{1,64}$")]
    pub name: Option<String>,
    #[schema(max_length = 4000)]
    pub description: Option<String>,
}

/// The settings of a tool after a change.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Set {
    #[serde(flatten)]
    pub setting: Setting,
    /// The file that was changed, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notices: Vec<String>,
}

/// A changed tool definition that waits for approval.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Quarantine {
    /// The digest of the new definition, to approve it with.
    pub digest: String,
    /// A diff from the approved definition to the new one. `null` if the database cannot supply the definitions now.
    pub diff: Option<String>,
}

/// The tools that a search finds for a task, as `search_tools` finds them.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct FoundTools {
    /// Best first.
    pub tools: Vec<FoundTool>,
    pub tokens: ListTokens,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct FoundTool {
    /// The name that clients see.
    pub name: String,
    /// The project that owns the server. `null` for other servers.
    pub project: Option<String>,
    pub server: String,
    /// The server's native name of the tool.
    pub native: String,
    /// The line that a model reads: name, parameters and purpose.
    pub signature: String,
    pub why: FoundBy,
    /// The relevance. Comparable only within one search.
    pub score: f32,
    /// The contribution of each part of the definition to `score`.
    pub scores: FieldScores,
}

/// Why a tool was found. Results are in this order, and then by score.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FoundBy {
    /// The query is its name.
    Name,
    /// The query is its name in another spelling.
    Spelling,
    /// Its name begins with the query.
    Prefix,
    /// Its name differs from the query in one or two letters.
    Typo,
    /// The query's words, or related ones, occur in its definition.
    Relevance,
}

#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct FieldScores {
    pub name: f32,
    pub description: f32,
    /// Names of parameters.
    pub parameters: f32,
    /// Descriptions of parameters.
    pub parameter_text: f32,
    /// The server's name, description and instructions.
    pub server: f32,
    /// Words of earlier searches that led to a call.
    pub past: f32,
}

/// The approximate number of tokens of the list of tools.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct ListTokens {
    /// All tools.
    pub all: usize,
    /// The list in search mode.
    pub search: usize,
    /// True if clients that ask for nothing else get the list of search mode.
    pub is_search: bool,
}
