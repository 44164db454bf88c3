//! The state of the gateway at a glance.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::Time;

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
    /// The tokens that lists of tools in search mode saved, compared with lists of all tools.
    #[serde(default)]
    pub saved_tokens: SavedTokens,
    /// The scheduled backups. Missing if none are configured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backups: Option<Backups>,
    /// The certificate of the listener for clients. Missing without TLS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<Certificate>,
}

/// Tokens saved by one gateway: not by its other replicas, nor before its start.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct SavedTokens {
    /// In the last 24 hours, by full hours.
    pub last_day: u64,
    pub since_start: u64,
}

/// The certificate in use.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Certificate {
    /// The file that it comes from.
    pub file: String,
    /// Its SHA-256, in hex.
    pub sha256: String,
    /// Why the changed files cannot be used, so that the previous certificate is still in use.
    pub failing: Option<String>,
}

/// The last outcomes of scheduled backups. With several replicas, the backups of all of them.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Backups {
    /// True if the last one failed.
    pub failing: bool,
    /// The last one that succeeded.
    pub succeeded: Option<BackupOutcome>,
    /// The last one that failed, even if a later one succeeded.
    pub failed: Option<BackupOutcome>,
}

/// How a scheduled backup ended.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct BackupOutcome {
    #[schema(value_type = String, format = DateTime)]
    pub at: Time,
    /// The host of the gateway that made it.
    pub host: String,
    /// The file, or after a failure its folder.
    pub place: String,
    /// The size of the file in bytes.
    pub bytes: Option<i64>,
    /// Why it failed.
    pub reason: Option<String>,
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
