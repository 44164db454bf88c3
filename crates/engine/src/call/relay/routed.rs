//! Finds the name or URI that a request is routed by.

use std::borrow::Cow;

use mcp::{
    Frame,
    frame::Param,
    json::{Span, as_string},
    protocol::method,
};

/// The position of the name or URI that a request is routed by.
pub(crate) fn routed_span(frame: &Frame) -> Option<Span> {
    match frame.method() {
        method::TOOLS_CALL | method::PROMPTS_GET => frame.param(Param::Name),
        method::RESOURCES_READ
        | method::RESOURCES_SUBSCRIBE
        | method::RESOURCES_UNSUBSCRIBE
        | method::SKILLS_GET
        | method::DIRECTORY_READ => frame.param(Param::Uri),
        method::COMPLETE => {
            let reference = frame.object()?.object("ref")?;
            reference.find("uri").or_else(|| reference.find("name"))
        }
        _ => None,
    }
}

/// The string at a span.
pub(crate) fn string_at(frame: &Frame, span: &Span) -> Option<String> {
    as_string(&frame.text()[span.clone()]).map(Cow::into_owned)
}
