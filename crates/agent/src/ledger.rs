//! What the agent writes down: runs, and calls of native tools. Calls of servers are recorded by who makes them.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use model::ProjectId;

use crate::{llm::Usage, raw::Raw};

/// Where it is written. Each future is waited for; one that is to be waited for after its chat was dropped goes on in a
/// task of the agent's, for at most a few seconds.
pub trait Ledger: Send + Sync {
    /// A run begins.
    ///
    /// # Errors
    /// When it cannot be written; nothing is done then.
    fn run_open(&self, run: NewRun) -> BoxFuture<'_, Result<RunId, LedgerError>>;

    /// A native tool is about to be called.
    ///
    /// # Errors
    /// When it cannot be written; the call is not made then.
    fn call_open(&self, call: NewCall) -> BoxFuture<'_, Result<CallId, LedgerError>>;

    /// It was called.
    ///
    /// # Errors
    /// When it cannot be written; that is logged.
    fn call_close(&self, call: CallId, end: CallEnd) -> BoxFuture<'_, Result<(), LedgerError>>;

    /// A run ended.
    ///
    /// # Errors
    /// When it cannot be written; that is logged.
    fn run_finish(&self, run: RunId, end: RunEnd) -> BoxFuture<'_, Result<(), LedgerError>>;
}

/// The id of a run: letters, digits, `-` and `_`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RunId(pub Arc<str>);

/// The id of a call's record.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CallId(pub Arc<str>);

/// A run that begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewRun {
    pub project: Option<ProjectId>,
    pub agent: Arc<str>,
    pub model: String,
    /// What [`crate::Keep::conversation`] says.
    pub conversation: Option<String>,
}

/// A call of a native tool that is about to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewCall {
    pub run: RunId,
    pub project: Option<ProjectId>,
    pub tool: String,
    pub arguments: Raw,
}

/// How a call ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallEnd {
    pub status: CallStatus,
    /// What the tool said, if it failed.
    pub error: Option<String>,
    /// What the model was given.
    pub result: Option<String>,
}

/// What became of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallStatus {
    Ok,
    ToolError,
    Timeout,
    Cancelled,
}

/// How a run ended and what it took.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunEnd {
    pub status: RunStatus,
    /// Requests to the model.
    pub turns: u32,
    pub usage: Usage,
    /// In millionths of the currency that prices are configured in.
    pub cost_micros: u64,
    pub error: Option<String>,
}

/// What became of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunStatus {
    /// The model ended its turn.
    Done,
    /// It could not be brought to an end; `error` says why.
    Failed,
    /// Whoever asked went away.
    Cancelled,
    /// The agent was stopped.
    Interrupted,
}

impl RunStatus {
    /// The word for a record: `done`, `failed`, `cancelled`, `interrupted`.
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

/// What went wrong, for people to read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct LedgerError(pub String);
