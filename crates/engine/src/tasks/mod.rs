//! Tasks: calls whose result is fetched later, in both eras and between them.
//!
//! Invariants: a task is its owner's alone: of the key that made it, without a key of the session, and without either
//! of whoever knows its id, which then is a random one of ours. The table is bounded; whoever has most loses the
//! oldest. Deliberately absent: surviving a restart, `notifications/tasks` of modern servers.

mod bridged;
mod table;

use std::sync::Arc;

use mcp::{
    Era, Frame, Kind, RpcError, extensions,
    json::{Object, Splice},
    tasks,
};
use memchr::memmem::Finder;

pub(crate) use self::table::{Owner, Table, Task};
use crate::{
    catalog::ListKind,
    exchange::{Answer, Caller},
    relay::{Target, relay},
    server::Server,
    shared::Shared,
    view::View,
};

/// Made once: it costs as much as a search.
static TASK_ID: std::sync::LazyLock<Finder<'_>> =
    std::sync::LazyLock::new(|| Finder::new("\"taskId\""));

/// Tasks of one `tasks/list` that are asked for at a time.
const LISTED_AT_ONCE: usize = 8;

/// Whether a server makes tasks of tool calls.
pub(crate) fn makes_tasks(server: &Server) -> bool {
    let catalog = server.catalog();
    let Some(info) = &catalog.info else {
        return false;
    };
    match info.era {
        Era::Modern => extensions::declares(&info.capabilities, extensions::TASKS),
        Era::Legacy => {
            info.has("tasks")
                && catalog
                    .list(ListKind::Tools)
                    .iter()
                    .any(|tool| tasks::support(&tool.raw) != tasks::Support::None)
        }
    }
}

/// Whether a legacy client wants this call to be a task.
pub(crate) fn is_wanted(caller: &Caller, frame: &Frame) -> bool {
    caller.era == Era::Legacy
        && frame.method() == mcp::protocol::method::TOOLS_CALL
        && frame
            .object()
            .is_some_and(|params| params.object("task").is_some())
}

/// The answer to a tool call that made a task, for the client's era; `None` if it made none.
pub(crate) fn created(
    shared: &Shared,
    caller: &Caller,
    server: &Server,
    response: &Frame,
    era: Era,
) -> Option<String> {
    TASK_ID.find(response.body())?;
    let native = tasks::created(response, era)?;
    let id = shared.tasks.add(caller, server, &native);
    if era == caller.era && *id == *native {
        // As it is.
        return None;
    }
    tasks::creation(response, era, caller.era, &id)
}

/// What a legacy client gets whose server answered at once although a task was wanted: a task that is over.
///
/// # Errors
/// The result is too large to be kept.
pub(crate) fn kept(
    shared: &Shared,
    caller: &Caller,
    server: &Server,
    frame: &Frame,
    result: &[u8],
) -> Result<Answer, RpcError> {
    let task = shared.tasks.keep(caller, server, result)?;
    let result = format!("{{\"task\":{{{task}}}}}");
    Ok(Answer::result(frame, result.as_bytes()))
}

/// Answers a question about tasks.
///
/// # Errors
/// -32601 for a method of the other era, -32602 for a task that is not the caller's.
pub(crate) async fn answer(
    shared: &Arc<Shared>,
    caller: &Caller,
    view: &View,
    frame: &Frame,
) -> Result<Answer, RpcError> {
    let legacy = caller.era == Era::Legacy;
    let is_known = match frame.method() {
        tasks::GET | tasks::CANCEL => true,
        tasks::RESULT | tasks::LIST => legacy,
        tasks::UPDATE => !legacy,
        _ => false,
    };
    if !is_known || !view.servers.iter().any(|server| makes_tasks(server)) {
        return Err(RpcError::method_not_found(frame.method()));
    }
    if !legacy && !extensions::declares(&caller.face().capabilities, extensions::TASKS) {
        return Err(tasks::missing(frame.method()));
    }
    if frame.method() == tasks::LIST {
        return list(shared, caller, view, frame).await;
    }
    let params = frame.object();
    let span = params.as_ref().and_then(|params| params.find("taskId"));
    let id = params.as_ref().and_then(|params| params.string("taskId"));
    let (Some(span), Some(id)) = (span, id) else {
        return Err(RpcError::invalid_params(
            "Invalid params: `taskId` must be a string",
        ));
    };
    let unknown = || RpcError::invalid_params("Invalid params: unknown `taskId`");
    let task = shared
        .tasks
        .find(&Owner::of(caller), &id)
        .ok_or_else(unknown)?;
    if let Some(kept) = &task.kept {
        return of_kept(frame, &task, kept);
    }
    let server = view
        .servers
        .iter()
        .find(|server| *server.key() == task.server)
        .ok_or_else(unknown)?;
    if server.era().is_some_and(|era| era != caller.era) {
        let bridged = bridged::Bridged {
            shared,
            caller,
            server,
            task: &task,
        };
        return bridged.answer(frame).await;
    }
    let target = Target {
        server: server.clone(),
        rename: (*task.native != *id).then(|| (span, task.native.to_string())),
        // The extension routes by it: it is the `Mcp-Name` of these methods.
        name: Some(task.native.to_string()),
        headers: None,
    };
    let answer = relay(shared, caller, frame, target).await;
    if task.id == task.native || answer.code.is_some() {
        return Ok(answer);
    }
    // The client knows it by another id.
    let text = answer.into_text();
    let Ok(response) = Frame::parse(text.clone(), usize::MAX) else {
        return Ok(Answer::ok(text));
    };
    let mut splice = Splice::new();
    tasks::rename(&response, &task.id, &mut splice);
    Ok(Answer::ok(splice.apply(&text)))
}

/// What is asked of a task whose result is here already.
fn of_kept(frame: &Frame, task: &Task, kept: &table::Kept) -> Result<Answer, RpcError> {
    Ok(match frame.method() {
        tasks::RESULT => Answer::result(frame, &tasks::related(&kept.result, &task.id)),
        tasks::CANCEL => {
            return Err(RpcError::invalid_params(
                "Invalid params: the task is completed and cannot be cancelled",
            ));
        }
        _ => Answer::result(frame, format!("{{{}}}", kept.task).as_bytes()),
    })
}

/// `tasks/list` of a legacy client: its own tasks, each as its server describes it now.
async fn list(
    shared: &Arc<Shared>,
    caller: &Caller,
    view: &View,
    frame: &Frame,
) -> Result<Answer, RpcError> {
    use futures_util::StreamExt as _;
    if frame.param(mcp::frame::Param::Cursor).is_some() {
        // Lists are answered whole: there is no second page to point at.
        return Err(RpcError::invalid_params("Invalid params: unknown `cursor`"));
    }
    let owner = Owner::of(caller);
    let described = shared.tasks.of(&owner).into_iter().map(|task| async move {
        if let Some(kept) = &task.kept {
            return Some(format!("{{{}}}", kept.task));
        }
        let server = view
            .servers
            .iter()
            .find(|server| *server.key() == task.server)?;
        let bridged = bridged::Bridged {
            shared,
            caller,
            server,
            task: &task,
        };
        let found = bridged.ask(tasks::GET, "").await.ok()?;
        if found.kind() == Kind::Error {
            // It has expired there.
            shared.tasks.forget(&task);
            return None;
        }
        let members = tasks::members(found.text(), &found.object()?, Era::Legacy, &task.id, None);
        Some(format!("{{{members}}}"))
    });
    let all: Vec<Option<String>> = futures_util::stream::iter(described)
        .buffered(LISTED_AT_ONCE)
        .collect()
        .await;
    let all: Vec<String> = all.into_iter().flatten().collect();
    let result = format!("{{\"tasks\":[{}]}}", all.join(","));
    Ok(Answer::result(frame, result.as_bytes()))
}

/// Tells a task's owner what its server says of it, and nobody else.
pub(crate) fn status(shared: &Shared, server: &Server, frame: &Frame) {
    let id = frame.object().and_then(|params| params.string("taskId"));
    let Some((task, session)) = id.and_then(|id| shared.tasks.to_tell(server.key(), &id)) else {
        return;
    };
    let mut splice = Splice::new();
    if task.id != task.native {
        tasks::rename(frame, &task.id, &mut splice);
    }
    session.outbox().push(
        mcp::outbox::Weight::Notification,
        splice.apply(frame.text()),
    );
}

/// Whether capabilities (JSON text) of a legacy server or the extension of a modern one are offered here.
pub(crate) fn is_offered(view: &[Arc<Server>]) -> bool {
    view.iter().any(|server| makes_tasks(server))
}

/// A tool of a modern server that makes tasks, as a legacy client has to see it to call it as one.
pub(crate) fn marked(server: &Server, tool: &Object<'_>) -> Option<&'static str> {
    let catalog = server.catalog();
    let info = catalog.info.as_ref()?;
    let marks = info.era == Era::Modern
        && tool.find("execution").is_none()
        && extensions::declares(&info.capabilities, extensions::TASKS);
    marks.then_some("\"execution\":{\"taskSupport\":\"optional\"}")
}
