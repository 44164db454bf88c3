//! Records of calls: who called what, and what became of it.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{Time, schema};

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Calls {
    /// Newest first.
    pub calls: Vec<Call>,
    /// Give it as `after` for the next page; none on the last.
    pub next: Option<String>,
}

/// A call of a tool.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Call {
    pub id: String,
    /// The run of an agent that it belongs to.
    pub run: Option<String>,
    pub project: Option<String>,
    pub caller: String,
    pub server: String,
    pub tool: String,
    #[schema(schema_with = schema::call_status)]
    pub status: String,
    pub error: Option<String>,
    pub arguments_digest: String,
    pub result_digest: Option<String>,
    #[schema(value_type = String, format = DateTime)]
    pub started_at: Time,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub finished_at: Option<Time>,
    pub duration_us: Option<i64>,
}

/// A call with its bodies, where the settings have them kept.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct WholeCall {
    #[serde(flatten)]
    pub call: Call,
    /// JSON text.
    pub arguments: Option<String>,
    /// JSON text.
    pub result: Option<String>,
}
