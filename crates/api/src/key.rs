//! API keys.

use model::ToolMode;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{Time, schema};

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Keys {
    pub keys: Vec<Key>,
    /// Pass it as `after` to get the next page. `null` on the last page.
    pub next: Option<String>,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Key {
    pub id: String,
    /// The key's project, or the first one if there are several. `null`: the key is valid for all projects.
    pub project: Option<String>,
    /// The key's projects, as far as the caller can see them. Empty: the key is valid for all projects.
    #[serde(default)]
    pub projects: Vec<String>,
    pub name: String,
    #[schema(schema_with = schema::role)]
    pub role: String,
    /// The last characters of the key.
    pub hint: String,
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Time,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub last_used_at: Option<Time>,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub expires_at: Option<Time>,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub revoked_at: Option<Time>,
    /// The tools in the lists of clients with this key. `null`: the setting of the project or of the gateway applies.
    #[schema(schema_with = schema::tool_mode)]
    #[serde(default)]
    pub tools: Option<ToolMode>,
}

/// A newly created key.
#[derive(Serialize, Deserialize, ToSchema)]
pub struct MadeKey {
    #[serde(flatten)]
    pub key: Key,
    /// The key itself. It is shown only once.
    pub token: String,
}
