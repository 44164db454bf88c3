//! Tools of servers.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Tools {
    pub tools: Vec<Tool>,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Tool {
    /// As clients see it; none if they do not.
    pub name: Option<String>,
    /// The project whose own server it is of; none: of the configuration file.
    #[serde(default)]
    pub project: Option<String>,
    pub server: String,
    /// As the server calls it.
    pub native: String,
    /// As clients see it.
    pub description: String,
    pub enabled: bool,
    /// What the project set.
    #[serde(default)]
    pub setting: Option<Setting>,
    /// Its definition changed, and nobody agreed to that yet.
    #[serde(default)]
    pub quarantine: Option<Quarantine>,
    /// Why it is not offered: its definition changed, or cannot be remembered. None if it is.
    #[serde(default)]
    pub kept_back: Option<String>,
}

/// What a project wants of a tool; what is missing is as the server says.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Setting {
    pub enabled: Option<bool>,
    /// The name that clients see.
    #[schema(pattern = "^[A-Za-z0-9_-]{1,64}$")]
    pub name: Option<String>,
    #[schema(max_length = 4000)]
    pub description: Option<String>,
}

/// What was wanted of a tool, and what came of it.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Set {
    #[serde(flatten)]
    pub setting: Setting,
    /// The file that was changed, if one was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notices: Vec<String>,
}

/// A definition that waits for somebody's agreement.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Quarantine {
    /// Of the new definition: what is agreed to.
    pub digest: String,
    /// From the definition that was agreed to, to the new one; none if the database does not have them now.
    pub diff: Option<String>,
}
