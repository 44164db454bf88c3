//! The tasks extension (SEP-2663): calls whose result is fetched later.
//!
//! No task does any work. Its state is computed on request from the elapsed time and the answers received so far.
//! Status notifications are absent.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use chrono::{SecondsFormat, Utc};
use parking_lot::Mutex;
use rmcp::{
    ErrorData,
    model::{
        CallToolRequestParams, CallToolResponse, CallToolResult, ClientCapabilities,
        CreateTaskResult, GetTaskResult, InputResponses,
    },
};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::{
    ask::{Answer, Asked, Context, Question, ask, complete, invalid, is_modern, typed},
    server::Server,
    tools::text,
};

/// Lifetime of a task after its creation.
const TASK_LIFETIME: Duration = Duration::from_secs(300);
/// Maximum number of tasks; beyond it, the oldest ones are dropped.
const MAX_TASKS: usize = 1000;
/// The poll interval that clients are asked to use.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Upper limit for the duration of `slow_compute`.
const MAX_COMPUTE_SECONDS: u64 = 600;

#[derive(Default)]
pub(crate) struct Tasks {
    next: AtomicU64,
    all: Mutex<VecDeque<Task>>,
}

struct Task {
    id: String,
    created: Instant,
    created_at: String,
    work: Work,
    end: End,
    cancelled: bool,
}

enum Work {
    Sleep(Duration),
    Ask {
        questions: Vec<Question>,
        answers: BTreeMap<String, Value>,
    },
}

#[derive(Clone)]
enum End {
    Result(Value),
    Error(Value),
}

/// Calls the tool if it belongs to this module.
pub(crate) async fn call(
    server: &Server,
    request: &CallToolRequestParams,
    context: &Context,
) -> Answer<Option<CallToolResponse>> {
    let argument = |name: &str| request.arguments.as_ref().and_then(|all| all.get(name));
    let string = |name: &str| argument(name).and_then(Value::as_str).unwrap_or_default();
    let capabilities = context.client_capabilities().unwrap_or_default();
    let can_task = is_modern(context) && capabilities.supports_tasks();
    let tasks = &server.shared.tasks;
    let start = |work, end| Ok(Some(tasks.start(work, end)?.into()));
    let second = Work::Sleep(Duration::from_secs(1));
    match &*request.name {
        "greet" => finished(text(&format!("Hello, {}!", string("name")))),
        "slow_compute" => {
            let seconds = argument("seconds").and_then(Value::as_u64).unwrap_or(0);
            let duration = Duration::from_secs(seconds.min(MAX_COMPUTE_SECONDS));
            let content = text(&format!("computed {}", string("label")));
            if can_task {
                return start(Work::Sleep(duration), result(content));
            }
            tokio::select! {
                () = sleep(duration) => finished(content),
                () = context.ct.cancelled() => finished(text("cancelled")),
            }
        }
        "failing_job" | "protocol_error_job" | "test_tool_with_task" if !can_task => {
            Err(ErrorData::missing_required_client_capability(
                ClientCapabilities::builder().enable_tasks().build(),
            ))
        }
        "failing_job" => start(
            second,
            End::Result(json!({ "content": text("The job failed"), "isError": true })),
        ),
        "protocol_error_job" => start(
            second,
            End::Error(json!({ "code": -32603, "message": "The job broke" })),
        ),
        "confirm_delete" => {
            let message = format!("Delete {}?", string("filename"));
            let question = confirmation("confirm", &message);
            interactive(server, request, context, can_task, vec![question]).await
        }
        "multi_input" => {
            let questions = vec![
                confirmation("first", "The first?"),
                confirmation("second", "The second?"),
            ];
            interactive(server, request, context, can_task, questions).await
        }
        "test_tool_with_task" => {
            let question = confirmation("user_name", "What is your name?");
            let responses = request.input_responses.as_ref();
            match ask(context, responses, &[question], None).await? {
                Asked::Pending(result) => Ok(Some(result.into())),
                Asked::Answered(answers) => {
                    let name = answers["user_name"]["content"]["name"].to_string();
                    start(second, result(text(&format!("Done for {name}"))))
                }
            }
        }
        _ => Ok(None),
    }
}

async fn interactive(
    server: &Server,
    request: &CallToolRequestParams,
    context: &Context,
    can_task: bool,
    questions: Vec<Question>,
) -> Answer<Option<CallToolResponse>> {
    let content = text(&format!("{} is done", request.name));
    if can_task {
        let answers = BTreeMap::new();
        let work = Work::Ask { questions, answers };
        return Ok(Some(
            server.shared.tasks.start(work, result(content))?.into(),
        ));
    }
    match ask(context, request.input_responses.as_ref(), &questions, None).await? {
        Asked::Pending(result) => Ok(Some(result.into())),
        Asked::Answered(_) => finished(content),
    }
}

fn confirmation(key: &'static str, message: &str) -> Question {
    Question::elicitation(
        key,
        message,
        json!({
            "type": "object",
            "properties": { "confirm": { "type": "boolean" }, "name": { "type": "string" } },
        }),
    )
}

fn finished(content: Value) -> Answer<Option<CallToolResponse>> {
    let result: CallToolResult = complete(json!({ "content": content }))?;
    Ok(Some(result.into()))
}

fn result(content: Value) -> End {
    End::Result(json!({ "resultType": "complete", "content": content }))
}

impl Tasks {
    fn start(&self, work: Work, end: End) -> Answer<CreateTaskResult> {
        let task = Task {
            id: format!("task-{}", self.next.fetch_add(1, Ordering::Relaxed)),
            created: Instant::now(),
            created_at: now(),
            work,
            end,
            cancelled: false,
        };
        // The response to the call describes the task but never contains its payload.
        let mut created = task.described();
        if let Some(members) = created.as_object_mut() {
            members.retain(|name, _| !matches!(&**name, "result" | "error" | "inputRequests"));
        }
        created["resultType"] = json!("task");
        let created = typed(created);
        let mut all = self.all.lock();
        all.retain(|task| task.created.elapsed() < TASK_LIFETIME);
        if all.len() == MAX_TASKS {
            all.pop_front();
        }
        all.push_back(task);
        created
    }

    /// Handles `tasks/get`.
    pub(crate) fn get(&self, id: &str) -> Answer<GetTaskResult> {
        self.with(id, |task| complete(task.described()))
    }

    /// `tasks/cancel`: a task that has ended is not changed.
    pub(crate) fn cancel(&self, id: &str) -> Answer<()> {
        self.with(id, |task| {
            task.cancelled |= !task.has_ended();
            Ok(())
        })
    }

    /// `tasks/update`: unknown keys are ignored.
    pub(crate) fn update(&self, id: &str, responses: InputResponses) -> Answer<()> {
        self.with(id, |task| {
            if let Work::Ask { questions, answers } = &mut task.work {
                for (key, answer) in responses {
                    if questions.iter().any(|question| question.key == key) {
                        answers.insert(key, answer);
                    }
                }
            }
            Ok(())
        })
    }

    fn with<T>(&self, id: &str, use_it: impl FnOnce(&mut Task) -> Answer<T>) -> Answer<T> {
        let mut all = self.all.lock();
        match all.iter_mut().find(|task| task.id == id) {
            Some(task) => use_it(task),
            None => Err(invalid(format!("unknown task {id:?}"))),
        }
    }
}

impl Task {
    fn pending(&self) -> Vec<&Question> {
        match &self.work {
            Work::Sleep(_) => Vec::new(),
            Work::Ask { questions, answers } => questions
                .iter()
                .filter(|question| !answers.contains_key(question.key))
                .collect(),
        }
    }

    fn has_ended(&self) -> bool {
        let slept = match self.work {
            Work::Sleep(duration) => self.created.elapsed() >= duration,
            Work::Ask { .. } => true,
        };
        self.cancelled || (slept && self.pending().is_empty())
    }

    fn described(&self) -> Value {
        let mut described = json!({
            "taskId": self.id,
            "createdAt": self.created_at,
            "lastUpdatedAt": now(),
            "ttlMs": u64::try_from(TASK_LIFETIME.as_millis()).unwrap_or(u64::MAX),
            "pollIntervalMs": u64::try_from(POLL_INTERVAL.as_millis()).unwrap_or(u64::MAX),
        });
        let pending = self.pending();
        described["status"] = if self.cancelled {
            json!("cancelled")
        } else if !pending.is_empty() {
            for question in pending {
                described["inputRequests"][question.key] =
                    json!({ "method": question.method, "params": question.params });
            }
            json!("input_required")
        } else if !self.has_ended() {
            json!("working")
        } else {
            match &self.end {
                End::Result(result) => {
                    described["result"] = result.clone();
                    json!("completed")
                }
                End::Error(error) => {
                    described["error"] = error.clone();
                    json!("failed")
                }
            }
        };
        described
    }
}

fn now() -> String {
    Utc::now().to_rfc3339_opts(SecondsFormat::Secs, true)
}
