//! Definitions of tools that changed.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::Time;

/// The changed definitions of a server's tools that are approved.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Approvals {
    /// By the server's own names of its tools, the digests of their new definitions, as they were shown. All of them
    /// are agreed to, or none.
    pub tools: BTreeMap<String, String>,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Changes {
    pub changes: Vec<Change>,
    /// Give it as `after` for the next page; none on the last.
    pub next: Option<String>,
}

/// A definition that took the place of another.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Change {
    pub id: String,
    /// As the server calls it.
    pub tool: String,
    /// `approved` by somebody, or `configuration`: that of the server was changed.
    pub cause: String,
    /// From the definition before to the one after.
    pub diff: String,
    #[schema(value_type = String, format = DateTime)]
    pub at: Time,
}
