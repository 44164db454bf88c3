//! The interface to MCP servers. Other crates implement it.

use futures_util::future::BoxFuture;
use model::{NativeName, ServerName};
use serde::Serialize;

use crate::{
    ledger::RunId,
    raw::Raw,
    tool::{ServerTool, ToolOutcome},
};

/// The servers whose tools an agent uses.
pub trait Servers: Send + Sync {
    /// Starts the servers, or makes sure that they run. The agent never calls this twice at the same time, and not
    /// again after a success. After a failure, or if the future was dropped because its caller went away, the next chat
    /// calls it again. Servers that were already started keep running or are restarted.
    ///
    /// # Errors
    /// The start failed according to the start policy. The message names the server. Servers that were started are
    /// stopped.
    fn start(&self) -> BoxFuture<'_, Result<(), ServersError>>;

    /// Returns the current tools. Called once per user message. Answer from a cache if possible, because the model
    /// waits for it. An unavailable server does not affect the others; it is listed in [`Offer::missing`].
    ///
    /// # Errors
    /// The tools cannot be determined. The chat ends with the message.
    fn tools(&self) -> BoxFuture<'_, Result<Offer, ServersError>>;

    /// The servers that [`Servers::start`] or [`Servers::tools`] are waiting for.
    fn starting(&self) -> Vec<ServerName> {
        Vec::new()
    }

    /// Calls a tool and records the call. Dropping the future cancels the call at its server.
    ///
    /// # Errors
    /// The call has no result: the server is unavailable, too slow, or rejects the request. The model gets the message
    /// as the tool's result.
    fn call(&self, call: ServerCall) -> BoxFuture<'_, Result<ToolOutcome, ServersError>>;

    /// Why a tool that the model asked for is not offered, as text for the model. `None` if the tool is unknown.
    fn why_missing(&self, _name: &str) -> Option<String> {
        None
    }

    /// Stops everything that [`Servers::start`] started, and waits until it has ended.
    fn stop(&self) -> BoxFuture<'_, ()>;
}

/// The tools available to a turn.
#[derive(Clone, Debug, Default)]
pub struct Offer {
    /// The tools, in the order in which the servers are configured.
    pub tools: Vec<ServerTool>,
    /// Servers whose tools are missing.
    pub missing: Vec<Missing>,
    /// The tokens of a result that the model sees at once. `None`: as in [`crate::Config`].
    pub max_result_tokens: Option<usize>,
}

impl From<Vec<ServerTool>> for Offer {
    fn from(tools: Vec<ServerTool>) -> Self {
        Self {
            tools,
            ..Self::default()
        }
    }
}

/// A server whose tools are missing in a turn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Missing {
    pub server: ServerName,
    /// The reason, for people to read, without secrets. Not shown to the model, because it may be the server's own
    /// words.
    pub reason: String,
}

/// A call of a server's tool.
#[derive(Clone, Debug)]
pub struct ServerCall {
    pub server: ServerName,
    pub tool: NativeName,
    /// An object, as the model wrote it.
    pub arguments: Raw,
    /// The run that the record of the call belongs to, if any.
    pub run: Option<RunId>,
    /// True if the user can answer questions. The result may then have the type `input_required`, and the call is
    /// repeated with the answers.
    pub can_ask: bool,
    /// The answers, in a repeated call.
    pub answers: Option<Answers>,
}

/// Answers to a server's questions during a call (2026-07-28 "Multi Round-Trip Requests").
#[derive(Clone, Debug)]
pub struct Answers {
    /// `inputResponses`, an object.
    pub responses: Raw,
    /// The server's `requestState`, unchanged.
    pub state: Option<Raw>,
}

/// An error for people and models to read, without secrets.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ServersError(pub String);
