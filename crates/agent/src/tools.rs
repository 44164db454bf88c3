//! Executes tool calls. Every failure becomes the tool's result, for the model to read.

use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures_util::FutureExt as _;
use results::Bound;
use serde_json::Value;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use crate::{
    config::Config,
    conversation::KeptResult,
    event::ChatEvent,
    generate::Emitter,
    ledger::{CallEnd, CallId, CallStatus, Ledger, NewCall, RunEnd, RunId},
    llm::Call,
    message::Part,
    native::Ready,
    outcome,
    questions::{Asked, Questions},
    raw::Raw,
    servers::{Answers, ServerCall, Servers},
    tool::{Origin, ToolFunction},
    tool_names::ToolNames,
};

/// Maximum number of times that a server may ask the user for input during one call.
const MAX_QUESTION_ROUNDS: usize = 16;
/// Timeout for writing a record.
pub(crate) const RECORD_TIMEOUT: Duration = Duration::from_secs(10);

const CANCELLED_CALL: CallEnd = CallEnd {
    status: CallStatus::Cancelled,
    error: None,
    result: None,
};

/// Everything that a call needs.
pub(crate) struct Tools<'a> {
    pub(crate) config: &'a Config,
    pub(crate) servers: &'a dyn Servers,
    pub(crate) native: &'a [Ready],
    pub(crate) registry: &'a ToolNames,
    pub(crate) records: &'a Records,
    pub(crate) run: &'a RunId,
    /// The user who answers servers' questions. `None`: questions are not possible.
    pub(crate) person: Option<Person<'a>>,
    /// Long results of which the model can read more.
    pub(crate) kept: Vec<KeptResult>,
}

/// A user who answers servers' questions during a call.
pub(crate) struct Person<'a> {
    pub(crate) questions: &'a Questions,
    pub(crate) out: &'a Emitter<ChatEvent>,
}

/// The result of a call.
#[derive(Clone, Debug, PartialEq)]
pub struct Called {
    /// The content for the model. Never empty.
    pub parts: Vec<Part>,
    pub is_error: bool,
    /// Data for the client, if the tool is one of this process's own functions ([`crate::native`]).
    pub payload: Option<Value>,
    /// The unchanged result, if an App renders it.
    pub(crate) for_app: Option<Raw>,
    /// True for a piece of a long result, which must not be cut again.
    pub(crate) is_piece: bool,
}

impl Called {
    fn of(parts: Vec<Part>, is_error: bool) -> Self {
        Self {
            parts,
            is_error,
            payload: None,
            for_app: None,
            is_piece: false,
        }
    }

    fn error(text: impl Into<String>) -> Self {
        Self::of(vec![Part::text(text)], true)
    }
}

impl Tools<'_> {
    /// Calls a tool. Dropping the future cancels the call.
    pub(crate) async fn call(&self, call: &Call) -> Called {
        let Some(function) = self.registry.get(&call.name) else {
            let why = self.servers.why_missing(&call.name);
            let unknown = || format!("Unknown tool: {}", call.name);
            return Called::error(why.unwrap_or_else(unknown));
        };
        let arguments = match &call.arguments {
            Ok(arguments) => arguments.clone(),
            Err(bad) => {
                return Called::error(format!(
                    "The tool was not called: {bad}. Send one JSON object that matches the tool's schema."
                ));
            }
        };
        self.call_function(&call.id, function, arguments).await
    }

    /// Calls a known tool; `arguments` is an object. `id` is the model's id of the call.
    pub(crate) async fn call_function(
        &self,
        id: &str,
        function: &ToolFunction,
        arguments: Raw,
    ) -> Called {
        match &function.origin {
            Origin::Server { server, native } => {
                let call = ServerCall {
                    server: server.clone(),
                    tool: native.clone(),
                    arguments,
                    run: Some(self.run.clone()),
                    can_ask: self.person.is_some(),
                    answers: None,
                };
                self.call_server(id, call, function.has_app).await
            }
            Origin::Native => self.call_native(function.name.as_str(), arguments).await,
        }
    }

    /// The bound on what the model sees of a result at once.
    pub(crate) fn bound(&self) -> Bound {
        let most = self.registry.max_result_tokens();
        most.map_or(Bound::Bytes(self.config.preview_bytes), Bound::Tokens)
    }

    async fn call_server(&self, id: &str, mut call: ServerCall, has_app: bool) -> Called {
        let limit = self.config.tool_timeout;
        for _ in 0..MAX_QUESTION_ROUNDS {
            let answer = match timeout(limit, self.servers.call(call.clone())).await {
                Ok(Ok(answer)) => answer,
                Ok(Err(error)) => return Called::error(format!("The call failed: {error}")),
                Err(_) => {
                    return Called::error(format!(
                        "The server {} did not answer within {} s.",
                        call.server,
                        limit.as_secs_f32()
                    ));
                }
            };
            if let Some(person) = &self.person
                && let Some(asked) = Asked::of(&answer.content)
            {
                call.answers = Some(self.answered(person, id, asked).await);
                continue;
            }
            return match outcome::parts(&answer.content) {
                Ok(parts) => Called {
                    for_app: Some(answer.content)
                        .filter(|whole| has_app && whole.get().len() <= self.config.result_bytes),
                    ..Called::of(parts, answer.is_error)
                },
                Err(error) => Called::error(format!(
                    "The server {} sent a result that cannot be read: {error}",
                    call.server
                )),
            };
        }
        Called::error(format!(
            "The server {} asked for input {MAX_QUESTION_ROUNDS} times without finishing the call.",
            call.server
        ))
    }

    /// Gets the user's answers to a server's questions. The time for this does not count towards the tool's timeout.
    async fn answered(&self, person: &Person<'_>, id: &str, asked: Asked) -> Answers {
        let responses = match asked.input_requests {
            Some(requests) => {
                let mut open = person.questions.open(id);
                let told = ChatEvent::Questions {
                    id: id.to_owned(),
                    requests: requests.clone(),
                };
                person.out.emit(told).await;
                open.answers(&requests, self.config.answer_timeout).await
            }
            None => Raw::empty_object(),
        };
        let state = asked.request_state;
        Answers { responses, state }
    }

    async fn call_native(&self, name: &str, arguments: Raw) -> Called {
        let Some(tool) = self.native.iter().find(|tool| tool.name == name) else {
            return Called::error(format!("Unknown tool: {name}"));
        };
        let new = NewCall {
            run: self.run.clone(),
            project: self.config.project.clone(),
            tool: name.to_owned(),
            arguments: arguments.clone(),
        };
        let record = match self.records.call_open(new).await {
            Ok(record) => record,
            Err(why) => {
                return Called::error(format!(
                    "The tool was not called, because the call cannot be recorded: {why}"
                ));
            }
        };
        let (called, status) = self.run_native(tool, &arguments).await;
        record.close(status, &called).await;
        called
    }

    async fn run_native(&self, tool: &Ready, arguments: &Raw) -> (Called, CallStatus) {
        let arguments = match tool.read(arguments) {
            Ok(arguments) => arguments,
            Err(why) => {
                let text = format!("The arguments do not match the tool's schema: {why}");
                return (Called::error(text), CallStatus::ToolError);
            }
        };
        if tool.name == results::READ_RESULT {
            return match outcome::read(&self.kept, &arguments, self.bound()) {
                Ok(text) => {
                    let called = Called {
                        is_piece: true,
                        ..Called::of(vec![Part::text(text)], false)
                    };
                    (called, CallStatus::Ok)
                }
                Err(why) => (Called::error(why), CallStatus::ToolError),
            };
        }
        let limit = self.config.tool_timeout;
        // The handler is called inside the future, so that a panic while it creates its own future is caught too.
        let run = async { (tool.handler)(arguments).await };
        match timeout(limit, AssertUnwindSafe(run).catch_unwind()).await {
            Ok(Ok(Ok(outcome))) => {
                let text = match outcome.text.is_empty() {
                    true => "(The tool returned nothing.)".to_owned(),
                    false => outcome.text,
                };
                let called = Called {
                    payload: outcome.payload,
                    ..Called::of(vec![Part::Text { text }], false)
                };
                (called, CallStatus::Ok)
            }
            Ok(Ok(Err(why))) => {
                let why = if why.is_empty() {
                    "The tool failed.".to_owned()
                } else {
                    why
                };
                (Called::error(why), CallStatus::ToolError)
            }
            Ok(Err(_)) => {
                tracing::error!("the native tool {:?} panicked", tool.name);
                let text = "The tool failed: it has a bug.";
                (Called::error(text), CallStatus::ToolError)
            }
            Err(_) => {
                let text = format!("The tool did not answer within {} s.", limit.as_secs_f32());
                (Called::error(text), CallStatus::Timeout)
            }
        }
    }
}

/// Writes records, including those of dropped calls and runs.
pub(crate) struct Records {
    pub(crate) ledger: Arc<dyn Ledger>,
    /// Owns the tasks that write records after a drop.
    pub(crate) tasks: TaskTracker,
}

impl Records {
    pub(crate) async fn call_open(&self, call: NewCall) -> Result<OpenCall<'_>, String> {
        let id = recorded(self.ledger.call_open(call)).await?;
        Ok(OpenCall {
            records: self,
            open: Some((id, CANCELLED_CALL)),
        })
    }

    /// Closes the record of a dropped run.
    pub(crate) fn run_dropped(&self, run: RunId, end: RunEnd) {
        let ledger = Arc::clone(&self.ledger);
        self.later(async move {
            let what = format!("the record of run `{}`", run.0);
            written(&what, ledger.run_finish(run, end)).await;
        });
    }

    pub(crate) fn later(&self, write: impl Future<Output = ()> + Send + 'static) {
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => {
                self.tasks.spawn_on(write, &runtime);
            }
            // If there is no async runtime, the program is exiting. Open records are closed at the next start.
            Err(_) => tracing::warn!(
                "Toolwharf is exiting, so the record of a call or run stays open until the next start"
            ),
        }
    }
}

/// Writes a record, for a limited time.
///
/// # Errors
/// Why it was not written.
pub(crate) async fn recorded<T, E: std::fmt::Display>(
    recording: impl Future<Output = Result<T, E>>,
) -> Result<T, String> {
    match timeout(RECORD_TIMEOUT, recording).await {
        Ok(recorded) => recorded.map_err(|error| error.to_string()),
        Err(_) => Err(format!(
            "the database did not answer within {} s",
            RECORD_TIMEOUT.as_secs()
        )),
    }
}

/// Closes the record `what`, for a limited time. Logs a warning if that fails.
pub(crate) async fn written<E: std::fmt::Display>(
    what: &str,
    recording: impl Future<Output = Result<(), E>>,
) {
    match timeout(RECORD_TIMEOUT, recording).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!("cannot close {what}: {error}"),
        Err(_) => tracing::warn!("cannot close {what} within {} s", RECORD_TIMEOUT.as_secs()),
    }
}

/// The record of a call in flight. If dropped before it is closed, it is closed as cancelled.
pub(crate) struct OpenCall<'a> {
    records: &'a Records,
    /// The outcome still to be written.
    open: Option<(CallId, CallEnd)>,
}

impl OpenCall<'_> {
    async fn close(mut self, status: CallStatus, called: &Called) {
        let text = outcome::text_of(&called.parts);
        let Some((id, end)) = &mut self.open else {
            return;
        };
        *end = CallEnd {
            status,
            error: called.is_error.then(|| text.clone()),
            result: Some(text),
        };
        let ledger = &self.records.ledger;
        let closing = ledger.call_close(id.clone(), end.clone());
        written(&format!("the record of native call `{}`", id.0), closing).await;
        self.open = None;
    }
}

impl Drop for OpenCall<'_> {
    fn drop(&mut self) {
        let Some((id, end)) = self.open.take() else {
            return;
        };
        let ledger = Arc::clone(&self.records.ledger);
        self.records.later(async move {
            let what = format!("the record of native call `{}`", id.0);
            written(&what, ledger.call_close(id, end)).await;
        });
    }
}
