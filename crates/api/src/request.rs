//! Direct requests to one server.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::schema;

/// The server's response.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct CallResult {
    #[schema(schema_with = schema::any)]
    pub result: Value,
}
