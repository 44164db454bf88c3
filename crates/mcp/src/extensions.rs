//! Extensions declared in the capabilities of clients and servers (2026-07-28 basic "Extension Negotiation").
//!
//! Pure functions over capabilities as JSON text, without any knowledge of what an extension means.

use std::borrow::Cow;

use crate::json::{Object, Splice, quote};

/// The tasks extension (SEP-2663).
pub const TASKS: &str = "io.modelcontextprotocol/tasks";
/// MCP Apps (SEP-1865).
pub const UI: &str = "io.modelcontextprotocol/ui";
/// The skills extension (SEP-2640).
pub const SKILLS: &str = "io.modelcontextprotocol/skills";

/// The settings of the extension `name` in `capabilities`: JSON text.
#[must_use]
pub fn settings<'t>(capabilities: &'t [u8], name: &str) -> Option<&'t [u8]> {
    Object::of(capabilities)?.object("extensions")?.raw(name)
}

/// Returns true if `capabilities` declare the extension `name`.
#[must_use]
pub fn declares(capabilities: &[u8], name: &str) -> bool {
    settings(capabilities, name).is_some()
}

/// Adds the extension `name` to `capabilities`, with `settings` as JSON text. An existing declaration is kept.
#[must_use]
pub fn with<'t>(capabilities: &'t [u8], name: &str, settings: &str) -> Cow<'t, [u8]> {
    let Some(object) = Object::of(capabilities) else {
        return Cow::Borrowed(capabilities);
    };
    let member = format!("{}:{settings}", quote(name));
    let mut splice = Splice::new();
    match object.object("extensions") {
        Some(own) if own.find(name).is_some() => return Cow::Borrowed(capabilities),
        Some(own) => splice.insert(capabilities, &own.span(), member),
        None => match object.find("extensions") {
            Some(odd) => splice.replace(odd, format!("{{{member}}}").into_bytes()),
            None => splice.insert(
                capabilities,
                &object.span(),
                format!("\"extensions\":{{{member}}}"),
            ),
        },
    };
    let whole = object.span();
    Cow::Owned(splice.apply_within(capabilities, whole).to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extensions_are_added_once() {
        for (before, after) in [
            ("{}", r#"{"extensions":{"x":{}}}"#),
            (r#"{"roots":{}}"#, r#"{"extensions":{"x":{}},"roots":{}}"#),
            (
                r#"{"extensions":{"y":{"a":1}}}"#,
                r#"{"extensions":{"x":{},"y":{"a":1}}}"#,
            ),
            (
                r#"{"extensions":{"x":{"a":1}}}"#,
                r#"{"extensions":{"x":{"a":1}}}"#,
            ),
            (r#"{"extensions":null}"#, r#"{"extensions":{"x":{}}}"#),
        ] {
            let found = with(before.as_bytes(), "x", "{}");
            assert_eq!(String::from_utf8_lossy(&found), after, "{before}");
            assert!(declares(&found, "x"));
        }
    }
}
