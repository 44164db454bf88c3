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
    /// The fault, and how to fix it.
    #[serde(default)]
    pub detail: String,
    /// `needs_login` if a call needs a sign-in to its server first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The link to sign in with, for the caller's own browser. It works once, within ten minutes. Absent if no person
    /// can sign in to the server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub login_url: Option<String>,
    /// The errors in the request body, if there are several or if they have a location.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<Wrong>,
    /// The error of the MCP server, unchanged.
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
