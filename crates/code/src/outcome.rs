//! How a run ended.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

#[derive(Debug)]
pub struct Outcome {
    pub end: End,
    /// Output of `console.log` and similar functions, one line per call. If it is cut, the last line says so.
    pub output: String,
    /// The number of calls that were made, whatever their outcome.
    pub calls: u32,
    /// From the start of the code to the end of the run.
    pub elapsed: Duration,
}

#[derive(Debug)]
pub enum End {
    Returned(Value),
    Failed(Failure),
    /// The process did not follow the protocol, or ended. Lower-case text for the caller.
    Broken(String),
}

/// The value that the code returned.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Value {
    /// Nothing, or `undefined`.
    Undefined,
    /// Valid JSON of at most `value_bytes`. It may be nested more deeply than a parser accepts.
    Json(Box<RawValue>),
    /// The beginning of the JSON text of a value that was too large.
    Cut { text: String, bytes: u64 },
}

/// Why the code did not return.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    pub kind: FailureKind,
    /// For people and models: what was thrown, or which limit was exceeded.
    pub message: String,
    /// Counted from 1, in the code as it was given. If the code was interrupted in a loop, this is the place before it.
    pub line: Option<u32>,
    pub column: Option<u32>,
    /// The lines of the stack that are in the code, innermost first. May be empty.
    pub stack: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    /// The code is not JavaScript.
    Syntax,
    /// The code threw a value and did not catch it.
    Thrown,
    /// The run, or its processor time, took too long.
    Time,
    Memory,
    /// The code waits for a promise that nothing settles.
    Stalled,
}

impl Failure {
    pub(crate) fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            line: None,
            column: None,
            stack: String::new(),
        }
    }
}
