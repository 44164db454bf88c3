//! Replicas: several gateways on one Postgres database.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::Time;

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Replicas {
    /// Oldest first. Empty with SQLite.
    pub replicas: Vec<Replica>,
}

/// One of several gateways on the same database. Times are those of the database clock.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Replica {
    pub id: String,
    /// The host name.
    pub name: String,
    pub version: String,
    /// The address at which the other replicas reach this one.
    pub address: Option<String>,
    #[schema(value_type = String, format = DateTime)]
    pub started_at: Time,
    /// The time of its last heartbeat.
    #[schema(value_type = String, format = DateTime)]
    pub seen_at: Time,
    /// When the replica counts as lost unless another heartbeat arrives.
    #[schema(value_type = String, format = DateTime)]
    pub expires_at: Time,
    /// `true` if this replica sent the response.
    pub is_self: bool,
    /// The leases that the replica holds, each for work that only one replica may do.
    pub leases: Vec<Lease>,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Lease {
    /// `server:` followed by the id of a registered server, or `sweep`.
    pub name: String,
    /// The fencing token. Higher than the fencing token of every earlier lease.
    pub fence: i64,
    #[schema(value_type = String, format = DateTime)]
    pub since: Time,
}
