//! Tools, wherever they run: what a model is told of one, and what came of a call.

use std::sync::Arc;

use model::{ExposedName, NativeName, ServerName};

use crate::raw::Raw;

/// What a tool of this process is said to belong to, in events and records.
pub const NATIVE_SERVER: &str = "native";

/// A tool as it is offered to a model. Neutral: every form of declaration (Anthropic, OpenAI, ADK) is made of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolFunction {
    /// As the model calls it: `[A-Za-z0-9_-]{1,64}`.
    pub name: ExposedName,
    pub description: Arc<str>,
    /// JSON schema of the arguments, an object's.
    pub parameters: Raw,
    /// JSON schema of the structured result, if the tool declares one.
    pub response: Option<Raw>,
    pub origin: Origin,
}

/// Where a tool runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// At an MCP server, which knows it by its native name.
    Server {
        server: ServerName,
        native: NativeName,
    },
    /// In this process.
    Native,
}

impl Origin {
    /// The server's name; `native` for what runs here.
    #[must_use]
    pub fn server(&self) -> &str {
        match self {
            Self::Server { server, .. } => server.as_str(),
            Self::Native => NATIVE_SERVER,
        }
    }
}

/// A tool as its server offers it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerTool {
    pub server: ServerName,
    pub native: NativeName,
    pub description: Arc<str>,
    /// The server's `inputSchema`.
    pub parameters: Raw,
    /// The server's `outputSchema`.
    pub response: Option<Raw>,
}

/// A server's answer to a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolOutcome {
    /// The MCP `CallToolResult`, an object.
    pub content: Raw,
    /// The tool says that it failed.
    pub is_error: bool,
}
