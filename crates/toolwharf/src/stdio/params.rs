//! `Mcp-Param-*`: arguments that a tool's definition mirrors into headers, for calls that arrive without headers.
//!
//! The tool list says which arguments these are, and the client may have it from an earlier connection. So the
//! definition is fetched when the gateway reports missing headers, and cached until the next such report. Such a call
//! can be sent again, because the gateway refused it before it was carried out.

use std::{collections::HashMap, sync::Arc};

use bytes::Bytes;
use http::HeaderValue;
use mcp::{
    Frame, Kind, RpcError,
    client::http::{HeaderList, Reply},
    error,
    frame::Param,
    headers::{ParamHeaders, mcp_name},
    json::{self, Object, quote},
    protocol::{meta, method},
    server::modern,
};

use super::link::{Life, MAX_DEPTH, OWN_ID, message};
use parking_lot::Mutex;

/// Maximum tools whose headers are cached.
const MAX_TOOLS: usize = 1024;
/// Maximum pages of the list that are searched.
const MAX_PAGES: usize = 64;

/// The arguments that each tool mirrors into headers, by tool name.
#[derive(Default)]
pub(super) struct Params(Mutex<HashMap<String, Arc<ParamHeaders>>>);

impl Params {
    /// Returns the headers of a call. Empty if the tool's definition is not cached.
    pub(super) fn of(&self, call: &Frame) -> HeaderList {
        let Some(name) = call.param_string(Param::Name) else {
            return HeaderList::new();
        };
        let known = self.0.lock();
        let known = known.get(&*name).cloned();
        known.map_or_else(HeaderList::new, |known| extract(&known, call))
    }

    /// Fetches the tool's definition. Returns `true` if the call then has other headers than before.
    pub(super) async fn learn(&self, life: &Arc<Life>, call: &Frame) -> bool {
        let Some(name) = call.param_string(Param::Name) else {
            return false;
        };
        let before = self.of(call);
        let Some(found) = definition(life, call, &name).await else {
            return false;
        };
        let after = extract(&found, call);
        let mut known = self.0.lock();
        if known.len() >= MAX_TOOLS {
            known.clear();
        }
        known.insert(name.into_owned(), Arc::new(found));
        after != before
    }
}

fn extract(known: &ParamHeaders, call: &Frame) -> HeaderList {
    let arguments = call.param(Param::Arguments);
    known.extract(arguments.map(|span| &call.text()[span]))
}

/// The headers that a tool's definition requires.
async fn definition(life: &Arc<Life>, call: &Frame, name: &str) -> Option<ParamHeaders> {
    let meta = call.meta()?.span();
    let meta = std::str::from_utf8(&call.text()[meta]).ok()?;
    let mut cursor = String::new();
    for _ in 0..MAX_PAGES {
        let params = format!("{{\"_meta\":{meta}{cursor}}}");
        let list = Frame::request(OWN_ID, method::TOOLS_LIST, Some(params.as_bytes()));
        let headers = modern_headers(&list).ok()?;
        let reply = life.post(headers, list.text().clone(), false).await.ok()?;
        let answer = if reply.is_stream() {
            last(reply).await?
        } else {
            Frame::parse(reply.whole().await.ok()?, MAX_DEPTH).ok()?
        };
        let result = answer.object().filter(|_| answer.kind() == Kind::Result)?;
        let text: &Bytes = answer.text();
        for tool in json::elements(text, result.find("tools")?) {
            let is_it = Object::at(text, tool.clone())
                .and_then(|tool| tool.string("name"))
                .is_some_and(|own| own == name);
            if is_it {
                return ParamHeaders::from_tool(&text[tool]).ok();
            }
        }
        cursor = format!(",\"cursor\":{}", quote(&result.string("nextCursor")?));
    }
    None
}

/// The response at the end of a stream.
async fn last(mut reply: Reply) -> Option<Frame> {
    while let Some(event) = reply.event().await.ok()? {
        if let Some(frame) = message(&event)
            && frame.is_response()
        {
            return Some(frame);
        }
    }
    None
}

/// The headers that mirror parts of a modern message (2026-07-28 basic/transports/streamable-http "Request Metadata").
///
/// # Errors
/// If its method or version cannot be sent in a header.
pub(super) fn modern_headers(frame: &Frame) -> Result<HeaderList, RpcError> {
    let mut headers = HeaderList::with_capacity(4);
    let wrong = |what: &str| {
        RpcError::new(
            error::INVALID_REQUEST,
            format!("Invalid request: {what} contains a character that HTTP headers do not allow"),
        )
    };
    let version = frame
        .meta()
        .and_then(|own| own.string(meta::PROTOCOL_VERSION));
    if let Some(version) = version {
        let version = HeaderValue::from_str(&version).map_err(|_| wrong("the protocol version"))?;
        headers.push((modern::PROTOCOL_VERSION, version));
    }
    let method = HeaderValue::from_str(frame.method()).map_err(|_| wrong("the method"))?;
    headers.push((modern::METHOD, method));
    let member = match frame.method() {
        method::TOOLS_CALL | method::PROMPTS_GET => "name",
        method::RESOURCES_READ => "uri",
        "tasks/get" | "tasks/update" | "tasks/cancel" => "taskId",
        _ => return Ok(headers),
    };
    let name = frame.object().and_then(|params| params.string(member));
    headers.extend(name.map(|name| (modern::NAME, mcp_name(&name))));
    Ok(headers)
}
