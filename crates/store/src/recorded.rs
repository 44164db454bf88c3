//! The types of call records.

use model::ProjectId;
use serde::{Deserialize, Serialize};
use sqlx::FromRow;

use crate::{Time, names::words};

/// The outcome of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallStatus {
    /// The call has not finished yet.
    Open,
    Ok,
    /// The tool reported a failure (`isError`).
    ToolError,
    /// The server returned an error or could not be reached.
    Error,
    Timeout,
    Cancelled,
    /// The call was open when the gateway died. The server may or may not have run it.
    Unknown,
}

impl CallStatus {
    /// Returns whether the status counts as an error. A cancelled call does not.
    #[must_use]
    pub fn is_failure(self) -> bool {
        match self {
            Self::Open | Self::Ok | Self::Cancelled => false,
            Self::ToolError | Self::Error | Self::Timeout | Self::Unknown => true,
        }
    }
}

/// The steps of a call, each with its time in microseconds since the call began. `None`: the step was not reached, or
/// its time is unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromRow, Serialize)]
pub struct CallSteps {
    /// The call had left the queue, and the record of its beginning was durable.
    pub turn_us: Option<i64>,
    /// The server had received the request.
    pub sent_us: Option<i64>,
    /// The response had arrived.
    pub answered_us: Option<i64>,
    /// The number of requests that the server sent to the client during the call.
    pub questions: Option<i64>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum CallWrite {
    Intent(NewCall),
    Outcome(CallEnd),
}

/// The record of a call that is about to be made.
#[derive(Clone, Debug, PartialEq)]
pub struct NewCall {
    /// Made by [`crate::new_id`] when the call begins, because lists and retention read the time of a call from its id.
    pub id: String,
    pub run_id: Option<String>,
    pub project: Option<ProjectId>,
    pub caller: String,
    pub server: String,
    pub tool: String,
    pub arguments_digest: String,
    pub arguments: Option<String>,
    pub started_at: Time,
    /// The call that this one repeats.
    pub replay_of: Option<String>,
}

/// A call that has ended.
#[derive(Clone, Debug, PartialEq)]
pub struct CallEnd {
    pub id: String,
    pub status: CallStatus,
    pub error: Option<String>,
    pub result_digest: Option<String>,
    pub result: Option<String>,
    pub finished_at: Time,
    pub duration_us: i64,
    pub steps: CallSteps,
}

words!(CallStatus, "call status", {
    Open => "open",
    Ok => "ok",
    ToolError => "tool_error",
    Error => "error",
    Timeout => "timeout",
    Cancelled => "cancelled",
    Unknown => "unknown",
});
