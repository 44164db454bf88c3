//! What the agent needs of MCP servers. Implemented where servers are known; this crate is not that place.

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
    /// Starts them, or makes sure that they are started. The agent calls this once at a time, and not again after it
    /// succeeded; after a failure the next chat calls it again. The future may be dropped when whoever waited for it
    /// went away, and the next chat then calls it again: what was started by then stays or is started anew.
    ///
    /// # Errors
    /// When the start policy says that the start failed; the message names the server. What was started is stopped.
    fn start(&self) -> BoxFuture<'_, Result<(), ServersError>>;

    /// Returns what is offered now. Called once for each message of the user. It should answer from what is known, since
    /// the model waits for it. A server that is away takes nothing from the others: it is among [`Offer::missing`].
    ///
    /// # Errors
    /// If the offer cannot be determined; the chat ends with the message.
    fn tools(&self) -> BoxFuture<'_, Result<Offer, ServersError>>;

    /// Calls a tool and records the call. Dropping the future cancels the call at its server.
    ///
    /// # Errors
    /// When there is no answer: the server is away, too slow, or says that the request is wrong. The message goes to
    /// the model as the tool's result.
    fn call(&self, call: ServerCall) -> BoxFuture<'_, Result<ToolOutcome, ServersError>>;

    /// Why a tool is not offered that the model asks for, for the model to read; `None`: nobody knows of it.
    fn why_missing(&self, _name: &str) -> Option<String> {
        None
    }

    /// Stops what [`Servers::start`] started and waits until it is gone.
    fn stop(&self) -> BoxFuture<'_, ()>;
}

/// What servers have for a turn.
#[derive(Clone, Debug, Default)]
pub struct Offer {
    /// In configuration order.
    pub tools: Vec<ServerTool>,
    /// Servers whose tools are not among them.
    pub missing: Vec<Missing>,
}

impl From<Vec<ServerTool>> for Offer {
    fn from(tools: Vec<ServerTool>) -> Self {
        let missing = Vec::new();
        Self { tools, missing }
    }
}

/// A server that a turn does without.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Missing {
    pub server: ServerName,
    /// Why, for people to read; no secrets in it. The model is not told: it may be the server's own words.
    pub reason: String,
}

/// A call of a server's tool.
#[derive(Clone, Debug)]
pub struct ServerCall {
    pub server: ServerName,
    pub tool: NativeName,
    /// An object, as the model wrote it.
    pub arguments: Raw,
    /// The run that the record of the call belongs to, if there is one.
    pub run: Option<RunId>,
    /// Somebody answers questions: the result may be one of the type `input_required`, and the call is made again then.
    pub can_ask: bool,
    /// What was answered, when it is made again.
    pub answers: Option<Answers>,
}

/// Answers to what a server asked in the course of a call (2026-07-28 "Multi Round-Trip Requests").
#[derive(Clone, Debug)]
pub struct Answers {
    /// `inputResponses`, an object.
    pub responses: Raw,
    /// The server's `requestState`, as it came.
    pub state: Option<Raw>,
}

/// What went wrong, for people and models to read; no secrets in it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ServersError(pub String);
