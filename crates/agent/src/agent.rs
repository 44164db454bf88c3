//! The agent: its parts, start and stop.

use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use serde_json::Value;
use tokio::{
    sync::OnceCell,
    time::{Duration, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    config::Config,
    event::ChatEvent,
    generate::Generated,
    ledger::{Ledger, RunId},
    llm::Model,
    native::{self, NativeOutcome, NativeTool, Ready},
    raw::Raw,
    servers::{Servers, ServersError},
    tool::ToolFunction,
    tool_names::ToolNames,
    tools::{Called, Records, Tools},
};

/// Timeout for writing the records of cancelled runs when the agent stops.
const LAST_RECORDS_TIMEOUT: Duration = Duration::from_secs(15);

/// A model with tools. Cheap to share in an `Arc`. Runs many chats at once, one per conversation.
pub struct Agent {
    pub(crate) config: Config,
    pub(crate) model: Arc<dyn Model>,
    pub(crate) servers: Arc<dyn Servers>,
    pub(crate) native: Vec<Ready>,
    pub(crate) records: Records,
    started: OnceCell<()>,
    pub stopped: CancellationToken,
    why_stopped: OnceLock<String>,
    /// Warnings that were already logged, so that each chat does not repeat them.
    warned: Mutex<Vec<String>>,
}

/// The stream of a chat's events. Nothing happens until it is polled; a reader that stops polling stalls the chat.
/// Dropping the stream cancels the model request and all tool calls. The conversation then contains everything that was
/// complete, and calls without a result get the result `cancelled`.
pub type ChatStream<'a> = Generated<'a, ChatEvent>;

impl Agent {
    /// Creates an agent without starting anything.
    ///
    /// # Errors
    /// A native tool is invalid.
    pub fn new(
        config: Config,
        model: Arc<dyn Model>,
        servers: Arc<dyn Servers>,
        ledger: Arc<dyn Ledger>,
        native: Vec<NativeTool>,
    ) -> Result<Self, native::Error> {
        let mut native = native;
        // This handler is never called: `tools` implements the tool, because it needs the conversation.
        let elsewhere = |_: Value| async { Ok(NativeOutcome::text("")) };
        native.push(NativeTool::new(
            results::READ_RESULT,
            results::description(),
            results::schema(),
            elsewhere,
        ));
        Ok(Self {
            config,
            model,
            servers,
            native: native::ready(native)?,
            records: Records {
                ledger,
                tasks: TaskTracker::new(),
            },
            started: OnceCell::new(),
            stopped: CancellationToken::new(),
            why_stopped: OnceLock::new(),
            warned: Mutex::default(),
        })
    }

    /// Starts the servers once. Concurrent callers wait for the same start. After a failure, the next caller tries
    /// again. The first chat starts them automatically.
    ///
    /// # Errors
    /// The start failed (see [`Servers::start`]) or timed out, or the agent was stopped.
    pub async fn start(&self) -> Result<(), ServersError> {
        let limit = self.config.start_timeout;
        let start = self.started.get_or_try_init(|| self.servers.start());
        let started = tokio::select! {
            biased;
            () = self.stopped.cancelled() => {
                return Err(ServersError(self.why_stopped().to_owned()));
            }
            started = timeout(limit, start) => started,
        };
        match started {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(ServersError(format!(
                "the servers were not started within {} s",
                limit.as_secs_f32()
            ))),
        }
    }

    /// The tools that the model is offered now. Starts the servers if necessary.
    ///
    /// # Errors
    /// The servers cannot be started (see [`Agent::start`]), or their tools cannot be listed.
    pub async fn registry(&self) -> Result<ToolNames, ServersError> {
        self.start().await?;
        let limit = self.config.start_timeout;
        let Ok(tools) = timeout(limit, self.servers.tools()).await else {
            let limit = limit.as_secs_f32();
            return Err(ServersError(format!(
                "the servers' tools were not listed within {limit} s"
            )));
        };
        let registry = ToolNames::new(tools?, &self.native);
        let mut warned = self.warned.lock();
        if *warned != registry.warnings() {
            for warning in registry.warnings() {
                tracing::warn!("{warning}");
            }
            *warned = registry.warnings().to_vec();
        }
        Ok(registry)
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.is_cancelled()
    }

    /// The reason passed to [`Agent::stop`].
    pub(crate) fn why_stopped(&self) -> &str {
        self.why_stopped
            .get()
            .map_or("the agent was stopped", |why| why)
    }

    /// Calls one tool, for callers with their own loop. The result is not shortened. Failures are part of the result.
    /// Dropping the future cancels the call.
    ///
    /// `function` comes from [`Agent::registry`]. `run` is a run that the caller has opened.
    pub async fn call(&self, function: &ToolFunction, arguments: Raw, run: &RunId) -> Called {
        let tools = Tools {
            config: &self.config,
            servers: &*self.servers,
            native: &self.native,
            registry: &ToolNames::default(),
            records: &self.records,
            run,
            person: None,
            kept: Vec::new(),
        };
        tools.call_function("", function, arguments).await
    }

    /// Ends all chats with the error `why`, stops the servers, and waits for the last records. The agent cannot be
    /// started again.
    pub async fn stop(&self, why: &str) {
        let _ = self.why_stopped.set(why.to_owned());
        self.stopped.cancel();
        self.servers.stop().await;
        self.records.tasks.close();
        if timeout(LAST_RECORDS_TIMEOUT, self.records.tasks.wait())
            .await
            .is_err()
        {
            let limit = LAST_RECORDS_TIMEOUT.as_secs();
            tracing::warn!("records of cancelled runs were not written within {limit} s");
        }
    }
}
