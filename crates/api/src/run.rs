//! Agent runs: their cost and outcome.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{Call, Time, schema};

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Runs {
    /// Newest first.
    pub runs: Vec<Run>,
    /// Pass it as `after` to get the next page. `null` on the last page.
    pub next: Option<String>,
}

/// One turn of an agent.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Run {
    pub id: String,
    pub project: Option<String>,
    /// The id of the conversation, which may have been deleted.
    pub conversation: Option<String>,
    /// The id of the caller that began the run. `null` if an earlier version recorded it.
    #[serde(default)]
    pub caller: Option<String>,
    /// The name of this caller.
    #[serde(default)]
    pub caller_name: Option<String>,
    pub agent: String,
    pub model: String,
    #[schema(schema_with = schema::run_status)]
    pub status: String,
    /// Why the run did not complete.
    pub error: Option<String>,
    /// The number of model requests.
    pub turns: i32,
    pub input_tokens: i64,
    pub output_tokens: i64,
    /// Cost in millionths of the currency in which the prices are configured.
    pub cost_micros: i64,
    #[schema(value_type = String, format = DateTime)]
    pub started_at: Time,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub finished_at: Option<Time>,
}

/// A run with its tool calls.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct WholeRun {
    #[serde(flatten)]
    pub run: Run,
    /// The first 1000 tool calls, in order. `GET …/calls?run=` lists all of them.
    pub calls: Vec<Call>,
}
