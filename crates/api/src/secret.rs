//! Secrets, which go in and never come out.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::Time;

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Secrets {
    pub secrets: Vec<Secret>,
    /// Give it as `after` for the next page; none on the last.
    pub next: Option<String>,
}

/// That a secret is there.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Secret {
    pub name: String,
    /// One more each time it is set.
    pub version: i32,
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Time,
    #[schema(value_type = String, format = DateTime)]
    pub updated_at: Time,
}

#[derive(Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SecretValue {
    #[schema(max_length = 65536)]
    pub value: String,
}

/// Which master key seals now.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct MasterKey {
    pub key_id: String,
}
