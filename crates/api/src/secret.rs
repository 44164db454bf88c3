//! Secrets. Their values are write-only.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::Time;

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Secrets {
    pub secrets: Vec<Secret>,
    /// Pass it as `after` to get the next page. `null` on the last page.
    pub next: Option<String>,
}

/// A secret, without its value.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Secret {
    pub name: String,
    /// Increases by one each time the secret is set.
    pub version: i32,
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Time,
    #[schema(value_type = String, format = DateTime)]
    pub updated_at: Time,
    /// `true` if the environment of the gateway sets a variable of this name, which takes precedence. Only for secrets of
    /// the configuration file.
    #[serde(default)]
    pub overridden: bool,
    /// Remarks about a change. Only in the response to the change.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notices: Vec<String>,
}

#[derive(Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SecretValue {
    #[schema(max_length = 65536)]
    pub value: String,
}

/// The master key that encrypts new values.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct MasterKey {
    pub key_id: String,
}
