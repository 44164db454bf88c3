//! Servers, tools and backups that need the attention of a person.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Servers, tools, scheduled backups and a certificate that need the attention of a person, as far as the caller may see
/// them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Attention {
    /// The number of tools that are kept back until their definitions are approved.
    pub tools: usize,
    /// The number of servers that are blocked or have failed, or that need a sign-in.
    pub servers: usize,
    /// The number of servers that need a sign-in: the first one, or a new one because the old one has expired.
    pub sign_ins: usize,
    /// The servers that need attention, at most 100. A server can be listed with several needs.
    pub needs: Vec<Need>,
    /// Why the last scheduled backup failed. Missing if it succeeded, if none are scheduled, and for callers that are not
    /// administrators.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backup: Option<String>,
    /// Why the changed certificate of the gateway cannot be used. Missing if it can, without TLS, and for callers that are
    /// not administrators.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Need {
    /// The id of the server.
    pub id: String,
    pub server: String,
    /// The project that owns the server.
    pub project: Option<String>,
    pub what: NeedKind,
    /// The number of tools to approve.
    #[serde(default)]
    pub tools: usize,
    /// Why the server does not run.
    pub reason: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum NeedKind {
    /// Tools are kept back until their definitions are approved.
    Approval,
    /// The server cannot be started as configured.
    Blocked,
    /// The server failed and is not restarted, or it keeps failing.
    Failed,
    /// The server needs a sign-in.
    SignIn,
}
