//! Checks that show the whole text, object or response when they fail. Call them as `checks::contains`.

use std::fmt::Display;

use serde_json::Value;
use testkit::Reply;

/// Asserts that a text contains all parts.
#[track_caller]
pub(crate) fn contains(text: impl Display, parts: &[&str]) {
    let text = text.to_string();
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
}

/// Asserts that a text contains none of the parts.
#[track_caller]
pub(crate) fn lacks(text: impl Display, parts: &[&str]) {
    let text = text.to_string();
    for part in parts {
        assert!(!text.contains(part), "{part:?} is in {text}");
    }
}

/// Asserts that a value is a string that contains all parts.
#[track_caller]
pub(crate) fn string(value: &Value, parts: &[&str]) {
    let text = value.as_str();
    contains(text.unwrap_or_else(|| panic!("no string: {value}")), parts);
}

/// Asserts that an object has these members, with these values. A missing member counts as null.
#[track_caller]
pub(crate) fn members(object: &Value, members: Value) {
    for (key, value) in members.as_object().expect("an object") {
        assert_eq!(&object[key], value, "`{key}` of {object:#}");
    }
}

/// Asserts the status of a response, and that its body contains all parts.
#[track_caller]
pub(crate) fn reply(reply: &Reply, status: u16, parts: &[&str]) {
    assert_eq!(reply.status, status, "{}", reply.text());
    contains(reply.text(), parts);
}
