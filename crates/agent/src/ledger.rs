//! Records of runs and native tool calls. Calls of servers' tools are recorded by the implementation of
//! [`crate::Servers`].

use std::sync::Arc;

use futures_util::future::BoxFuture;
use model::ProjectId;

use crate::{llm::Usage, raw::Raw};

/// Writes the records. The agent awaits each future, for a few seconds at most. If a chat is dropped, a background task
/// closes its open records.
pub trait Ledger: Send + Sync {
    /// Opens the record of a run.
    ///
    /// # Errors
    /// The record cannot be written. The run then does not start.
    fn run_open(&self, run: NewRun) -> BoxFuture<'_, Result<RunId, LedgerError>>;

    /// Opens the record of a native tool call.
    ///
    /// # Errors
    /// The record cannot be written. The call is then not made.
    fn call_open(&self, call: NewCall) -> BoxFuture<'_, Result<CallId, LedgerError>>;

    /// Closes the record of a call.
    ///
    /// # Errors
    /// The record cannot be written. The agent logs the error.
    fn call_close(&self, call: CallId, end: CallEnd) -> BoxFuture<'_, Result<(), LedgerError>>;

    /// Closes the record of a run.
    ///
    /// # Errors
    /// The record cannot be written. The agent logs the error.
    fn run_finish(&self, run: RunId, end: RunEnd) -> BoxFuture<'_, Result<(), LedgerError>>;
}

/// The id of a run: letters, digits, `-` and `_`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RunId(pub Arc<str>);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CallId(pub Arc<str>);

/// A run that is about to start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewRun {
    pub project: Option<ProjectId>,
    pub agent: Arc<str>,
    pub model: String,
    /// The id from [`crate::Keep::conversation`].
    pub conversation: Option<String>,
    /// The caller that began the run, from [`crate::Keep::caller`].
    pub caller: Option<String>,
}

/// A native tool call that is about to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewCall {
    pub run: RunId,
    pub project: Option<ProjectId>,
    pub tool: String,
    pub arguments: Raw,
}

/// The outcome of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallEnd {
    pub status: CallStatus,
    /// The tool's error message, if it failed.
    pub error: Option<String>,
    /// The result shown to the model.
    pub result: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallStatus {
    Ok,
    ToolError,
    Timeout,
    Cancelled,
}

/// The outcome and cost of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunEnd {
    pub status: RunStatus,
    /// Number of model requests.
    pub turns: u32,
    pub usage: Usage,
    /// The cost in millionths of the currency of the configured prices.
    pub cost_micros: u64,
    pub error: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunStatus {
    /// The model ended its turn.
    Done,
    /// The run failed; `error` says why.
    Failed,
    /// The client disconnected.
    Cancelled,
    /// The agent was stopped.
    Interrupted,
}

impl RunStatus {
    /// The word in records: `done`, `failed`, `cancelled`, `interrupted`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Interrupted => "interrupted",
        }
    }
}

/// Why a record was not written, for people to read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct LedgerError(pub String);
