//! The gateway's servers, as an agent uses them.
//!
//! What a model is offered is what a client of the same scope is: tools that are switched off or kept back are not there,
//! descriptions are those of the project. A call is one of the gateway's: recorded, queued, and ended with its caller.
//!
//! The start (A10) is the agent's: the servers are the gateway's, so those that run already are only looked at, and of
//! those that a failed start started the ones that nobody else uses are stopped again.

use std::sync::Arc;

use agent::{
    Origin, Raw, ServerCall, ServerTool, Servers, ServersError, ToolFunction, ToolOutcome,
};
use engine::{
    Caller, Gateway, Scope,
    catalog::ListKind,
    server::{Server, State},
    view::View,
};
use futures_util::future::BoxFuture;
use mcp::{
    Era, Frame, json,
    outbox::{Bounds, Outbox},
};
use model::{ExposedName, NativeName, StartPolicy};
use serde::Deserialize;

use super::CALLER;
use crate::projects::Projects;

/// What a call says in its course is not listened to.
const BOUNDS: Bounds = Bounds {
    messages: 1,
    bytes: 64 << 10,
};

pub(super) struct Ours {
    gateway: Gateway,
    projects: Arc<Projects>,
    scope: Scope,
    start: StartPolicy,
}

#[derive(Deserialize)]
struct Listed {
    tools: Vec<Item>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Item {
    #[serde(default)]
    description: String,
    input_schema: Option<Raw>,
    output_schema: Option<Raw>,
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
    ) -> Self {
        Self {
            gateway,
            projects,
            scope,
            start,
        }
    }

    async fn admit(&self) -> Result<(), ServersError> {
        let admitted = Box::pin(self.projects.admit(&self.scope)).await;
        admitted
            .map(|_| ())
            .map_err(|error| ServersError(format!("the project cannot be looked up: {error}")))
    }

    /// What there is in the scope; servers that are being started for the first time are waited for.
    async fn view(&self) -> Result<Arc<View>, ServersError> {
        self.admit().await?;
        let view = self.gateway.settled(&self.scope).await;
        view.ok_or_else(|| ServersError(self.scope.missing()))
    }

    /// One server after the other; the first that does not come up ends it.
    async fn one_after_another(&self) -> Result<(), ServersError> {
        self.admit().await?;
        let view = self.gateway.view(&self.scope);
        let view = view.ok_or_else(|| ServersError(self.scope.missing()))?;
        let mut started: Vec<&Arc<Server>> = Vec::new();
        for server in view.awaited() {
            if matches!(server.state(), State::Idle) {
                started.push(server);
            }
            if let Err(reason) = server.up().await {
                for server in started {
                    server.rest();
                }
                return Err(ServersError(format!(
                    "the server `{}` did not start: {reason}; put it right or switch it off, or write \
                     `start = \"parallel\"` under `[agent]` in toolwharf.toml to chat without such servers",
                    server.key()
                )));
            }
        }
        Ok(())
    }
}

/// The tools that clients of a view are offered, under the names that they call them by.
///
/// # Errors
/// When the list is not what the gateway makes.
pub(crate) fn offered(view: &View) -> Result<Vec<ToolFunction>, ServersError> {
    let unreadable = |error| ServersError(format!("the list of tools cannot be read: {error}"));
    let list = view.list(ListKind::Tools, Era::Legacy);
    let listed: Listed = serde_json::from_slice(list).map_err(unreadable)?;
    let names = view.names(ListKind::Tools);
    let tools = names
        .zip(listed.tools)
        .map(|((exposed, server, native, _), item)| ToolFunction {
            name: ExposedName::new(exposed),
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

impl Servers for Ours {
    fn start(&self) -> BoxFuture<'_, Result<(), ServersError>> {
        Box::pin(async {
            match self.start {
                StartPolicy::Sequential => self.one_after_another().await,
                // What is not started is so by being looked at.
                StartPolicy::Parallel | StartPolicy::Lazy => self.view().await.map(|_| ()),
            }
        })
    }

    fn tools(&self) -> BoxFuture<'_, Result<Vec<ServerTool>, ServersError>> {
        Box::pin(async {
            let view = self.view().await?;
            let tools = offered(&view)?.into_iter().filter_map(|function| {
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
                })
            });
            Ok(tools.collect())
        })
    }

    fn call(&self, call: ServerCall) -> BoxFuture<'_, Result<ToolOutcome, ServersError>> {
        Box::pin(async move {
            let view = self.view().await?;
            let mut names = view.names(ListKind::Tools);
            let offered = names.find(|(exposed, server, native, _)| {
                **server == call.server
                    && shown(exposed, server.as_str(), native) == call.tool.as_str()
            });
            let Some((exposed, ..)) = offered else {
                let (server, tool) = (&call.server, &call.tool);
                let gone = format!("server `{server}` does not offer the tool `{tool}` any more");
                return Err(ServersError(gone));
            };
            let text = format!(
                r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":{},"arguments":{}}}}}"#,
                json::quote(exposed),
                call.arguments.get()
            );
            let depth = self.gateway.settings().limits.max_depth;
            let frame = Frame::parse(text.into(), depth);
            let frame = frame.map_err(|error| {
                ServersError(format!("the arguments are not acceptable: {error}"))
            })?;
            let caller = Caller {
                era: Era::Legacy,
                scope: self.scope.clone(),
                session: None,
                outbox: Outbox::new(BOUNDS),
                principal: CALLER.into(),
                may_use: true,
                modern_capabilities: None,
                headers: None,
                timeout: None,
                run: call.run.map(|run| run.0),
            };
            let answer = self.gateway.request(&caller, &frame).await.into_text();
            let unreadable =
                |error| ServersError(format!("the server's answer cannot be read: {error}"));
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

    fn stop(&self) -> BoxFuture<'_, ()> {
        // The gateway's servers go on: they have other clients.
        Box::pin(async {})
    }
}

/// The name that an agent knows a tool by: its server's, or the project's own for it. Prefixes are the gateway's way to
/// tell names apart; an agent has its own.
fn shown<'n>(exposed: &'n str, server: &str, native: &'n str) -> &'n str {
    let prefixed = exposed
        .strip_prefix(server)
        .is_some_and(|rest| rest.starts_with("__"));
    match prefixed {
        true => native,
        false => exposed,
    }
}
