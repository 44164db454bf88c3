//! What a script can say. Unknown fields are refused, so that a misspelt one does not pass a test.

use std::collections::BTreeMap;

use axum::http::HeaderMap;
use serde::Deserialize;
use serde_json::Value;

use crate::check::View;

/// Turns, one for each request.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Script {
    pub(crate) turns: Vec<Turn>,
    /// The last turn is played again and again.
    pub(crate) repeat_last: bool,
    /// Requests are not validated: what other people's agents send may be right and not understood here.
    pub(crate) unchecked: bool,
}

/// What a request must hold and what it is answered: `reply`, or `fail`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Turn {
    pub(crate) expect: Expect,
    pub(crate) reply: Reply,
    pub(crate) fail: Option<Fail>,
}

/// Conditions on a request; what is absent does not matter.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Expect {
    /// A part of the last message's text.
    last_text: Option<String>,
    /// The results of tools in the last message: as many, in this order.
    tool_results: Option<Vec<ExpectResult>>,
    /// The names of all tools, in this order.
    tools: Option<Vec<String>>,
    tools_include: Vec<String>,
    /// A part of the system prompt.
    system: Option<String>,
    /// Values of the body, by JSON pointer.
    body: BTreeMap<String, Value>,
    /// JSON pointers to what must not be there.
    absent: Vec<String>,
    headers: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct ExpectResult {
    id: Option<String>,
    contains: Option<String>,
    equals: Option<String>,
    is_error: Option<bool>,
}

/// What to stream.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Reply {
    pub(crate) blocks: Vec<Block>,
    /// By default `tool_use` if there is a call, else `end_turn`; in Anthropic's words.
    pub(crate) stop_reason: Option<String>,
    pub(crate) usage: Usage,
    /// Pings between all other events.
    pub(crate) pings: bool,
    /// Events and deltas of kinds that do not exist, between all others.
    pub(crate) noise: bool,
    /// Before each event, in milliseconds.
    pub(crate) pause_ms: u64,
    /// Writes the stream in pieces of this many bytes, wherever that cuts it; 0: an event at a time.
    pub(crate) bytes: usize,
    /// Ends it before its time.
    pub(crate) after: Option<After>,
}

/// How a stream ends before its time.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct After {
    /// Once this many events were sent.
    pub(crate) events: usize,
    pub(crate) then: Then,
    /// With `error`.
    #[serde(default)]
    pub(crate) kind: String,
    #[serde(default)]
    pub(crate) message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Then {
    /// The connection breaks.
    Cut,
    /// The stream ends as if that were all.
    Eof,
    /// Nothing more is sent.
    Stall,
    /// An error of this kind is sent.
    Error,
}

/// One block: one of `text`, `thinking`, `redacted_thinking`, `tool_use` and `raw`, and what belongs to it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Block {
    /// `{{now_ns}}` becomes the time of sending, in nanoseconds since 1970.
    pub(crate) text: Option<String>,
    pub(crate) citations: Vec<Value>,
    pub(crate) thinking: Option<String>,
    pub(crate) signature: String,
    pub(crate) redacted_thinking: Option<String>,
    /// The tool's name.
    pub(crate) tool_use: Option<String>,
    /// By default a new one.
    pub(crate) id: Option<String>,
    pub(crate) input: Option<Value>,
    /// The arguments' text, JSON or not.
    pub(crate) input_raw: Option<String>,
    /// The `content_block` of a block of any kind.
    pub(crate) raw: Option<Value>,
    pub(crate) raw_deltas: Vec<Value>,
    /// In how many pieces the text is sent; 0: one.
    pub(crate) deltas: usize,
    /// It is begun but not ended.
    pub(crate) unfinished: bool,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Usage {
    pub(crate) input_tokens: u64,
    pub(crate) output_tokens: u64,
    pub(crate) cache_read_input_tokens: u64,
    pub(crate) cache_creation_input_tokens: u64,
}

impl Default for Usage {
    fn default() -> Self {
        Self {
            input_tokens: 10,
            output_tokens: 5,
            cache_read_input_tokens: 0,
            cache_creation_input_tokens: 0,
        }
    }
}

/// How to fail instead.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Fail {
    pub(crate) status: u16,
    pub(crate) kind: String,
    pub(crate) message: String,
    /// `retry-after`, for instance.
    pub(crate) headers: BTreeMap<String, String>,
    /// Instead of an error in the form of the API.
    pub(crate) body: Option<String>,
    /// Never answers.
    pub(crate) stall: bool,
    /// Closes the connection without an answer.
    pub(crate) hang_up: bool,
}

impl Default for Fail {
    fn default() -> Self {
        Self {
            status: 500,
            kind: "api_error".to_owned(),
            message: "Internal server error".to_owned(),
            headers: BTreeMap::new(),
            body: None,
            stall: false,
            hang_up: false,
        }
    }
}

impl Expect {
    /// Everything that is not as expected.
    pub(crate) fn differs(&self, view: &View, headers: &HeaderMap, body: &Value) -> Vec<String> {
        let mut wrong = Vec::new();
        let mut check = |is_right: bool, what: String| {
            if !is_right {
                wrong.push(what);
            }
        };
        if let Some(part) = &self.last_text {
            let what = format!("the last text is {:?}, without {part:?}", view.last_text);
            check(view.last_text.contains(part), what);
        }
        if let Some(part) = &self.system {
            let what = format!("the system prompt is {:?}, without {part:?}", view.system);
            check(view.system.contains(part), what);
        }
        if let Some(tools) = &self.tools {
            let what = format!("the tools are {:?}, not {tools:?}", view.tools);
            check(*tools == view.tools, what);
        }
        for tool in &self.tools_include {
            let what = format!("the tools are {:?}, without {tool:?}", view.tools);
            check(view.tools.contains(tool), what);
        }
        if let Some(expected) = &self.tool_results {
            let what = format!(
                "there are {} tool results: {:?}",
                view.results.len(),
                view.results
            );
            check(expected.len() == view.results.len(), what);
            for (expected, result) in expected.iter().zip(&view.results) {
                let is_right = expected.id.as_ref().is_none_or(|id| *id == result.id)
                    && expected.equals.as_ref().is_none_or(|text| *text == result.text)
                    && expected.contains.as_ref().is_none_or(|part| result.text.contains(part))
                    // OpenAI's format does not say whether a result is an error.
                    && expected.is_error.is_none_or(|is| result.is_error.is_none_or(|has| has == is));
                check(
                    is_right,
                    format!("a tool result is {result:?}, not {expected:?}"),
                );
            }
        }
        for (pointer, value) in &self.body {
            let found = body.pointer(pointer);
            check(
                found == Some(value),
                format!("{pointer} is {found:?}, not {value}"),
            );
        }
        for pointer in &self.absent {
            let found = body.pointer(pointer);
            check(found.is_none(), format!("{pointer} is {found:?}"));
        }
        for (name, value) in &self.headers {
            let found = headers.get(name).map(|found| found.as_bytes());
            check(
                found == Some(value.as_bytes()),
                format!("the header {name} is not {value:?}"),
            );
        }
        wrong
    }
}
