//! Answers `run_code`: JavaScript that calls the tools of its caller's view (X04).
//!
//! Each call of the code takes the path of a call by the client itself: it is checked, queued, recorded with the id of the
//! run, and cancelled with the run. The code runs in a sandboxed process ([`code::Runner`]), never in this one.
//!
//! Deliberately absent: questions of servers to modern clients. A call that needs an answer fails in the code, with an
//! error that says to call the tool directly.

use std::{fmt::Write as _, sync::Arc};

use code::{Call, End, Outcome, Request, Runner, Value};
use futures_util::future::BoxFuture;
use mcp::{
    Frame,
    frame::Param,
    json::{self, Object, Splice, quote},
    protocol::{meta, method},
};
use serde_json::value::RawValue;
use store::{NewRun, RunEnd};
use tokio::sync::oneshot;

use crate::{
    Gateway,
    call::results,
    exchange::{Answer, Caller},
    shared::Shared,
    views::{finders::Finder, view::View},
};

/// The agent of a run's record.
const AGENT: &str = "run_code";
const LANGUAGE: &str = "javascript";
/// Characters of a failure in the record of a run.
const MAX_RECORDED_CHARS: usize = 500;

/// The record of a run. If it is dropped, the run was cancelled.
struct Record {
    shared: Arc<Shared>,
    run: store::RunRow,
    is_finished: bool,
}

impl Record {
    /// Opens the record of a run, if calls are recorded.
    async fn open(shared: &Arc<Shared>, caller: &Caller) -> Result<Option<Self>, store::Error> {
        if !shared.records_calls() {
            return Ok(None);
        }
        let run = NewRun {
            project: caller.scope.project.as_ref(),
            agent: AGENT,
            model: LANGUAGE,
            conversation: None,
            caller: Some(&caller.principal),
        };
        let run = shared.store.run_put(run).await?;
        Ok(Some(Self {
            shared: shared.clone(),
            run,
            is_finished: false,
        }))
    }

    fn finish(&mut self, status: &str, error: Option<String>) -> impl Future<Output = ()> + use<> {
        self.is_finished = true;
        let (store, id) = (self.shared.store.clone(), self.run.id.clone());
        let project = self.run.project_id.clone();
        let end = RunEnd {
            status: status.to_owned(),
            error,
            ..RunEnd::default()
        };
        async move {
            let project = project.and_then(|id| model::ProjectId::parse(&id).ok());
            if let Err(error) = store.run_finish(project.as_ref(), &id, &end).await {
                tracing::warn!("the end of the run {id} was not recorded: {error}");
            }
        }
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        if !self.is_finished {
            let finishing = self.finish("cancelled", None);
            self.shared.spawn_writer(finishing);
        }
    }
}

impl Gateway {
    /// Sets what runs code. Only the first call has an effect.
    pub fn keep_code(&self, runner: Runner) {
        let _ = self.shared.code.set(runner);
    }

    /// Boxed, since a run makes calls on the path that led to it.
    pub(super) fn run_code<'a>(
        &'a self,
        view: Arc<View>,
        caller: &'a Caller,
        frame: &'a Frame,
    ) -> BoxFuture<'a, Answer> {
        Box::pin(async move {
            let (text, is_error) = match self.code_result(&view, caller, frame).await {
                Ok(report) => (report.text, report.error.is_some()),
                Err(why) => (why, true),
            };
            let answer = Answer::of_tool(frame, caller.era, &text, is_error);
            results::of_own(&self.shared, &view, caller, frame, answer).await
        })
    }

    async fn code_result(
        &self,
        view: &View,
        caller: &Caller,
        frame: &Frame,
    ) -> Result<Report, String> {
        if !view.runs_code() {
            return Err(
                "run_code is switched off: `code = true` in toolwharf.toml switches it on"
                    .to_owned(),
            );
        }
        let runner = self.shared.code.get();
        let runner = runner.ok_or("run_code is not available in this gateway")?;
        let arguments = frame.param(Param::Arguments);
        let arguments = arguments.and_then(|at| Object::at(frame.text(), at));
        let code = arguments.and_then(|arguments| arguments.string("code"));
        let code = code.ok_or("run_code needs `code`, a string")?.into_owned();
        let mut record = Record::open(&self.shared, caller).await.map_err(|error| {
            format!("the code was not run, because the run cannot be recorded: {error}")
        })?;
        let run = record.as_ref().map(|record| Arc::from(&*record.run.id));
        let caller = Caller {
            era: caller.era,
            scope: caller.scope.clone(),
            session: caller.session.clone(),
            outbox: caller.outbox.clone(),
            principal: caller.principal.clone(),
            may_use: caller.may_use,
            modern_capabilities: caller.modern_capabilities.clone(),
            headers: None,
            timeout: caller.timeout,
            run,
            replay_of: None,
            wants_whole: true,
        };
        let request = Request {
            code,
            tools: view.code_tools().to_vec(),
            ..Request::default()
        };
        let meta = inner_meta(frame);
        let prefix = format!("{:016x}", rand::random::<u64>());
        let outcome = runner
            .run(&caller.principal, request, |call| {
                self.call_of_code(&caller, call, &prefix, &meta)
            })
            .await;
        let report = match outcome {
            Ok(outcome) => Report::of(&outcome),
            Err(error) => Report::failed(error.to_string(), error.to_string()),
        };
        if let Some(record) = &mut record {
            let status = if report.error.is_some() {
                "failed"
            } else {
                "done"
            };
            // A task, since the end is recorded even if the client cancels the request now.
            let (finishing, finished) = (
                record.finish(status, report.error.clone()),
                oneshot::channel(),
            );
            self.shared.spawn_writer(async move {
                finishing.await;
                let _ = finished.0.send(());
            });
            let _ = finished.1.await;
        }
        Ok(report)
    }

    /// Makes one call of the code.
    async fn call_of_code(
        &self,
        caller: &Caller,
        call: Call,
        prefix: &str,
        meta: &str,
    ) -> Result<Box<RawValue>, String> {
        if call.name == Finder::Code.name() {
            return Err("code cannot call `run_code`".to_owned());
        }
        let text = format!(
            "{{\"jsonrpc\":\"2.0\",\"id\":\"{prefix}-{}\",\"method\":\"{}\",\"params\":{{\"name\":{},\"arguments\":{}{meta}}}}}",
            call.id,
            method::TOOLS_CALL,
            quote(&call.name),
            call.arguments.get()
        );
        let depth = self.shared.fleet().settings.limits.max_depth;
        let frame = Frame::parse(text.into(), depth);
        let frame = frame.map_err(|invalid| format!("the arguments are invalid: {invalid}"))?;
        let answer = self.dispatch(caller, &frame).await.into_text();
        let object = Object::of(&answer).ok_or("the answer is not an object")?;
        if let Some(error) = object.object("error") {
            let message = error.string("message");
            return Err(message.unwrap_or_default().into_owned());
        }
        let result = object.raw("result").unwrap_or(b"{}");
        let kind = Object::of(result).and_then(|result| result.string("resultType"));
        if kind.as_deref() == Some("input_required") {
            return Err(format!(
                "the server asks for input, which code cannot pass on: call `{}` directly",
                call.name
            ));
        }
        // Numbers and texts of servers reach the code as they are, except for lone surrogates.
        let result = json::without_lone_surrogates(result);
        serde_json::from_slice(&result).map_err(|error| format!("the answer is invalid: {error}"))
    }
}

/// The member `_meta` for calls that the code makes: the `_meta` of the `run_code` call without its progress token.
fn inner_meta(frame: &Frame) -> String {
    let Some(own) = frame.meta() else {
        return String::new();
    };
    let mut splice = Splice::new();
    if let Some(token) = own.find(meta::PROGRESS_TOKEN) {
        splice.remove(frame.text(), &own.span(), &token);
    }
    let own = splice.apply_within(frame.text(), own.span());
    format!(",\"_meta\":{}", String::from_utf8_lossy(&own))
}

/// The end of a run.
struct Report {
    /// For the model.
    text: String,
    /// For the record. `None`: the code did not fail.
    error: Option<String>,
}

impl Report {
    fn failed(text: String, why: String) -> Self {
        let why = why.chars().take(MAX_RECORDED_CHARS).collect();
        Self {
            text,
            error: Some(why),
        }
    }

    fn of(outcome: &Outcome) -> Self {
        let mut text = outcome.output.clone();
        match &outcome.end {
            End::Returned(value) => {
                match value {
                    Value::Undefined => {}
                    Value::Json(json) => {
                        // A string is easier to read without quotes and escapes.
                        let plain = serde_json::from_str::<String>(json.get());
                        text.push_str(plain.as_deref().unwrap_or(json.get()));
                    }
                    Value::Cut { text: begin, bytes } => {
                        let _ = write!(text, "{begin}… (cut; the value has {bytes} bytes)");
                    }
                }
                if text.is_empty() {
                    text.push_str("(The code printed and returned nothing.)");
                }
                Self { text, error: None }
            }
            End::Failed(failure) => {
                text.push_str(&failure.message);
                if let Some(line) = failure.line {
                    let _ = write!(text, " (line {line}");
                    if let Some(column) = failure.column {
                        let _ = write!(text, ", column {column}");
                    }
                    text.push(')');
                }
                if !failure.stack.is_empty() {
                    let _ = write!(text, "\n{}", failure.stack);
                }
                Self::failed(text, failure.message.clone())
            }
            End::Broken(why) => {
                let _ = write!(text, "The code ended unexpectedly: {why}");
                Self::failed(text, why.clone())
            }
        }
    }
}
