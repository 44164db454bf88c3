//! The tools that need nothing from the client, and the dispatch to the other tool modules.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, LoggingLevel,
    LoggingMessageNotificationParam, ProgressNotificationParam,
};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::{
    ask::{Answer, Context, complete, invalid, is_modern},
    content::{self, WATCHED},
    input_tools,
    server::Server,
    shared::{Change, Shared},
    tasks,
};

/// Interval between progress notifications of `slow`.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(50);
/// When a client should reconnect after its stream was closed.
const RECONNECT_DELAY: Duration = Duration::from_millis(100);
/// Upper limit for the sleep of `slow`.
const MAX_SLEEP: Duration = Duration::from_secs(600);
/// The severities of log messages, least severe first.
const LEVELS: [&str; 8] = [
    "debug",
    "info",
    "notice",
    "warning",
    "error",
    "critical",
    "alert",
    "emergency",
];

pub(crate) async fn call(
    server: &Server,
    request: CallToolRequestParams,
    context: &Context,
) -> Answer<CallToolResponse> {
    if let Some(response) = input_tools::call(server, &request, context).await? {
        return Ok(response);
    }
    if let Some(response) = tasks::call(server, &request, context).await? {
        return Ok(response);
    }
    let empty = serde_json::Map::new();
    let arguments = request.arguments.as_ref().unwrap_or(&empty);
    let string = |name: &str| arguments.get(name).and_then(Value::as_str);
    let shared = &server.shared;
    let fixed = content::result(&request.name);
    let content = match &*request.name {
        "test_error_handling" => {
            return fail("This tool intentionally returns an error for testing");
        }
        "test_tool_with_logging" => {
            for message in [
                "Tool execution started",
                "Tool processing data",
                "Tool execution completed",
            ] {
                log(server, context, LoggingLevel::Info, json!(message)).await;
                sleep(PROGRESS_INTERVAL).await;
            }
            text("Logged three messages")
        }
        "test_tool_with_progress" => {
            for percent in [0, 50, 100] {
                progress(context, percent, 100).await;
                sleep(PROGRESS_INTERVAL).await;
            }
            text("Reported progress")
        }
        "test_logging_tool" => {
            log(server, context, LoggingLevel::Info, json!("Called")).await;
            text("Logged if asked to")
        }
        "test_reconnection" => {
            close_stream(server, context).await;
            // Sleeps longer than a compliant client waits before it reconnects, because the SDK does not keep a
            // response for a client that reconnects later.
            sleep(5 * RECONNECT_DELAY).await;
            text("Answered after the stream was closed")
        }
        "test_trigger_tool_change" | "toggle_tool" => {
            let listed = Shared::toggle(&shared.extra_tool);
            shared.announce(Change::Tools).await;
            text(&json!({ "toggled_tool": listed }).to_string())
        }
        "test_trigger_prompt_change" => {
            let listed = Shared::toggle(&shared.extra_prompt);
            shared.announce(Change::Prompts).await;
            text(&json!({ "toggled_prompt": listed }).to_string())
        }
        "test_header_param" | "json_schema_2020_12_tool" => {
            text(&Value::Object(arguments.clone()).to_string())
        }
        "slow" => {
            let ms = arguments.get("ms").and_then(Value::as_u64).unwrap_or(0);
            if !slow(shared, context, Duration::from_millis(ms)).await {
                return fail("cancelled");
            }
            text(&format!("slept {ms} ms"))
        }
        "cancelled_count" => text(&shared.cancelled.load(Ordering::Relaxed).to_string()),
        "touch_resource" => {
            let uri = string("uri").unwrap_or(WATCHED);
            let touched = shared.touched.fetch_add(1, Ordering::Relaxed) + 1;
            shared.announce(Change::Resource(uri.to_owned())).await;
            text(&touched.to_string())
        }
        "log_at" => {
            let level = string("level").unwrap_or("info");
            let parsed = serde_json::from_value(json!(level))
                .map_err(|_| invalid(format!("unknown level {level:?}")))?;
            let message = string("message").unwrap_or("A message");
            let sent = log(server, context, parsed, json!(message)).await;
            text(if sent { "logged" } else { "not logged" })
        }
        "toggled_tool" if shared.extra_tool.load(Ordering::Relaxed) => text("I am here"),
        name => fixed.ok_or_else(|| invalid(format!("unknown tool {name:?}")))?,
    };
    let result: CallToolResult = complete(json!({ "content": content }))?;
    Ok(result.into())
}

/// A result whose only content is `text`.
pub(crate) fn text(text: &str) -> Value {
    json!([{ "type": "text", "text": text }])
}

/// A tool failure (`isError`), not a protocol error.
pub(crate) fn fail(reason: &str) -> Answer<CallToolResponse> {
    let result: CallToolResult = complete(json!({ "content": text(reason), "isError": true }))?;
    Ok(result.into())
}

/// Reports progress if the client asked for it.
async fn progress(context: &Context, done: u32, total: u32) {
    if let Some(token) = context.meta.get_progress_token() {
        let report = ProgressNotificationParam::new(token, f64::from(done))
            .with_total(f64::from(total))
            .with_message(format!("{done} of {total}"));
        // The client may have disconnected.
        let _ = context.peer.notify_progress(report).await;
    }
}

/// Sends a log message if the client wants this level. Returns whether it was sent.
async fn log(server: &Server, context: &Context, level: LoggingLevel, data: Value) -> bool {
    let threshold = if is_modern(context) {
        // 2026-07-28: a request without a level gets no log messages.
        context.meta.log_level()
    } else {
        Some(*server.session.level.lock())
    };
    if threshold.is_none_or(|threshold| severity(level) < severity(threshold)) {
        return false;
    }
    let message = LoggingMessageNotificationParam::new(level, data).with_logger("testkit");
    context.peer.notify_logging_message(message).await.is_ok()
}

fn severity(level: LoggingLevel) -> Option<usize> {
    let name = serde_json::to_value(level).ok()?;
    LEVELS.iter().position(|known| name == *known)
}

/// Sleeps. Returns whether it slept to the end.
async fn slow(shared: &Arc<Shared>, context: &Context, sleep_for: Duration) -> bool {
    // Counts every early end of the call: cancellation by token, or the whole future being dropped.
    struct Unless<'a>(&'a Shared, bool);
    impl Drop for Unless<'_> {
        fn drop(&mut self) {
            if !self.1 {
                self.0.cancelled.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
    let sleep_for = sleep_for.min(MAX_SLEEP);
    let mut finished = Unless(shared, false);
    let work = async {
        let steps = sleep_for
            .as_millis()
            .div_ceil(PROGRESS_INTERVAL.as_millis());
        let steps = u32::try_from(steps).unwrap_or(u32::MAX);
        for step in 0..steps {
            progress(context, step, steps).await;
            sleep(PROGRESS_INTERVAL.min(sleep_for - PROGRESS_INTERVAL * step)).await;
        }
        progress(context, steps, steps).await;
    };
    tokio::select! {
        () = work => finished.1 = true,
        () = context.ct.cancelled() => {}
    }
    finished.1
}

/// Closes the HTTP response streams of this call's session. The session itself continues.
async fn close_stream(server: &Server, context: &Context) {
    // The SDK cannot say which stream this call arrived on, so all are closed. A session in a test has had fewer
    // requests than this, even one that a gateway shares among its clients.
    const MAX_STREAMS: u64 = 1024;
    let (Some(sessions), Some(parts)) = (
        &server.sessions,
        context.extensions.get::<http::request::Parts>(),
    ) else {
        return;
    };
    let Some(id) = parts
        .headers
        .get("mcp-session-id")
        .and_then(|id| id.to_str().ok())
    else {
        return;
    };
    let handle = sessions.sessions.read().await.get(id).cloned();
    if let Some(handle) = handle {
        for stream in 0..MAX_STREAMS {
            // This fails if no stream has this number.
            let _ = handle.close_sse_stream(stream, Some(RECONNECT_DELAY)).await;
        }
    }
}
