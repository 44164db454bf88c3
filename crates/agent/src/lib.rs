//! An agent: a language model that uses the tools of MCP servers and of this process.
//!
//! [`Agent::chat`] is the front door. What it needs from outside are three traits: [`llm::Model`], with two
//! implementations here; [`Servers`], whose tools are used; and [`Ledger`], where runs are recorded.
//!
//! - [`llm`]: clients of models.
//! - [`message`], [`Conversation`]: what was said, in a form that replays exactly.
//! - [`NativeTool`]: tools of this process; [`Registry`]: which tool belongs to whom.
//! - `chat`: the loop. `tools`: one call. `outcome`: what a model is given of a result. [`Questions`]: what servers ask
//!   meanwhile, and a person answers.
//!
//! # Invariants
//!
//! - A conversation can be given to a model at any time: what is not complete is not in it, and no call of the model
//!   is without a result.
//! - Whatever a tool does wrong is its result, and the turn goes on. Whatever the model or its provider does wrong ends
//!   the turn with an event that says so.
//! - What a person said is durable before the model is asked, where the conversation is kept ([`Keep`]).
//! - Dropping a chat's stream cancels all that it does. Nothing runs on but the last records.
//! - Nothing is without an end: turns, calls at once, waits, results, conversations.
//!
//! # Deliberately absent
//!
//! MCP (save for the endpoints that the feature `adk` brings), processes, SQL and HTTP servers. Repeating tool calls. Summarising conversations that have grown too long.

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
mod registry;
mod servers;
mod tool;
mod tools;

pub use agent::{Agent, ChatStream, UserMessage};
pub use config::{Config, Price};
pub use conversation::{AppResult, Conversation, Full, KeptResult, SYSTEM_NOTE};
pub use event::{ChatEvent, ErrorKind};
pub use generate::Generated;
pub use keep::Keep;
pub use ledger::{Ledger, LedgerError, RunId};
pub use native::{NativeOutcome, NativeTool};
pub use questions::Questions;
pub use raw::Raw;
pub use registry::Registry;
pub use servers::{Answers, Missing, Offer, ServerCall, Servers, ServersError};
pub use tool::{Format, NATIVE_SERVER, Origin, ServerTool, ToolFunction, ToolOutcome};
pub use tools::Called;
