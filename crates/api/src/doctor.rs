//! Results of `toolwharf doctor`.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The results of all checks.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Report {
    pub healthy: bool,
    pub problems: usize,
    pub warnings: usize,
    pub findings: Vec<Finding>,
}

/// The result of one check.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Finding {
    pub level: Level,
    pub what: String,
    /// How to fix it.
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
