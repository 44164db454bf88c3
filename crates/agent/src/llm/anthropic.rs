//! The Anthropic Messages API, streaming (`POST {base}/v1/messages`, version 2023-06-01).
//!
//! Each block of an answer is assembled as an object: the content of `content_block_start` with the deltas applied.
//! Unknown kinds of blocks are therefore complete as well, and are replayed unchanged. Invariants: unknown kinds of
//! events, blocks and deltas never end a stream, and an answer is complete only with `message_stop`. Stable prefixes
//! (tools, system prompt, conversation so far) are marked as cacheable.

use std::{collections::VecDeque, sync::Arc};

use bytes::Bytes;
use futures_util::{StreamExt as _, stream::BoxStream};
use http::HeaderName;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{
    ApiKey, BadArguments, Call, Client, Endpoint, Model, ModelError, ModelEvent, ModelRequest,
    Options, Reply, Stop, Usage,
    http::{Decoder, Event, Fault},
};
use crate::{
    message::{Block, CacheControl, Marked, Message, Role},
    raw::{Fields, Raw},
    tool::{Format, ToolFunction},
};

/// The default base URL.
pub const BASE_URL: &str = "https://api.anthropic.com";

/// Default for `max_tokens`, which the API requires.
const DEFAULT_MAX_TOKENS: u32 = 8192;

/// A model behind the Messages API.
pub struct Anthropic {
    client: Client,
    options: Arc<Options>,
}

impl Anthropic {
    /// # Errors
    /// [`ModelError::Settings`] if the base URL or a header is invalid.
    pub fn new(endpoint: &Endpoint, key: ApiKey, options: Options) -> Result<Self, ModelError> {
        let auth = (key, HeaderName::from_static("x-api-key"), "");
        let client = Client::new(endpoint, "/v1/messages", Some(auth))?
            .with_header("anthropic-version", "2023-06-01");
        super::check_extra(
            &options.extra,
            &[
                "model",
                "max_tokens",
                "stream",
                "system",
                "tools",
                "messages",
            ],
        )?;
        let options = Arc::new(options);
        Ok(Self { client, options })
    }
}

impl Model for Anthropic {
    fn name(&self) -> &str {
        &self.options.model
    }

    fn stream(&self, request: ModelRequest) -> BoxStream<'static, Result<ModelEvent, ModelError>> {
        self.client
            .ask::<Answer>(body(&self.options, &request))
            .boxed()
    }
}

/// The request body.
fn body(options: &Options, request: &ModelRequest) -> Result<Bytes, ModelError> {
    #[derive(Serialize)]
    struct Body<'a> {
        model: &'a str,
        max_tokens: u32,
        stream: bool,
        #[serde(skip_serializing_if = "Option::is_none")]
        system: Option<[System<'a>; 1]>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        tools: Vec<Fields>,
        messages: Vec<Turn<'a>>,
        #[serde(flatten)]
        extra: &'a Map<String, Value>,
    }
    #[derive(Serialize)]
    struct System<'a> {
        r#type: &'static str,
        text: &'a str,
        cache_control: CacheControl,
    }
    #[derive(Serialize)]
    struct Turn<'a> {
        role: Role,
        content: Vec<Marked<'a>>,
    }
    fn tool(tool: &ToolFunction, is_last: bool) -> Fields {
        let mut fields = tool.declaration(Format::Anthropic);
        if is_last {
            fields.set("cache_control", Raw::of(&CacheControl {}));
        }
        fields
    }
    fn turn(message: &Message, is_last: bool) -> Turn<'_> {
        let last = message.content.len();
        let cached = |at| is_last && message.role == Role::User && at + 1 == last;
        let blocks = message.content.iter().enumerate();
        Turn {
            role: message.role,
            content: blocks
                .map(|(at, block)| Marked {
                    block,
                    cached: cached(at),
                })
                .collect(),
        }
    }
    let tools = request.tools.iter().enumerate();
    let messages = request.messages.iter().enumerate();
    let body = Body {
        model: &options.model,
        max_tokens: options.max_tokens.unwrap_or(DEFAULT_MAX_TOKENS),
        stream: true,
        system: request.system.as_deref().map(|text| {
            [System {
                r#type: "text",
                text,
                cache_control: CacheControl {},
            }]
        }),
        tools: tools
            .map(|(at, one)| tool(one, at + 1 == request.tools.len()))
            .collect(),
        messages: messages
            .map(|(at, one)| turn(one, at + 1 == request.messages.len()))
            .collect(),
        extra: &options.extra,
    };
    serde_json::to_vec(&body)
        .map(Bytes::from)
        .map_err(|error| ModelError::Settings(format!("cannot write the model request: {error}")))
}

/// A partially received answer.
#[derive(Default)]
struct Answer {
    open: Vec<(u64, Open)>,
    whole: Vec<Block>,
    calls: Vec<Call>,
    stop: Option<String>,
    usage: Usage,
    begun: bool,
    done: bool,
}

/// A partially received block.
struct Open {
    fields: Fields,
    kind: String,
    /// Texts that deltas append to, by field.
    texts: Vec<(&'static str, String)>,
    citations: Vec<Raw>,
    input: String,
}

#[derive(Deserialize)]
struct Start {
    index: u64,
    content_block: Fields,
}

#[derive(Deserialize)]
struct DeltaEvent {
    index: u64,
    delta: Fields,
}

#[derive(Deserialize)]
struct StopEvent {
    index: u64,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Tokens {
    input_tokens: Option<u64>,
    output_tokens: Option<u64>,
    cache_read_input_tokens: Option<u64>,
    cache_creation_input_tokens: Option<u64>,
}

impl Decoder for Answer {
    fn event(&mut self, event: Event, out: &mut VecDeque<ModelEvent>) -> Result<(), Fault> {
        let Event { mut name, data } = event;
        if self.done {
            return Ok(());
        }
        if name.is_empty() {
            // The type is read from the data, because some imitations of the API omit event names.
            #[derive(Deserialize)]
            struct Kind {
                r#type: String,
            }
            name = read::<Kind>("an event", &data)?.r#type;
        }
        match name.as_str() {
            "message_start" => {
                #[derive(Deserialize)]
                struct Told {
                    message: Inner,
                }
                #[derive(Deserialize)]
                struct Inner {
                    #[serde(default)]
                    usage: Tokens,
                }
                let told: Told = read(&name, &data)?;
                self.count(&told.message.usage, out);
            }
            "content_block_start" => {
                let start: Start = read(&name, &data)?;
                self.begun = true;
                let open = Open::new(start.content_block, out);
                self.open.retain(|(index, _)| *index != start.index);
                self.open.push((start.index, open));
            }
            "content_block_delta" => {
                let event: DeltaEvent = read(&name, &data)?;
                match self
                    .open
                    .iter_mut()
                    .find(|(index, _)| *index == event.index)
                {
                    Some((_, open)) => open.apply(event.delta, out),
                    None => tracing::debug!(
                        "the model sent a delta for the unknown block {}",
                        event.index
                    ),
                }
            }
            "content_block_stop" => {
                let StopEvent { index } = read(&name, &data)?;
                if let Some(at) = self.open.iter().position(|(open, _)| *open == index) {
                    let (_, open) = self.open.remove(at);
                    self.close(open)?;
                }
            }
            "message_delta" => {
                #[derive(Deserialize)]
                struct Told {
                    delta: Inner,
                    #[serde(default)]
                    usage: Tokens,
                }
                #[derive(Deserialize)]
                struct Inner {
                    #[serde(default)]
                    stop_reason: Option<String>,
                }
                let told: Told = read(&name, &data)?;
                self.stop = told.delta.stop_reason.or(self.stop.take());
                self.count(&told.usage, out);
            }
            "message_stop" => {
                self.done = true;
                out.push_back(ModelEvent::Done(self.reply()));
            }
            "error" => return Err(failure(&data)),
            "ping" => {}
            other => tracing::debug!("the model sent the unknown event {other:?}"),
        }
        Ok(())
    }

    fn end(&mut self, _out: &mut VecDeque<ModelEvent>) -> Result<(), Fault> {
        match self.done {
            true => Ok(()),
            false => Err(Fault::cut()),
        }
    }

    fn begun(&self) -> bool {
        self.begun
    }
}

impl Answer {
    /// Updates the counts. An event replaces every count that it contains.
    fn count(&mut self, tokens: &Tokens, out: &mut VecDeque<ModelEvent>) {
        let before = self.usage;
        let set = |count: &mut u64, told: Option<u64>| *count = told.unwrap_or(*count);
        set(&mut self.usage.input, tokens.input_tokens);
        set(&mut self.usage.output, tokens.output_tokens);
        set(&mut self.usage.cache_read, tokens.cache_read_input_tokens);
        set(
            &mut self.usage.cache_write,
            tokens.cache_creation_input_tokens,
        );
        if self.usage != before {
            out.push_back(ModelEvent::Usage(self.usage));
        }
    }

    fn close(&mut self, open: Open) -> Result<(), Fault> {
        let (fields, bad) = open.finish();
        let whole = Raw::of(&fields);
        let block: Block = whole
            .read()
            .map_err(|error| unreadable("a block", &error))?;
        match &block {
            // The API sends empty texts but does not accept them.
            Block::Text { text, .. } if text.is_empty() => return Ok(()),
            Block::ToolUse {
                id, name, input, ..
            } => self.calls.push(Call {
                id: id.clone(),
                name: name.clone(),
                arguments: match bad {
                    Some(bad) => Err(bad),
                    None => Ok(input.clone()),
                },
            }),
            _ => {}
        }
        self.whole.push(block);
        Ok(())
    }

    fn reply(&mut self) -> Reply {
        // If the answer was cut off at the token limit, unfinished blocks are kept as far as they were received.
        // Exception: thinking without its signature, which the API would not accept back.
        for (_, open) in std::mem::take(&mut self.open) {
            if open.kind != "thinking" {
                let _ = self.close(open);
            }
        }
        let stop = match self.stop.take().as_deref() {
            Some("end_turn") | None => Stop::EndTurn,
            Some("tool_use") => Stop::ToolUse,
            Some("max_tokens") => Stop::MaxTokens,
            Some("stop_sequence") => Stop::StopSequence,
            Some("pause_turn") => Stop::PauseTurn,
            Some("refusal") => Stop::Refusal,
            Some(other) => Stop::Other(other.to_owned()),
        };
        Reply {
            content: std::mem::take(&mut self.whole),
            calls: std::mem::take(&mut self.calls),
            stop,
            usage: self.usage,
        }
    }
}

impl Open {
    fn new(fields: Fields, out: &mut VecDeque<ModelEvent>) -> Self {
        let text = |name: &str| -> Option<String> { fields.get(name)?.read().ok() };
        let kind = text("type").unwrap_or_default();
        // A block may start with content.
        if let ("text", Some(text)) = (kind.as_str(), text("text").filter(|text| !text.is_empty()))
        {
            out.push_back(ModelEvent::Text(text));
        }
        if let ("thinking", Some(text)) = (
            kind.as_str(),
            text("thinking").filter(|text| !text.is_empty()),
        ) {
            out.push_back(ModelEvent::Thinking(text));
        }
        Self {
            fields,
            kind,
            texts: Vec::new(),
            citations: Vec::new(),
            input: String::new(),
        }
    }

    fn apply(&mut self, delta: Fields, out: &mut VecDeque<ModelEvent>) {
        let text = |name: &str| -> Option<String> { delta.get(name)?.read().ok() };
        match text("type").unwrap_or_default().as_str() {
            "text_delta" => {
                if let Some(text) = text("text") {
                    self.append("text", &text);
                    out.push_back(ModelEvent::Text(text));
                }
            }
            "thinking_delta" => {
                if let Some(text) = text("thinking") {
                    self.append("thinking", &text);
                    out.push_back(ModelEvent::Thinking(text));
                }
            }
            "signature_delta" => {
                if let Some(text) = text("signature") {
                    self.append("signature", &text);
                }
            }
            "input_json_delta" => {
                if let Some(text) = text("partial_json") {
                    self.input.push_str(&text);
                }
            }
            "citations_delta" => {
                if let Some(citation) = delta.get("citation") {
                    self.citations.push(citation.clone());
                }
            }
            other => tracing::debug!("the model sent a delta of the unknown type {other:?}"),
        }
    }

    /// Appends to a text of the block, after the initial content.
    fn append(&mut self, field: &'static str, text: &str) {
        let at = self.texts.iter().position(|(name, _)| *name == field);
        let at = at.unwrap_or_else(|| {
            let first = self.fields.get(field).and_then(|raw| raw.read().ok());
            self.texts.push((field, first.unwrap_or_default()));
            self.texts.len() - 1
        });
        self.texts[at].1.push_str(text);
    }

    /// The block's object, and the error in its arguments. Invalid arguments are wrapped, because the API accepts only
    /// objects.
    fn finish(mut self) -> (Fields, Option<BadArguments>) {
        for (field, text) in &self.texts {
            self.fields.set(field, Raw::of(text));
        }
        if self.kind == "thinking" && self.fields.get("signature").is_none() {
            self.fields.set("signature", Raw::of(&""));
        }
        if !self.citations.is_empty() {
            let mut all: Vec<Raw> = self
                .fields
                .get("citations")
                .and_then(|raw| raw.read().ok())
                .unwrap_or_default();
            all.append(&mut self.citations);
            self.fields.set("citations", Raw::of(&all));
        }
        if self.input.is_empty() && (self.kind != "tool_use" || self.fields.get("input").is_some())
        {
            return (self.fields, None);
        }
        let (input, bad) = arguments(&self.input);
        self.fields.set("input", input);
        (self.fields, bad)
    }
}

/// The arguments that a model wrote, as an object. Text that is not an object is wrapped in one, so that the model sees
/// it again in the replay.
pub(super) fn arguments(text: &str) -> (Raw, Option<BadArguments>) {
    let why = match text.trim() {
        "" => return (Raw::empty_object(), None),
        text => match Raw::parse(text) {
            Ok(raw) if raw.is_object() => return (raw, None),
            Ok(_) => "they are a list or a single value".to_owned(),
            Err(error) => error.to_string(),
        },
    };
    let mut wrapped = Fields::default();
    wrapped.set("INVALID_JSON", Raw::of(&text));
    (Raw::of(&wrapped), Some(BadArguments { why }))
}

fn read<'a, T: Deserialize<'a>>(name: &str, data: &'a str) -> Result<T, Fault> {
    serde_json::from_str(data).map_err(|error| unreadable(name, &error))
}

fn unreadable(what: &str, error: &serde_json::Error) -> Fault {
    Fault::Lasting(ModelError::Protocol(format!("{what}: {error}")))
}

/// An `error` event: `{"error": {"type", "message"}}`.
fn failure(data: &str) -> Fault {
    #[derive(Deserialize)]
    struct Told {
        error: Inner,
    }
    #[derive(Deserialize)]
    struct Inner {
        r#type: String,
        #[serde(default)]
        message: String,
    }
    let Inner { r#type, message } = match serde_json::from_str::<Told>(data) {
        Ok(told) => told.error,
        Err(error) => return unreadable("error", &error),
    };
    let is_passing = matches!(
        r#type.as_str(),
        "overloaded_error" | "api_error" | "rate_limit_error" | "timeout_error"
    );
    Fault::in_answer(is_passing, r#type, message)
}
