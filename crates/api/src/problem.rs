//! Errors: problem details (RFC 9457).

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::{Wrong, schema};

/// A problem detail (RFC 9457).
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    #[serde(rename = "type", default)]
    pub kind: String,
    #[serde(default)]
    pub title: String,
    pub status: u16,
    /// The fault, and the way out.
    #[serde(default)]
    pub detail: String,
    /// Each thing that is wrong in the body, where it is more than one or has a place.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<Wrong>,
    /// The error of an MCP server, as it said it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mcp: Option<Box<McpError>>,
}

/// A JSON-RPC error.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct McpError {
    pub code: i64,
    pub message: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(schema_with = schema::any)]
    pub data: Option<Value>,
}
