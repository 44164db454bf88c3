//! Maps tool names to servers (A04, A05): the names that the model sees, and the tools that they stand for.
//!
//! Invariants: names are unique. If two servers have a tool of the same name, the later one in configuration order
//! wins; a native tool wins over both. A warning names the loser. Names that model APIs refuse are changed to legal
//! ones.

use std::{collections::HashMap, sync::Arc};

use model::{ExposedName, NamingPolicy, NativeName, ServerName, naming};

use crate::{
    native::Ready,
    servers::{Missing, Offer},
    tool::{NATIVE_SERVER, Origin, ServerTool, ToolFunction},
};

/// The tools of one chat.
#[derive(Clone, Debug, Default)]
pub struct ToolNames {
    functions: Arc<[ToolFunction]>,
    places: HashMap<ExposedName, usize>,
    warnings: Vec<String>,
    missing: Vec<Missing>,
    max_result_tokens: Option<usize>,
}

impl ToolNames {
    /// Names the tools: servers in configuration order, then native tools.
    pub(crate) fn new(offer: Offer, native: &[Ready]) -> Self {
        let Offer {
            tools,
            missing,
            max_result_tokens,
        } = offer;
        let mut servers: Vec<(ServerName, Vec<NativeName>)> = Vec::new();
        let mut known: HashMap<(ServerName, NativeName), ServerTool> = HashMap::new();
        for tool in tools {
            match servers.iter_mut().find(|(name, _)| *name == tool.server) {
                Some((_, natives)) => natives.push(tool.native.clone()),
                None => servers.push((tool.server.clone(), vec![tool.native.clone()])),
            }
            known
                .entry((tool.server.clone(), tool.native.clone()))
                .or_insert(tool);
        }
        // No client adds a prefix to these names.
        let assigned = naming::assign(&servers, NamingPolicy::LastWins, naming::MAX_LEN);
        let assigned = assigned.unwrap_or_default();
        let mut warnings: Vec<String> = assigned
            .replaced
            .iter()
            .map(|lost| {
                format!(
                    "the servers `{}` and `{}` both offer the tool `{}`: the agent uses the tool of `{}`",
                    lost.loser, lost.winner, lost.native, lost.winner
                )
            })
            .collect();
        let mut functions = Vec::with_capacity(assigned.names.len() + native.len());
        for named in assigned.names {
            if native
                .iter()
                .any(|tool| tool.name == named.exposed.as_str())
            {
                warnings.push(format!(
                    "the server `{}` and `{NATIVE_SERVER}` both offer the tool `{}`: the agent uses the tool of `{NATIVE_SERVER}`",
                    named.server, named.exposed
                ));
                continue;
            }
            let key = (named.server, named.native);
            let Some(tool) = known.remove(&key) else {
                continue;
            };
            let (server, native) = key;
            functions.push(ToolFunction {
                name: named.exposed,
                description: tool.description,
                parameters: tool.parameters,
                response: tool.response,
                has_app: tool.has_app,
                origin: Origin::Server { server, native },
            });
        }
        functions.extend(native.iter().map(|tool| ToolFunction {
            name: ExposedName::new(tool.name.as_str()),
            description: Arc::clone(&tool.description),
            parameters: tool.schema.clone(),
            response: None,
            has_app: false,
            origin: Origin::Native,
        }));
        let places = functions
            .iter()
            .enumerate()
            .map(|(at, function)| (function.name.clone(), at))
            .collect();
        Self {
            functions: functions.into(),
            places,
            warnings,
            missing,
            max_result_tokens,
        }
    }

    /// All tools: those of servers in configuration order, then native ones.
    #[must_use]
    pub fn functions(&self) -> &Arc<[ToolFunction]> {
        &self.functions
    }

    #[must_use]
    pub fn get(&self, name: &str) -> Option<&ToolFunction> {
        self.places.get(name).map(|at| &self.functions[*at])
    }

    /// Servers whose tools are missing from this list.
    #[must_use]
    pub fn missing(&self) -> &[Missing] {
        &self.missing
    }

    /// The tokens of a result that the model sees at once, if there is a bound.
    #[must_use]
    pub(crate) fn max_result_tokens(&self) -> Option<usize> {
        self.max_result_tokens
    }

    /// Name conflicts, each as a sentence.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        native::{NativeOutcome, NativeTool, ready},
        raw::Raw,
    };

    fn tool(server: &str, name: &str) -> ServerTool {
        ServerTool {
            server: ServerName::parse(server).expect("a name"),
            native: NativeName::new(name),
            description: format!("{name} of {server}").into(),
            parameters: Raw::empty_object(),
            response: None,
            has_app: false,
        }
    }

    fn check(tools: &[(&str, &str)], native: &[&str], expect: &[(&str, &str)], warned: &[&str]) {
        let tools = tools.iter().map(|(server, name)| tool(server, name));
        let native = native.iter().map(|name| {
            NativeTool::new(*name, "", json!({}), |_| async {
                Ok(NativeOutcome::text(""))
            })
        });
        let native = ready(native.collect()).expect("native tools");
        let tools: Vec<ServerTool> = tools.collect();
        let registry = ToolNames::new(tools.into(), &native);
        let functions = registry.functions().iter();
        let got: Vec<_> = functions
            .map(|one| (one.name.as_str(), one.origin.server()))
            .collect();
        assert_eq!(got, expect);
        assert_eq!(registry.warnings(), warned);
        for (name, server) in expect {
            let found = registry.get(name).expect(name);
            assert_eq!(found.origin.server(), *server);
        }
    }

    #[test]
    fn a04_a_registry_maps_names_to_servers_and_native() {
        check(
            &[("a", "x"), ("a", "y"), ("b", "z")],
            &["n"],
            &[("x", "a"), ("y", "a"), ("z", "b"), ("n", "native")],
            &[],
        );
    }

    #[test]
    fn a05_the_later_server_wins_and_a_warning_names_both() {
        check(
            &[("a", "x"), ("a", "y"), ("b", "x")],
            &[],
            &[("y", "a"), ("x", "b")],
            &["the servers `a` and `b` both offer the tool `x`: the agent uses the tool of `b`"],
        );
        // The configuration order decides which tool wins. The server names do not matter.
        check(
            &[("b", "x"), ("a", "x")],
            &[],
            &[("x", "a")],
            &["the servers `b` and `a` both offer the tool `x`: the agent uses the tool of `a`"],
        );
        check(
            &[("a", "x")],
            &["x"],
            &[("x", "native")],
            &[
                "the server `a` and `native` both offer the tool `x`: the agent uses the tool of `native`",
            ],
        );
    }

    #[test]
    fn odd_names_become_legal_and_lead_back() {
        check(&[("a", "x"), ("a", "x")], &[], &[("x", "a")], &[]);
        let tool = tool("a", "dotted.name/é");
        let registry = ToolNames::new(vec![tool.clone()].into(), &[]);
        let function = &registry.functions()[0];
        assert!(
            naming::is_legal(function.name.as_str(), naming::MAX_LEN),
            "{}",
            function.name
        );
        let Origin::Server { native, .. } = &function.origin else {
            panic!("{function:?}");
        };
        assert_eq!(*native, tool.native);
    }
}
