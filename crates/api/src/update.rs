//! Newer versions of servers' packages.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A request to show the newest version, or to change to one that was shown.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct UpdateRequest {
    /// Only shows what would change.
    pub check: bool,
    /// `to` of what was shown. Needed unless it is only checked.
    pub version: Option<String>,
    /// `digest` of what was shown. Needed unless it is only checked.
    pub digest: Option<String>,
}

/// A version of a server's package, and what changes with it.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Update {
    pub server: String,
    pub package: String,
    /// `npm` or `pypi`.
    pub registry: String,
    /// The version that is started now; none if none is installed yet.
    pub from: Option<String>,
    /// The newest version that the server's command line allows.
    pub to: String,
    /// Whether the server is started from that version from now on.
    pub updated: bool,
    pub added: Vec<String>,
    pub removed: Vec<String>,
    pub changed: Vec<ChangedTool>,
    /// Why its tools could not be looked at: then their changes are not agreed to. It is started for that without a network.
    pub unseen: Option<String>,
    /// Of the version and the definitions that are shown here.
    pub digest: String,
    /// Other servers that are started from the same package. They move with this one.
    pub shared_with: Vec<String>,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct ChangedTool {
    /// As the server calls it.
    pub tool: String,
    /// From the definition before to the one after.
    pub diff: String,
}
