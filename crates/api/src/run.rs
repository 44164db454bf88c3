//! Turns of agents: what each took and how it ended.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{Call, Time, schema};

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Runs {
    /// Newest first.
    pub runs: Vec<Run>,
    /// Give it as `after` for the next page; none on the last.
    pub next: Option<String>,
}

/// A turn of an agent.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Run {
    pub id: String,
    pub project: Option<String>,
    /// The conversation that it is of, which may have been removed.
    pub conversation: Option<String>,
    pub agent: String,
    pub model: String,
    #[schema(schema_with = schema::run_status)]
    pub status: String,
    /// Why it did not end as it should.
    pub error: Option<String>,
    /// Requests to the model.
    pub turns: i32,
    pub input_tokens: i64,
    pub output_tokens: i64,
    /// In millionths of the currency that prices are configured in.
    pub cost_micros: i64,
    #[schema(value_type = String, format = DateTime)]
    pub started_at: Time,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub finished_at: Option<Time>,
}

/// A run with its calls.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct WholeRun {
    #[serde(flatten)]
    pub run: Run,
    /// The calls of tools, in order: the first 1000. `GET …/calls?run=` lists all.
    pub calls: Vec<Call>,
}
