//! The outcome of a tool call, for the server's counts and for the call's record.
//!
//! Invariant: [`of`] is the only place that decides how a call ended, so the counts of a server match its records.

use std::{borrow::Cow, sync::Arc};

use mcp::{
    Frame,
    frame::Param,
    json::{Object, elements},
};
use records::audit::{Detail, Intent, Outcome};
use store::{CallStatus, CallSteps};

use super::{Target, carry};
use crate::{
    call::steps::Steps,
    exchange::{Answer, Caller},
    server::Server,
    shared::Shared,
};

/// How a request ended: information that is not in the answer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Answered,
    TimedOut,
    /// The request was not accepted: its server is down or busy, it could not be recorded, or its client refused to
    /// open a URL. Such requests are not counted as calls and not recorded, because their number is unlimited.
    Rejected,
}

/// Reads the outcome of a tool call from its answer. `None` if the call was rejected.
pub(super) fn of(answer: &Answer, end: End) -> Option<Outcome<'_>> {
    if end == End::Rejected {
        return None;
    }
    let object = Object::of(&answer.text);
    let result = object.as_ref().and_then(|answer| answer.raw("result"));
    let failed = result
        .and_then(Object::of)
        .and_then(|result| result.raw("isError"));
    let status = match (answer.code, failed) {
        _ if end == End::TimedOut => CallStatus::Timeout,
        (Some(_), _) => CallStatus::Error,
        (None, Some(b"true")) => CallStatus::ToolError,
        (None, _) => CallStatus::Ok,
    };
    let error = match status {
        CallStatus::ToolError => result.and_then(text_of),
        _ => answer
            .code
            .and_then(|_| object.as_ref()?.object("error")?.string("message")),
    };
    Some(Outcome {
        status,
        error,
        result,
        steps: CallSteps::default(),
    })
}

/// The text of a tool's own error: its text contents, one per line, or else its structured content.
fn text_of(result: &[u8]) -> Option<Cow<'_, str>> {
    let object = Object::of(result)?;
    let contents = object.find("content").into_iter();
    let contents = contents.flat_map(|content| elements(result, content));
    let texts = contents.filter_map(|span| Object::at(result, span)?.string("text"));
    let texts: Vec<Cow<'_, str>> = texts.collect();
    if texts.is_empty() {
        let structured = object.raw("structuredContent")?;
        return Some(String::from_utf8_lossy(structured));
    }
    Some(texts.join("\n").into())
}

/// Counts the call if it failed. A tool's own error counts, too.
pub(super) fn count(outcome: Option<&Outcome<'_>>, server: &Server) {
    if outcome.is_some_and(|outcome| outcome.status.is_failure()) {
        server.count(|stats| &stats.errors);
    }
}

/// Relays a tool call between its two audit records (P09).
pub(super) async fn recorded(
    shared: &Arc<Shared>,
    caller: &Caller,
    frame: &Frame,
    target: Target,
    detail: Detail,
) -> Answer {
    let spec = &target.server.spec;
    let redact = |text: &str| target.server.redact(text);
    let arguments = frame.param(Param::Arguments);
    let steps = Steps::new();
    let mut record = None;
    let mut opening = Box::pin(async {
        let intent = Intent {
            began: steps.began(),
            project: caller.scope.project.as_ref().or(spec.owner.as_ref()),
            caller: &caller.principal,
            run: caller.run.as_deref(),
            replay_of: caller.replay_of.as_deref(),
            server: spec.name.as_str(),
            tool: target.name.as_deref().unwrap_or_default(),
            arguments: arguments.map_or(b"{}", |span| &frame.text()[span]),
            detail,
            redact: &redact,
        };
        record = Some(shared.audit.open(intent).await?);
        Ok(())
    });
    let (answer, end) = carry(
        shared,
        caller,
        frame,
        &target,
        Some(opening.as_mut()),
        Some(&steps),
    )
    .await;
    drop(opening);
    let outcome = of(&answer, end);
    count(outcome.as_ref(), &target.server);
    let (Some(record), Some(outcome)) = (record, outcome) else {
        return answer;
    };
    let outcome = Outcome {
        steps: steps.reached(),
        ..outcome
    };
    match record.close(outcome, &redact).await {
        Ok(()) => answer,
        Err(why) => {
            let what = format!("{why}; the call was made, and its outcome will be recorded later");
            Answer::unavailable(frame, &what)
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn check(result: &str, status: CallStatus, error: Option<&str>) {
        let text = format!(r#"{{"jsonrpc":"2.0","id":1,"result":{result}}}"#);
        let answer = Answer::ok(Bytes::from(text));
        let outcome = of(&answer, End::Answered).expect("an outcome");
        assert_eq!(outcome.status, status, "{result}");
        assert_eq!(outcome.error.as_deref(), error, "{result}");
        assert!(of(&answer, End::Rejected).is_none());
    }

    #[test]
    fn the_text_of_a_tools_own_error_is_read_from_its_contents() {
        use CallStatus::ToolError;
        check(
            r#"{"content":[{"type":"text","text":"fine"}]}"#,
            CallStatus::Ok,
            None,
        );
        let two = r#"{"content":[{"type":"text","text":"no \u00fcse"},{"type":"image","data":"AA=="},{"type":"text","text":"of it"}],"isError":true}"#;
        check(two, ToolError, Some("no üse\nof it"));
        let only = r#"{"content":[],"structuredContent":{"why":"x"},"isError":true}"#;
        check(only, ToolError, Some(r#"{"why":"x"}"#));
        check(r#"{"content":[],"isError":true}"#, ToolError, None);
        check(r#"{"isError":true}"#, ToolError, None);
        check(r#"{"content":7,"isError":true}"#, ToolError, None);
    }
}
