//! Replicas: several gateways on one Postgres.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::Time;

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Replicas {
    /// The oldest first; none if the database is a file.
    pub replicas: Vec<Replica>,
}

/// One gateway of several on the same database. Times are the database's.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Replica {
    pub id: String,
    /// The name of its host.
    pub name: String,
    pub version: String,
    /// Where the other replicas reach it.
    pub address: Option<String>,
    #[schema(value_type = String, format = DateTime)]
    pub started_at: Time,
    /// When the database last heard of it.
    #[schema(value_type = String, format = DateTime)]
    pub seen_at: Time,
    /// When it is lost, if the database hears nothing of it before.
    #[schema(value_type = String, format = DateTime)]
    pub expires_at: Time,
    /// Whether it is the one that answers.
    pub is_self: bool,
    /// What only one replica may do, and this one does.
    pub leases: Vec<Lease>,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Lease {
    /// `server:` and the id of a registered server, or `sweep`.
    pub name: String,
    /// Higher than that of every lease that was taken before.
    pub fence: i64,
    #[schema(value_type = String, format = DateTime)]
    pub since: Time,
}
