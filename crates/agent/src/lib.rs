//! An agent: a language model that uses the tools of MCP servers and of this process.
//!
//! - [`llm`]: clients of models, behind one trait.
//! - [`message`]: what is said, in a form that replays exactly.

mod generate;
pub mod llm;
pub mod message;
pub mod raw;
mod tool;

pub use raw::Raw;
pub use tool::{NATIVE_SERVER, Origin, ServerTool, ToolFunction, ToolOutcome};
