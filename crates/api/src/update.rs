//! Updates of server packages.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A request to show the newest version, or to update to a version that was shown.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct UpdateRequest {
    /// Show the changes without making them.
    pub check: bool,
    /// The `to` of the version that was shown. Required unless `check` is `true`.
    pub version: Option<String>,
    /// The `digest` of the version that was shown. Required unless `check` is `true`.
    pub digest: Option<String>,
}

/// A version of a server's package, and its changes to the tools.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Update {
    pub server: String,
    pub package: String,
    /// `npm` or `pypi`.
    pub registry: String,
    /// The version in use. `null` if no version is installed yet.
    pub from: Option<String>,
    /// The newest version that the server's command line allows.
    pub to: String,
    /// `true` if the server now uses the version in `to`.
    pub updated: bool,
    pub added: Vec<String>,
    pub removed: Vec<String>,
    pub changed: Vec<ChangedTool>,
    /// Why the tools could not be listed. To list them, the server is started without a network. If that fails, an
    /// update does not approve changes of the tools.
    pub unseen: Option<String>,
    /// A digest of the version and the definitions shown here.
    pub digest: String,
    /// Other servers that use the same package. They are updated together.
    pub shared_with: Vec<String>,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct ChangedTool {
    /// The server's native name of the tool.
    pub tool: String,
    /// A diff from the old definition to the new one.
    pub diff: String,
}
