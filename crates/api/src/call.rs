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
    #[serde(flatten)]
    pub steps: CallSteps,
    /// The call that was made again.
    #[serde(default)]
    pub replay_of: Option<String>,
    /// Calls that were made again from this one, newest first, a hundred at most.
    #[serde(default)]
    pub replays: Vec<String>,
}

/// How far a call got: microseconds since it began; none where it did not get there, or nobody knows.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct CallSteps {
    /// Its turn came, and its intent was written.
    pub turn_us: Option<i64>,
    /// Its server had the request.
    pub sent_us: Option<i64>,
    /// The server had answered.
    pub answered_us: Option<i64>,
    /// How often the server asked the caller something.
    pub questions: Option<i64>,
}

/// How many calls there were, and how long they took.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct CallFigures {
    pub calls: u64,
    /// Those that failed, or of which nobody knows how they ended.
    pub errors: u64,
    /// Half of the calls took less, to 15 %.
    pub p50_us: Option<u64>,
    /// All but a twentieth took less, to 15 %.
    pub p95_us: Option<u64>,
}

/// Figures of calls over time.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct CallStatistics {
    /// Of all buckets together.
    #[serde(flatten)]
    pub all: CallFigures,
    pub bucket_seconds: u64,
    /// Oldest first, without a gap.
    pub buckets: Vec<CallBucket>,
    /// Those with most calls first.
    pub servers: Vec<CallsOfServer>,
}

/// The calls that began in a span of time.
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
