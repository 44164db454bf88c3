//! How the gateway is, at a glance.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Status {
    pub version: String,
    pub database: Database,
    /// How many servers are in each state, those of projects that are in use included.
    pub servers: BTreeMap<String, usize>,
    /// The servers that tools are kept back of, those of projects that are in use included.
    #[serde(default)]
    pub kept_back: Vec<KeptBack>,
    pub audit: Audit,
}

/// How many tools of a server are kept back, for their definitions changed or cannot be remembered.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct KeptBack {
    /// The project whose own server it is.
    pub project: Option<String>,
    pub server: String,
    pub tools: usize,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Database {
    /// `sqlite` or `postgres`.
    pub kind: String,
    pub answers: bool,
    /// Why it does not.
    pub reason: Option<String>,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Audit {
    /// Whether calls are recorded.
    pub enabled: bool,
}
