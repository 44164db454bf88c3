//! What a client sees of a chat while it goes on.

use serde::Serialize;
use serde_json::Value;

use crate::{raw::Raw, servers::Missing};

/// One thing that happened. As JSON it has a `type`.
///
/// Exactly one [`ChatEvent::Done`] or [`ChatEvent::Error`] comes, and nothing after it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ChatEvent {
    /// The run is recorded under this id.
    Started { run: String },
    /// The turn does without the tools of these servers.
    ServersMissing { servers: Vec<Missing> },
    /// A piece of the model's text.
    TextDelta { text: String },
    /// A piece of what it thinks.
    ThinkingDelta { text: String },
    /// The model's provider did not take the request; it is made again after this pause.
    Retrying { pause_ms: u64, why: String },
    /// A tool is about to be called.
    ToolCall {
        /// The model's id of the call.
        id: String,
        name: String,
        /// `native` for a tool of this process; absent if there is no such tool.
        #[serde(skip_serializing_if = "Option::is_none")]
        server: Option<String>,
        arguments: Raw,
    },
    /// The server asks something before it goes on; the answers are for [`crate::Questions::answer`]. Only where
    /// somebody said that questions are answered.
    Questions {
        /// The call's.
        id: String,
        /// `inputRequests`: `elicitation/create` requests by keys of the server's.
        requests: Raw,
    },
    /// It was called. Results come in the order that they come.
    ToolResult {
        id: String,
        is_error: bool,
        /// The beginning of its text.
        preview: String,
        /// How long the text is, in bytes.
        bytes: usize,
        /// The whole `CallToolResult`, for the tool's App.
        #[serde(skip_serializing_if = "Option::is_none")]
        result: Option<Raw>,
    },
    /// What a native tool has for the client.
    Native {
        id: String,
        tool: String,
        payload: Value,
    },
    /// What the run has used so far, all told; after each answer of the model.
    Usage {
        input: u64,
        output: u64,
        cache_read: u64,
        cache_write: u64,
        cost_micros: u64,
    },
    /// The model ended its turn.
    Done {
        /// `end_turn`, `stop_sequence`, or `max_tokens`: the answer was cut there.
        stop_reason: String,
        run: String,
    },
    /// The turn could not be brought to an end. What was complete by then is in the conversation.
    Error { kind: ErrorKind, message: String },
}

/// What an error is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorKind {
    /// The servers cannot be started or listed.
    Servers,
    /// The model did not answer, or not to the end.
    Model,
    /// The model asked for tools without end.
    TurnLimit,
    /// The conversation takes no more, or the message cannot be said.
    Conversation,
    /// The run cannot be recorded.
    Ledger,
    /// The agent was stopped before the turn had ended.
    Stopped,
}
