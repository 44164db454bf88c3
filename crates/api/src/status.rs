//! The state of the gateway at a glance.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Status {
    pub version: String,
    pub database: Database,
    /// The number of servers in each state, including the servers of projects in use.
    pub servers: BTreeMap<String, usize>,
    /// Servers with tools that are kept back from clients, including the servers of projects in use.
    #[serde(default)]
    pub kept_back: Vec<KeptBack>,
    pub audit: Audit,
}

/// The number of a server's tools that clients do not see because their definitions changed or cannot be stored.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct KeptBack {
    /// The project that owns the server.
    pub project: Option<String>,
    pub server: String,
    pub tools: usize,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Database {
    /// `sqlite` or `postgres`.
    pub kind: String,
    pub answers: bool,
    /// Why the database does not answer.
    pub reason: Option<String>,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Audit {
    /// Whether calls are recorded.
    pub enabled: bool,
}
