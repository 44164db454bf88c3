//! Stores agent runs and native tool calls. Calls to servers are recorded by the gateway.

use std::collections::HashMap;

use agent::{
    LedgerError, RunId,
    ledger::{CallEnd, CallId, CallStatus, Ledger, NewCall, NewRun, RunEnd},
};
use engine::{Gateway, Scope};
use futures_util::future::BoxFuture;
use model::{Audit, AuditBodies, ProjectId};
use parking_lot::Mutex;
use store::{CallWrite, Store};
use tokio::time::Instant;

use super::CALLER;

pub(super) struct Records {
    store: Store,
    gateway: Gateway,
    /// The project of the agent, and thus of all its runs.
    project: Option<ProjectId>,
    /// The start times of open calls.
    open: Mutex<HashMap<CallId, Instant>>,
}

impl Records {
    pub(super) fn new(store: Store, gateway: Gateway, project: Option<ProjectId>) -> Self {
        Self {
            store,
            gateway,
            project,
            open: Mutex::default(),
        }
    }

    /// The recording mode of calls; `None` if they are not recorded.
    fn recorded(&self) -> Option<Audit> {
        let audit = &self.gateway.settings().audit;
        audit.enabled.then(|| audit.clone())
    }

    /// Removes the secrets of all servers that the agent can use. A native tool may have got them from another tool.
    fn redact(&self, text: &str) -> String {
        let scope = Scope {
            project: self.project.clone(),
            ..Scope::default()
        };
        let view = self.gateway.view(&scope);
        let servers = view.iter().flat_map(|view| view.servers.iter());
        servers.fold(text.to_owned(), |text, server| server.spec.redact(&text))
    }
}

fn failed(error: impl std::fmt::Display) -> LedgerError {
    LedgerError(error.to_string())
}

impl Ledger for Records {
    fn run_open(&self, run: NewRun) -> BoxFuture<'_, Result<RunId, LedgerError>> {
        Box::pin(async move {
            let new = store::NewRun {
                project: run.project.as_ref(),
                agent: &run.agent,
                model: &run.model,
                conversation: run.conversation.as_deref(),
                caller: run.caller.as_deref(),
            };
            let row = self.store.run_put(new).await.map_err(failed)?;
            Ok(RunId(row.id.into()))
        })
    }

    fn call_open(&self, call: NewCall) -> BoxFuture<'_, Result<CallId, LedgerError>> {
        Box::pin(async move {
            let id = CallId(store::new_id().into());
            if let Some(audit) = self.recorded() {
                let intent = store::NewCall {
                    id: id.0.to_string(),
                    run_id: Some(call.run.0.to_string()),
                    project: call.project,
                    caller: CALLER.to_owned(),
                    server: agent::NATIVE_SERVER.to_owned(),
                    tool: call.tool,
                    arguments_digest: model::sha256_hex(call.arguments.get()),
                    arguments: (audit.bodies == AuditBodies::Full)
                        .then(|| self.redact(call.arguments.get())),
                    started_at: store::now(),
                    replay_of: None,
                };
                let opened = self.gateway.record(CallWrite::Intent(intent)).await;
                opened.map_err(failed)?;
                self.open.lock().insert(id.clone(), Instant::now());
            }
            Ok(id)
        })
    }

    fn call_close(&self, call: CallId, end: CallEnd) -> BoxFuture<'_, Result<(), LedgerError>> {
        Box::pin(async move {
            let Some(began) = self.open.lock().remove(&call) else {
                return Ok(());
            };
            let audit = self.recorded().unwrap_or_default();
            let full = audit.bodies == AuditBodies::Full;
            let error = end.error.filter(|_| audit.errors);
            let outcome = store::CallEnd {
                id: call.0.to_string(),
                status: match end.status {
                    CallStatus::Ok => store::CallStatus::Ok,
                    CallStatus::ToolError => store::CallStatus::ToolError,
                    CallStatus::Timeout => store::CallStatus::Timeout,
                    CallStatus::Cancelled => store::CallStatus::Cancelled,
                },
                error: error.map(|text| engine::recorded_error(&text, |text| self.redact(text))),
                result_digest: end.result.as_deref().map(model::sha256_hex),
                result: end.result.filter(|_| full).map(|text| self.redact(&text)),
                finished_at: store::now(),
                duration_us: i64::try_from(began.elapsed().as_micros()).unwrap_or(i64::MAX),
                steps: store::CallSteps::default(),
            };
            let closed = self.gateway.record(CallWrite::Outcome(outcome)).await;
            closed.map_err(failed)
        })
    }

    fn run_finish(&self, run: RunId, end: RunEnd) -> BoxFuture<'_, Result<(), LedgerError>> {
        Box::pin(async move {
            let tokens = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
            let usage = end.usage;
            let end = store::RunEnd {
                status: end.status.as_str().to_owned(),
                turns: i32::try_from(end.turns).unwrap_or(i32::MAX),
                input_tokens: tokens(usage.input_total()),
                output_tokens: tokens(usage.output),
                cost_micros: tokens(end.cost_micros),
                error: end.error,
            };
            let finished = self
                .store
                .run_finish(self.project.as_ref(), &run.0, &end)
                .await;
            finished.map(|_| ()).map_err(failed)
        })
    }
}
