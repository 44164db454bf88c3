//! The script format. Unknown fields are rejected, so that a misspelt field cannot make a test pass.

use std::collections::BTreeMap;

use axum::http::HeaderMap;
use serde::Deserialize;
use serde_json::Value;

use crate::check::View;

/// A script: one turn per request.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Script {
    pub(crate) turns: Vec<Turn>,
    /// Repeat the last turn indefinitely.
    pub(crate) repeat_last: bool,
    /// Requests are not validated. Third-party agents may send valid requests that this program does not understand.
    pub(crate) unchecked: bool,
}

/// The conditions on a request, and the response to it: `reply` or `fail`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Turn {
    pub(crate) expect: Expect,
    pub(crate) reply: Reply,
    pub(crate) fail: Option<Fail>,
}

/// Conditions on a request. Omitted conditions always hold.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Expect {
    /// A substring of the last message's text.
    last_text: Option<String>,
    /// The tool results in the last message: exactly these, in this order.
    tool_results: Option<Vec<ExpectResult>>,
    /// The names of all tools, in this order.
    tools: Option<Vec<String>>,
    tools_include: Vec<String>,
    /// A substring of the system prompt.
    system: Option<String>,
    /// Values in the body, by JSON pointer.
    body: BTreeMap<String, Value>,
    /// JSON pointers that must not exist in the body.
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

/// A streamed response.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Reply {
    pub(crate) blocks: Vec<Block>,
    /// The stop reason, in Anthropic's terms. The default is `tool_use` if there is a call, else `end_turn`.
    pub(crate) stop_reason: Option<String>,
    pub(crate) usage: Usage,
    /// Send pings between all other events.
    pub(crate) pings: bool,
    /// Send events and deltas of unknown kinds between all other events.
    pub(crate) noise: bool,
    /// The pause before each event, in milliseconds.
    pub(crate) pause_ms: u64,
    /// Splits the stream into pieces of this many bytes, regardless of event boundaries. 0 sends one event at a time.
    pub(crate) bytes: usize,
    /// Ends the stream early.
    pub(crate) after: Option<After>,
}

/// How a stream ends early.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct After {
    /// Number of events to send before the end.
    pub(crate) events: usize,
    pub(crate) then: Then,
    /// The kind of the error; only for `error`.
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
    /// The stream ends as if it were complete.
    Eof,
    /// Nothing more is sent.
    Stall,
    /// An error of the given kind is sent.
    Error,
}

/// One content block: `text`, `thinking`, `redacted_thinking`, `tool_use` or `raw`, with the fields that belong to it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Block {
    /// `{{now_ns}}` is replaced by the time of sending, in nanoseconds since 1970.
    pub(crate) text: Option<String>,
    pub(crate) citations: Vec<Value>,
    pub(crate) thinking: Option<String>,
    pub(crate) signature: String,
    pub(crate) redacted_thinking: Option<String>,
    /// The tool's name.
    pub(crate) tool_use: Option<String>,
    /// Generated if omitted.
    pub(crate) id: Option<String>,
    pub(crate) input: Option<Value>,
    /// The arguments as text; need not be valid JSON.
    pub(crate) input_raw: Option<String>,
    /// The raw `content_block`, of any kind.
    pub(crate) raw: Option<Value>,
    pub(crate) raw_deltas: Vec<Value>,
    /// Number of pieces the text is sent in. 0 means one.
    pub(crate) deltas: usize,
    /// Start the block but never end it.
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

/// A failure instead of a response.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Fail {
    pub(crate) status: u16,
    pub(crate) kind: String,
    pub(crate) message: String,
    /// Response headers, for example `retry-after`.
    pub(crate) headers: BTreeMap<String, String>,
    /// A raw body instead of an error in the API's format.
    pub(crate) body: Option<String>,
    /// Never send a response.
    pub(crate) stall: bool,
    /// Close the connection without a response.
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
    /// Returns every difference from the expected request.
    pub(crate) fn differs(&self, view: &View, headers: &HeaderMap, body: &Value) -> Vec<String> {
        let mut wrong = Vec::new();
        let mut check = |is_right: bool, what: String| {
            if !is_right {
                wrong.push(what);
            }
        };
        if let Some(part) = &self.last_text {
            let what = format!("the last text {:?} lacks {part:?}", view.last_text);
            check(view.last_text.contains(part), what);
        }
        if let Some(part) = &self.system {
            let what = format!("the system prompt {:?} lacks {part:?}", view.system);
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
                    // OpenAI's format does not say whether a tool result is an error.
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
