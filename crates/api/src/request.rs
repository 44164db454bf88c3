//! Requests to servers by their own names.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::schema;

/// What the server answered.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct CallResult {
    #[schema(schema_with = schema::any)]
    pub result: Value,
}
