//! Requests about a task whose server has the other era.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::FutureExt;
use mcp::{
    Era, Frame, Kind, RpcError, bridge,
    client::{CallError, Event, Outgoing},
    json::{Object, quote},
    tasks,
};
use tokio::time::Instant;

use crate::{
    call::relay::{self, MAX_CALL_TIME},
    client_state::tasks::{Open, Questions, Task},
    exchange::{Answer, Caller},
    server::{Server, connection::Connection, questions::Ask},
    shared::Shared,
};

/// Time to wait for a legacy server's requests after it has announced that it needs input.
const ASK_TIMEOUT: Duration = Duration::from_secs(2);
/// Minimum and maximum interval between polls of a task.
const POLL_INTERVAL_RANGE: (Duration, Duration) =
    (Duration::from_millis(50), Duration::from_secs(5));
/// Time to wait for a modern server to end a cancelled task. After that, its current state is returned.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(2);

/// A task, its server, and the client that asks about it. The server and the client have different eras.
pub(super) struct Bridged<'a> {
    pub(super) shared: &'a Arc<Shared>,
    pub(super) caller: &'a Caller,
    pub(super) server: &'a Arc<Server>,
    pub(super) task: &'a Task,
}

impl Bridged<'_> {
    pub(super) async fn answer(&self, frame: &Frame) -> Result<Answer, RpcError> {
        let result = match (self.caller.era, frame.method()) {
            (Era::Legacy, tasks::GET) => self.legacy_get().await?,
            (Era::Legacy, tasks::RESULT) => return self.legacy_result(frame).await,
            (Era::Legacy, tasks::CANCEL) => self.legacy_cancel().await?,
            (Era::Modern, tasks::GET) => self.modern_get().await?,
            (Era::Modern, tasks::UPDATE) => self.modern_update(frame).await?,
            (Era::Modern, tasks::CANCEL) => self.modern_cancel().await?,
            (_, other) => return Err(RpcError::method_not_found(other)),
        };
        Ok(Answer::result(frame, result.as_bytes()))
    }

    /// Sends a request about the task to the server. `more` are further members of `params`, with a leading comma.
    pub(super) async fn ask(&self, method: &str, more: &str) -> Result<Frame, RpcError> {
        let deadline = Instant::now() + self.server.spec.call_timeout;
        let asked = async {
            let connection = self.connection(deadline).await?;
            let mut call = self.call(&connection, method, more, false).await?;
            loop {
                match call.next().await.map_err(|why| self.failed(&why))? {
                    Event::Response(frame) => return Ok(frame),
                    Event::Request(request) => {
                        let refusal = RpcError::method_not_found(request.method());
                        let refusal = Frame::error(request.id(), &refusal);
                        let sent = connection.client.send(&refusal).await;
                        sent.map_err(|why| self.failed(&why))?;
                    }
                    Event::Notification(_) | Event::Unclear(_) => {}
                }
            }
        };
        let late = || {
            RpcError::internal(format!(
                "server `{}` did not answer `{method}` within {} ms",
                self.server.name(),
                self.server.spec.call_timeout.as_millis()
            ))
        };
        tokio::time::timeout_at(deadline, asked)
            .await
            .unwrap_or_else(|_| Err(late()))
    }

    async fn connection(&self, deadline: Instant) -> Result<Arc<Connection>, RpcError> {
        relay::connection(
            self.shared,
            self.caller,
            self.server,
            self.task.era,
            deadline,
        )
        .await
        .map_err(|failure| failure.into_rpc(self.server))
    }

    async fn call(
        &self,
        connection: &Arc<Connection>,
        method: &str,
        more: &str,
        asks: bool,
    ) -> Result<mcp::client::Call, RpcError> {
        let params = format!("{{\"taskId\":{}{more}}}", quote(&self.task.native));
        let frame = Frame::request("0", method, Some(params.as_bytes()));
        let mut outgoing = Outgoing::new(&frame);
        outgoing.caller = asks.then(|| self.caller.id(&frame));
        let info = connection.client.info();
        if info.era == Era::Modern {
            let face = relay::face_with_tasks(self.caller);
            bridge::request_up(
                &frame,
                Era::Legacy,
                Era::Modern,
                &face,
                &mut outgoing.splice,
            );
            if connection.client.is_http() {
                let name = mcp::headers::mcp_name(&self.task.native);
                outgoing.headers.push((mcp::server::modern::NAME, name));
            }
        }
        connection.name_caller(&mut outgoing, self.caller);
        let sent = connection.client.call(outgoing).await;
        sent.map_err(|why| self.failed(&why))
    }

    fn failed(&self, why: &CallError) -> RpcError {
        let text = format!("server `{}` failed: {why}", self.server.name());
        RpcError::internal(self.server.redact(&text))
    }

    /// The current state of the task at the server.
    async fn look(&self) -> Result<Frame, RpcError> {
        let found = self.ask(tasks::GET, "").await?;
        match found.kind() {
            Kind::Error => Err(RpcError::from_json(found.body())),
            _ => Ok(found),
        }
    }

    fn described(&self, found: &Frame, status: Option<&str>) -> String {
        let Some(object) = found.object() else {
            return format!("\"taskId\":{}", quote(&self.task.id));
        };
        let (era, id) = (self.caller.era, &self.task.id);
        tasks::members(found.text(), &object, era, id, status)
    }

    // Tasks of a modern server, for a legacy client.

    async fn legacy_get(&self) -> Result<String, RpcError> {
        let found = self.look().await?;
        Ok(format!("{{{}}}", self.described(&found, None)))
    }

    async fn legacy_cancel(&self) -> Result<String, RpcError> {
        let before = self.look().await?;
        if is_over(&before) {
            // 2025-11-25 basic/utilities/tasks "Task Cancellation".
            return Err(RpcError::invalid_params(format!(
                "Invalid params: the task is {} and cannot be cancelled",
                status(&before)
            )));
        }
        let asked = self.ask(tasks::CANCEL, "").await?;
        if asked.kind() == Kind::Error {
            return Err(RpcError::from_json(asked.body()));
        }
        let deadline = Instant::now() + CANCEL_TIMEOUT;
        let mut found = self.look().await?;
        while !is_over(&found) && Instant::now() < deadline {
            tokio::time::sleep(POLL_INTERVAL_RANGE.0).await;
            found = self.look().await?;
        }
        Ok(format!("{{{}}}", self.described(&found, None)))
    }

    /// Waits for the end of the task. Requests of the server for input are passed to the client.
    async fn legacy_result(&self, frame: &Frame) -> Result<Answer, RpcError> {
        let deadline = Instant::now() + MAX_CALL_TIME;
        let mut answered: Vec<String> = Vec::new();
        while Instant::now() < deadline {
            let found = self.look().await?;
            let object = found.object();
            let part = |key: &str| object.as_ref().and_then(|object| object.raw(key));
            match &*status(&found) {
                "completed" => {
                    let result = tasks::related(part("result").unwrap_or(b"{}"), &self.task.id);
                    let mut splice = mcp::json::Splice::new();
                    let whole = Frame::result(frame.id(), &result);
                    // Inside a task, the result has the modern form.
                    let asked = mcp::protocol::method::TOOLS_CALL;
                    bridge::response_down(&whole, Era::Legacy, Era::Modern, asked, &mut splice);
                    return Ok(Answer::ok(splice.apply(whole.text())));
                }
                "failed" => {
                    return Err(part("error").map_or_else(
                        || RpcError::internal("the task failed"),
                        RpcError::from_json,
                    ));
                }
                "cancelled" => return Err(RpcError::internal("the task was cancelled")),
                "input_required" => {
                    let questions: Vec<_> = bridge::input_requests(&found)
                        .into_iter()
                        .filter(|(key, _, _)| !answered.contains(key))
                        .collect();
                    if !questions.is_empty() {
                        self.put(&questions).await?;
                        answered.extend(questions.into_iter().map(|(key, _, _)| key));
                        continue;
                    }
                }
                _ => {}
            }
            let poll = part("pollIntervalMs")
                .and_then(|raw| std::str::from_utf8(raw).ok()?.parse().ok())
                .map_or(POLL_INTERVAL_RANGE.1, Duration::from_millis);
            tokio::time::sleep(poll.clamp(POLL_INTERVAL_RANGE.0, POLL_INTERVAL_RANGE.1)).await;
        }
        Err(RpcError::internal(format!(
            "the task did not end within {} s; call `tasks/result` again",
            MAX_CALL_TIME.as_secs()
        )))
    }

    /// Passes a modern task's requests for input to a legacy client, and returns its answers to the server.
    async fn put(&self, questions: &[(String, String, Bytes)]) -> Result<(), RpcError> {
        let answers = questions.iter().map(|(key, method, params)| async move {
            let params = tasks::related(params, &self.task.id);
            let answer = relay::ask_client(self.shared, self.caller, method, Some(&params)).await;
            let answer = match answer {
                Ok(frame) if frame.kind() == Kind::Result => frame.body_bytes(),
                // In the modern era, only elicitation can be cancelled.
                _ if method == mcp::protocol::method::ELICIT => {
                    Bytes::from_static(b"{\"action\":\"cancel\"}")
                }
                Ok(frame) => return Err(RpcError::from_json(frame.body())),
                Err(error) => return Err(error),
            };
            Ok(format!(
                "{}:{}",
                quote(key),
                String::from_utf8_lossy(&answer)
            ))
        });
        let answers = futures_util::future::try_join_all(answers).await?;
        let more = format!(",\"inputResponses\":{{{}}}", answers.join(","));
        let told = self.ask(tasks::UPDATE, &more).await?;
        match told.kind() {
            Kind::Error => Err(RpcError::from_json(told.body())),
            _ => Ok(()),
        }
    }

    // Tasks of a legacy server, for a modern client.

    async fn modern_get(&self) -> Result<String, RpcError> {
        let found = self.look().await?;
        let (described, end) = match &*status(&found) {
            "completed" | "failed" => {
                let outcome = self.outcome().await?;
                let body = tasks::unrelated(outcome.body());
                let body = String::from_utf8_lossy(&body);
                // `failed` is for JSON-RPC errors only (SEP-2663 "Task Execution Errors").
                let (status, key) = match outcome.kind() {
                    Kind::Error => ("failed", "error"),
                    _ => ("completed", "result"),
                };
                let described = self.described(&found, Some(status));
                (described, format!(",\"{key}\":{body}"))
            }
            "input_required" => match self.questions().await? {
                asked if asked.is_empty() => {
                    (self.described(&found, Some("working")), String::new())
                }
                asked => {
                    let asked = format!(",\"inputRequests\":{{{}}}", asked.join(","));
                    (self.described(&found, None), asked)
                }
            },
            _ => (self.described(&found, None), String::new()),
        };
        Ok(format!("{{\"resultType\":\"complete\",{described}{end}}}"))
    }

    async fn modern_cancel(&self) -> Result<String, RpcError> {
        // The server decides whether the task can still be cancelled. The acknowledgement does not promise that.
        self.ask(tasks::CANCEL, "").await?;
        Ok("{\"resultType\":\"complete\"}".into())
    }

    /// The response to `tasks/result` of a task that has ended.
    async fn outcome(&self) -> Result<Frame, RpcError> {
        let open = std::mem::replace(&mut *self.task.questions.lock(), Questions::None);
        if let Questions::Open(mut open) = open {
            let ended = async {
                loop {
                    if let Event::Response(frame) = open.call.next().await.ok()? {
                        return Some(frame);
                    }
                }
            };
            if let Ok(Some(frame)) = tokio::time::timeout(ASK_TIMEOUT, ended).await {
                return Ok(frame);
            }
        }
        self.ask(tasks::RESULT, "").await
    }

    /// The requests that a legacy server sends during the task, as members of `inputRequests`. They arrive during
    /// `tasks/result`, which is kept open for this.
    async fn questions(&self) -> Result<Vec<String>, RpcError> {
        let open = match std::mem::replace(&mut *self.task.questions.lock(), Questions::Taken) {
            Questions::Open(open) => Some(open),
            Questions::None => None,
            // Another request of the client is already fetching them.
            Questions::Taken => return Ok(Vec::new()),
        };
        let task = self.task;
        let mut taken = Taken { task, open };
        if taken.open.is_none() {
            let deadline = Instant::now() + self.server.spec.call_timeout;
            let connection = self.connection(deadline).await?;
            let call = self.call(&connection, tasks::RESULT, "", true).await?;
            taken.open = Some(Box::new(Open {
                call,
                connection,
                asks: Vec::new(),
                asked: 0,
                expires: Instant::now() + self.shared.limits().held_call_ttl,
            }));
        }
        let asked = match &mut taken.open {
            Some(open) => self.listen(open).await,
            None => None,
        };
        if asked.is_none() {
            // The task has ended, which the next poll will show.
            taken.open = None;
        }
        Ok(asked.unwrap_or_default())
    }

    /// The requests of a server during `tasks/result`. `None` if the response has arrived.
    async fn listen(&self, open: &mut Open) -> Option<Vec<String>> {
        let deadline = Instant::now() + ASK_TIMEOUT;
        loop {
            let event = if open.asks.is_empty() {
                tokio::time::timeout_at(deadline, open.call.next())
                    .await
                    .ok()
            } else {
                open.call.next().now_or_never()
            };
            match event {
                Some(Ok(Event::Request(request))) => match self.refusal(&request) {
                    Some(refusal) => {
                        let refusal = Frame::error(request.id(), &refusal);
                        open.connection.client.send(&refusal).await.ok()?;
                    }
                    None => {
                        open.asked += 1;
                        open.asks.push(Ask {
                            key: format!("input{}", open.asked),
                            request,
                        });
                    }
                },
                Some(Ok(Event::Notification(_) | Event::Unclear(_))) => {}
                Some(Ok(Event::Response(_)) | Err(_)) => return None,
                None => break,
            }
        }
        open.expires = Instant::now() + self.shared.limits().held_call_ttl;
        let asked = open.asks.iter().map(|ask| {
            let params = match ask.request.body() {
                b"" => "{}".into(),
                params => String::from_utf8_lossy(params),
            };
            let (key, method) = (quote(&ask.key), quote(ask.request.method()));
            format!("{key}:{{\"method\":{method},\"params\":{params}}}")
        });
        Some(asked.collect())
    }

    fn refusal(&self, request: &Frame) -> Option<RpcError> {
        relay::refusal(self.caller, request, "a task", self.server)
    }

    async fn modern_update(&self, frame: &Frame) -> Result<String, RpcError> {
        let responses = frame
            .object()
            .and_then(|params| params.object("inputResponses"))
            .ok_or_else(|| {
                RpcError::invalid_params("Invalid params: `inputResponses` must be an object")
            })?;
        // Unknown keys are ignored (SEP-2663 "Task Update Requests").
        let (answers, connection) = match &mut *self.task.questions.lock() {
            Questions::Open(open) => (
                answered(&mut open.asks, &responses),
                Some(open.connection.clone()),
            ),
            _ => (Vec::new(), None),
        };
        if let Some(connection) = connection {
            for answer in answers {
                let sent = connection.client.send(&answer).await;
                sent.map_err(|why| self.failed(&why))?;
            }
        }
        Ok("{\"resultType\":\"complete\"}".into())
    }
}

/// Takes out the answered requests and returns the responses to them.
fn answered(asks: &mut Vec<Ask>, responses: &Object<'_>) -> Vec<Frame> {
    let mut answers = Vec::new();
    asks.retain(|ask| match responses.raw(&ask.key) {
        Some(answer) => {
            answers.push(Frame::result(ask.request.id(), answer));
            false
        }
        None => true,
    });
    answers
}

/// A task's requests while one client request handles them. They are returned on drop, even if that request is
/// cancelled.
struct Taken<'a> {
    task: &'a Task,
    open: Option<Box<Open>>,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let open = self.open.take();
        *self.task.questions.lock() = open.map_or(Questions::None, Questions::Open);
    }
}

fn status(found: &Frame) -> String {
    let object = found.object();
    let status = object.as_ref().and_then(|object| object.string("status"));
    status.map_or_else(String::new, std::borrow::Cow::into_owned)
}

fn is_over(found: &Frame) -> bool {
    matches!(&*status(found), "completed" | "failed" | "cancelled")
}
