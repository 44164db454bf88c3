//! Events of a running chat, for clients.

use serde::Serialize;
use serde_json::Value;

use model::ServerName;

use crate::{raw::Raw, servers::Missing};

/// One event. Its JSON has a `type`.
///
/// Each turn has exactly one [`ChatEvent::Done`] or [`ChatEvent::Error`], which comes last.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ChatEvent {
    /// The turn has not begun yet, because it waits for these servers, which are starting. Sent before
    /// [`ChatEvent::Started`], at most once.
    WaitingForServers { servers: Vec<ServerName> },
    /// The run is recorded under this id.
    Started { run: String },
    /// The tools of these servers are not available in this turn.
    ServersMissing { servers: Vec<Missing> },
    /// A piece of the model's text.
    TextDelta { text: String },
    /// A piece of the model's thinking.
    ThinkingDelta { text: String },
    /// The provider temporarily refused the request. The request is retried after this pause.
    Retrying { pause_ms: u64, why: String },
    /// A tool is about to be called.
    ToolCall {
        /// The model's id of the call.
        id: String,
        name: String,
        /// `native` for a tool of this process. Absent for an unknown tool.
        #[serde(skip_serializing_if = "Option::is_none")]
        server: Option<String>,
        arguments: Raw,
    },
    /// A server asks the user something before it continues. Pass the answers to [`crate::Questions::answer`]. Only
    /// sent in chats that accept questions.
    Questions {
        /// The id of the call.
        id: String,
        /// `inputRequests`: `elicitation/create` requests, under keys chosen by the server.
        requests: Raw,
    },
    /// The result of a call. Results come in the order in which the calls finish.
    ToolResult {
        id: String,
        is_error: bool,
        /// The beginning of the result's text.
        preview: String,
        /// Bytes of the whole text.
        bytes: usize,
        /// The whole `CallToolResult`, for the tool's App.
        #[serde(skip_serializing_if = "Option::is_none")]
        result: Option<Raw>,
    },
    /// A native tool's payload for the client.
    Native {
        id: String,
        tool: String,
        payload: Value,
    },
    /// Total usage of the run so far. Sent after each answer of the model.
    Usage {
        input: u64,
        output: u64,
        cache_read: u64,
        cache_write: u64,
        cost_micros: u64,
    },
    /// The model ended its turn.
    Done {
        /// `end_turn`, `stop_sequence`, or `max_tokens` (the answer was cut off at the token limit).
        stop_reason: String,
        run: String,
    },
    /// The turn failed. Everything that was complete is in the conversation.
    Error { kind: ErrorKind, message: String },
}

/// The category of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorKind {
    /// The servers cannot be started or listed.
    Servers,
    /// The model did not answer, or not completely.
    Model,
    /// The model reached the limit of turns with tool calls.
    TurnLimit,
    /// The conversation is full, or the message is invalid.
    Conversation,
    /// The run cannot be recorded.
    Ledger,
    /// The agent was stopped during the turn.
    Stopped,
}
