//! Keys.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{Time, schema};

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Keys {
    pub keys: Vec<Key>,
    /// Give it as `after` for the next page; none on the last.
    pub next: Option<String>,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Key {
    pub id: String,
    /// None: for all projects.
    pub project: Option<String>,
    pub name: String,
    #[schema(schema_with = schema::role)]
    pub role: String,
    /// Its last characters.
    pub hint: String,
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Time,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub last_used_at: Option<Time>,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub expires_at: Option<Time>,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub revoked_at: Option<Time>,
}

/// A key that was made just now.
#[derive(Serialize, Deserialize, ToSchema)]
pub struct MadeKey {
    #[serde(flatten)]
    pub key: Key,
    /// The key itself. It is told this once.
    pub token: String,
}
