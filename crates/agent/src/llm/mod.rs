//! Language models: one small trait, and its two implementations.
//!
//! - [`anthropic`]: the Anthropic Messages API.
//! - [`openai`]: endpoints that speak OpenAI's chat completions, such as local model servers.
//!
//! Invariants: a stream ends with exactly one [`ModelEvent::Done`] or one error, never with both or with neither.
//! What was not received whole is never part of a [`Reply`]. Requests are repeated only while nothing of the answer
//! was passed on. A key is in no error, no log and no `Debug` output. Every wait has a deadline.

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
    raw::{Fields, Raw},
    tool::ToolFunction,
};

/// A language model at an endpoint.
pub trait Model: Send + Sync {
    /// The model's name, as its API knows it and as prices are looked up by.
    fn name(&self) -> &str;

    /// Asks for the next message of the model. Nothing is sent before the stream is polled; dropping it ends the
    /// request.
    fn stream(&self, request: ModelRequest) -> BoxStream<'static, Result<ModelEvent, ModelError>>;
}

/// What to ask a model for.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Options {
    /// The model's name, as the endpoint knows it: `claude-sonnet-4-5` for instance.
    pub model: String,
    /// The most tokens of one answer; absent: 8192 at Anthropic's, and what the endpoint thinks fit elsewhere.
    #[serde(default)]
    pub max_tokens: Option<u32>,
    /// More fields of the request, as the API has them: `thinking`, `temperature`, ….
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

/// What the model is told.
#[derive(Clone, Debug)]
pub struct ModelRequest {
    pub system: Option<Arc<str>>,
    /// Begins with a message of the user; the roles alternate.
    pub messages: Vec<Arc<Message>>,
    pub tools: Arc<[ToolFunction]>,
}

/// What comes of it, in the order that it comes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelEvent {
    /// A piece of the answer's text.
    Text(String),
    /// A piece of what the model thinks.
    Thinking(String),
    /// What this request has used so far, all told; later ones replace earlier ones.
    Usage(Usage),
    /// The request failed before anything came, and is made again after this pause.
    Retrying { pause: Duration, why: String },
    /// The whole answer. The last event.
    Done(Reply),
}

/// A whole answer of the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// As it is to be replayed.
    pub content: Vec<Block>,
    /// The tools that are asked for, in order; each has its block in `content`.
    pub calls: Vec<Call>,
    pub stop: Stop,
    pub usage: Usage,
}

/// The model asks for a tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    pub id: String,
    pub name: String,
    pub arguments: Result<Raw, BadArguments>,
}

/// Arguments that are no JSON object.
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
    /// The answer was cut at the most tokens that were asked for.
    MaxTokens,
    StopSequence,
    /// The provider wants to be asked again, with what there is.
    PauseTurn,
    Refusal,
    /// What the provider called it.
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

/// Tokens. `input` counts neither of the two cached kinds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    pub input: u64,
    pub output: u64,
    /// Read from the provider's cache.
    pub cache_read: u64,
    /// Written into it.
    pub cache_write: u64,
}

impl Usage {
    /// All that was read, cached or not.
    pub fn input_total(&self) -> u64 {
        self.input
            .saturating_add(self.cache_read)
            .saturating_add(self.cache_write)
    }

    /// Counts this in.
    pub fn add(&mut self, other: Self) {
        self.input = self.input.saturating_add(other.input);
        self.output = self.output.saturating_add(other.output);
        self.cache_read = self.cache_read.saturating_add(other.cache_read);
        self.cache_write = self.cache_write.saturating_add(other.cache_write);
    }
}

/// Why there is no whole answer.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The settings cannot work; asking again is of no use.
    #[error("{0}")]
    Settings(String),
    /// Nobody answers there, after all attempts.
    #[error("the model at {url} cannot be reached: {why}")]
    Unreachable { url: String, why: String },
    /// The provider does not take the request: a wrong key, an unknown model, an overlong conversation.
    #[error("the model's provider refused the request ({status} {kind}): {message}")]
    Refused {
        status: u16,
        /// The provider's own word, `authentication_error` for instance.
        kind: String,
        message: String,
    },
    /// The provider is busy or broken, after all attempts or in the middle of an answer.
    #[error("the model's provider is overloaded or failing ({kind}), {when}: {message}")]
    Overloaded {
        kind: String,
        /// `after 4 attempts`, `in the middle of the answer`.
        when: String,
        message: String,
    },
    /// The answer ended before it was whole.
    #[error("the model's answer was cut off: {0}")]
    Cut(String),
    /// Nothing came for too long.
    #[error("the model said nothing for {} s: {during}", .after.as_secs_f32())]
    Stalled {
        after: Duration,
        during: &'static str,
    },
    /// What came is not what its API says.
    #[error("the model's answer cannot be read: {0}")]
    Protocol(String),
}

/// Refuses fields of the request that are ours to write.
fn check_extra(
    extra: &serde_json::Map<String, serde_json::Value>,
    ours: &[&str],
) -> Result<(), ModelError> {
    match ours.iter().find(|name| extra.contains_key(**name)) {
        None => Ok(()),
        Some(name) => Err(ModelError::Settings(format!(
            "`extra` of the model's settings holds `{name}`, which is written by Toolwharf: take it out"
        ))),
    }
}

/// A tool's schema as model APIs take it: of an object, and without alternatives at its top. One tool with another
/// schema would have every request refused; the server checks the arguments in any case.
pub(crate) fn object_schema(schema: &Raw) -> Raw {
    const ALTERNATIVES: [&str; 3] = ["oneOf", "anyOf", "allOf"];
    let Ok(mut fields) = schema.read::<Fields>() else {
        return Raw::of(&serde_json::json!({ "type": "object" }));
    };
    let is_object = fields
        .get("type")
        .is_some_and(|raw| raw.get() == "\"object\"");
    if is_object && ALTERNATIVES.iter().all(|name| fields.get(name).is_none()) {
        return schema.clone();
    }
    fields
        .0
        .retain(|(name, _)| !ALTERNATIVES.contains(&name.as_str()));
    fields.set("type", Raw::of(&"object"));
    Raw::of(&fields)
}

#[cfg(test)]
mod tests {
    use super::*;

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
