use model::{NamingPolicy, StartPolicy, ToolMode};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{Time, schema};

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Projects {
    pub projects: Vec<Project>,
    /// Pass it as `after` to get the next page. `null` on the last page.
    pub next: Option<String>,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Project {
    #[schema(schema_with = schema::project_id)]
    pub id: String,
    pub name: String,
    pub description: String,
    pub enabled: bool,
    /// `null`: the gateway's setting applies.
    #[schema(schema_with = schema::naming)]
    pub naming: Option<NamingPolicy>,
    /// How the servers of the configuration file are started for the first chat. `null`: the gateway's setting applies.
    #[schema(schema_with = schema::start)]
    pub start: Option<StartPolicy>,
    /// The tools in the lists of clients. `null`: the gateway's setting applies.
    #[schema(schema_with = schema::tool_mode)]
    pub tools: Option<ToolMode>,
    /// Tools that lists contain in search mode, as `server/tool`.
    pub listed_tools: Vec<String>,
    /// The tokens of a result above which clients get a preview. 0: no bound. `null`: the gateway's setting applies.
    pub max_result_tokens: Option<usize>,
    /// If true, JSON in the texts of results is written in fewer tokens. `null`: the gateway's setting applies.
    pub compact_results: Option<bool>,
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Time,
    #[schema(value_type = String, format = DateTime)]
    pub updated_at: Time,
}

/// The configuration of a project.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ProjectConfig {
    /// The default is the id.
    #[schema(schema_with = schema::optional_name)]
    pub name: Option<String>,
    #[schema(max_length = 4000)]
    pub description: String,
    /// The default is `true`.
    pub enabled: Option<bool>,
    #[schema(schema_with = schema::naming)]
    pub naming: Option<NamingPolicy>,
    /// If a server of the configuration file fails to start, the chat fails (`sequential`) or continues without the
    /// server (`parallel`). The default is the value in `[agent]`.
    #[schema(schema_with = schema::start)]
    pub start: Option<StartPolicy>,
    /// The tools in the lists of clients: all, those that find the others (`search`), or the latter for long lists (`auto`).
    /// The default is the gateway's setting.
    #[schema(schema_with = schema::tool_mode)]
    pub tools: Option<ToolMode>,
    /// Tools that lists contain in search mode, as `server/tool`, in addition to the gateway's.
    #[schema(max_items = 1000)]
    pub listed_tools: Vec<String>,
    /// The tokens of a result above which clients get a preview: at least 250, or 0 for no bound. The default is the gateway's
    /// setting.
    #[schema(maximum = 10_000_000)]
    pub max_result_tokens: Option<usize>,
    /// If true, JSON in the texts of results is written in fewer tokens. The default is the gateway's setting.
    pub compact_results: Option<bool>,
}
