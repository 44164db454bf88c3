//! Answers requests about tasks, for servers of either era.

mod bridged;

use std::sync::Arc;

use mcp::{Era, Frame, Kind, RpcError, extensions, json::Splice, tasks};

use crate::{
    call::relay::{Target, relay},
    client_state::tasks::{Kept, Task},
    exchange::{Answer, Caller, Owner, check_cursor},
    shared::Shared,
    views::{offers::makes_tasks, view::View},
};

/// Concurrent requests to servers for one `tasks/list`.
const LISTED_AT_ONCE: usize = 8;

/// Answers a request about tasks.
///
/// # Errors
/// -32601 for a method of the other era, -32602 if the task does not belong to the caller.
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
    if !is_known
        || !view
            .servers
            .iter()
            .any(|server| makes_tasks(server, caller.era))
    {
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
        .filter(|task| is_of(caller, task))
        .ok_or_else(unknown)?;
    if let Some(kept) = &task.kept {
        return of_kept(frame, &task, kept);
    }
    let server = view
        .servers
        .iter()
        .find(|server| *server.id() == task.server)
        .ok_or_else(unknown)?;
    if task.era != caller.era {
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
        // The tasks extension routes these methods by the task id, which is their `Mcp-Name` header.
        name: Some(task.native.to_string()),
        headers: None,
    };
    let answer = relay(shared, caller, frame, target).await;
    if task.id == task.native || answer.code.is_some() {
        return Ok(answer);
    }
    // The client knows the task by another id.
    let text = answer.into_text();
    let Ok(response) = Frame::parse(text.clone(), usize::MAX) else {
        return Ok(Answer::ok(text));
    };
    let mut splice = Splice::new();
    tasks::rename(&response, &task.id, &mut splice);
    Ok(Answer::ok(splice.apply(&text)))
}

/// Returns whether the task was created with the caller's header values.
fn is_of(caller: &Caller, task: &Task) -> bool {
    let mut values = task.server.values.iter();
    values.all(|(name, value)| caller.scope.values.get(name) == Some(value))
}

/// Answers a request about a task whose result this gateway keeps.
fn of_kept(frame: &Frame, task: &Task, kept: &Kept) -> Result<Answer, RpcError> {
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

/// `tasks/list` of a legacy client: its tasks, as their servers currently describe them.
async fn list(
    shared: &Arc<Shared>,
    caller: &Caller,
    view: &View,
    frame: &Frame,
) -> Result<Answer, RpcError> {
    use futures_util::StreamExt as _;
    check_cursor(frame)?;
    let owner = Owner::of(caller);
    let own = shared.tasks.of(&owner).into_iter();
    let own = own.filter(|task| is_of(caller, task));
    let described = own.map(|task| async move {
        if let Some(kept) = &task.kept {
            return Some(format!("{{{}}}", kept.task));
        }
        let server = view
            .servers
            .iter()
            .find(|server| *server.id() == task.server)?;
        let bridged = bridged::Bridged {
            shared,
            caller,
            server,
            task: &task,
        };
        let found = bridged.ask(tasks::GET, "").await.ok()?;
        if found.kind() == Kind::Error {
            // The task has expired at the server.
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
