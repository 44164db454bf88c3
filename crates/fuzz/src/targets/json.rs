//! The JSON scan: it accepts what serde_json accepts, reports the members that walks find, and edits keep texts valid.

use std::borrow::Cow;

use bytes::Bytes;
use mcp::json::{self, Fault, Object, Span, Splice};
use serde_json::Value;

pub(crate) const WORDS: &[&str] = &[
    "true",
    "false",
    "null",
    "\"a\":",
    "\"\\u0061\":",
    "\\ud83d\\ude00",
    "\\/",
    "[[",
    "]]",
    "{\"",
    "\"}",
    "1.5e-7",
    "-0",
    "\u{7f}",
    "é",
    "😀",
];

const MAX_DEPTH: usize = 64;

pub(crate) fn run(input: &[u8]) {
    let text = Bytes::copy_from_slice(input);
    never_panics(&text);
    let ours = json::validate(&text, MAX_DEPTH);
    let theirs = serde_json::from_slice::<Value>(&json::without_lone_surrogates(&text));
    let is_out_of_range = |error: &serde_json::Error| error.to_string().contains("out of range");
    match &ours {
        Ok(()) => {
            assert!(
                theirs.is_ok() || theirs.as_ref().is_err_and(is_out_of_range),
                "only ours accepts it: {theirs:?}"
            );
            valid(&text);
            // serde_json cannot tell lone surrogates apart.
            let has_lone = matches!(json::without_lone_surrogates(&text), Cow::Owned(_));
            if let Some(value) = theirs.ok().filter(|_| !has_lone) {
                assert_eq!(count(&value), walked(&text, json::trimmed(&text), 0));
                same(&text, &value);
            }
        }
        Err(Fault::DuplicateKey(_)) => {
            assert!(theirs.is_ok() || theirs.is_err_and(|error| is_out_of_range(&error)));
        }
        // serde_json's own limit is 128 levels.
        Err(Fault::Depth(_)) => {}
        Err(fault) => assert!(theirs.is_err(), "only theirs accepts it: {fault}"),
    }
}

/// The functions for texts that may be invalid.
fn never_panics(text: &Bytes) {
    let whole = 0..text.len();
    for member in json::members(text, whole.clone()) {
        let _ = json::unescape(&text[member.key]);
        let _ = &text[member.value];
    }
    for element in json::elements(text, whole) {
        assert!(!text[element].is_empty());
    }
    let _ = json::decode(text);
    let shown = json::excerpt(text);
    assert!(shown.chars().count() <= 201 && !shown.contains(char::is_control));
    let replaced = json::without_lone_surrogates(text);
    let again = json::without_lone_surrogates(&replaced);
    assert!(
        matches!(again, Cow::Borrowed(_)),
        "a lone surrogate was left"
    );
}

fn valid(text: &Bytes) {
    let line = json::one_line(text);
    assert!(!line.contains(&b'\n') && !line.contains(&b'\r'));
    json::validate(&line, MAX_DEPTH).expect("a text on one line");
    // Spans reported by the scan are those of the walks.
    let mut heard = Vec::new();
    let outlined = json::outline(text, MAX_DEPTH, |parent, key, value| {
        heard.push((parent.map(<[u8]>::to_vec), key.to_vec(), value));
    });
    outlined.expect("the same text");
    let mut found = Vec::new();
    let whole = json::trimmed(text);
    for outer in json::members(text, whole.clone()) {
        let parent = &text[outer.key.clone()];
        for inner in json::members(text, outer.value.clone()) {
            let key = text[inner.key].to_vec();
            found.push((Some(parent.to_vec()), key, inner.value));
        }
        found.push((None, parent.to_vec(), outer.value));
    }
    assert_eq!(heard, found);
    let Some(object) = Object::of(text) else {
        return;
    };
    for member in object.members().take(20) {
        let mut splice = Splice::new();
        splice.remove(text, &object.span(), &member.value);
        splice.insert(text, &object.span(), "\"\\u0001fuzz\":{\"a\":[]}");
        // The first member cannot be removed and preceded by another in one edit.
        let first = object.members().next().map(|first| first.value);
        if first != Some(member.value.clone()) {
            json::validate(&splice.apply(text), MAX_DEPTH + 2).expect("an edited text");
        }
        let mut splice = Splice::new();
        splice.replace(member.value.clone(), &b"\"x\""[..]);
        let replaced = splice.apply(text);
        json::validate(&replaced, MAX_DEPTH).expect("a text with another value");
        if let Some(key) = json::decode(&text[member.key]) {
            let raw = Object::of(&replaced).and_then(|object| object.raw(&key));
            assert_eq!(raw, Some(&b"\"x\""[..]));
        }
    }
}

/// The number of values in a value, itself included.
fn count(value: &Value) -> usize {
    1 + match value {
        Value::Array(items) => items.iter().map(count).sum(),
        Value::Object(members) => members.values().map(count).sum(),
        _ => 0,
    }
}

/// The same by walking the text.
fn walked(text: &[u8], at: Span, depth: usize) -> usize {
    assert!(depth <= MAX_DEPTH);
    let members = json::members(text, at.clone()).map(|member| member.value);
    let inner = members.chain(json::elements(text, at));
    1 + inner.map(|at| walked(text, at, depth + 1)).sum::<usize>()
}

/// Strings and keys are decoded as serde_json does.
fn same(text: &[u8], value: &Value) {
    let raw = &text[json::trimmed(text)];
    if let Value::String(expected) = value
        && let Some(decoded) = json::as_string(raw)
    {
        assert_eq!(decoded, *expected);
    }
    let Some(object) = Object::of(text) else {
        return;
    };
    for (key, value) in value.as_object().into_iter().flatten() {
        match (object.string(key), value) {
            (Some(found), Value::String(expected)) => assert_eq!(found, *expected),
            (Some(found), other) => panic!("{found:?} instead of {other}"),
            (None, Value::String(lost)) => panic!("{lost:?} was not found"),
            (None, _) => {}
        }
    }
}
