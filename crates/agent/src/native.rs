//! Native tools: functions of this process that a model can call.

use std::{collections::HashSet, fmt, sync::Arc};

use futures_util::future::BoxFuture;
use jsonschema::Validator;
use model::naming;
use serde_json::Value;

use crate::raw::Raw;

/// Maximum number of schema errors reported at once.
const MAX_REPORTED_PROBLEMS: usize = 5;

/// Implements a native tool. If the handler returns an error, the model gets it as the tool's result.
pub type Handler =
    Arc<dyn Fn(Value) -> BoxFuture<'static, Result<NativeOutcome, String>> + Send + Sync>;

/// A tool of this process.
#[derive(Clone)]
pub struct NativeTool {
    /// The name for the model: `[A-Za-z0-9_-]{1,64}`.
    pub name: String,
    pub description: String,
    /// JSON schema of the arguments. They are validated before the handler is called.
    pub schema: Value,
    pub handler: Handler,
}

/// A native tool's result.
#[derive(Clone, Debug, PartialEq)]
pub struct NativeOutcome {
    /// The text for the model.
    pub text: String,
    /// Data for the client. It is sent as an event with the tool's name, and never to the model.
    pub payload: Option<Value>,
}

/// Why native tools are invalid.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(
        "the name {0:?} of a native tool is invalid: use 1 to 64 letters A-Z and a-z, digits, `_` and `-`"
    )]
    Name(String),
    #[error("two native tools have the name {0:?}: rename one of them")]
    Twice(String),
    #[error("the schema of the native tool {tool:?} is not a JSON schema: {why}")]
    Schema { tool: String, why: String },
}

impl NativeTool {
    /// Creates a tool from an async function.
    pub fn new<F, R>(
        name: impl Into<String>,
        description: impl Into<String>,
        schema: Value,
        handler: F,
    ) -> Self
    where
        F: Fn(Value) -> R + Send + Sync + 'static,
        R: Future<Output = Result<NativeOutcome, String>> + Send + 'static,
    {
        Self {
            name: name.into(),
            description: description.into(),
            schema,
            handler: Arc::new(move |arguments| Box::pin(handler(arguments))),
        }
    }
}

impl fmt::Debug for NativeTool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NativeTool")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl NativeOutcome {
    #[must_use]
    pub fn text(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            payload: None,
        }
    }

    #[must_use]
    pub fn with_payload(mut self, payload: Value) -> Self {
        self.payload = Some(payload);
        self
    }
}

/// A validated native tool.
pub(crate) struct Ready {
    pub(crate) name: String,
    pub(crate) description: Arc<str>,
    pub(crate) schema: Raw,
    validator: Validator,
    pub(crate) handler: Handler,
}

impl Ready {
    /// Parses and validates arguments.
    ///
    /// # Errors
    /// All violations of the schema, in one sentence.
    pub(crate) fn read(&self, arguments: &Raw) -> Result<Value, String> {
        let value: Value = arguments.read().map_err(|error| error.to_string())?;
        let mut problems: Vec<String> = Vec::new();
        let mut more = 0;
        for error in self.validator.iter_errors(&value) {
            if problems.len() == MAX_REPORTED_PROBLEMS {
                more += 1;
                continue;
            }
            let place = error.instance_path().to_string();
            problems.push(match place.as_str() {
                "" => error.to_string(),
                place => format!("{place}: {error}"),
            });
        }
        if more > 0 {
            problems.push(format!("and {more} more"));
        }
        match problems.is_empty() {
            true => Ok(value),
            false => Err(problems.join("; ")),
        }
    }
}

/// Validates the tools.
pub(crate) fn ready(tools: Vec<NativeTool>) -> Result<Vec<Ready>, Error> {
    let mut names = HashSet::new();
    tools
        .into_iter()
        .map(|tool| {
            if !naming::is_legal(&tool.name, naming::MAX_LEN) {
                return Err(Error::Name(tool.name));
            }
            if !names.insert(tool.name.clone()) {
                return Err(Error::Twice(tool.name));
            }
            let validator =
                jsonschema::validator_for(&tool.schema).map_err(|error| Error::Schema {
                    tool: tool.name.clone(),
                    why: error.to_string(),
                })?;
            Ok(Ready {
                name: tool.name,
                description: tool.description.into(),
                schema: Raw::of(&tool.schema),
                validator,
                handler: tool.handler,
            })
        })
        .collect()
}
