//! Tasks in the format of either era: 2025-11-25 basic/utilities/tasks, and the extension of 2026-07-28 (SEP-2663).
//!
//! Pure functions. Values are copied unchanged; only keys differ between the eras. Deliberately absent: the owner and
//! location of a task.

use memchr::memmem::Finder;

use crate::{
    Era, Frame, RpcError, error, extensions,
    json::{self, Object, Splice, quote},
};

pub const GET: &str = "tasks/get";
pub const RESULT: &str = "tasks/result";
pub const LIST: &str = "tasks/list";
pub const CANCEL: &str = "tasks/cancel";
pub const UPDATE: &str = "tasks/update";
/// `notifications/tasks/status` of a legacy server.
pub const STATUS: &str = "notifications/tasks/status";
/// `notifications/tasks` of a modern one.
pub const STATUS_MODERN: &str = "notifications/tasks";

/// The `_meta` key that names a message's task.
pub const RELATED: &str = "io.modelcontextprotocol/related-task";

/// The legacy server capability.
pub const CAPABILITY: &str =
    "\"tasks\":{\"list\":{},\"cancel\":{},\"requests\":{\"tools\":{\"call\":{}}}}";

/// The id of the task that a tool call created, if its result says so.
#[must_use]
pub fn created(result: &Frame, era: Era) -> Option<String> {
    let object = result.object()?;
    let id = match era {
        Era::Legacy => object.object("task")?.string("taskId"),
        Era::Modern if object.string("resultType").as_deref() == Some("task") => {
            object.string("taskId")
        }
        Era::Modern => None,
    };
    id.map(std::borrow::Cow::into_owned)
}

/// The members of a task in the format of era `to`, with the id `id` and, if given, another status. Without braces, and
/// without members that exist in one era only.
#[must_use]
pub fn members(text: &[u8], task: &Object<'_>, to: Era, id: &str, status: Option<&str>) -> String {
    let mut out = format!("\"taskId\":{}", quote(id));
    let ttl = match to {
        Era::Legacy => "ttl",
        Era::Modern => "ttlMs",
    };
    let mut has_ttl = false;
    for member in task.members() {
        let raw = &text[member.key];
        let name = json::unescape(raw);
        let key = match (&*name, to) {
            (
                "taskId" | "result" | "error" | "inputRequests" | "requestState" | "resultType"
                | "cacheScope" | "_meta",
                _,
            ) => continue,
            ("ttlMs" | "ttl", _) => ttl,
            ("pollIntervalMs", Era::Legacy) => "pollInterval",
            ("pollInterval", Era::Modern) => "pollIntervalMs",
            _ => "",
        };
        has_ttl |= key == ttl;
        let key = match key {
            "" => String::from_utf8_lossy(raw),
            renamed => renamed.into(),
        };
        let value = match status {
            Some(status) if name == "status" => quote(status),
            _ => String::from_utf8_lossy(&text[member.value]).into_owned(),
        };
        out.push_str(&format!(",\"{key}\":{value}"));
    }
    if !has_ttl {
        out.push_str(&format!(",\"{ttl}\":null"));
    }
    out
}

/// The result that tells a client of era `to` that its call became a task.
#[must_use]
pub fn creation(result: &Frame, from: Era, to: Era, id: &str) -> Option<String> {
    let object = result.object()?;
    let task = match from {
        Era::Legacy => object.object("task")?,
        Era::Modern => object,
    };
    let members = members(result.text(), &task, to, id, None);
    let meta = object.raw("_meta").map_or_else(String::new, |own| {
        format!(",\"_meta\":{}", String::from_utf8_lossy(own))
    });
    Some(match to {
        Era::Legacy => format!("{{\"task\":{{{members}}}{meta}}}"),
        Era::Modern => format!("{{\"resultType\":\"task\",{members}{meta}}}"),
    })
}

/// Replaces a task's id everywhere in a result or message.
pub fn rename(frame: &Frame, id: &str, splice: &mut Splice<'_>) {
    let Some(object) = frame.object() else { return };
    let related = object
        .object("_meta")
        .and_then(|own| own.object(RELATED)?.find("taskId"));
    let nested = object.object("task").and_then(|task| task.find("taskId"));
    for span in [object.find("taskId"), nested, related]
        .into_iter()
        .flatten()
    {
        splice.replace(span, quote(id).into_bytes());
    }
}

/// Adds the related task to the `_meta` of an object (JSON text).
#[must_use]
pub fn related(object: &[u8], id: &str) -> Vec<u8> {
    let task = format!("{{\"taskId\":{}}}", quote(id));
    let wrapped = format!("{{{}:{task}}}", quote(RELATED));
    let Some(own) = Object::of(object) else {
        return format!("{{\"_meta\":{wrapped}}}").into_bytes();
    };
    let mut splice = Splice::new();
    match own.object("_meta") {
        Some(meta) => match meta.object(RELATED).and_then(|known| known.find("taskId")) {
            Some(known) => splice.replace(known, quote(id).into_bytes()),
            None => splice.set(object, &meta, RELATED, task),
        },
        None => splice.set(object, &own, "_meta", wrapped),
    };
    let whole = own.span();
    splice.apply_within(object, whole).to_vec()
}

/// Removes the related task from a result (JSON text) that is nested in that task.
#[must_use]
pub fn unrelated(result: &[u8]) -> Vec<u8> {
    let own = Object::of(result).and_then(|result| result.object("_meta"));
    let related = own.as_ref().and_then(|own| own.find(RELATED));
    let (Some(own), Some(related)) = (own, related) else {
        return result.to_vec();
    };
    let mut splice = Splice::new();
    splice.remove(result, &own.span(), &related);
    splice.apply_within(result, json::trimmed(result)).to_vec()
}

/// The error for a modern client that did not declare the extension it needs (SEP-2663 "Error Handling").
#[must_use]
pub fn missing(what: &str) -> RpcError {
    let data = format!(
        "{{\"requiredCapabilities\":{{\"extensions\":{{\"{}\":{{}}}}}}}}",
        extensions::TASKS
    );
    let message = format!(
        "Missing required client capability: {what} needs the extension `{}`",
        extensions::TASKS
    );
    RpcError::new(error::MISSING_CAPABILITY, message).with_data(data.into_bytes())
}

/// Reads `execution.taskSupport` of a tool (JSON text).
#[must_use]
pub fn support(tool: &[u8]) -> Support {
    if Finder::new("taskSupport").find(tool).is_none() {
        return Support::None;
    }
    let execution = Object::of(tool).and_then(|tool| tool.object("execution"));
    match execution
        .and_then(|own| own.string("taskSupport"))
        .as_deref()
    {
        Some("required") => Support::Required,
        Some("optional") => Support::Optional,
        _ => Support::None,
    }
}

/// How a legacy tool may be called: `Required` means only as a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Support {
    None,
    Optional,
    Required,
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn frame(text: &'static str) -> Frame {
        Frame::parse(Bytes::from_static(text.as_bytes()), 64).expect(text)
    }

    #[test]
    fn g15_tasks_are_named_as_each_era_names_them() {
        let modern = frame(
            r#"{"jsonrpc":"2.0","id":1,"result":{"resultType":"task","taskId":"n","status":"working","createdAt":"c","lastUpdatedAt":"l","ttlMs":1000,"pollIntervalMs":5,"x":{"y":1e3}}}"#,
        );
        let legacy = frame(
            r#"{"jsonrpc":"2.0","id":1,"result":{"task":{"taskId":"n","status":"working","createdAt":"c","lastUpdatedAt":"l","ttl":1000,"pollInterval":5,"x":{"y":1e3}},"_meta":{"a":1}}}"#,
        );
        assert_eq!(created(&modern, Era::Modern).as_deref(), Some("n"));
        assert_eq!(created(&legacy, Era::Legacy).as_deref(), Some("n"));
        assert_eq!(created(&legacy, Era::Modern), None);
        assert_eq!(
            creation(&modern, Era::Modern, Era::Legacy, "e").as_deref(),
            Some(
                r#"{"task":{"taskId":"e","status":"working","createdAt":"c","lastUpdatedAt":"l","ttl":1000,"pollInterval":5,"x":{"y":1e3}}}"#
            )
        );
        assert_eq!(
            creation(&legacy, Era::Legacy, Era::Modern, "e").as_deref(),
            Some(
                r#"{"resultType":"task","taskId":"e","status":"working","createdAt":"c","lastUpdatedAt":"l","ttlMs":1000,"pollIntervalMs":5,"x":{"y":1e3},"_meta":{"a":1}}"#
            )
        );
        let mut splice = Splice::new();
        rename(&legacy, "e", &mut splice);
        assert!(
            splice
                .apply(legacy.text())
                .starts_with(br#"{"jsonrpc":"2.0","id":1,"result":{"task":{"taskId":"e","status""#)
        );
        assert_eq!(
            String::from_utf8_lossy(&related(br#"{"content":[]}"#, "e")),
            r#"{"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"e"}},"content":[]}"#
        );
        for odd in ["null", r#"{"io.modelcontextprotocol/related-task":7}"#] {
            let object = format!(r#"{{"_meta":{odd}}}"#);
            assert_eq!(
                String::from_utf8_lossy(&related(object.as_bytes(), "e")),
                r#"{"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"e"}}}"#
            );
        }
        let whole = br#"{"content":[],"_meta":{"a":1,"io.modelcontextprotocol/related-task":{"taskId":"e"}}}"#;
        assert_eq!(
            String::from_utf8_lossy(&unrelated(whole)),
            r#"{"content":[],"_meta":{"a":1}}"#
        );
    }
}
