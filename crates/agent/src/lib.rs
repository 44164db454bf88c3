//! An agent: a language model that uses the tools of MCP servers and of this process.
//!
//! [`Agent::chat`] is the entry point. The crate's environment implements three traits: [`llm::Model`] (two
//! implementations are included), [`Servers`] for tools, and [`Ledger`] for the records of runs.
//!
//! - [`llm`]: clients for models.
//! - [`message`], [`Conversation`]: the messages, in a form that replays exactly.
//! - [`NativeTool`]: tools of this process. [`ToolNames`]: maps tool names to servers.
//! - `chat`: the loop. `tools`: one tool call. `outcome`: converts a result for the model. [`Questions`]: questions
//!   from servers, answered by the user.
//!
//! # Invariants
//!
//! - A conversation can be sent to a model at any time: it contains no incomplete message and no tool call without a
//!   result.
//! - A failure of a tool becomes its result, and the turn continues. A failure of the model or its provider ends the
//!   turn with an error event.
//! - If the conversation is stored ([`Keep`]), the user's message is durable before the model is called.
//! - Dropping a chat's stream cancels all of its work, except for writing the last records.
//! - Everything is bounded: turns, concurrent calls, waits, results, conversations.
//!
//! # Deliberately absent
//!
//! MCP (except for the endpoints of the feature `adk`), processes, SQL, HTTP servers, repeating tool calls, and
//! summarising conversations that have grown too long.

#[cfg(feature = "adk")]
pub mod adk;
mod agent;
mod chat;
mod config;
mod conversation;
mod event;
mod generate;
mod keep;
pub mod ledger;
pub mod llm;
pub mod message;
pub mod native;
mod outcome;
mod questions;
pub mod raw;
mod servers;
mod tool;
mod tool_names;
mod tools;

pub use crate::message::UserMessage;
pub use agent::{Agent, ChatStream};
pub use config::{Config, Price};
pub use conversation::{AppResult, Conversation, Full, KeptResult, SYSTEM_NOTE};
pub use event::{ChatEvent, ErrorKind};
pub use generate::Generated;
pub use keep::Keep;
pub use ledger::{Ledger, LedgerError, RunId};
pub use native::{NativeOutcome, NativeTool};
pub use questions::Questions;
pub use raw::Raw;
pub use results::READ_RESULT;
pub use servers::{Answers, Missing, Offer, ServerCall, Servers, ServersError};
pub use tool::{Format, NATIVE_SERVER, Origin, ServerTool, ToolFunction, ToolOutcome};
pub use tool_names::ToolNames;
pub use tools::Called;
