//! Findings of `toolwharf doctor` about an installation.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// All that was looked at.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Report {
    pub healthy: bool,
    pub problems: usize,
    pub warnings: usize,
    pub findings: Vec<Finding>,
}

/// One thing that was looked at.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Finding {
    pub level: Level,
    pub what: String,
    /// A way to mend it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub help: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    Ok,
    Warning,
    Problem,
}
