//! Tools for agents built with ADK: the tools of an MCP endpoint as `adk_core` tools (P08, P10, P11).
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use std::sync::Arc;
//! use agent::adk::{Endpoint, Toolset};
//!
//! let endpoint = Endpoint::new("http://127.0.0.1:6280/mcp/shop").with_token(std::env::var("TOOLWHARF_KEY")?);
//! let tools = Toolset::build("shop", Arc::new(endpoint)).await?;
//! // LlmAgentBuilder::new("clerk").toolset(Arc::new(tools))
//! # Ok(()) }
//! ```
//!
//! Invariant: the connection is made when a toolset is built. All toolsets built over one [`Endpoint`] share it.

mod endpoint;

use std::sync::Arc;

use adk_core::{AdkError, ReadonlyContext, Tool, ToolContext};
use async_trait::async_trait;
use serde_json::{Value, json};

pub use self::endpoint::Endpoint;
use crate::{
    Format, Origin, Raw, ServerCall, Servers, ServersError, ToolFunction, ToolNames, ToolOutcome,
};

/// The tools of an endpoint.
pub struct Toolset {
    name: String,
    tools: Vec<Arc<dyn Tool>>,
}

/// A server's tool, under its native name.
struct Wrapped {
    servers: Arc<dyn Servers>,
    function: ToolFunction,
    /// The declaration in [`Format::Adk`].
    declaration: Value,
}

impl Toolset {
    /// Connects, and loads the tools that are offered now.
    ///
    /// If two servers have a tool of the same name, the later one is used and a warning is logged.
    ///
    /// # Errors
    /// Connecting or listing the tools failed. The message names the server.
    pub async fn build(
        name: impl Into<String>,
        servers: Arc<dyn Servers>,
    ) -> Result<Self, ServersError> {
        servers.start().await?;
        let registry = ToolNames::new(servers.tools().await?, &[]);
        for warning in registry.warnings() {
            tracing::warn!("{warning}");
        }
        let tools = registry.functions().iter().map(|function| {
            let declaration = serde_json::to_value(function.declaration(Format::Adk));
            Arc::new(Wrapped {
                servers: servers.clone(),
                function: function.clone(),
                declaration: declaration.unwrap_or_default(),
            }) as Arc<dyn Tool>
        });
        Ok(Self {
            name: name.into(),
            tools: tools.collect(),
        })
    }
}

#[async_trait]
impl adk_core::Toolset for Toolset {
    fn name(&self) -> &str {
        &self.name
    }

    async fn tools(&self, _: Arc<dyn ReadonlyContext>) -> adk_core::Result<Vec<Arc<dyn Tool>>> {
        Ok(self.tools.clone())
    }
}

#[async_trait]
impl Tool for Wrapped {
    fn name(&self) -> &str {
        self.function.native_name()
    }

    fn description(&self) -> &str {
        &self.function.description
    }

    fn declaration(&self) -> Value {
        self.declaration.clone()
    }

    fn parameters_schema(&self) -> Option<Value> {
        self.declaration.get("parameters").cloned()
    }

    fn response_schema(&self) -> Option<Value> {
        self.declaration.get("response").cloned()
    }

    /// ADK may make calls concurrently, because the endpoint decides in which order it handles them.
    fn is_concurrency_safe(&self) -> bool {
        true
    }

    /// Returns the structured result if there is one, otherwise the MCP `CallToolResult` unchanged.
    ///
    /// # Errors
    /// The tool failed (the message is the text of its result), or there was no response.
    async fn execute(&self, _: Arc<dyn ToolContext>, args: Value) -> adk_core::Result<Value> {
        let Origin::Server { server, native } = &self.function.origin else {
            let name = self.function.name.as_str();
            return Err(AdkError::tool(format!("`{name}` is not a server's tool")));
        };
        let arguments = match args {
            Value::Null => json!({}),
            args => args,
        };
        if !arguments.is_object() {
            return Err(AdkError::tool(format!(
                "the arguments of `{native}` are not a JSON object"
            )));
        }
        let call = ServerCall {
            server: server.clone(),
            tool: native.clone(),
            arguments: Raw::of(&arguments),
            run: None,
            can_ask: false,
            answers: None,
        };
        let outcome = self.servers.call(call).await;
        let ToolOutcome { content, is_error } =
            outcome.map_err(|error| AdkError::tool(error.to_string()))?;
        let result: Value = content.read().map_err(|error| {
            AdkError::tool(format!("the result of `{native}` cannot be read: {error}"))
        })?;
        if is_error {
            return Err(AdkError::tool(texts(&result)));
        }
        Ok(given(result))
    }
}

/// Returns the structured result, or the whole result if there is no structured one.
fn given(mut result: Value) -> Value {
    match result.get_mut("structuredContent").map(Value::take) {
        None | Some(Value::Null) => result,
        Some(structured) => structured,
    }
}

/// The texts of a result, one per line.
fn texts(result: &Value) -> String {
    let content = result["content"].as_array().into_iter().flatten();
    let texts: Vec<&str> = content.filter_map(|block| block["text"].as_str()).collect();
    match texts.is_empty() {
        true => "the tool failed without an explanation".to_owned(),
        false => texts.join("\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_any_shape_are_given() {
        let check = |result: Value, expect: Value| assert_eq!(given(result), expect);
        check(json!({ "structuredContent": [1] }), json!([1]));
        check(json!({ "content": [] }), json!({ "content": [] }));
        for wrong in [json!(null), json!([]), json!("text")] {
            check(wrong.clone(), wrong);
        }
    }
}
