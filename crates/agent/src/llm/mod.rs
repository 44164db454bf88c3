//! Language models: a small trait with two implementations.
//!
//! - [`anthropic`]: the Anthropic Messages API.
//! - [`openai`]: endpoints with OpenAI's chat completions API, such as local model servers.
//!
//! Invariants: a stream ends with exactly one [`ModelEvent::Done`] or exactly one error. A [`Reply`] contains only
//! completely received content. Requests are retried only as long as no content was passed on. Errors, logs and `Debug`
//! output never contain a key. Every wait has a deadline.

pub mod anthropic;
mod http;
mod key;
pub mod openai;
mod retry;

use std::{sync::Arc, time::Duration};

use futures_util::stream::BoxStream;
use serde::{Deserialize, Serialize};

pub use http::{Client, Endpoint, Timeouts};
pub use key::ApiKey;
pub use retry::Retry;

use crate::{
    message::{Block, Message},
    raw::Raw,
    tool::ToolFunction,
};

/// A language model at an endpoint.
pub trait Model: Send + Sync {
    /// The model's name in its API and in the price list.
    fn name(&self) -> &str;

    /// Requests the model's next message. Nothing is sent until the stream is polled. Dropping it ends the request.
    fn stream(&self, request: ModelRequest) -> BoxStream<'static, Result<ModelEvent, ModelError>>;
}

/// Settings for requests to a model.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Options {
    /// The model's name at the endpoint, for example `claude-sonnet-4-5`.
    pub model: String,
    /// Maximum tokens of one answer. Default: 8192 for Anthropic; otherwise the endpoint decides.
    #[serde(default)]
    pub max_tokens: Option<u32>,
    /// Additional request fields of the API: `thinking`, `temperature`, ….
    #[serde(default)]
    pub extra: serde_json::Map<String, serde_json::Value>,
}

impl Options {
    pub fn new(model: impl Into<String>) -> Self {
        Self {
            model: model.into(),
            max_tokens: None,
            extra: serde_json::Map::new(),
        }
    }
}

/// The input for the model.
#[derive(Clone, Debug)]
pub struct ModelRequest {
    pub system: Option<Arc<str>>,
    /// Starts with a user message; roles alternate.
    pub messages: Vec<Arc<Message>>,
    pub tools: Arc<[ToolFunction]>,
}

/// Events of a model request, in order of arrival.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelEvent {
    /// A piece of the answer's text.
    Text(String),
    /// A piece of the model's thinking.
    Thinking(String),
    /// Total usage of this request so far. Replaces earlier values.
    Usage(Usage),
    /// The request failed before any content arrived. It is retried after this pause.
    Retrying { pause: Duration, why: String },
    /// The complete answer. The last event.
    Done(Reply),
}

/// A complete answer of the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The blocks to replay in later requests.
    pub content: Vec<Block>,
    /// The requested tool calls, in order. Each has a block in `content`.
    pub calls: Vec<Call>,
    pub stop: Stop,
    pub usage: Usage,
}

/// A tool call requested by the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    pub id: String,
    pub name: String,
    pub arguments: Result<Raw, BadArguments>,
}

/// Arguments that are not a JSON object.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the arguments are not a JSON object: {why}")]
pub struct BadArguments {
    pub why: String,
}

/// Why the model stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    EndTurn,
    ToolUse,
    /// The answer was cut off at the token limit.
    MaxTokens,
    StopSequence,
    /// The provider paused, and expects another request with the content so far.
    PauseTurn,
    Refusal,
    /// The provider's own term.
    Other(String),
}

impl Stop {
    pub fn as_str(&self) -> &str {
        match self {
            Self::EndTurn => "end_turn",
            Self::ToolUse => "tool_use",
            Self::MaxTokens => "max_tokens",
            Self::StopSequence => "stop_sequence",
            Self::PauseTurn => "pause_turn",
            Self::Refusal => "refusal",
            Self::Other(word) => word,
        }
    }
}

/// Token counts. `input` excludes both kinds of cached tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    pub input: u64,
    pub output: u64,
    /// Input tokens read from the provider's cache.
    pub cache_read: u64,
    /// Input tokens written to the provider's cache.
    pub cache_write: u64,
}

impl Usage {
    /// All input tokens, cached or not.
    pub fn input_total(&self) -> u64 {
        self.input
            .saturating_add(self.cache_read)
            .saturating_add(self.cache_write)
    }

    pub fn add(&mut self, other: Self) {
        self.input = self.input.saturating_add(other.input);
        self.output = self.output.saturating_add(other.output);
        self.cache_read = self.cache_read.saturating_add(other.cache_read);
        self.cache_write = self.cache_write.saturating_add(other.cache_write);
    }
}

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The settings are wrong. Retrying is useless.
    #[error("{0}")]
    Settings(String),
    /// The endpoint could not be reached in any attempt.
    #[error("the model at {url} cannot be reached: {why}")]
    Unreachable { url: String, why: String },
    /// The provider refused the request: wrong key, unknown model, conversation too long.
    #[error("the model's provider refused the request ({status} {kind}): {message}")]
    Refused {
        status: u16,
        /// The provider's term, for example `authentication_error`.
        kind: String,
        message: String,
    },
    /// The provider is overloaded or failing, after all attempts or in the middle of an answer.
    #[error("the model's provider is overloaded or failing ({kind}), {when}: {message}")]
    Overloaded {
        kind: String,
        /// `after 4 attempts`, or `in the middle of the answer`.
        when: String,
        message: String,
    },
    /// The answer ended before it was complete.
    #[error("the model's answer was cut off: {0}")]
    Cut(String),
    /// Nothing arrived within a timeout.
    #[error("the model sent nothing for {} s, {during}", .after.as_secs_f32())]
    Stalled {
        after: Duration,
        during: &'static str,
    },
    /// The answer violates the API.
    #[error("the model's answer cannot be read: {0}")]
    Protocol(String),
}

/// Refuses `extra` fields that Toolwharf sets itself.
fn check_extra(
    extra: &serde_json::Map<String, serde_json::Value>,
    ours: &[&str],
) -> Result<(), ModelError> {
    match ours.iter().find(|name| extra.contains_key(**name)) {
        None => Ok(()),
        Some(name) => Err(ModelError::Settings(format!(
            "`extra` in the model's settings contains `{name}`, which Toolwharf sets itself: remove it"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tool::object_schema;

    #[test]
    fn schemas_are_made_acceptable_and_otherwise_left_alone() {
        let check = |schema: &str, expect: &str| {
            let schema = Raw::parse(schema).expect("JSON");
            assert_eq!(object_schema(&schema).get(), expect);
        };
        let good = r#"{ "type":"object", "properties": {"a": {"anyOf": [1.50]}} }"#;
        check(good, good);
        check("{}", r#"{"type":"object"}"#);
        check("true", r#"{"type":"object"}"#);
        check(
            r#"{"anyOf":[{}],"properties":{"n":1.50},"type":["object","null"]}"#,
            r#"{"properties":{"n":1.50},"type":"object"}"#,
        );
    }
}
