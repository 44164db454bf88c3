//! Changed tool definitions.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::Time;

/// Changed tool definitions of a server to approve.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Approvals {
    /// The digest of each new definition, as shown, by the server's native tool name. Either all of them are approved
    /// or none.
    pub tools: BTreeMap<String, String>,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Changes {
    pub changes: Vec<Change>,
    /// Pass it as `after` to get the next page. `null` on the last page.
    pub next: Option<String>,
}

/// A tool definition that replaced an earlier one.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Change {
    pub id: String,
    /// The server's native name of the tool.
    pub tool: String,
    /// `approved`: a person approved the new definition. `configuration`: the server's configuration was changed.
    pub cause: String,
    /// The id of the caller that approved the definition. `null` if the configuration changed instead, or if an
    /// earlier version recorded the change.
    #[serde(default)]
    pub caller: Option<String>,
    /// The name of this caller.
    #[serde(default)]
    pub caller_name: Option<String>,
    /// A diff from the old definition to the new one.
    pub diff: String,
    #[schema(value_type = String, format = DateTime)]
    pub at: Time,
}
