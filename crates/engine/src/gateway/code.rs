//! Answers `run_code`: JavaScript that calls the tools of its caller's view (X04).
//!
//! Each call of the code takes the path of a call by the client itself: it is checked, queued, recorded with the id of the
//! run, and cancelled with the run. The code runs in a sandboxed process ([`code::Runner`]), never in this one.
//!
//! If a server asks a modern client something during a call, `run_code` returns the question, and the run is held until the
//! client returns with the answer ([`CodeRun`]). The answer goes to the call, which is repeated with it. A legacy client is
//! asked during its request.

use std::{borrow::Cow, fmt::Write as _, sync::Arc};

use bytes::Bytes;
use code::{Call, Clock, End, Outcome, Request, Runner, Value};
use futures_util::future::BoxFuture;
use mcp::{
    Era, Frame, RpcError, bridge,
    frame::Param,
    json::{self, Object, Splice, quote},
    outbox::{Bounds, Outbox},
    protocol::{meta, method},
};
use serde_json::value::RawValue;
use store::{NewRun, RunEnd};
use tokio::sync::oneshot;

use crate::{
    Gateway,
    call::results,
    client_state::code_run::{Asker, CodeRun, Ended, Origin},
    exchange::{Answer, Caller},
    life::callers,
    scope::Scope,
    shared::Shared,
    views::{finders::Finder, view::View},
};

/// The agent of a run's record.
const AGENT: &str = "run_code";
const LANGUAGE: &str = "javascript";
/// Characters of a failure in the record of a run.
const MAX_RECORDED_CHARS: usize = 500;
/// Messages of a run that wait for the next request of its client. Notifications beyond it are dropped.
const OUTBOX_BOUNDS: Bounds = Bounds {
    messages: 256,
    bytes: 8 << 20,
};

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
    ) -> BoxFuture<'a, Result<Answer, RpcError>> {
        Box::pin(async move {
            let failed = |why: &str| Ok(Answer::of_tool(frame, caller.era, why, true));
            if !view.runs_code() {
                return failed(
                    "run_code is switched off: `code = true` in toolwharf.toml switches it on",
                );
            }
            let origin = origin(caller);
            let state = frame.param_string(Param::RequestState);
            let mut run = match state.filter(|_| caller.era == Era::Modern) {
                Some(state) => {
                    let mut run = self.shared.held_runs.take(&state, &origin)?;
                    run.answer(frame);
                    run
                }
                None => match self.start_code(&view, caller, frame).await {
                    Ok(run) => run,
                    Err(why) => return failed(&why),
                },
            };
            if let Some(ended) = run.next(&caller.outbox).await {
                let answer = Answer::of_tool(frame, caller.era, &ended.text, ended.is_error);
                return Ok(results::of_own(&self.shared, &view, caller, frame, answer).await);
            }
            let limits = self.shared.limits();
            for state in run.states() {
                // The run decides how long its calls are held.
                let longer = limits.held_call_ttl.saturating_mul(2);
                self.shared.held.extend(state, longer);
            }
            let requests = run.requests();
            let state = self.shared.held_runs.put(origin, run, &limits)?;
            let result = bridge::input_required(&requests, &state);
            Ok(Answer::result(frame, result.as_bytes()))
        })
    }

    async fn start_code(
        &self,
        view: &View,
        caller: &Caller,
        frame: &Frame,
    ) -> Result<CodeRun, String> {
        let runner = self.shared.code.get();
        let runner = runner.ok_or("run_code is not available in this gateway")?;
        let arguments = frame.param(Param::Arguments);
        let arguments = arguments.and_then(|at| Object::at(frame.text(), at));
        let code = arguments.and_then(|arguments| arguments.string("code"));
        let code = code.ok_or("run_code needs `code`, a string")?.into_owned();
        let record = Record::open(&self.shared, caller).await.map_err(|error| {
            format!("the code was not run, because the run cannot be recorded: {error}")
        })?;
        let clock = Clock::default();
        let own = Outbox::new(OUTBOX_BOUNDS);
        // Each request of a modern client has its own outbox, and the run may last for several requests.
        let outbox = match caller.era {
            Era::Modern => own.clone(),
            Era::Legacy => caller.outbox.clone(),
        };
        let (scope, principal) = (caller.scope.clone(), caller.principal.clone());
        let caller = Caller {
            era: caller.era,
            session: caller.session.clone(),
            may_use: caller.may_use,
            modern_capabilities: caller.modern_capabilities.clone(),
            timeout: caller.timeout,
            run: record.as_ref().map(|record| Arc::from(&*record.run.id)),
            wants_whole: true,
            clock: Some(clock.clone()),
            ..Caller::legacy(scope, principal, outbox)
        };
        let request = Request {
            code,
            tools: view.code_tools().to_vec(),
            clock: clock.clone(),
        };
        let (gateway, runner, meta) = (self.clone(), runner.clone(), inner_meta(frame));
        let max_calls = runner.limits().calls_in_flight;
        let running = self.shared.running();
        let run = |asker| gateway.whole_run(runner, caller, request, record, meta, asker);
        Ok(CodeRun::start(running, clock, max_calls, own, run))
    }

    async fn whole_run(
        self,
        runner: Runner,
        caller: Caller,
        request: Request,
        record: Option<Record>,
        meta: String,
        asker: Asker,
    ) -> Ended {
        let _leases = callers::enter(&self.shared, &caller.scope);
        let prefix = format!("{:016x}", rand::random::<u64>());
        let outcome = runner
            .run(&caller.principal, request, |call| {
                self.call_of_code(&caller, call, &prefix, &meta, &asker)
            })
            .await;
        let report = match outcome {
            Ok(outcome) => Report::of(&outcome),
            Err(error) => Report::failed(error.to_string(), error.to_string()),
        };
        if let Some(mut record) = record {
            let status = match report.error {
                Some(_) => "failed",
                None => "done",
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
        Ended {
            is_error: report.error.is_some(),
            text: report.text,
        }
    }

    /// Makes one call of the code.
    async fn call_of_code(
        &self,
        caller: &Caller,
        call: Call,
        prefix: &str,
        meta: &str,
        asker: &Asker,
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
        let _in_flight = asker.enter();
        let mut answer = self.dispatch(caller, &frame).await.into_text();
        loop {
            let object = Object::of(&answer).ok_or("the answer is not an object")?;
            if let Some(error) = object.object("error") {
                let message = error.string("message");
                return Err(message.unwrap_or_default().into_owned());
            }
            let result = object.raw("result").unwrap_or(b"{}");
            let kind = Object::of(result).and_then(|result| result.string("resultType"));
            if caller.era == Era::Legacy || kind.as_deref() != Some("input_required") {
                // Numbers and texts of servers reach the code as they are, except for lone surrogates.
                let result = json::without_lone_surrogates(result);
                return serde_json::from_slice(&result)
                    .map_err(|error| format!("the answer is invalid: {error}"));
            }
            let retry = self.retry(asker, call.id, &frame, &answer).await;
            let retry = retry.ok_or_else(|| {
                format!("`{}` needs input, which the client did not give", call.name)
            })?;
            answer = self.dispatch(caller, &retry).await.into_text();
        }
    }

    /// Asks the client for the input that a call needs, and builds the retry of the call.
    async fn retry(
        &self,
        asker: &Asker,
        call: u32,
        frame: &Frame,
        answer: &Bytes,
    ) -> Option<Frame> {
        let required = Frame::parse(answer.clone(), usize::MAX).ok()?;
        let state = required
            .object()
            .and_then(|result| result.string("requestState"));
        let state = state.map(Cow::into_owned);
        let mut waiting = Waiting {
            shared: &self.shared,
            state: state.clone(),
        };
        let requests = bridge::input_requests(&required);
        let answers = asker.ask(call, requests, state).await?;
        bridge::retry(frame, &answers, waiting.state.take().as_deref())
    }
}

/// A call that waits for the client. It is cancelled if its run ends before the answer.
struct Waiting<'s> {
    shared: &'s Shared,
    state: Option<String>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if let Some(state) = self.state.take() {
            self.shared.held.cancel(&state);
        }
    }
}

/// The caller and the view of a run. The tools that lists have do not matter.
fn origin(caller: &Caller) -> Origin {
    Origin {
        principal: caller.principal.clone(),
        scope: Scope {
            tools: None,
            ..caller.scope.clone()
        },
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
