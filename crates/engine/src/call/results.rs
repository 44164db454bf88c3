//! Long results of tools (X05): a client gets a preview, and the model reads the rest in parts with `read_result`.
//!
//! This happens after the call is recorded, so its record has the digest or the text of the whole result. A result within
//! the bound is not looked at: a token has at least one byte, so its length shows that it fits.
//!
//! Invariants:
//! - A result is kept for its caller, by the name in call records, in the project of the call. Other callers get the same error
//!   as for an id that does not exist.
//! - A client gets a preview within the bound even if the rest cannot be kept. The preview then says so.
//!
//! Deliberately absent: results of tasks, which programs fetch, and calls by Apps, which no model reads.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use catalog::is_for_models;
use mcp::{Era, Frame, RpcError, Version, error, frame::Param, json::quote};
use results::{Bound, Document, Long, URI_PREFIX, mime_of};
use serde_json::Value;
use store::{NewResult, ResultRoom, ResultRow};
use tokio::{sync::SemaphorePermit, time::timeout};

use crate::{
    call::{
        past::Consequence,
        relay::{Target, relay},
    },
    exchange::{Answer, Caller},
    shared::Shared,
    views::view::View,
};

/// Maximum time that a request waits for its turn to read.
const READ_WAIT: Duration = Duration::from_secs(10);
/// Maximum bytes of a result that `resources/read` returns.
const MAX_RESOURCE_BYTES: usize = 1 << 20;
/// Longer results are examined on a separate thread.
const MAX_INLINE_BYTES: usize = 64 << 10;
/// Random bytes in an id.
const ID_BYTES: usize = 15;
const MAX_ID_CHARS: usize = 64;

/// The bound on the results that this caller gets.
fn bound(view: &View, caller: &Caller) -> Option<usize> {
    view.max_result_tokens().filter(|_| !caller.wants_whole)
}

/// Relays a tool call. If its result is above the bound, the answer has a preview.
///
/// # Cancel safety
/// Dropping the future cancels the request at the server.
pub(crate) async fn call(
    shared: &Arc<Shared>,
    view: &View,
    caller: &Caller,
    frame: &Frame,
    target: Target,
) -> Answer {
    let consequence = Consequence::of(shared, view, caller, &target);
    let answer = relay(shared, caller, frame, target).await;
    if let Some(consequence) = consequence {
        consequence.note(shared, &answer);
    }
    let bound = bound(view, caller).filter(|most| answer.text.len() > *most);
    let compacts = view.compacts_results() && !caller.wants_whole;
    if bound.is_none() && !compacts {
        return answer;
    }
    // The view may have changed during the call.
    let view = shared.view(&caller.scope);
    let name = frame.param_string(Param::Name).unwrap_or_default();
    let tool = view.as_ref().and_then(|view| view.called_tool(&name));
    match tool.filter(|tool| is_for_models(&tool.item.raw)) {
        Some(tool) => {
            // The structured content of a tool with an App is for the App, which may read the text, too.
            let has_app = tool.has_app();
            let rules = Rules {
                bound: bound.unwrap_or(usize::MAX),
                keeps_structured: has_app,
                compacts: compacts && !has_app,
            };
            Box::pin(shortened(shared, caller, frame, answer, rules)).await
        }
        None => answer,
    }
}

/// Like [`call`], for the answer of a tool of the gateway.
pub(crate) async fn of_own(
    shared: &Arc<Shared>,
    view: &View,
    caller: &Caller,
    frame: &Frame,
    answer: Answer,
) -> Answer {
    match bound(view, caller) {
        Some(bound) if answer.text.len() > bound => {
            let rules = Rules {
                bound,
                keeps_structured: false,
                compacts: false,
            };
            Box::pin(shortened(shared, caller, frame, answer, rules)).await
        }
        _ => answer,
    }
}

/// How a result is changed.
#[derive(Clone, Copy)]
struct Rules {
    /// In tokens.
    bound: usize,
    keeps_structured: bool,
    compacts: bool,
}

/// A result after it was examined.
enum Examined {
    Unchanged,
    Compact(Bytes),
    Long(Box<Long>),
}

impl Rules {
    fn examine(self, response: Bytes) -> Examined {
        let long = |response: Bytes| Long::of(response, self.bound, self.keeps_structured);
        let compact = (self.compacts)
            .then(|| results::compacted(&response))
            .flatten();
        if let Some(compact) = compact
            && long(compact.clone()).is_none()
        {
            return Examined::Compact(compact);
        }
        // Offsets and paths are those of the text as the server sent it.
        long(response).map_or(Examined::Unchanged, |long| Examined::Long(Box::new(long)))
    }
}

async fn shortened(
    shared: &Arc<Shared>,
    caller: &Caller,
    frame: &Frame,
    answer: Answer,
    rules: Rules,
) -> Answer {
    if answer.code.is_some() || answer.shared.is_some() {
        return answer;
    }
    let (bytes, text) = (answer.text.len(), answer.text.clone());
    let long = match off_thread(bytes, move || rules.examine(text)).await {
        Some(Examined::Long(long)) => long,
        Some(Examined::Compact(text)) => return Answer { text, ..answer },
        Some(Examined::Unchanged) | None => return answer,
    };
    let settings = shared.fleet().settings.results.clone();
    let id = new_id();
    let kept = keep(shared, caller, &id, &long, &settings).await;
    let kept = kept.map(|()| (format!("{URI_PREFIX}{id}"), time(settings.keep)));
    let name = frame
        .param_string(Param::Name)
        .unwrap_or_default()
        .into_owned();
    let face = caller.session.as_ref().and_then(|session| session.face());
    // Links are newer than some clients.
    let has_links =
        caller.era == Era::Modern || face.is_none_or(|face| face.version >= Version::V2025_06_18);
    let shortening = move || long.preview(rules.bound, &name, has_links, kept);
    match off_thread(bytes, shortening).await {
        Some(text) => Answer { text, ..answer },
        None => answer,
    }
}

/// Runs something that takes long for long texts. `None` if it failed.
async fn off_thread<T: Send + 'static>(
    bytes: usize,
    run: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    match bytes <= MAX_INLINE_BYTES {
        true => Some(run()),
        false => tokio::task::spawn_blocking(run).await.ok(),
    }
}

/// Stores a result.
///
/// # Errors
/// Why it was not stored, for the model.
async fn keep(
    shared: &Shared,
    caller: &Caller,
    id: &str,
    long: &Long,
    settings: &model::ResultSettings,
) -> Result<(), String> {
    let new = NewResult {
        id,
        project: caller.scope.project.as_ref(),
        caller: &caller.principal,
        text: &long.text,
        structured: long.structured.as_deref(),
        expires_at: store::now() + settings.keep,
    };
    let room = ResultRoom {
        of_caller: settings.max_bytes as u64,
        in_total: settings.max_total_bytes as u64,
    };
    match shared.store.result_put(new, room).await {
        Ok(true) => Ok(()),
        Ok(false) => Err("the store for results is full".to_owned()),
        Err(error) => {
            tracing::warn!("a long result was not kept: {error}");
            Err("the database is not available".to_owned())
        }
    }
}

fn new_id() -> String {
    use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
    let random: [u8; ID_BYTES] = rand::random();
    URL_SAFE_NO_PAD.encode(random)
}

/// A time in words.
fn time(time: Duration) -> String {
    match time.as_secs() {
        seconds if seconds % 3_600 == 0 => format!("{} h", seconds / 3_600),
        seconds if seconds % 60 == 0 => format!("{} min", seconds / 60),
        seconds => format!("{seconds} s"),
    }
}

/// A result, and the permission to have it in memory.
struct Found<'s> {
    row: ResultRow,
    _permit: SemaphorePermit<'s>,
}

/// The caller's result with this URI.
///
/// # Errors
/// Why it cannot be read now.
async fn find<'s>(
    shared: &'s Shared,
    caller: &Caller,
    uri: &str,
) -> Result<Option<Found<'s>>, String> {
    let is_of_id = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    let id = uri.strip_prefix(URI_PREFIX);
    let id = id.filter(|id| (1..=MAX_ID_CHARS).contains(&id.len()) && id.bytes().all(is_of_id));
    let Some(id) = id else {
        return Ok(None);
    };
    let permit = timeout(READ_WAIT, shared.reads.acquire()).await;
    let Ok(Ok(permit)) = permit else {
        return Err("too many results are read at the same time: try again".to_owned());
    };
    let project = caller.scope.project.as_ref();
    let found = shared
        .store
        .result_get(project, &caller.principal, id)
        .await;
    let found = found.map_err(|error| {
        tracing::warn!("a long result cannot be read: {error}");
        "the result cannot be read now, because the database is not available: try again".to_owned()
    })?;
    Ok(found.map(|row| Found {
        row,
        _permit: permit,
    }))
}

/// Answers a call of `read_result`.
pub(crate) async fn read(
    shared: &Arc<Shared>,
    view: &View,
    caller: &Caller,
    frame: &Frame,
) -> Answer {
    match part(shared, view, caller, frame).await {
        Ok(text) => Answer::of_tool(frame, caller.era, &text, false),
        Err(why) => Answer::of_tool(frame, caller.era, &why, true),
    }
}

async fn part(
    shared: &Arc<Shared>,
    view: &View,
    caller: &Caller,
    frame: &Frame,
) -> Result<String, String> {
    let most = view.max_result_tokens();
    let most = most.ok_or("there are no long results: `max_result_tokens` is not set")?;
    let arguments = frame.param(Param::Arguments).map(|at| &frame.text()[at]);
    let arguments: Value = serde_json::from_slice(arguments.unwrap_or(b"{}"))
        .map_err(|error| format!("the arguments are invalid: {error}"))?;
    let uri = arguments.get("uri").and_then(Value::as_str);
    let uri = uri.ok_or("read_result needs `uri`, the URI in the note of a shortened result")?;
    let Some(Found { row, _permit }) = find(shared, caller, uri).await? else {
        let shown: String = uri.chars().take(100).collect();
        return Err(format!(
            "There is no result {shown} (any more). Call the tool again to get its result."
        ));
    };
    let bytes = row.text.len();
    let reading = move || {
        let (text, structured) = (utf8(row.text), row.structured.map(utf8));
        let document = Document {
            structured: structured.as_deref(),
            ..Document::of(&text)
        };
        results::read(&document, &arguments, Bound::Tokens(most))
    };
    let read = off_thread(bytes, reading).await;
    read.unwrap_or_else(|| Err("the result could not be read".to_owned()))
}

fn utf8(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes)
        .unwrap_or_else(|invalid| String::from_utf8_lossy(invalid.as_bytes()).into_owned())
}

/// The URI of a long result that a request reads.
pub(crate) fn asked(view: &View, frame: &Frame) -> Option<String> {
    view.max_result_tokens()?;
    let uri = frame.param_string(Param::Uri)?;
    uri.starts_with(URI_PREFIX).then(|| uri.into_owned())
}

/// Answers `resources/read` of a long result.
///
/// # Errors
/// The caller has no such result, or it is too long to be read at once.
pub(crate) async fn resource(
    shared: &Arc<Shared>,
    view: &View,
    caller: &Caller,
    frame: &Frame,
    uri: &str,
) -> Result<Answer, RpcError> {
    let found = find(shared, caller, uri).await;
    let Some(Found { row, _permit }) = found.map_err(RpcError::internal)? else {
        let code = match caller.era {
            Era::Modern => error::INVALID_PARAMS,
            Era::Legacy => error::RESOURCE_NOT_FOUND,
        };
        let shown: String = uri.chars().take(200).collect();
        return Err(RpcError::new(code, "Resource not found")
            .with_data(format!("{{\"uri\":{}}}", quote(&shown)).into_bytes()));
    };
    let bytes = row.text.len() + row.structured.as_ref().map_or(0, Vec::len);
    if bytes > MAX_RESOURCE_BYTES {
        return Err(RpcError::invalid_params(format!(
            "the result has {bytes} bytes, and {MAX_RESOURCE_BYTES} can be read at once: read parts of it with the tool \
             {}",
            results::READ_RESULT
        )));
    }
    let left = (row.expires_at - store::now()).num_milliseconds();
    let members = match caller.era {
        Era::Modern => format!(
            "{},",
            view.modern_members(u64::try_from(left).unwrap_or(0), None)
        ),
        Era::Legacy => String::new(),
    };
    let uri = quote(uri);
    let text = utf8(row.text);
    let mime = mime_of(&text);
    let mut contents = format!(
        "{{\"uri\":{uri},\"mimeType\":\"{mime}\",\"text\":{}}}",
        quote(&text)
    );
    if let Some(structured) = row.structured {
        let text = quote(&utf8(structured));
        contents.push_str(&format!(
            ",{{\"uri\":{uri},\"mimeType\":\"application/json\",\"text\":{text}}}"
        ));
    }
    let result = format!("{{{members}\"contents\":[{contents}]}}");
    Ok(Answer::result(frame, result.as_bytes()))
}
