//! Tool call records: the caller, the call and its result.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{Time, schema};

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Calls {
    /// Newest first.
    pub calls: Vec<Call>,
    /// Pass it as `after` to get the next page. `null` on the last page.
    pub next: Option<String>,
}

/// A tool call.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Call {
    pub id: String,
    /// The agent run that made the call.
    pub run: Option<String>,
    pub project: Option<String>,
    /// The id of the caller, such as `key:ID`.
    pub caller: String,
    /// The caller's name: the name of the key, also after it was revoked. For callers without a key, their id.
    #[serde(default)]
    pub caller_name: String,
    pub server: String,
    pub tool: String,
    #[schema(schema_with = schema::call_status)]
    pub status: String,
    /// The first kilobyte of the error text, without secrets. With `tool_error`, the text of the result.
    pub error: Option<String>,
    pub arguments_digest: String,
    pub result_digest: Option<String>,
    #[schema(value_type = String, format = DateTime)]
    pub started_at: Time,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub finished_at: Option<Time>,
    pub duration_us: Option<i64>,
}

/// A call with its arguments and result, if the gateway is configured to keep them.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct WholeCall {
    #[serde(flatten)]
    pub call: Call,
    /// JSON text.
    pub arguments: Option<String>,
    /// JSON text.
    pub result: Option<String>,
    #[serde(flatten)]
    pub steps: CallSteps,
    /// The call that this one repeats.
    #[serde(default)]
    pub replay_of: Option<String>,
    /// Calls that repeat this one, newest first. At most 100.
    #[serde(default)]
    pub replays: Vec<String>,
}

/// The progress of a call, in microseconds since it began. A step that was not reached, or is not known, is `null`.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct CallSteps {
    /// The call left the queue and its record was written.
    pub turn_us: Option<i64>,
    /// The request was sent to the server.
    pub sent_us: Option<i64>,
    /// The server responded.
    pub answered_us: Option<i64>,
    /// Number of times the server asked the caller for input.
    pub questions: Option<i64>,
}

/// The number of calls and their duration.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct CallFigures {
    pub calls: u64,
    /// Calls that failed or whose outcome is unknown.
    pub errors: u64,
    /// Median duration in microseconds, accurate to 15 %.
    pub p50_us: Option<u64>,
    /// 95th percentile of the duration in microseconds, accurate to 15 %.
    pub p95_us: Option<u64>,
}

/// Call statistics over time.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct CallStatistics {
    /// Totals over all buckets.
    #[serde(flatten)]
    pub all: CallFigures,
    pub bucket_seconds: u64,
    /// Oldest first, without gaps.
    pub buckets: Vec<CallBucket>,
    /// Busiest servers first.
    pub servers: Vec<CallsOfServer>,
    /// The 1000 busiest tools, busiest first. Only with `by_tool`, otherwise empty.
    #[serde(default)]
    pub tools: Vec<CallsOfTool>,
}

/// The calls that began within one bucket of time.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct CallBucket {
    #[schema(value_type = String, format = DateTime)]
    pub start: Time,
    #[serde(flatten)]
    pub figures: CallFigures,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct CallsOfServer {
    pub project: Option<String>,
    pub server: String,
    #[serde(flatten)]
    pub figures: CallFigures,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct CallsOfTool {
    pub project: Option<String>,
    pub server: String,
    /// The native name.
    pub tool: String,
    #[serde(flatten)]
    pub figures: CallFigures,
}
