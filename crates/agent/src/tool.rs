//! Tools, wherever they run: declarations for models, and results of calls.

use std::sync::Arc;

use model::{ExposedName, NativeName, ServerName};

use crate::raw::{Fields, Raw};

/// The server name of native tools, in events and records.
pub const NATIVE_SERVER: &str = "native";

/// A tool that is offered to a model. All declaration formats (Anthropic, OpenAI, ADK) are derived from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolFunction {
    /// The name for the model: `[A-Za-z0-9_-]{1,64}`.
    pub name: ExposedName,
    pub description: Arc<str>,
    /// JSON schema of the arguments, which are an object.
    pub parameters: Raw,
    /// JSON schema of the structured result, if the tool declares one.
    pub response: Option<Raw>,
    /// True if an App renders its results (MCP Apps). Clients then get whole results.
    pub has_app: bool,
    pub origin: Origin,
}

/// The format of a declaration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Agent development kits: `name`, `description`, `parameters`, `response`.
    Adk,
    /// The Messages API: `name`, `description`, `input_schema`.
    Anthropic,
    /// Chat completions: type `function`, with an object of `name`, `description`, `parameters`.
    OpenAi,
}

impl ToolFunction {
    /// The name that the tool has at its server (P08). A native tool has only one name.
    #[must_use]
    pub fn native_name(&self) -> &str {
        match &self.origin {
            Origin::Server { native, .. } => native.as_str(),
            Origin::Native => self.name.as_str(),
        }
    }

    /// The tool's declaration. Schemas are unchanged, unless model APIs would refuse them. [`Format::Adk`] uses the
    /// native name.
    #[must_use]
    pub fn declaration(&self, format: Format) -> Fields {
        let parameters = || object_schema(&self.parameters);
        let mut fields = Fields::default();
        fields.set("name", Raw::of(&self.name));
        fields.set("description", Raw::of(&self.description));
        match format {
            Format::Adk => {
                fields.set("name", Raw::of(&self.native_name()));
                fields.set("parameters", self.parameters.clone());
                if let Some(response) = &self.response {
                    fields.set("response", response.clone());
                }
            }
            Format::Anthropic => fields.set("input_schema", parameters()),
            Format::OpenAi => {
                fields.set("parameters", parameters());
                let function = Raw::of(&fields);
                fields = Fields::default();
                fields.set("type", Raw::of(&"function"));
                fields.set("function", function);
            }
        }
        fields
    }
}

/// Where a tool runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The tool runs at an MCP server, which knows it under its native name.
    Server {
        server: ServerName,
        native: NativeName,
    },
    /// The tool runs in this process.
    Native,
}

impl Origin {
    /// The server's name, or `native` for this process.
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
    /// True if an App renders its results (MCP Apps).
    pub has_app: bool,
}

/// A server's response to a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolOutcome {
    /// The MCP `CallToolResult`, an object.
    pub content: Raw,
    /// The tool reported a failure.
    pub is_error: bool,
}

/// Converts a tool's schema to the form that model APIs accept: an object schema without alternatives at the top level.
/// One tool with any other schema would make every request fail. The server checks the arguments in any case.
pub(crate) fn object_schema(schema: &Raw) -> Raw {
    const ALTERNATIVES: [&str; 3] = ["oneOf", "anyOf", "allOf"];
    let Ok(mut fields) = schema.read::<Fields>() else {
        return Raw::of(&serde_json::json!({ "type": "object" }));
    };
    let is_object = fields
        .get("type")
        .is_some_and(|raw| raw.get() == "\"object\"");
    if is_object && ALTERNATIVES.iter().all(|name| fields.get(name).is_none()) {
        return schema.clone();
    }
    fields
        .0
        .retain(|(name, _)| !ALTERNATIVES.contains(&name.as_str()));
    fields.set("type", Raw::of(&"object"));
    Raw::of(&fields)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn declarations() {
        let function = ToolFunction {
            name: ExposedName::new("a_b_12345678"),
            description: "Does it".into(),
            parameters: Raw::parse(r#"{"anyOf":[{}]}"#).expect("JSON"),
            response: Some(Raw::parse(r#"{ "type":"object" }"#).expect("JSON")),
            has_app: false,
            origin: Origin::Server {
                server: ServerName::parse("s").expect("a name"),
                native: NativeName::new("a.b"),
            },
        };
        let check = |format, expect: &str| {
            let declared = Raw::of(&function.declaration(format));
            assert_eq!(declared.get(), expect);
        };
        check(
            Format::Adk,
            r#"{"name":"a.b","description":"Does it","parameters":{"anyOf":[{}]},"response":{ "type":"object" }}"#,
        );
        check(
            Format::Anthropic,
            r#"{"name":"a_b_12345678","description":"Does it","input_schema":{"type":"object"}}"#,
        );
        check(
            Format::OpenAi,
            r#"{"type":"function","function":{"name":"a_b_12345678","description":"Does it","parameters":{"type":"object"}}}"#,
        );
    }
}
