//! The gateway's servers, as used by an agent.
//!
//! A model is offered the same tools as a client of the same scope: disabled and withheld tools are missing, and
//! descriptions are those of the project. A call is an ordinary call of the gateway: recorded, queued, and cancelled
//! with its caller.
//!
//! The agent starts the servers of the configuration file (A10). Servers that already run are only checked. If a start
//! fails, the servers that it started and that no one else uses are stopped again. Only the first start can fail a
//! chat, and only by a server whose entry is valid. If a server that was up before, a project's own server or a hosted
//! server is missing, the turn continues without it and reports that.

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use agent::{
    Missing, Offer, Origin, Raw, ServerCall, ServerTool, Servers, ServersError, ToolFunction,
    ToolOutcome,
};
use bytes::Bytes;
use catalog::ListKind;
use engine::{
    Caller, Gateway, Scope,
    server::{Server, State},
    view::View,
};
use futures_util::future::BoxFuture;
use mcp::{
    Era, Frame, json,
    outbox::{Bounds, Outbox},
    protocol::meta,
};
use model::{Declared, ExposedName, NativeName, ServerName, StartPolicy};
use serde::Deserialize;
use serde_json::Value;

use super::CALLER;
use backend::projects::Projects;

/// The server of the tools that find others, for the agent.
const GATEWAY: &str = "toolwharf";
/// The client's name and version, for calls in which servers may ask questions.
const INFO: &str = concat!(
    "{\"name\":\"toolwharf-agent\",\"version\":\"",
    env!("CARGO_PKG_VERSION"),
    "\"}"
);
/// The kinds of questions that servers may ask: forms and links for a person. Sampling is not supported, since no model
/// would answer.
const ASKS: &str = "{\"elicitation\":{\"form\":{},\"url\":{}}}";
/// Messages during a call are ignored.
const OUTBOX_BOUNDS: Bounds = Bounds {
    messages: 1,
    bytes: 64 << 10,
};

pub(super) struct Ours {
    gateway: Gateway,
    projects: Arc<Projects>,
    scope: Scope,
    /// The policy in `[agent]`. A policy of the project takes precedence.
    start: StartPolicy,
    started: Started,
}

/// Set once the first start of a scope's servers is over. Shared by all agents created for the scope.
#[derive(Clone, Default)]
pub(super) struct Started(Arc<AtomicBool>);

#[derive(Deserialize)]
struct Listed {
    tools: Vec<Item>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Item {
    name: String,
    #[serde(default)]
    description: String,
    input_schema: Option<Raw>,
    output_schema: Option<Raw>,
    #[serde(rename = "_meta", default)]
    meta: Value,
}

impl Item {
    /// Returns true if an App draws its results (MCP Apps, `_meta.ui.resourceUri`).
    fn has_app(&self) -> bool {
        let ui = &self.meta["ui"];
        ui["resourceUri"].is_string() || self.meta["ui/resourceUri"].is_string()
    }

    /// Returns true if models may call it. Some tools are for Apps only (MCP Apps, `_meta.ui.visibility`).
    fn is_for_models(&self) -> bool {
        let visibility = self.meta["ui"]["visibility"].as_array();
        visibility.is_none_or(|all| all.iter().any(|one| one == "model"))
    }
}

#[derive(Deserialize)]
struct Answered {
    result: Option<Raw>,
    error: Option<Failed>,
}

#[derive(Deserialize)]
struct Failed {
    message: String,
}

#[derive(Deserialize)]
struct Outcome {
    #[serde(default, rename = "isError")]
    is_error: bool,
}

impl Ours {
    pub(super) fn new(
        gateway: Gateway,
        projects: Arc<Projects>,
        scope: Scope,
        start: StartPolicy,
        started: Started,
    ) -> Self {
        Self {
            gateway,
            projects,
            scope,
            start,
            started,
        }
    }

    /// The project's own policy, else the agent's.
    fn policy(&self) -> StartPolicy {
        let fleet = self.gateway.fleet();
        let of_project = self.scope.project.as_ref().and_then(|project| {
            let known = fleet.projects.get(project).map(|project| &project.view);
            known
                .or_else(|| fleet.settings.projects.get(project))?
                .start
        });
        of_project.unwrap_or(self.start)
    }

    /// The configuration key of the policy.
    fn place(&self) -> String {
        match &self.scope.project {
            Some(project) => format!(
                "`[agent]` or `[projects.{project}]` in toolwharf.toml (or run `toolwharf project add {project} \
                 --start parallel`)"
            ),
            None => "`[agent]` in toolwharf.toml".to_owned(),
        }
    }

    async fn admit(&self) -> Result<(), ServersError> {
        let admitted = Box::pin(self.projects.admit(&self.scope)).await;
        admitted
            .map(|_| ())
            .map_err(|error| ServersError(format!("the project cannot be looked up: {error}")))
    }

    /// The view of the scope. Waits for servers that start for the first time.
    async fn view(&self) -> Result<Arc<View>, ServersError> {
        self.admit().await?;
        let view = self.gateway.settled(&self.scope).await;
        view.ok_or_else(|| ServersError(self.scope.missing()))
    }

    /// Starts the file's servers one after the other. The first failure ends it. A server that its own entry blocks is
    /// skipped, and reported as missing.
    async fn one_after_another(&self) -> Result<(), ServersError> {
        self.admit().await?;
        let view = self.gateway.view(&self.scope);
        let view = view.ok_or_else(|| ServersError(self.scope.missing()))?;
        let mut started: Vec<&Arc<Server>> = Vec::new();
        let is_started = |server: &&Arc<Server>| {
            let spec = &server.spec;
            spec.declared == Declared::File && spec.unusable.is_none() && !server.was_up()
        };
        for server in view.awaited().filter(is_started) {
            if matches!(server.state(), State::Idle) {
                started.push(server);
            }
            if let Err(reason) = server.up().await {
                for server in started {
                    server.release_idle();
                }
                return Err(ServersError(format!(
                    "the server `{}` did not start: {reason}; fix or disable it, or write \
                     `start = \"parallel\"` under {} to chat without such servers",
                    server.key(),
                    self.place()
                )));
            }
        }
        Ok(())
    }
}

/// The tools in a view that models may call, under the names by which models call them.
///
/// # Errors
/// If the list does not have the gateway's format.
pub(crate) fn offered(view: &View) -> Result<Vec<ToolFunction>, ServersError> {
    let unreadable = |error| ServersError(format!("the list of tools cannot be read: {error}"));
    let list = view.list(ListKind::Tools, Era::Legacy);
    let listed: Listed = serde_json::from_slice(list).map_err(unreadable)?;
    let names = view.names(ListKind::Tools);
    let tools = names
        .zip(listed.tools)
        .filter(|(_, item)| item.is_for_models())
        .map(|((exposed, server, native, _), item)| ToolFunction {
            name: ExposedName::new(exposed),
            has_app: item.has_app(),
            description: item.description.into(),
            parameters: item.input_schema.unwrap_or_else(Raw::empty_object),
            response: item.output_schema,
            origin: Origin::Server {
                server: server.clone(),
                native: NativeName::new(native),
            },
        });
    Ok(tools.collect())
}

/// The gateway's own tools in search mode.
///
/// # Errors
/// If a definition does not have the gateway's format.
fn finders(view: &View) -> Result<Vec<ServerTool>, ServersError> {
    let unreadable = |error| ServersError(format!("a tool of the gateway cannot be read: {error}"));
    let mut tools = Vec::new();
    for definition in view.finders() {
        let item: Item = serde_json::from_slice(&definition).map_err(unreadable)?;
        // The agent has this tool itself, for the results in its conversation.
        if item.name == agent::READ_RESULT {
            continue;
        }
        tools.push(ServerTool {
            server: ServerName::parse(GATEWAY).expect("a valid name"),
            native: NativeName::new(&*item.name),
            description: item.description.into(),
            parameters: item.input_schema.unwrap_or_else(Raw::empty_object),
            response: None,
            has_app: false,
        });
    }
    Ok(tools)
}

impl Servers for Ours {
    fn start(&self) -> BoxFuture<'_, Result<(), ServersError>> {
        Box::pin(async {
            // With other start policies, listing the tools starts the servers.
            if !self.started.0.load(Ordering::Relaxed) && self.policy() == StartPolicy::Sequential {
                self.one_after_another().await?;
            }
            self.started.0.store(true, Ordering::Relaxed);
            Ok(())
        })
    }

    fn tools(&self) -> BoxFuture<'_, Result<Offer, ServersError>> {
        Box::pin(async {
            self.admit().await?;
            let view = self.gateway.attended(&self.scope).await;
            let view = view.ok_or_else(|| ServersError(self.scope.missing()))?;
            let absent = view.absent();
            let is_there = |function: &ToolFunction| {
                let route = view.tool(function.name.as_str());
                route.is_ok_and(|route| absent.iter().all(|one| one.key != *route.server.key()))
            };
            let is_short = view.is_search();
            let listed: HashSet<&str> = view.listed().collect();
            let is_listed =
                |function: &ToolFunction| !is_short || listed.contains(function.name.as_str());
            let offered = offered(&view)?.into_iter();
            let offered = offered.filter(is_there).filter(is_listed);
            let tools = offered.filter_map(|function| {
                let Origin::Server { server, native } = function.origin else {
                    return None;
                };
                let name = shown(function.name.as_str(), server.as_str(), native.as_str());
                Some(ServerTool {
                    native: NativeName::new(name),
                    server,
                    description: function.description,
                    parameters: function.parameters,
                    response: function.response,
                    has_app: function.has_app,
                })
            });
            let finders = match is_short {
                true => finders(&view)?,
                false => Vec::new(),
            };
            let tools = finders.into_iter().chain(tools).collect();
            let missing = absent.into_iter().map(|one| Missing {
                server: one.server,
                reason: one.reason.to_string(),
            });
            let missing = missing.collect();
            Ok(Offer {
                tools,
                missing,
                max_result_tokens: view.max_result_tokens(),
            })
        })
    }

    fn starting(&self) -> Vec<ServerName> {
        let view = self.gateway.view(&self.scope);
        let servers = view.iter().flat_map(|view| view.awaited());
        let starting = servers.filter(|server| !server.is_settled());
        starting.map(|server| server.name().clone()).collect()
    }

    fn call(&self, call: ServerCall) -> BoxFuture<'_, Result<ToolOutcome, ServersError>> {
        Box::pin(async move {
            let view = self.view().await?;
            let mut names = view.names(ListKind::Tools);
            let offered = names.find(|(exposed, server, native, _)| {
                **server == call.server
                    && shown(exposed, server.as_str(), native) == call.tool.as_str()
            });
            let is_finder = view.is_search() && call.server.as_str() == GATEWAY;
            let exposed = match (offered, is_finder) {
                (Some((exposed, ..)), _) => Some(exposed),
                (None, true) => Some(call.tool.as_str()),
                (None, false) => None,
            };
            let Some(exposed) = exposed else {
                let (server, tool) = (&call.server, &call.tool);
                let gone = || format!("server `{server}` no longer offers the tool `{tool}`");
                let why = view.kept_back_of(server, tool.as_str());
                return Err(ServersError(why.unwrap_or_else(gone)));
            };
            let mut params = format!(
                "\"name\":{},\"arguments\":{}",
                json::quote(exposed),
                call.arguments.get()
            );
            if call.can_ask {
                let members = meta::members(INFO, ASKS);
                params = format!("{params},\"_meta\":{{{members}}}");
            }
            if let Some(answers) = &call.answers {
                params = format!("{params},\"inputResponses\":{}", answers.responses.get());
                if let Some(state) = &answers.state {
                    params = format!("{params},\"requestState\":{}", state.get());
                }
            }
            let text = format!(
                r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{{params}}}}}"#
            );
            let depth = self.gateway.settings().limits.max_depth;
            let frame = Frame::parse(text.into(), depth);
            let frame = frame
                .map_err(|error| ServersError(format!("the arguments are invalid: {error}")))?;
            let (scope, outbox) = (self.scope.clone(), Outbox::new(OUTBOX_BOUNDS));
            let caller = match call.can_ask {
                true => Caller {
                    modern_capabilities: Some(Bytes::from_static(ASKS.as_bytes())),
                    ..Caller::modern(scope, CALLER.into(), outbox)
                },
                false => Caller::legacy(scope, CALLER.into(), outbox),
            };
            let caller = Caller {
                may_use: true,
                wants_whole: true,
                run: call.run.map(|run| run.0),
                ..caller
            };
            let answer = self.gateway.request(&caller, &frame).await.into_text();
            let unreadable =
                |error| ServersError(format!("the server's answer cannot be read: {error}"));
            // Models and the rest of the agent need whole characters.
            let answer = json::without_lone_surrogates(&answer);
            let answered: Answered = serde_json::from_slice(&answer).map_err(unreadable)?;
            match (answered.result, answered.error) {
                (Some(content), _) => {
                    let is_error = content
                        .read::<Outcome>()
                        .is_ok_and(|outcome| outcome.is_error);
                    Ok(ToolOutcome { content, is_error })
                }
                (None, Some(Failed { message })) => Err(ServersError(message)),
                (None, None) => Err(ServersError("the server gave no answer".to_owned())),
            }
        })
    }

    fn why_missing(&self, name: &str) -> Option<String> {
        let refused = match self.gateway.view(&self.scope)?.tool(name) {
            Err(refused) => refused.message,
            // Clients are also offered the tools of servers that are currently unavailable. A turn leaves these out.
            Ok(route) => {
                let (server, why) = (route.server.name(), route.server.absence()?);
                format!("Unknown tool: {name} (server `{server}`: {why})")
            }
        };
        Some(refused)
    }

    fn stop(&self) -> BoxFuture<'_, ()> {
        // The gateway's servers continue to run, because they have other clients.
        Box::pin(async {})
    }
}

/// The name of a tool for an agent: the server's, or the project's alias. The gateway's prefixes are dropped, since an
/// agent has its own.
fn shown<'n>(exposed: &'n str, server: &str, native: &'n str) -> &'n str {
    let prefixed = exposed
        .strip_prefix(server)
        .is_some_and(|rest| rest.starts_with("__"));
    match prefixed {
        true => native,
        false => exposed,
    }
}
